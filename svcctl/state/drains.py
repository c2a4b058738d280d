"""Drains with an end: `backend drain --after`, carried out by the next command on services, or by `gc`.

`config.drain_ns` says when the first one ends, so that looking costs one look-up however many services there are.
It may be too early, never too late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.model.service import overdue
from svcctl.state import services
from svcctl.state.service_config import change_service_config, read_service_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.services import Stored
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


def next_end(state: State) -> int:
    """CLOCK_REALTIME in nanoseconds before which no drain ends; 0: none does."""
    return read_service_config(state).drain_ns


def note_drains(writer: Writer, wanted: Iterable[Service]) -> None:
    """Have the ends of services' drains looked for in time. Before they are written, inside `changing()`."""
    ends = [member.until_ns for service in wanted for member in service.members if member.until_ns]
    if not ends:
        return
    have = next_end(writer)
    if not have or min(ends) < have:
        change_service_config(writer, drain_ns=min(ends))


def find_overdue(state: State, now_ns: int | None = None) -> list[Stored]:
    """The services that have members whose drain has ended."""
    now = time.time_ns() if now_ns is None else now_ns
    first = next_end(state)
    if not first or first > now:
        return []
    return [one for one in services.read_all(state).values() if overdue(one.service, now)]


def end_overdue(writer: Writer, now_ns: int | None = None) -> list[tuple[str, Backend]]:
    """End what is left on backends whose drain is over, UDP and TCP, and set them down. (service, backend) of each.

    One look-up when nothing is due. Doing it again after it was interrupted completes it. Raises as
    `terminate`.
    """
    from svcctl.model.service_edit import end_drains
    from svcctl.state.service_change import apply_change, plan_change
    from svcctl.state.terminate import terminate, unknown_sockets

    now = time.time_ns() if now_ns is None else now_ns
    first = next_end(writer)
    if not first or first > now:
        return []
    done: list[tuple[str, Backend]] = []
    for one in find_overdue(writer, now):
        if not one.is_whole:
            writer.place.notice(
                f"drains of {one.service.name} are left alone: 'svcctl check' says what it has lost"
            )
            continue
        gone = [member.backend for member in overdue(one.service, now)]
        terminate(writer, one.service.id, gone, tcp=True)
        unknown = unknown_sockets(writer, one.lanes.values())
        if unknown:
            writer.place.notice(
                f"{unknown} connections of {one.service.name} found no room to be remembered (--max-sockets):"
                " those of them that are still open cannot be told and go on"
            )
        apply_change(writer, plan_change(writer, one, end_drains(one.service, now)))
        done += [(one.service.name, backend) for backend in gone]
    left = [
        member.until_ns
        for one in services.read_all(writer).values()
        for member in one.service.members
        if member.until_ns
    ]
    with writer.changing():
        change_service_config(writer, drain_ns=min(left, default=0))
    return done
