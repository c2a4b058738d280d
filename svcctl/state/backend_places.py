"""Whether a backend is on this node, where nobody said it: by the node's own addresses, its pods' prefixes, and routes
that lead to a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import PermissionProblem
from svcctl.maps import catalog, enums
from svcctl.maps.packet_layouts import DEVICE
from svcctl.model.constants import IPV4
from svcctl.model.prefix import mask_address
from svcctl.model.service import Member
from svcctl.model.service_endpoint import is_loopback

_new = tuple.__new__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from svcctl.host.route import Routes
    from svcctl.model.desired import Desired
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Backend, BackendSpec
    from svcctl.state.session import State


class Places:
    """Answers for one state and one moment; `table` are the elements of `node_addresses`, None: those there are.

    A context manager: it keeps a socket that asks for routes.
    """

    def __init__(self, state: State, table: Mapping[bytes, int] | None = None) -> None:
        self._state = state
        self._own: frozenset[bytes] | None = None
        self._by_length: dict[int, dict[bytes, int]] | None = None
        self._known: dict[bytes, bool] = {}
        self._workloads: frozenset[int] | None = None
        self._routes: Routes | None = None
        if table is not None:
            self._by_length = {}
            for key, word in sorted(table.items(), key=lambda item: -_bits(item[0])):
                self._by_length.setdefault(_bits(key), {})[key[4:]] = word

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        if self._routes is not None:
            self._routes.close()
            self._routes = None

    def is_here(self, family: int, address: bytes) -> bool:
        """Whether an address (16 bytes) is on this node. Loopback says nothing: each namespace has its own.

        Raises OSError.
        """
        found = self._known.get(address)
        if found is None:
            found = self._find(family, address) and not is_loopback(family, address)
            self._known[address] = found
        return found

    def _find(self, family: int, address: bytes) -> bool:
        """The node's own address; else what the closest element says, unless it is another node's prefix, or there is
        none: a route to a workload is closer than that."""
        if self._own is None:
            from svcctl.host.addresses import local_addresses

            self._own = frozenset(local_addresses(self._state.netns))
        if address in self._own:
            return True
        word = self.whose(address)
        if word and not word >> enums.NODE_SHIFT:
            return True
        if word & 0xFF == enums.NODE_PEER:
            return False
        return self._leads_to_a_workload(family, address)

    def whose(self, address: bytes) -> int:
        """The closest element of node_addresses; 0: of outside."""
        if self._by_length is None:
            from svcctl.state.explain_service import whose

            return whose(self._state, address)
        for bits, elements in self._by_length.items():
            word = elements.get(mask_address(address, bits))
            if word is not None:
                return word
        return 0

    def _leads_to_a_workload(self, family: int, address: bytes) -> bool:
        if self._workloads is None:
            self._workloads = frozenset(_workloads(self._state))
        if not self._workloads:
            return False
        if self._routes is None:
            from svcctl.host.route import Routes

            self._routes = Routes(self._state.netns)
        try:
            found = self._routes.interface_to(family, address[12:] if family == IPV4 else address)
        except OSError:
            return False
        return found in self._workloads


def _bits(key: bytes) -> int:
    from svcctl.maps.layouts import U32

    return int(U32.unpack_from(key)[0])


def _workloads(state: State) -> list[int]:
    """Indices of interfaces that are attached as a workload's."""
    from svcctl.maps.layouts import U32

    if not state.has_half(catalog.PACKETS):
        return []
    return [
        U32.unpack(key)[0]
        for key, data in state.map("devices").items()
        if DEVICE.unpack(data).role == enums.ROLE_WORKLOAD
    ]


def with_places(
    state: State, specs: Iterable[BackendSpec], known: Mapping[Backend, bool] | None = None
) -> list[BackendSpec]:
    """The specs, each with a place: what it says, else what is `known`, else what addresses say. Raises OSError."""
    places = known or {}
    found = []
    with Places(state) as here:
        for spec in specs:
            local = places.get(spec.backend) if spec.local is None else spec.local
            if local is None:
                local = here.is_here(spec.backend.family, spec.backend.address)
            found.append(spec._replace(local=local))
    return found


def placed(state: State, desired: Sequence[Desired], table: Mapping[bytes, int]) -> list[Desired]:
    """The same, with a place for each backend of which nothing is said. Raises OSError."""
    with Places(state, table) as here:
        return [
            each._replace(services=tuple(_with_members(one, here) for one in each.services))
            if any(member.local is None for one in each.services for member in one.members)
            else each
            for each in desired
        ]


def _with_members(service: Service, here: Places) -> Service:
    members = []
    for member in service.members:
        backend, weight, state, local, since_ns, until_ns, sets = member
        if local is None:  # of a hundred thousand it matters how one is made
            local = here.is_here(backend[0], backend[1])
            member = _new(Member, (backend, weight, state, local, since_ns, until_ns, sets))
        members.append(member)
    return service._replace(members=tuple(members))


def said_places(state: State, services: Iterable[Service], *, restore: bool) -> tuple[Service, ...]:
    """The services as a file says them: of a backend that is where addresses say it is, nothing is said.

    With `restore` all that are on this node are said to be: addresses come later when a host boots. Where the
    namespace may not be entered, which takes CAP_SYS_ADMIN, addresses say nothing: each place is said, and why.
    Raises OSError.
    """
    from svcctl.state.nodes import read_table

    whole = tuple(services)
    table = read_table(state) if state.has_half(catalog.BALANCER) else {}
    with Places(state, table) as here:
        try:
            return tuple(_with_said_places(one, here, restore=restore) for one in whole)
        except PermissionProblem as problem:
            state.place.notice(f"not looked at: addresses: {problem}; each backend's place is said")
            return whole


def _with_said_places(service: Service, here: Places, *, restore: bool) -> Service:
    return service._replace(
        members=tuple(
            member
            if (restore and member.local)
            or member.local != here.is_here(member.backend.family, member.backend.address)
            else member._replace(local=None)
            for member in service.members
        )
    )
