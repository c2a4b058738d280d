"""A note that UDP flows of backends that left are still to be ended, for the apply after one that died before it could.

Only the command that takes a backend out of a service knows that it was in. So the note is made before that, with the
same mark, and cleared once the flows have been ended; who finds it looks for all flows to backends that nobody has, or
that are down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.model.service_endpoint import DOWN, Backend
from svcctl.state.service_config import change_service_config, read_service_config

if TYPE_CHECKING:
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


def flows_left(state: State) -> bool:
    """Whether there is the note."""
    return state.has_half(catalog.BALANCER) and bool(
        read_service_config(state).flags & enums.CONFIG_FLOWS_LEFT
    )


def note_flows(writer: Writer, left: bool) -> None:
    """Make the note, or clear it. Writes nothing if it is so already."""
    now = read_service_config(writer).flags
    flags = now | enums.CONFIG_FLOWS_LEFT if left else now & ~enums.CONFIG_FLOWS_LEFT
    if flags != now:
        with writer.changing():
            change_service_config(writer, flags=flags)


def backends_nobody_has(state: State) -> dict[int, set[Backend]]:
    """Service id -> the backends that are down, and those that sockets were given for it and that it does not have."""
    from svcctl.state.remembered import all_entries
    from svcctl.state.services import read_all

    have: dict[int, set[tuple[bytes, int]]] = {}
    found: dict[int, set[Backend]] = {}
    for one in read_all(state).values():
        have[one.service.id] = {member.backend[1:] for member in one.service.members}
        down = {member.backend for member in one.service.members if member.state == DOWN}
        if down:
            found[one.service.id] = down
    for _, entry in all_entries(state):
        place = (entry.backend_address, entry.backend_port)
        if place not in have.get(entry.service, ()):
            backend = Backend(codec.family_of(entry.backend_address), *place)
            found.setdefault(entry.service, set()).add(backend)
    return found
