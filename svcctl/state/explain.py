"""explain: what the dispatcher and the kernel do with a connection, from the live state, step by step as they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import PermissionProblem
from svcctl.host import route, sock_diag
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, DispatchStats
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.explain import Explanation
from svcctl.model.explain import explain as explain_bindings
from svcctl.state import attach, counters, destinations, foreign
from svcctl.state.bindings import lookup_destination
from svcctl.state.members import read_members

if TYPE_CHECKING:
    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.destination import Destination
    from svcctl.model.endpoint import Endpoint
    from svcctl.state.members import Member
    from svcctl.state.session import State

SOCKET, REFUSE, PASS = "socket", "refuse", "pass"


class Explained(NamedTuple):
    """`verdict` is SOCKET (`chosen` gets it), REFUSE, or PASS (the first of `listeners` gets it, if any).

    `number` is the winner's destination id; `owner` None when no label has it. `local` is None when the routing
    table gave no answer. `foreign` names other programs at the hook, None when they may not be listed.
    """

    endpoint: Endpoint
    explanation: Explanation
    verdict: str
    number: int | None
    owner: Destination | None
    stats: DispatchStats | None
    members: list[Member]
    chosen: Member | None
    listeners: list[DiagSocket] | None
    attached: bool
    local: bool | None
    foreign: list[str] | None


def explain(state: State, endpoint: Endpoint) -> Explained:
    """What happens to a connection, or the first datagram, to an endpoint."""
    family, address, port, protocol = endpoint
    attached = attach.is_attached(state) and attach.is_live(state) is not False
    ids: dict[bytes, int] = {}
    names = {}
    explanation = explain_bindings((), protocol, family, address, port)
    if state.has_dispatcher():
        names = destinations.read_all(state)

        def label_of(key: bytes) -> str | None:
            number = lookup_destination(state, key)
            if number is None:
                return None
            ids[key] = number
            return names[number].key.label if number in names else f"?{number}"

        explanation = explain_bindings(label_of, protocol, family, address, port)
    number = ids[explanation.winner.key()] if explanation.winner is not None else None
    members: list[Member] = []
    chosen = None
    verdict = PASS
    if number is not None:
        members = read_members(state, number, family, protocol)
        if attached:
            chosen = _choose(state, number, members)
            verdict = SOCKET if chosen is not None else REFUSE
    return Explained(
        endpoint,
        explanation,
        verdict,
        number,
        names.get(number) if number is not None else None,
        counters.dispatch_stats(state, number) if number is not None else None,
        members,
        chosen,
        ordinary_listeners(state, endpoint) if verdict == PASS else [],
        attached,
        _is_local(state, family, address),
        _foreign(state),
    )


def _choose(state: State, number: int, members: list[Member]) -> Member | None:
    """The first one that can take it, from the hint on, as give_to() in dispatch.bpf.c."""
    data = state.map("hints").lookup(U32.pack(number))
    if data is None:
        return None  # no such id: dropped as a bad destination
    first = U32.unpack(data)[0]
    by_slot = {one.slot: one for one in members}
    for step in range(SOCKETS_PER_DESTINATION):
        one = by_slot.get((first + step) % SOCKETS_PER_DESTINATION)
        if one is not None and one.fault is None:
            return one
    return None


def ordinary_listeners(state: State, endpoint: Endpoint) -> list[DiagSocket] | None:
    """Sockets that the kernel would give the connection to by itself, the one it prefers first; None if they may not
    be listed.

    It looks for the address before the wildcard, and prefers sockets of the packet's family to dual-stack ones.
    """
    try:
        found = sock_diag.listeners(endpoint.protocol, endpoint.port, netns=state.netns)
    except (OSError, PermissionProblem):
        return None
    fitting = [(score, one) for one in found if (score := _score(endpoint, one)) is not None]
    fitting.sort(key=lambda item: item[0], reverse=True)
    return [one for _, one in fitting]


def _score(endpoint: Endpoint, one: DiagSocket) -> tuple[bool, bool, bool] | None:
    family, address = endpoint.family, endpoint.address
    if one.port != endpoint.port:
        return None
    if not any(one.address):
        if one.family != family and (family == IPV6 or one.family == IPV4 or one.v6only):
            return None
        return False, one.ifindex != 0, one.family == family
    if one.mapped_address != address:
        return None
    return True, one.ifindex != 0, one.family == family


def _is_local(state: State, family: int, address: bytes) -> bool | None:
    try:
        return route.is_local(family, address[12:] if family == IPV4 else address, netns=state.netns)
    except (OSError, PermissionProblem):
        return None


def _foreign(state: State) -> list[str] | None:
    """Names of other programs at the hook; the kernel runs them all, and one that chooses a socket overrides."""
    found = foreign.others(state.netns, _own_program(state))
    if found is None:
        return None
    return [f"{one.name or 'unnamed'} ({one.program_id})" for one in found]


def _own_program(state: State) -> int | None:
    rows = attach.list_attachments(state)
    return next((row.program_id for row in rows if row.target == state.netns.inode), None)
