"""Reading services: one by name, all of them, and whose a frontend is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import NotFound
from svcctl.maps import catalog
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BLOCK,
    CURRENT,
    FRONTEND,
    ITEM_KEY,
    MEMBER,
    SERVICE,
    BackendValue,
    Block,
    ItemKey,
    ServiceValue,
)
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import MAPPED, Prefix
from svcctl.model.service_endpoint import Backend
from svcctl.state.session import no_services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.service import Member, Service, ServiceFrontend
    from svcctl.state.session import State


NOBODY = Prefix(IPV4, MAPPED + b"\xff\xff\xff\xff", 32)
"""Stands for source ranges that were lost: without it a service that has lost them all would admit everybody."""


class Stored(NamedTuple):
    """A service as the maps have it: lanes by family, the ids of its members' backends in their order, the number of
    its first item and how many frontends and members it says it has, and the number of its source ranges."""

    service: Service
    lanes: dict[int, int]
    backends: tuple[int, ...]
    base: int
    counts: tuple[int, int] = (0, 0)
    ranges: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every frontend and member that it says it has is there: written again it would lose the others."""
        return self.counts == (len(self.service.frontends), len(self.service.members))


def need_services(state: State) -> None:
    """Raise NotLoaded unless `attach cgroup` or `attach dev` has made the service maps, Incompatible if one is lost."""
    if not state.has_half(catalog.BALANCER):
        raise no_services(state.path)
    state.need_maps(catalog.BALANCER)


def find(state: State, name: str) -> Stored | None:
    """A service by name. Takes the same number of look-ups however many services there are."""
    number = state.map("service_names").lookup(codec.name_key(name))
    if number is None:
        return None
    data = state.map("services").lookup(number)
    return None if data is None else load(state, SERVICE.unpack(data))


def get(state: State, name: str, action: str) -> Stored:
    """As `find`, raising NotFound."""
    found = find(state, name)
    if found is None:
        raise NotFound(f"{action}: no such service: {name!r}", hint="'svcctl services' lists them")
    return found


def load(state: State, value: ServiceValue) -> Stored:
    """A service with its frontends and members, from its value."""
    fronts, items = state.map("service_fronts"), state.map("service_members")
    frontends = []
    for number in range(value.base, value.base + value.frontends):
        data = fronts.lookup(ITEM_KEY.pack(ItemKey(value.id, number)))
        if data is not None:
            frontends.append(codec.decode_service_frontend(data))
    members, ids = [], []
    for number in range(value.base, value.base + value.members):
        data = items.lookup(ITEM_KEY.pack(ItemKey(value.id, number)))
        if data is None:
            continue
        member = MEMBER.unpack(data)
        backend = read_backend(state, member.backend)
        if backend is not None:
            members.append(codec.decode_member(member, as_backend(backend)))
            ids.append(member.backend)
    sources = read_sources(state).get(value.ranges, ()) if value.ranges else ()
    return stored(value, frontends, members, ids, sources)


def stored(
    value: ServiceValue,
    frontends: Sequence[ServiceFrontend],
    members: Sequence[Member],
    ids: Sequence[int],
    sources: Sequence[Prefix],
) -> Stored:
    """A service from all that belongs to it."""
    lanes = {family: lane for family, lane in ((IPV4, value.lane4), (IPV6, value.lane6)) if lane}
    if len(sources) < value.sources:
        sources = [*sources, NOBODY]
    service = codec.decode_service(value, frontends, members, sources)
    return Stored(service, lanes, tuple(ids), value.base, (value.frontends, value.members), value.ranges)


def read_sources(state: State) -> dict[int, list[Prefix]]:
    """The source ranges there are, by the number of the service's: those of both families."""
    found: dict[int, list[Prefix]] = {}
    for key, _ in state.map("source_ranges").items():
        number, prefix = codec.decode_range(key)
        found.setdefault(number - (prefix.family == IPV6), []).append(prefix)
    return found


def read_backend(state: State, number: int) -> BackendValue | None:
    """A backend by id."""
    data = state.map("backends").lookup(U32.pack(number))
    return None if data is None else BACKEND.unpack(data)


def as_backend(value: BackendValue) -> Backend:
    """The address and port of a backend's value."""
    return Backend(codec.family_of(value.address), value.address, value.port)


def read_all(state: State) -> dict[str, Stored]:
    """Every service by name, from whole-map reads: for listings."""
    need_services(state)
    backends = {}
    for _, data in state.map("backends").items():
        backend = BACKEND.unpack(data)
        backends[backend.id] = as_backend(backend)
    fronts: dict[int, list[tuple[int, bytes]]] = {}
    for key, data in state.map("service_fronts").items():
        item = ITEM_KEY.unpack(key)
        fronts.setdefault(item.service, []).append((item.number, data))
    items: dict[int, list[tuple[int, bytes]]] = {}
    for key, data in state.map("service_members").items():
        item = ITEM_KEY.unpack(key)
        items.setdefault(item.service, []).append((item.number, data))
    found = {}
    sources = read_sources(state)
    for _, data in state.map("services").items():
        value = SERVICE.unpack(data)
        frontends = [
            codec.decode_service_frontend(data)
            for number, data in sorted(fronts.get(value.id, ()))
            if value.base <= number < value.base + value.frontends
        ]
        members, ids = [], []
        for number, data in sorted(items.get(value.id, ())):
            member = MEMBER.unpack(data)
            if value.base <= number < value.base + value.members and member.backend in backends:
                members.append(codec.decode_member(member, backends[member.backend]))
                ids.append(member.backend)
        one = stored(value, frontends, members, ids, sources.get(value.ranges, ()) if value.ranges else ())
        found[one.service.name] = one
    return dict(sorted(found.items()))


def current_blocks(state: State, lane: int) -> tuple[int, int]:
    """(cluster, local) block of a lane, 0 for none."""
    data = state.map("current").lookup(U32.pack(lane))
    return CURRENT.unpack(data)[:2] if data is not None else (0, 0)


def read_block(state: State, number: int) -> Block | None:
    """A block's record."""
    data = state.map("blocks").lookup(U32.pack(number)) if number else None
    return None if data is None else BLOCK.unpack(data)


def owner_of_frontend(state: State, key: bytes) -> int | None:
    """Id of the service a `frontends` key leads to, None if it is free; 0 if its lane leads nowhere."""
    data = state.map("frontends").lookup(key)
    if data is None:
        return None
    block = read_block(state, current_blocks(state, FRONTEND.unpack(data).lane)[0])
    return block.service if block is not None else 0


def name_of(state: State, number: int) -> str:
    """The name of a service id, '?<id>' if there is none."""
    from svcctl.maps.layouts import text

    data = state.map("services").lookup(U32.pack(number))
    return f"?{number}" if data is None else text(SERVICE.unpack(data).name)
