"""What a change of services writes, worked out whole before the first write; for one service or for many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import Full
from svcctl.maps.service_layouts import BackendId
from svcctl.model.constants import IPV6
from svcctl.model.service import blocks_of, families, same_set
from svcctl.state.change_frontends import Pair, holders, levels_of, plan_words
from svcctl.state.change_remove import NOTHING
from svcctl.state.change_source import Live
from svcctl.state.destinations import full

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from svcctl.model.service import BackendSet, Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_remove import Freed
    from svcctl.state.change_source import Source
    from svcctl.state.services import Stored
    from svcctl.state.session import State


LAST_ID = 0xFFFFFFFF
"""Numbers are never given out twice, so at some time there are none left."""


class NewBlock(NamedTuple):
    """A block to write: for which lane and set, and the number of its source ranges."""

    number: int
    lane: int
    set: BackendSet
    ranges: int = 0


class Change(NamedTuple):
    """One service's part.

    `current` are the new words of its lanes, `idle` the lanes that it gives back; `ranges` is the number of its source
    ranges, `new_ranges` whether they are to be written.
    """

    have: Stored | None
    want: Service | None
    anew: bool
    level: int
    lanes: dict[int, int]
    blocks: tuple[NewBlock, ...]
    current: dict[int, tuple[int, int]]
    idle: tuple[int, ...]
    old_blocks: tuple[int, ...]
    words: dict[bytes, bytes]
    ranges: int
    new_ranges: bool

    @property
    def new_lanes(self) -> list[int]:
        """Lanes that were not the service's."""
        before = set(self.have.lanes.values()) if self.have and not self.anew else set()
        return [lane for lane in self.current if lane not in before]

    @property
    def is_gone(self) -> bool:
        """Whether its old number is no service's afterwards."""
        return self.have is not None and (self.want is None or self.anew)

    @property
    def has_new_name(self) -> bool:
        """Whether its name is to lead to another number than before."""
        return self.want is not None and (self.have is None or self.anew)


class References(NamedTuple):
    """A backend's entry in the index as it is, and how many more references it gets (fewer, if negative)."""

    entry: BackendId
    more: int


class Changes(NamedTuple):
    """Everything a change writes. `backends`: ids of all backends that some service has afterwards."""

    source: Source
    parts: tuple[Change, ...]
    backends: dict[Backend, int]
    new_backends: dict[Backend, int]
    references: dict[Backend, References]
    gone_words: tuple[bytes, ...]
    added_words: int
    reserve: dict[str, int]


def plan_changes(
    state: State, pairs: Iterable[Pair], source: Source | None = None, freed: Freed = NOTHING
) -> Changes:
    """Work out a change of any number of services. `freed` is room that is made before, which `source` still shows
    as used.

    Raises Conflict for a frontend of a service that is not among them, Full before anything is written.
    """
    known = source or Live(state)
    numbers = _Numbers(state, known, freed)
    parts = [
        pair if pair.want is None else pair._replace(want=pair.want._replace(id=numbers.service(pair)))
        for pair in pairs
        if pair.have is not None or pair.want is not None
    ]
    before, after = holders(parts)
    levels, circles = levels_of(parts, before, after)
    kept = [_kept_lanes(pair, number in circles) for number, pair in enumerate(parts)]
    numbers.lanes_wanted = sum(len(families(pair.want)) for pair in parts if pair.want) - sum(map(len, kept))
    lanes = [_lanes(pair, old, numbers) for pair, old in zip(parts, kept, strict=True)]
    words, gone, added = plan_words(parts, lanes, before, after, known)
    backends = _backends(parts, known, numbers)
    changes = []
    for number, pair in enumerate(parts):
        ranges, new_ranges = _ranges(pair, numbers)
        have, want, anew = pair
        made, current, idle, old = _sets(pair, lanes[number], ranges, known, numbers)
        changes.append(
            Change(
                have,
                want,
                anew,
                levels[number],
                lanes[number],
                made,
                current,
                idle,
                old,
                words[number],
                ranges,
                new_ranges,
            )
        )
    planned = Changes(known, tuple(changes), *backends, gone, added, numbers.reserve)
    check_room(state, planned, freed)
    return planned


