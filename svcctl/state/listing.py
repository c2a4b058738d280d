"""Rows of listings that need more than one map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES
from svcctl.model.destination import sort_key
from svcctl.state import destinations
from svcctl.state.counters import dispatch_stats

if TYPE_CHECKING:
    from svcctl.state.session import State


def destination_rows(state: State, label: str | None = None) -> list[tuple[Any, ...]]:
    """(label, family, protocol, id, members, bindings, lookups, no_socket, errors) of each destination.

    A member is {"cookie", "slot", "alive"}. A socket that was closed leaves its slot by itself, so what is
    there is alive; one that was shut down without being closed shows up in `errors`.
    """
    if not state.has_dispatcher():
        return []
    rows = []
    for found in sorted(destinations.read_all(state).values(), key=lambda one: sort_key(one.key)):
        if label is not None and found.key.label != label:
            continue
        stats = dispatch_stats(state, found.id)
        members = [
            {"cookie": cookie, "slot": slot, "alive": True}
            for slot, cookie in destinations.cookies(state, found).items()
        ]
        rows.append(
            (
                found.key.label,
                FAMILY_NAMES[found.key.family],
                PROTOCOL_NAMES[found.key.protocol],
                found.id,
                members,
                found.refs,
                stats.lookups,
                stats.no_socket,
                stats.errors,
            )
        )
    return rows
