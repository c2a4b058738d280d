"""The settings of flows: in force in `packet_config`, kept in `meta`, where `load` puts them before there is one."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from svcctl.maps import catalog
from svcctl.maps.packet_layouts import PACKET_CONFIG, TUNNEL_PORT, PacketConfig

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from svcctl.maps.layouts import Meta
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

DEFAULTS = PacketConfig(
    flags=0,
    syn_ms=20_000,
    established_ms=3_600_000,
    fins_ms=120_000,
    reset_ms=40_000,
    after_reset_ms=120_000,
    udp_ms=60_000,
    fragment_ms=30_000,
    first_port=20_000,
    ports=10_000,
    tunnel_port=TUNNEL_PORT,
)
"""What a new packet path has if nobody said otherwise."""
TIMEOUTS = {
    "syn": "syn_ms",
    "established": "established_ms",
    "fins": "fins_ms",
    "reset": "reset_ms",
    "after-reset": "after_reset_ms",
    "udp": "udp_ms",
    "fragment": "fragment_ms",
}
"""Names of the idle times on the command line -> fields of the settings; in the order of both structs."""
_KEPT = Struct("=7I")


def read_config(state: State) -> PacketConfig:
    """The settings as they are."""
    data = state.map("packet_config").lookup(bytes(4))
    return PACKET_CONFIG.unpack(data or bytes(PACKET_CONFIG.size))


def put_config(writer: Writer, config: PacketConfig) -> None:
    """Write the settings. Inside `changing()`."""
    writer.map("packet_config").update(bytes(4), PACKET_CONFIG.pack(config))


def new_config(meta: Meta) -> PacketConfig:
    """The settings that a new packet path gets."""
    times = zip(TIMEOUTS.values(), _KEPT.unpack(meta.idle_ms), strict=True)
    fields: dict[str, Any] = {field: ms for field, ms in times if ms}
    return DEFAULTS._replace(**fields)


def config_of(state: State) -> PacketConfig:
    """The settings as they are, or will be."""
    return read_config(state) if state.has_half(catalog.PACKETS) else new_config(state.meta())


def with_timeouts(config: PacketConfig, timeouts: Iterable[tuple[str, int]]) -> PacketConfig:
    """Settings with some (name, milliseconds) changed."""
    fields: dict[str, Any] = {TIMEOUTS[name]: ms for name, ms in timeouts}
    return config._replace(**fields)


def timeouts_of(config: PacketConfig) -> dict[str, float]:
    """Seconds by name."""
    return {name: getattr(config, field) / 1000 for name, field in TIMEOUTS.items()}


def kept(config: PacketConfig) -> bytes:
    """What `meta` keeps of them."""
    return _KEPT.pack(*(getattr(config, field) for field in TIMEOUTS.values()))


def timeout_changes(old: PacketConfig, new: PacketConfig) -> str:
    """`udp 60 s -> 30 s`; empty when they are the same."""
    before, after = timeouts_of(old), timeouts_of(new)
    return ", ".join(
        f"{name} {seconds:g} s -> {after[name]:g} s"
        for name, seconds in before.items()
        if seconds != after[name]
    )
