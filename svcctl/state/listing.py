"""Rows of listings that need more than one map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.errors import NotFound
from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES
from svcctl.model.destination import sort_key
from svcctl.state import destinations
from svcctl.state.counters import dispatch_stats

if TYPE_CHECKING:
    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.destination import DestinationKey
    from svcctl.state.session import State


def destination_rows(state: State, label: str | None = None) -> list[tuple[Any, ...]]:
    """(label, family, protocol, id, members, bindings, lookups, no_socket, errors) of each destination.

    A member is {"cookie", "slot", "alive"}. A socket that was closed leaves its slot by itself; one that was shut
    down, or a UDP socket that was connected since, stays and takes nothing: it is not alive. Without "alive" nobody
    could tell.
    """
    if not state.has_dispatcher():
        return []
    rows = []
    listed: dict[int, dict[int, DiagSocket] | None] = {}
    for found in sorted(destinations.read_all(state).values(), key=lambda one: sort_key(one.key)):
        if label is not None and found.key.label != label:
            continue
        stats = dispatch_stats(state, found.id)
        cookies = destinations.cookies(state, found)
        rows.append(
            (
                found.key.label,
                FAMILY_NAMES[found.key.family],
                PROTOCOL_NAMES[found.key.protocol],
                found.id,
                _members(state, found.key, cookies, listed) if cookies else [],
                found.refs,
                stats.lookups,
                stats.no_socket,
                stats.errors,
            )
        )
    return rows


def rows_of_label(state: State, label: str | None) -> list[tuple[Any, ...]]:
    """`destination_rows` for the command `destinations`. Raises NotFound for a label that is not there."""
    rows = destination_rows(state, label)
    if label is not None and not rows:
        raise NotFound(f"destinations: no such label: {label!r}", hint="'svcctl destinations' lists them")
    return rows


def _members(
    state: State,
    key: DestinationKey,
    cookies: dict[int, int],
    listed: dict[int, dict[int, DiagSocket] | None],
) -> list[dict[str, Any]]:
    """`listed`: what sock_diag has said of a protocol before."""
    from svcctl.state.members import fault, read_listed

    if key.protocol not in listed:
        listed[key.protocol] = read_listed(state, key.protocol)
    known = listed[key.protocol]
    alive = (
        None
        if known is None
        else {cookie: fault(known, cookie, key.family) is None for cookie in cookies.values()}
    )
    return [
        {"cookie": cookie, "slot": slot} | ({"alive": alive[cookie]} if alive is not None else {})
        for slot, cookie in cookies.items()
    ]
