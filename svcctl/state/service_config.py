"""`config`: the settings of the balancer, and the counts and times that go with the services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.maps.service_layouts import CONFIG

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import Config
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

_KEY = bytes(4)


def read_service_config(state: State) -> Config:
    """The record. There must be service maps."""
    return CONFIG.unpack(state.map("config").lookup(_KEY) or bytes(CONFIG.size))


def put_service_config(writer: Writer, wanted: Config) -> None:
    """Make the record so. Inside `changing()`."""
    writer.map("config").update(_KEY, CONFIG.pack(wanted))


def change_service_config(writer: Writer, **fields: Any) -> None:
    """Change fields of it. Inside `changing()`."""
    put_service_config(writer, read_service_config(writer)._replace(**fields))