def _ranges(pair: Pair, numbers: _Numbers) -> tuple[int, bool]:
    """(number of the service's source ranges, whether they are new)."""
    have, want, anew = pair
    if want is None or not want.sources:
        return 0, False
    if have and not anew and have.ranges and set(have.service.sources) == set(want.sources):
        return have.ranges, False
    number = numbers.next("next_ranges")
    numbers.next("next_ranges")  # IPv6's
    return number, True


class _Numbers:
    """Hands out numbers that were never used; `reserve` are the fields of `meta` that say so."""

    def __init__(self, state: State, source: Source, freed: Freed) -> None:
        self._state, self._source, self._freed = state, source, freed
        self._meta = state.meta()
        self._free: Iterator[int] | None = None
        self._lanes: set[int] = set()
        self.reserve: dict[str, int] = {}
        self.lanes_wanted = 1

    def next(self, field: str) -> int:
        number = self.reserve.get(field) or max(getattr(self._meta, field), 1)
        self.reserve[field] = number + 1
        return int(number)

    def service(self, pair: Pair) -> int:
        if pair.have is not None and not pair.anew:
            return pair.have.service.id
        return self.next("next_service")

    def lane(self) -> int:
        """Never used, or, once all have been, one that is nobody's. Raises Full."""
        largest = self._state.map("current").info.max_entries
        if self._free is None:
            if (self.reserve.get("next_lane") or max(self._meta.next_lane, 1)) < largest:
                self._lanes.add(lane := self.next("next_lane"))
                return lane
            used = (self._source.lanes() - self._freed.lanes) | self._lanes
            self._free = free_lanes(largest, used)
        for lane in self._free:
            return lane
        raise full("current", self._state.usage("current").used, largest, self.lanes_wanted)


def free_lanes(largest: int, used: set[int]) -> Iterator[int]:
    """Lanes nobody has."""
    return (lane for lane in range(1, largest) if lane not in used)


def free_lane(state: State, used: set[int]) -> int:
    """The first of them. Raises Full."""
    largest = state.map("current").info.max_entries
    for lane in free_lanes(largest, used):
        return lane
    raise full("current", len(used), largest, 1)


def _kept_lanes(pair: Pair, new: bool) -> dict[int, int]:
    """Those of its lanes, by family, that the service has afterwards, too."""
    old = pair.have.lanes if pair.have and not pair.anew and not new else {}
    return {family: old[family] for family in (families(pair.want) if pair.want else ()) if family in old}


def _lanes(pair: Pair, old: Mapping[int, int], numbers: _Numbers) -> dict[int, int]:
    """Lane of each family the service has afterwards."""
    return {
        family: old[family] if family in old else numbers.lane()
        for family in (families(pair.want) if pair.want else ())
    }


class _Backends(NamedTuple):
    """`ids` of all backends that the services have afterwards, those to make, what becomes of references."""

    ids: dict[Backend, int]
    new: dict[Backend, int]
    references: dict[Backend, References]


def _backends(parts: Sequence[Pair], source: Source, numbers: _Numbers) -> _Backends:
    ids: dict[Backend, int] = {}
    more: dict[Backend, int] = {}
    users: dict[Backend, int] = {}
    for have, want, anew in parts:
        old = {member.backend for member in have.service.members} if have else set()
        new = {member.backend for member in want.members} if want else set()
        if have and not anew:
            ids.update(zip([member.backend for member in have.service.members], have.backends, strict=True))
        for backend in new if anew else new - old:
            more[backend] = more.get(backend, 0) + (backend not in old)
            users[backend] = users.get(backend, 0) + 1
        for backend in old - new:
            more[backend] = more.get(backend, 0) - 1
    made: dict[Backend, int] = {}
    references = {}
    for backend, count in more.items():
        entry = source.backend(backend)
        if entry is None:
            if backend not in users:
                continue
            entry, count = BackendId(numbers.next("next_backend"), 0, b"", b""), users[backend]
            made[backend] = entry.id
        ids[backend] = entry.id
        if count:
            references[backend] = References(entry, count)
    return _Backends(ids, made, references)


