"""All that the service maps hold, read whole and by columns: what an apply compares with, and plans by.

Reading 10,000 services with 100,000 backends so takes less than a second; with look-ups it would take ten. What is
read is judged, too: ids are kept for what is the same, and never taken from what is broken.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from svcctl.maps import enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BACKEND_ID,
    BACKEND_KEY,
    BLOCK,
    CURRENT,
    ITEM_KEY,
    MEMBER,
    MEMBER_KEY,
    SERVICE,
    SERVICE_FRONTEND,
    SLOT_KEY,
    Block,
)
from svcctl.model.constants import FAMILY_NAMES, IPV4, IPV6
from svcctl.model.prefix import MAPPED
from svcctl.model.service import IN_CLUSTER, IN_LOCAL, Member, ServiceFrontend, families
from svcctl.model.service_endpoint import Backend, Frontend
from svcctl.state.change_frontends import keys_of, words_of
from svcctl.state.change_plan import ranges_of
from svcctl.state.change_source import STRAY, Live
from svcctl.state.services import need_services, read_sources, stored

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import BackendId, ServiceValue
    from svcctl.state.services import Stored
    from svcctl.state.session import State

_ID_ONLY = Struct("=I100x")
_FEW_SLOTS = 2_000
"""Slots of blocks that go are looked up as long as they are no more; then the whole map is read."""
_new = tuple.__new__  # of a named tuple, at a third of the cost


class Snapshot:
    """The services by name, what is wrong with some of them, and a `Source` for `plan_changes`.

    `faults`: name -> why none of the service's ids may be used again; `shared`: where it is because they are another's
    too. `extra`: services whose name is another one's.
    """

    def __init__(self, state: State) -> None:
        need_services(state)
        self.state = state
        self.words = dict(state.map("frontends").items())
        self._current = list(CURRENT.struct.iter_unpack(state.map("current").read_all()[1]))
        self._blocks = {}
        for row in BLOCK.struct.iter_unpack(state.map("blocks").read_all()[1]):
            self._blocks[row[0]] = Block._make(row)
        self._read_backends()
        self.services: dict[str, Stored] = {}
        self.extra: list[Stored] = []
        self.faults: dict[str, str] = {}
        self.shared: set[str] = set()
        self._read_services()
        self._owners: dict[bytes, int] = {}
        self._contents: tuple[dict[int, list[bytes]], dict[int, list[bytes]]] | None = None
        self._looked_up = 0

    # A Source

    def owner(self, key: bytes) -> int | None:
        """As Source, by what the services say."""
        if not self._owners:
            for one in (*self.services.values(), *self.extra):
                self._owners.update(dict.fromkeys(keys_of(one.service), one.service.id))
        return self._owners.get(key, STRAY if key in self.words else None)

    def has_word(self, key: bytes) -> bool:
        """As Source."""
        return key in self.words

    def is_written(self, key: bytes, word: bytes) -> bool:
        """As Source."""
        return self.words.get(key) == word

    def name(self, number: int) -> str:
        """As Source."""
        return next((name for name, one in self.services.items() if one.service.id == number), f"?{number}")

    def backend(self, backend: Backend) -> BackendId | None:
        """As Source."""
        at = self._index.get(codec.backend_key(backend))
        if at is None:
            return None
        entry = BACKEND_ID.unpack(self._index_values[at * BACKEND_ID.size : (at + 1) * BACKEND_ID.size])
        return entry if self._sound.get(entry.id) == backend else None

    def blocks(self, lane: int) -> tuple[int, int]:
        """As Source."""
        cluster, local = self._current[lane]
        return cluster, local

    def content(self, block: int) -> tuple[bool, list[bytes], list[bytes]]:
        """As Source: by look-ups for a few blocks that are whole, otherwise from two more maps."""
        if self._contents is None:
            record = self._blocks.get(block)
            self._looked_up += record.slots if record else 0
            if record and self._looked_up <= _FEW_SLOTS:
                found = Live(self.state).content(block)
                if len(found[1]) == record.slots:
                    return found
            self._contents = (
                _by_block(self.state.map("slots").read_all()[0], SLOT_KEY.size),
                _by_block(self.state.map("members").read_all()[0], MEMBER_KEY.size),
            )
        slots, members = self._contents
        return block in self._blocks, slots.get(block, []), members.get(block, [])

    def lanes(self) -> set[int]:
        """As Source."""
        return {lane for one in (*self.services.values(), *self.extra) for lane in one.lanes.values()}

    # Reading

    def _read_backends(self) -> None:
        """Backends by id: those that their address leads to, and others."""
        keys, self._index_values, _ = self.state.map("backend_ids").read_all()
        size = BACKEND_KEY.size
        self._index = {keys[at : at + size]: at // size for at in range(0, len(keys), size)}
        ids = [number for (number,) in _ID_ONLY.iter_unpack(self._index_values)]
        self._sound: dict[int, Backend] = {}
        self._odd: dict[int, Backend] = {}
        keys, values, _ = self.state.map("backends").read_all()
        rows = zip(U32.iter_unpack(keys), BACKEND.struct.iter_unpack(values), strict=True)
        for n, ((number,), row) in enumerate(rows):
            address = row[0]
            backend = _new(Backend, (IPV4 if address.startswith(MAPPED) else IPV6, address, row[1]))
            # A value begins as a key of the index does: address, port, and flags that are 0.
            at = self._index.get(values[n * BACKEND.size : n * BACKEND.size + size])
            is_sound = at is not None and ids[at] == number == row[4]
            (self._sound if is_sound else self._odd)[number] = backend

    def _read_services(self) -> None:
        fronts, members = self._read_fronts(), self._read_members()
        sources = read_sources(self.state)
        found: list[tuple[ServiceValue, Stored, str]] = []
        lanes: dict[int, int] = {}
        ids: dict[int, int] = {}
        for key, data in sorted(self.state.map("services").items()):
            number, value = U32.unpack(key)[0], SERVICE.unpack(data)
            first, end = value.base, value.base + value.frontends
            frontends = [one for n, one in sorted(fronts.get(number, ())) if first <= n < end]
            end = value.base + value.members
            items = [item for item in sorted(members.get(number, ())) if first <= item[0] < end]
            fault = ""
            if len(frontends) != value.frontends or len(items) != value.members:
                fault = "has lost some of its frontends or backends"
            elif self._odd and any(backend in self._odd for _, backend, _ in items):
                fault = "has a backend whose id is not its own"
            ranges = sources.get(value.ranges, []) if value.ranges else []
            if len(ranges) != value.sources:
                fault = "has lost some of its source ranges"
            one = stored(
                value._replace(id=number),
                frontends,
                [member for _, _, member in items],
                [backend for _, backend, _ in items],
                ranges,
            )
            ids[value.id] = ids.get(value.id, 0) + 1
            for family, lane in list(one.lanes.items()):
                lanes[lane] = lanes.get(lane, 0) + 1
                if lane >= len(self._current):
                    del one.lanes[family]
            found.append((value, one, fault))
        names = {key: U32.unpack(value)[0] for key, value in self.state.map("service_names").items()}
        for value, one, fault in found:
            name = one.service.name
            shared = any(lanes[lane] > 1 for lane in one.lanes.values())
            if ids.get(one.service.id, 0) > 1 or value.id != one.service.id or shared:
                fault = "shares its id or a lane with another service"
                self.shared.add(name)
            elif names.get(codec.name_key(name)) != one.service.id:
                fault = "is not where its name leads to"
            fault = fault or self._lane_fault(one)
            if name in self.services:
                self.extra.append(one)
                fault = "has its name twice"
            else:
                self.services[name] = one
            if fault:
                self.faults[name] = fault

    def _lane_fault(self, one: Stored) -> str:
        """What is wrong with what its lanes lead to."""
        service = one.service
        if sorted(one.lanes) != families(service):
            return "has other lanes than families"
        for family, lane in one.lanes.items():
            for number in self._current[lane]:
                block = self._blocks.get(number)
                if block is None:
                    return f"leads nowhere in its {FAMILY_NAMES[family]} lane"
                have = (block.service, block.lane, block.affinity_seconds, block.ranges)
                if have != (service.id, lane, service.affinity_seconds, ranges_of(one.ranges, family)):
                    return f"leads to the block of another in its {FAMILY_NAMES[family]} lane"
        if any(self.words.get(key) != word for key, word in words_of(service, one.lanes).items()):
            return "has a frontend that does not lead to it"
        return ""

    def _read_fronts(self) -> dict[int, list[tuple[int, ServiceFrontend]]]:
        """Service -> (number, frontend)."""
        keys, values, _ = self.state.map("service_fronts").read_all()
        found: dict[int, list[tuple[int, ServiceFrontend]]] = {}
        rows = zip(
            ITEM_KEY.struct.iter_unpack(keys), SERVICE_FRONTEND.struct.iter_unpack(values), strict=True
        )
        for (service, number), (address, port, protocol, _, kind) in rows:
            family = IPV4 if address.startswith(MAPPED) else IPV6
            frontend = _new(ServiceFrontend, (_new(Frontend, (family, address, port, protocol)), kind))
            found.setdefault(service, []).append((number, frontend))
        return found

    def _read_members(self) -> dict[int, list[tuple[int, int, Member]]]:
        """Service -> (number, backend id, member). Those whose backend is not there are left out."""
        keys, values, _ = self.state.map("service_members").read_all()
        backends = self._odd | self._sound
        found: dict[int, list[tuple[int, int, Member]]] = {}
        rows = zip(ITEM_KEY.struct.iter_unpack(keys), MEMBER.struct.iter_unpack(values), strict=True)
        for (service, number), (id, weight, state, flags, since_ns, until_ns) in rows:
            backend = backends.get(id)
            if backend is None:
                continue
            sets = (0 if flags & enums.MEMBER_NOT_CLUSTER else IN_CLUSTER) | (
                0 if flags & enums.MEMBER_NOT_LOCAL else IN_LOCAL
            )
            local = bool(flags & enums.MEMBER_LOCAL)
            member = _new(Member, (backend, weight, state, local, since_ns, until_ns, sets))
            found.setdefault(service, []).append((number, id, member))
        return found


def _by_block(keys: bytes, size: int) -> dict[int, list[bytes]]:
    """Keys that begin with a block's number, by it."""
    found: dict[int, list[bytes]] = {}
    for at in range(0, len(keys), size):
        found.setdefault(U32.unpack_from(keys, at)[0], []).append(keys[at : at + size])
    return found
