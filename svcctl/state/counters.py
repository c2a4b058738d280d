"""Per-CPU counters of the dispatcher, summed over CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import enums, layouts
from svcctl.maps.layouts import U32, DispatchStats

if TYPE_CHECKING:
    from svcctl.state.session import State


def dispatch_stats(state: State, destination: int) -> DispatchStats:
    """Counters of one destination id."""
    data = state.map("dispatch_stats").lookup(U32.pack(destination)) or b""
    rows = list(layouts.DISPATCH_STATS.struct.iter_unpack(data))
    return (
        DispatchStats(*(sum(column) for column in zip(*rows, strict=True)))
        if rows
        else DispatchStats(0, 0, 0)
    )


def count_entries(state: State, name: str) -> int:
    """How many entries a map has that programs fill, so that nobody keeps count: it is read, 40 ms if full."""
    from svcctl.bpf import walk

    return sum(count for _, _, count in walk.pieces(state.map(name)))


def packet_events(state: State) -> dict[str, int]:
    """What the packet path counted, by event."""
    found = {}
    for index, event in enumerate(enums.PACKET_EVENTS):
        data = state.map("packet_stats").lookup(U32.pack(index)) or b""
        found[event] = sum(value for (value,) in layouts.U64.iter_unpack(data))
    return found


def drops(state: State) -> dict[str, int]:
    """Refused packets by reason."""
    found = {}
    for index, reason in enumerate(enums.DROP_REASONS):
        data = state.map("drop_stats").lookup(U32.pack(index)) or b""
        found[reason] = sum(value for (value,) in layouts.U64.iter_unpack(data))
    return found
