"""Maglev tables: the paper's vector, shares, disruption, independence of order and history."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcctl.errors import UsageProblem
from svcctl.model import maglev

KNOWN = "2332123113313312223331231233133332233312"
PLACE = (7, 164)


def name(number: int) -> bytes:
    """Address and port of a backend, as the maps have them."""
    return bytes(10) + b"\xff\xff" + (0x0A000000 + number).to_bytes(4, "big") + (8080).to_bytes(2, "big")


def equal(count: int) -> dict[bytes, int]:
    """Backends of weight 1."""
    return {name(number): 1 for number in range(count)}


def worst_share(slots: list[bytes], weights: dict[bytes, int]) -> Fraction:
    """By how many slots a backend is off its exact share, at most."""
    found = maglev.shares(slots)
    total = sum(weights.values())
    return max(
        abs(found.get(each, 0) - Fraction(len(slots) * weight, total)) for each, weight in weights.items()
    )


def test_vector_of_the_paper() -> None:
    """NSDI 2016, table 1: offsets and skips (3, 4), (0, 2), (3, 1) in seven slots."""
    b0, b1, b2 = b"B0", b"B1", b"B2"
    where = {b0: (3, 4), b1: (0, 2), b2: (3, 1)}
    weights = {b0: 1, b1: 1, b2: 1}
    slots = maglev.fill([b""] * 7, {b0: 3, b1: 2, b2: 2}, where, weights)
    assert slots == [b1, b0, b1, b0, b2, b2, b0]
    slots = maglev.fill([b""] * 7, {b0: 4, b2: 3}, where, weights)
    assert slots == [b0, b0, b0, b0, b2, b2, b2]


def test_known_tables() -> None:
    """Every node and every version has to come to these: changing them moves every flow of a cluster."""
    slots = maglev.table({name(1): 1, name(2): 1, name(3): 2}, 251)
    assert "".join(str(each[15]) for each in slots[:40]) == KNOWN
    assert maglev.places(name(1), 251) == PLACE


@pytest.mark.parametrize("size", [1_021, 16_381, 65_537])
@pytest.mark.parametrize("count", [1, 3, 10, 100, 1000])
def test_shares_of_equal_weights(size: int, count: int) -> None:
    """At most one slot between the largest and the smallest share."""
    found = maglev.shares(maglev.table(equal(count), size)).values()
    assert sum(found) == size
    assert max(found) - min(found) <= 1


def test_weights_one_one_one_two() -> None:
    """The case that Cilium's scheme gets wrong: 256 255 255 255 of 1,021."""
    weights = {name(1): 1, name(2): 1, name(3): 1, name(4): 2}
    found = maglev.shares(maglev.table(weights, 1_021))
    assert sorted(found.values()) == [204, 204, 204, 409]
    assert found[name(4)] == 409


def test_random_weights() -> None:
    """300 sets of weights: every backend within one slot of its share."""
    chosen = random.Random(3)
    for _ in range(300):
        weights = {name(n): chosen.randint(1, 1000) for n in range(chosen.randint(2, 30))}
        assert worst_share(maglev.table(weights, chosen.choice((251, 1_021, 4_093))), weights) < 1


@pytest.mark.parametrize(
    ("size", "count", "mean", "worst"),
    [(1_021, 3, 0.0063, 0.024), (1_021, 10, 0.028, 0.066), (16_381, 10, 0.0056, 0.0102),
     (16_381, 100, 0.0135, 0.016), (65_537, 100, 0.0058, 0.0067), (65_537, 1000, 0.0057, 0.0064)],
)  # fmt: skip
def test_disruption(size: int, count: int, mean: float, worst: float) -> None:
    """Slots of the others that move when one backend goes, against the simulated means and worst cases of 100."""
    weights = equal(count)
    before = maglev.table(weights, size)
    found = []
    for gone in random.Random(size + count).sample(sorted(weights), min(count, 8)):
        after = maglev.table({each: 1 for each in weights if each != gone}, size)
        found.append(maglev.moved(before, after) / (size - before.count(gone)))
    assert max(found) <= worst * 1.3
    assert sum(found) / len(found) <= mean * 1.5


@given(st.dictionaries(st.integers(0, 60), st.integers(0, 65_535), max_size=20), st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_order(picks: dict[int, int], shuffled: random.Random) -> None:
    """The same table in whichever order the backends come; weight 0 is as good as absent."""
    weights = {name(number): weight for number, weight in picks.items()}
    items = [(each, weight) for each, weight in weights.items() if weight]
    shuffled.shuffle(items)
    assert maglev.table(weights, 251) == maglev.table(dict(items), 251)


@given(
    st.dictionaries(st.integers(0, 40), st.integers(1, 20), min_size=1, max_size=15),
    st.lists(st.dictionaries(st.integers(0, 40), st.integers(0, 20), max_size=15), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_stable_refill(first: dict[int, int], later: list[dict[int, int]]) -> None:
    """Whatever came before: exact shares, and nothing moves that need not."""
    slots = maglev.table({name(number): weight for number, weight in first.items()}, 251)
    for picks in later:
        weights = {name(number): weight for number, weight in picks.items() if weight}
        if not weights:
            assert maglev.refill(slots, weights) == []
            continue
        after = maglev.refill(slots, weights)
        assert worst_share(after, weights) < 1
        had, has = maglev.shares(slots), maglev.shares(after)
        for each in weights:
            kept = sum(1 for a, b in zip(slots, after, strict=True) if a == b == each)
            assert kept == min(had.get(each, 0), has.get(each, 0))
        slots = after


def test_stable_removal_moves_nothing_else() -> None:
    """Slots of backends that stay are left alone."""
    weights = equal(100)
    before = maglev.table(weights, 16_381)
    after = maglev.refill(before, dict.fromkeys(sorted(weights)[5:], 1))
    assert maglev.moved(before, after) == 0


def test_corner_cases() -> None:
    """Nobody, one, more backends than slots."""
    assert maglev.table({}, 251) == []
    assert maglev.table({name(1): 0}, 251) == []
    assert maglev.table({name(1): 7}, 251) == [name(1)] * 251
    found = maglev.shares(maglev.table(equal(400), 251))
    assert set(found.values()) == {1}
    assert len(found) == 251
    assert maglev.refill(maglev.table(equal(3), 251), {name(1): 1}) == [name(1)] * 251


def test_sizes_are_prime() -> None:
    """Else a permutation would leave slots out."""
    for size in maglev.SIZES:
        assert maglev.check_size(size) == size
        assert all(size % divisor for divisor in range(2, int(size**0.5) + 1))
    with pytest.raises(UsageProblem, match="expected one of 251"):
        maglev.check_size(1000)
