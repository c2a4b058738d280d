"""What is noted of the node itself for `svcctl health`: whether balancers may use it, and changes that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.maps.layouts import text
from svcctl.maps.service_layouts import SERVICE
from svcctl.model.health import Health, faults, ports_of
from svcctl.state.collect import recorded_attachments
from svcctl.state.service_config import put_service_config, read_service_config

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import Config
    from svcctl.model.health import ServiceHealth
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


def needs_note(state: State, *, eligible: bool | None = None, pending_ns: int | None = None) -> bool:
    """Whether `note_node` would write anything."""
    now = read_service_config(state)
    return _noted(now, eligible, pending_ns) != now


def note_node(writer: Writer, *, eligible: bool | None = None, pending_ns: int | None = None) -> bool:
    """Note what is given, if it is not so already; whether anything was written."""
    now = read_service_config(writer)
    wanted = _noted(now, eligible, pending_ns)
    if wanted == now:
        return False
    with writer.changing():
        put_service_config(writer, wanted)
    return True


def _noted(now: Config, eligible: bool | None, pending_ns: int | None) -> Config:
    if eligible is not None:
        bit = enums.CONFIG_NOT_ELIGIBLE
        now = now._replace(flags=now.flags & ~bit if eligible else now.flags | bit)
    return now if pending_ns is None else now._replace(pending_ns=pending_ns)


def read_health(state: State) -> Health:
    """All that `svcctl health` answers from. As a member of the state's group; no walk but over the services."""
    meta = state.meta()
    ports: dict[int, ServiceHealth] = {}
    eligible, pending = True, 0.0
    if state.has_map(catalog.BALANCER.marker):
        values = (SERVICE.unpack(data) for _, data in state.map("services").items())
        ports = ports_of((text(one.name), one.health_port, one.local_ready) for one in values)
        config = read_service_config(state)
        eligible, pending = not config.flags & enums.CONFIG_NOT_ELIGIBLE, config.pending_ns / 1e9
    return Health(ports, eligible, pending, meta.mark_time_ns / 1e9, read_fault(state))


def read_fault(state: State) -> str:
    """What keeps the node from serving: programs that are not attached, a balancer that is nowhere; empty: nothing.

    An interface that went, as one does with its container, is no fault: its record stays until somebody looks.
    """
    rows = recorded_attachments(state)
    if any(one.kind == "dev" and not one.up for one in rows):
        from svcctl.host.devices import devices
        from svcctl.state.devices import find_gone

        gone = {index for index, _ in find_gone(state, devices(state.netns))}
        rows = [one for one in rows if one.kind != "dev" or one.target not in gone]
    text = faults((f"{one.program} ({one.hook})", one.up) for one in rows)
    if text or not state.has_half(catalog.BALANCER):
        return text
    from svcctl.state.condition import fault

    return fault(state) or ""