class _Blocks(NamedTuple):
    """Blocks to make, the lanes' new words, lanes that are given back, blocks that go."""

    made: tuple[NewBlock, ...]
    current: dict[int, tuple[int, int]]
    idle: tuple[int, ...]
    old: tuple[int, ...]


def _sets(pair: Pair, lanes: Mapping[int, int], ranges: int, source: Source, numbers: _Numbers) -> _Blocks:
    """A set that did not change keeps its block."""
    have, want, anew = pair
    before = {lane.family: lane for lane in blocks_of(have.service)} if have else {}
    made: list[NewBlock] = []
    current: dict[int, tuple[int, int]] = {}
    old: set[int] = set()
    idle = []
    for family, number in have.lanes.items() if have else ():
        if lanes.get(family) != number:
            idle.append(number)
            old.update(source.blocks(number))
    for lane in blocks_of(want) if want else ():
        number = lanes[lane.family]
        cluster = local = 0
        kept = None
        if have and not anew and have.lanes.get(lane.family) == number:
            cluster, local = source.blocks(number)
            kept = before.get(lane.family)
        new_cluster, new_local = cluster, local
        if kept is None or not cluster or not same_set(kept.cluster, lane.cluster):
            new_cluster = numbers.next("next_block")
            made.append(NewBlock(new_cluster, number, lane.cluster, ranges_of(ranges, lane.family)))
        elif same_set(kept.local, lane.local):
            continue
        new_local = new_cluster
        if lane.local is not None and not same_set(lane.local, lane.cluster):
            new_local = numbers.next("next_block")
            made.append(NewBlock(new_local, number, lane.local, ranges_of(ranges, lane.family)))
        current[number] = (new_cluster, new_local)
        old |= {cluster, local} - {new_cluster, new_local}
    return _Blocks(tuple(made), current, tuple(idle), tuple(sorted(old - {0})))


def ranges_of(number: int, family: int) -> int:
    """The number of a family's source ranges, by that of the service: each family has its own; 0: none."""
    return number + (family == IPV6) if number else 0


def deltas(changes: Changes) -> dict[str, int]:
    """How many more entries each counted map has at the height of the change."""
    more = dict.fromkeys(
        ("service_names", "current", "frontends", "service_fronts", "backends", "service_members", "blocks"),
        0,
    )
    slots = resting = ranges = 0
    for one in changes.parts:
        more["service_names"] += one.have is None
        more["current"] += len(one.new_lanes)
        more["blocks"] += len(one.blocks)
        slots += sum(len(block.set.members) for block in one.blocks)
        resting += sum(len(block.set.resting) for block in one.blocks)
        if one.want is not None:
            more["service_fronts"] += len(one.want.frontends)
            more["service_members"] += len(one.want.members)
            ranges += len(one.want.sources) if one.new_ranges else 0
    more["frontends"] = changes.added_words
    more["backends"] = len(changes.new_backends)
    return more | {"slots": slots, "members": slots + resting, "source_ranges": ranges}


def check_room(state: State, changes: Changes, freed: Freed = NOTHING) -> None:
    """Raise Full for a map without room for the change, and when there are no numbers left."""
    for counter, following in changes.reserve.items():
        if following > LAST_ID:
            raise Full(
                f"no free id: every number for a {counter.removeprefix('next_')} has been given out",
                hint="'svcctl unload' and 'svcctl load' begin anew with 1",
            )
    wanted = deltas(changes)
    wanted["backends"] += len(freed.backends & changes.backends.keys())
    for name, more in wanted.items():
        if more > 0:
            used = max(state.usage(name).used - freed.entries.get(name, 0), 0)
            largest = state.map(name).info.max_entries
            if used + more > largest:
                raise full(name, used, largest, more)
    if any(block.set.table_size for one in changes.parts for block in one.blocks):
        from svcctl.state.tables import check_tables

        check_tables(state, changes, freed.tables)
