"""Ending the sockets that still go to a backend through a service, in every network namespace of the host.

Why: a connected UDP socket sends to a backend that is gone for ever, and nobody tells it. Ended are only sockets
that are connected to the backend and that the balancer gave to it for this service: the cookie has a reverse entry
that says so. One that was connected to the backend's own address is left alone, and so are unconnected UDP
sockets, which choose anew with their next datagram and would lose their port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import PermissionProblem
from svcctl.host import capability
from svcctl.host.all_netns import Namespaces
from svcctl.host.sock_destroy import Diag
from svcctl.model.constants import TCP, UDP
from svcctl.record import Record
from svcctl.state.remembered import all_entries, entries_of
from svcctl.state.service_listing import lane_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from svcctl.host.sock_destroy import Peer
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.session import State


NEEDED = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")
"""To end sockets, and to enter the network namespaces they are in."""


def need_rights(action: str) -> None:
    """Raise PermissionProblem for who may not end sockets. To be asked before anything is changed."""
    held = capability.effective()
    missing = [name for name in NEEDED if name not in held]
    if missing:
        raise PermissionProblem(
            f"{action}: --terminate: needs {' and '.join(missing)}",
            hint=f"ending sockets of every network namespace takes {' and '.join(NEEDED)}; nothing was changed",
        )


def unknown_sockets(state: State, lanes: Iterable[int]) -> int:
    """How many connections of these lanes found `reverse` full: whose sockets they are nobody can tell."""
    return sum(lane_stats(state, lane).reverse_full for lane in lanes)


class Ended(Record):
    """How many sockets were ended, and the processes whose namespaces could not be looked into.

    `tcp` is None if TCP was not asked for.
    """

    udp: int
    tcp: int | None
    unseen: tuple[int, ...]

    def __str__(self) -> str:
        """For a notice."""
        if self.tcp is None:
            text = f"{_count(self.udp, 'UDP')}; TCP connections were left alone (--tcp ends them)"
        else:
            text = f"{_count(self.udp, 'UDP')} and {_count(self.tcp, 'TCP')}"
        if self.unseen:
            text += f"; the namespaces of {len(self.unseen)} processes could not be looked into"
        return text


def _count(number: int, kind: str) -> str:
    return f"{number} {kind} socket{'' if number == 1 else 's'}"


def terminate(
    state: State, service: int, backends: Iterable[Backend], *, tcp: bool, dry_run: bool = False
) -> Ended:
    """End UDP sockets, with `tcp` TCP connections too, that go to these backends through the service id.

    `dry_run` only counts them. What another socket is named by cannot be mistaken: the kernel compares its cookie.
    Raises SvcctlError (no SOCK_DESTROY in this kernel), PermissionProblem.
    """
    counts = {UDP: 0, TCP: 0}
    found = Namespaces()
    wanted = list(backends)
    for netns in found if wanted else ():
        with Diag(netns) as diag:
            for peer in _users(state, diag, service, wanted, (UDP, TCP) if tcp else (UDP,)):
                counts[peer.protocol] += dry_run or diag.destroy(peer)
    return Ended(counts[UDP], counts[TCP] if tcp else None, tuple(found.unseen))


def terminate_udp(state: State, gone: Mapping[int, Collection[Backend]]) -> Ended:
    """End the connected UDP sockets that go to backends their service no longer has: service id -> backends.

    What the balancer remembers is read first, at once: when no socket was sent there nobody looks for sockets, and
    else each network namespace's are listed once, however many services and backends have changed. Raises as
    `terminate`.
    """
    sockets: dict[int, set[tuple[bytes, int]]] = {}
    places = {service: {backend[1:] for backend in backends} for service, backends in gone.items()}
    for cookie, entry in all_entries(state):
        place = (entry.backend_address, entry.backend_port)
        if place in places.get(entry.service, ()):
            sockets.setdefault(cookie, set()).add(place)
    ended = 0
    found = Namespaces() if sockets else None
    for netns in found or ():
        with Diag(netns) as diag:
            for peer in diag.connected(UDP):
                if peer.place in sockets.get(peer.cookie, ()):
                    ended += diag.destroy(peer)
    return Ended(ended, None, tuple(found.unseen) if found else ())


def _users(
    state: State, diag: Diag, service: int, backends: list[Backend], protocols: tuple[int, ...]
) -> Iterator[Peer]:
    for _, address, port in backends:
        for protocol in protocols:
            for peer in diag.connected_to(protocol, address, port):
                if any(
                    entry.service == service
                    and (entry.backend_address, entry.backend_port) == (address, port)
                    for entry in entries_of(state, peer.cookie)
                ):
                    yield peer
