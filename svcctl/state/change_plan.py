"""What a change of services writes, worked out whole before the first write; for one service or for many at once.

Frontends may move between the services of one change. A service that loses one keeps its old set of backends until
the frontend has moved, and the one that gains it has its new set before: so the changes have levels, and each level's
lanes are switched, and then its frontends written, before the next one's. Services that exchange frontends in a
circle get new lanes, so that nobody has to wait for anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import Conflict, Full
from svcctl.maps import enums
from svcctl.maps import service_codec as codec
from svcctl.maps.service_layouts import FRONTEND_KEY, BackendId
from svcctl.model.constants import IPV6
from svcctl.model.service import blocked_addresses, blocks_of, families, frontend_flags, same_set
from svcctl.model.service_endpoint import format_frontend, is_zero
from svcctl.state.change_source import STRAY, Live
from svcctl.state.destinations import full

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from svcctl.model.service import BackendSet, Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_source import Source
    from svcctl.state.services import Stored
    from svcctl.state.session import State


LAST_ID = 0xFFFFFFFF
"""Numbers are never given out twice, so at some time there are none left."""


class Pair(NamedTuple):
    """What a service is and what it is to be; None: there is none. `anew`: the ids of `have` are not to be used."""

    have: Stored | None
    want: Service | None
    anew: bool = False


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


def plan_changes(state: State, pairs: Iterable[Pair], source: Source | None = None) -> Changes:
    """Work out a change of any number of services.

    Raises Conflict for a frontend of a service that is not among them, Full before anything is written.
    """
    known = source or Live(state)
    numbers = _Numbers(state, known)
    parts = [
        pair if pair.want is None else pair._replace(want=pair.want._replace(id=numbers.service(pair)))
        for pair in pairs
        if pair.have is not None or pair.want is not None
    ]
    before, after = _holders(parts)
    levels, circles = _levels(parts, before, after)
    lanes = [_lanes(pair, number in circles, numbers) for number, pair in enumerate(parts)]
    words, gone, added = _words(parts, lanes, before, after, known)
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
    check_room(state, planned)
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

    def __init__(self, state: State, source: Source) -> None:
        self._state, self._source = state, source
        self._meta = state.meta()
        self._free: Iterator[int] | None = None
        self.reserve: dict[str, int] = {}

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
                return self.next("next_lane")
            self._free = free_lanes(largest, self._source.lanes())
        for lane in self._free:
            return lane
        raise full("current", largest - 1, largest, 1)


def free_lanes(largest: int, used: set[int]) -> Iterator[int]:
    """Lanes nobody has."""
    return (lane for lane in range(1, largest) if lane not in used)


def free_lane(state: State, used: set[int]) -> int:
    """The first of them. Raises Full."""
    largest = state.map("current").info.max_entries
    for lane in free_lanes(largest, used):
        return lane
    raise full("current", len(used), largest, 1)


def words_of(service: Service, lanes: Mapping[int, int]) -> dict[bytes, bytes]:
    """All entries of `frontends` that a service has."""
    words = {}
    for one in service.frontends:
        key = codec.frontend_key(one.frontend)
        words[key] = codec.frontend_word(key, lanes[one.frontend.family], frontend_flags(service, one))
    for family, address in blocked_addresses(service):
        key = codec.blocked_key(address)
        words[key] = codec.frontend_word(key, lanes[family], enums.FRONTEND_BLOCK)
    return words


def keys_of(service: Service) -> list[bytes]:
    """The keys of `words_of`."""
    keys = [codec.frontend_key(one.frontend) for one in service.frontends]
    return keys + [codec.blocked_key(address) for _, address in blocked_addresses(service)]


def _show(key: bytes) -> str:
    return format_frontend(codec.decode_frontend(*FRONTEND_KEY.unpack(key)[:3]))


def _holders(parts: Sequence[Pair]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Key of `frontends` -> number of the part that has it, before and after. Raises Conflict for two of them."""
    before: dict[bytes, int] = {}
    after: dict[bytes, int] = {}
    for number, (have, want, _) in enumerate(parts):
        for key in keys_of(have.service) if have else ():
            before.setdefault(key, number)
        for key in keys_of(want) if want else ():
            other = after.setdefault(key, number)
            if other != number:
                first = parts[other].want
                assert first is not None
                assert want is not None
                raise Conflict(
                    f"frontend {_show(key)} is asked for by services {first.name!r} and {want.name!r}"
                )
    return before, after


