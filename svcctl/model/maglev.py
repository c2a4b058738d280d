"""Maglev look-up tables: which backend each slot belongs to, from nothing but the set of backends.

The algorithm of Eisenbud et al., 'Maglev: A Fast and Reliable Software Network Load Balancer' (NSDI 2016), section
3.4: each backend has a permutation of the slots and takes the first free one of it when its turn comes. Whose turn
it is goes by due dates, so that weights are exact: the k-th turn of a backend of weight w is due at (k + 1/2) / w,
which for equal weights is the paper's round; and a backend that has its quota has no more turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    Name = TypeVar("Name", bytes, int)

SIZES = (251, 509, 1_021, 2_039, 4_093, 8_191, 16_381, 32_749, 65_537, 131_071, 655_373)
"""Sizes a table may have: primes, so that every step from 1 on visits every slot."""

DEFAULT_SIZE = 16_381
PERSON = b"svcctl maglev"
"""Keeps these hashes apart from those of anybody else; changing it moves every flow."""


def check_size(size: int) -> int:
    """Returns `size` if a table can have it. Raises UsageProblem naming the sizes there are."""
    if size not in SIZES:
        raise BadValue("table size", size, "expected one of " + ", ".join(map(str, SIZES)))
    return size


def places(name: bytes, size: int) -> tuple[int, int]:
    """(offset, skip) of a backend's permutation: slot j of it is (offset + j * skip) mod size.

    `name` is any bytes that stay the same on every node: here address (16 bytes) and port (2 bytes, big endian).
    """
    from _blake2 import blake2b  # hashlib takes 3 ms to import, for OpenSSL

    digest = blake2b(name, digest_size=16, person=PERSON).digest()
    return (
        int.from_bytes(digest[:8], "little") % size,
        int.from_bytes(digest[8:], "little") % (size - 1) + 1 if size > 1 else 0,
    )


def quotas(weights: Mapping[bytes, int], size: int) -> dict[bytes, int]:
    """How many slots each backend gets: its share by weight, off by less than one slot.

    By the largest remainder, equal ones by name. Backends of weight 0 are left out.
    """
    names = sorted(name for name, weight in weights.items() if weight > 0)
    total = sum(weights[name] for name in names)
    if not total:
        return {}
    found = {name: size * weights[name] // total for name in names}
    rest = size - sum(found.values())
    by_remainder = sorted(names, key=lambda name: -(size * weights[name] % total))
    for name in by_remainder[:rest]:
        found[name] += 1
    return found


def table(weights: Mapping[bytes, int], size: int) -> list[bytes]:
    """The backend of each of `size` slots; empty when nobody has a weight. The order of `weights` is no matter."""
    shares = quotas(weights, size)
    if not shares:
        return []
    return fill([b""] * size, shares, {name: places(name, size) for name in shares}, weights)


def fill(
    slots: list[bytes],
    turns: Mapping[bytes, int],
    where: Mapping[bytes, tuple[int, int]],
    weights: Mapping[bytes, int],
) -> list[bytes]:
    """Give the free slots (b"") of `slots` away, in place: each name takes as many as it has `turns`.

    `where` is (offset, skip) of each name. The turns are to be as many as there are free slots.
    """
    size = len(slots)
    names = sorted(turns)
    cursor = [where[name][0] for name in names]
    step = [where[name][1] for name in names]
    # One cursor a backend, moved by adding: the permutations themselves would take gigabytes.
    for turn in _turns([turns[name] for name in names], [weights[name] for name in names]):
        at = cursor[turn]
        skip = step[turn]
        while slots[at]:
            at += skip
            if at >= size:
                at -= size
        slots[at] = names[turn]
        cursor[turn] = at
    return slots


def refill(old: Sequence[bytes], weights: Mapping[bytes, int]) -> list[bytes]:
    """A table of the size of `old` that differs from it in as few slots as shares allow ('--stable').

    A backend that goes moves only its own slots, one that comes takes only what it needs; every share is off by
    less than one slot. The price: the table depends on what was there before, so two nodes may differ.
    """
    size = len(old)
    names = sorted(name for name, weight in weights.items() if weight > 0)
    total = sum(weights[name] for name in names)
    if not total:
        return []
    low = {name: size * weights[name] // total for name in names}
    high = {name: low[name] + (size * weights[name] % total > 0) for name in names}
    where = {name: places(name, size) for name in names}
    mine: dict[bytes, list[int]] = {name: [] for name in names}
    slots = [b""] * size
    for slot, name in enumerate(old):
        if name in mine:
            mine[name].append(slot)
            slots[slot] = name
    have = {name: min(len(mine[name]), high[name]) for name in names}
    # What a backend has above its quota it gives back, last choices first.
    wanted = _targets(have, low, high, weights, size)
    for name in names:
        surplus = len(mine[name]) - wanted[name]
        if surplus > 0:
            for slot in _latest(mine[name], where[name], size)[:surplus]:
                slots[slot] = b""
    turns = {name: wanted[name] - min(len(mine[name]), wanted[name]) for name in names}
    return fill(slots, {name: count for name, count in turns.items() if count}, where, weights)


def moved(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    """How many slots of backends that are in both tables changed hands."""
    staying = set(new)
    return sum(1 for before, after in zip(old, new, strict=True) if before != after and before in staying)


def shares(slots: Iterable[Name]) -> dict[Name, int]:
    """How many slots each backend has; by name, or by whatever stands for one."""
    found: dict[Name, int] = {}
    for name in slots:
        found[name] = found.get(name, 0) + 1
    return found


def _turns(counts: Sequence[int], weights: Sequence[int]) -> Iterator[int]:
    """Whose turn it is, until all have had theirs: earliest due date first, then the order of the arguments."""
    if len(set(weights)) == 1:
        left = list(counts)
        running = [turn for turn, count in enumerate(left) if count]
        while running:
            yield from running
            for turn in running:
                left[turn] -= 1
            running = [turn for turn in running if left[turn]]
        return
    due: list[float] = []
    owner: list[int] = []
    for turn, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        # One correctly rounded division each: the same doubles on every machine.
        due += [(2 * k + 1) / weight for k in range(count)]
        owner += [turn] * count
    yield from (owner[k] for k in sorted(range(len(due)), key=due.__getitem__))


def _targets(
    have: dict[bytes, int],
    low: dict[bytes, int],
    high: dict[bytes, int],
    weights: Mapping[bytes, int],
    size: int,
) -> dict[bytes, int]:
    """How many slots each is to have: between `low` and `high`, as near to `have` as the sum allows."""
    found = {name: max(have[name], low[name]) for name in have}
    over = sum(found.values()) - size
    total = sum(weights[name] for name in have)

    def remainder(name: bytes) -> int:
        return size * weights[name] % total

    # Small remainders give first and get last.
    if over > 0:
        for name in sorted(found, key=lambda name: (remainder(name), name)):
            if over and found[name] > low[name]:
                found[name] -= 1
                over -= 1
    else:
        for name in sorted(found, key=lambda name: (-remainder(name), name)):
            if over and found[name] < high[name]:
                found[name] += 1
                over += 1
    return found


def _latest(slots: Iterable[int], place: tuple[int, int], size: int) -> list[int]:
    """Slots of a backend, the last of its permutation first."""
    offset, skip = place
    back = pow(skip, -1, size)
    return sorted(slots, key=lambda slot: (slot - offset) * back % size, reverse=True)