def _levels(
    parts: Sequence[Pair], before: Mapping[bytes, int], after: Mapping[bytes, int]
) -> tuple[list[int], set[int]]:
    """(level of each part, the parts that need new lanes). A part is above those that gain frontends of its own."""
    gainers: dict[int, set[int]] = {}
    for key, number in after.items():
        loser = before.get(key)
        if loser is not None and loser != number and parts[loser].want is not None and not parts[loser].anew:
            gainers.setdefault(loser, set()).add(number)
    levels = [0] * len(parts)
    if not gainers:
        return levels, set()
    # Taken away from the bottom: who waits for nobody any more. What is left waits in a circle, or for one.
    waits = {number: set(others) for number, others in gainers.items()}
    waiting: dict[int, set[int]] = {}
    for number, others in waits.items():
        for other in others:
            waiting.setdefault(other, set()).add(number)
    ready = [other for other in waiting if other not in waits]
    circles: set[int] = set()
    while waits or ready:
        if not ready:
            number = min(waits)  # with a new lane it need not wait
            circles.add(number)
            del waits[number]
            ready = [number]
        number = ready.pop()
        for loser in waiting.get(number, ()):
            if loser in waits:
                levels[loser] = max(levels[loser], levels[number] + 1)
                waits[loser].discard(number)
                if not waits[loser]:
                    del waits[loser]
                    ready.append(loser)
    for number in circles:
        levels[number] = 0
    return levels, circles


def _lanes(pair: Pair, new: bool, numbers: _Numbers) -> dict[int, int]:
    """Lane of each family the service has afterwards."""
    old = pair.have.lanes if pair.have and not pair.anew and not new else {}
    return {
        family: old[family] if family in old else numbers.lane()
        for family in (families(pair.want) if pair.want else ())
    }


def _words(
    parts: Sequence[Pair],
    lanes: Sequence[Mapping[int, int]],
    before: Mapping[bytes, int],
    after: Mapping[bytes, int],
    source: Source,
) -> tuple[list[dict[bytes, bytes]], tuple[bytes, ...], int]:
    """(words that each part writes, keys to delete, how many keys are new)."""
    found: list[dict[bytes, bytes]] = []
    added = 0
    mine = {pair.have.service.id for pair in parts if pair.have} | {STRAY}
    for number, (have, want, anew) in enumerate(parts):
        words = words_of(want, lanes[number]) if want else {}
        old: dict[bytes, bytes] = {}
        if have and words and not anew and families(have.service) == sorted(have.lanes):
            old = words_of(have.service, have.lanes)
        changed = {}
        for key, word in words.items():
            if key in before:
                added += not source.has_word(key)
            else:
                owner = source.owner(key)
                if owner is not None and owner not in mine:
                    assert want is not None
                    raise Conflict(
                        f"service {want.name}: frontend {_show(key)} belongs to service {source.name(owner)!r}",
                        hint="'svcctl service set' or 'svcctl service delete' on that one frees it",
                    )
                added += owner is None
            if old.get(key) != word or before.get(key) != number or not source.is_written(key, word):
                changed[key] = word
        found.append(changed)
    return found, tuple(key for key in before if key not in after), added


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
    slots = ranges = 0
    for one in changes.parts:
        more["service_names"] += one.have is None
        more["current"] += len(one.new_lanes)
        more["blocks"] += len(one.blocks)
        slots += sum(len(block.set.members) for block in one.blocks)
        if one.want is not None:
            more["service_fronts"] += len(one.want.frontends)
            more["service_members"] += len(one.want.members)
            ranges += len(one.want.sources) if one.new_ranges else 0
    more["frontends"] = changes.added_words
    more["backends"] = len(changes.new_backends)
    return more | {"slots": slots, "members": slots, "source_ranges": ranges}


def check_room(state: State, changes: Changes) -> None:
    """Raise Full for a map without room for the change, and when there are no numbers left."""
    for counter, following in changes.reserve.items():
        if following > LAST_ID:
            raise Full(
                f"no free id: every number for a {counter.removeprefix('next_')} has been given out",
                hint="'svcctl unload' and 'svcctl load' begin anew with 1",
            )
    for name, more in deltas(changes).items():
        if more > 0:
            usage = state.usage(name)
            largest = state.map(name).info.max_entries
            if usage.used + more > largest:
                raise full(name, usage.used, largest, more)


def special_frontends(service: Service) -> tuple[int, int]:
    """(frontends with the zero address, blocked addresses)"""
    zero = sum(1 for one in service.frontends if is_zero(one.frontend.family, one.frontend.address))
    return zero, len(blocked_addresses(service))
