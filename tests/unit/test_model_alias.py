"""Alias tables: shares that are exact to 2^-31, for any weights, proved with fractions and by drawing."""

from __future__ import annotations

import random
from fractions import Fraction
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.model.alias import ALWAYS, alias_table, shares

pytestmark = pytest.mark.unit

ERROR = Fraction(1, 2**31)
DRAWS = 1_000_000


def random_sets() -> list[list[int]]:
    """300 sets of weights of all sorts, always the same ones."""
    source = random.Random(3)
    sets = []
    for number in range(300):
        most = (2, 100, 1000, 65535)[number % 4]
        sets.append([source.randint(0, most) for _ in range(source.randint(1, 60))])
    return sets


def check(weights: list[int]) -> None:
    """All that a table promises."""
    table = alias_table(weights)
    positive = [index for index, weight in enumerate(weights) if weight]
    assert [index for index, _, _ in table] == positive
    assert all(weights[alias] for _, alias, _ in table)
    assert all(0 < threshold <= ALWAYS for _, _, threshold in table)
    assert all((alias == index) == (threshold == ALWAYS) for index, alias, threshold in table)
    total = sum(weights)
    exact = shares(table)
    assert sorted(exact) == positive
    assert sum(exact.values()) == (1 if positive else 0)
    for index in positive:
        assert abs(exact[index] - Fraction(weights[index], total)) < ERROR
    assert alias_table(weights) == table


@given(st.lists(st.integers(0, 65535), max_size=200))
def test_shares_are_the_weights(weights: list[int]) -> None:
    check(weights)


@given(st.lists(st.sampled_from([0, 1, 2, 32767, 65534, 65535]), max_size=300))
def test_shares_of_extreme_weights(weights: list[int]) -> None:
    check(weights)


@pytest.mark.parametrize(
    "weights",
    [[1, 65535], [65535, 1], [1, 1, 1, 2], [2, 1, 1, 1], [1], [65535], [1] * 5000 + [65535]],
    ids=len,
)
def test_known_sets(weights: list[int]) -> None:
    check(weights)


def test_three_hundred_random_sets() -> None:
    for weights in random_sets():
        check(weights)


def test_the_worst_case_of_one_alias_for_all() -> None:
    """Every slot's rounding falls on one member: it must not add up."""
    for heavy in range(1, 65536, 4093):
        check([3] * 997 + [heavy])


@given(st.integers(1, 65535), st.integers(1, 300))
def test_equal_weights_need_no_alias(weight: int, count: int) -> None:
    assert alias_table([weight] * count) == [(index, index, ALWAYS) for index in range(count)]


def test_nobody() -> None:
    assert alias_table([]) == []
    assert alias_table([0, 0]) == []
    assert shares([]) == {}


def test_without_the_weight_zero_it_is_the_same_table() -> None:
    table = alias_table([0, 5, 0, 7, 1])
    places = {1: 0, 3: 1, 4: 2}
    assert [(places[index], places[alias], threshold) for index, alias, threshold in table] == alias_table(
        [5, 7, 1]
    )


def test_time_is_linear() -> None:
    """Smoke, not a measurement: a quadratic one would take minutes for 100,000 members."""
    source = random.Random(1)
    weights = [source.randint(0, 65535) for _ in range(100_000)]
    begin = perf_counter()
    assert len(alias_table(weights)) == sum(1 for weight in weights if weight)
    assert perf_counter() - begin < 10


def draw_counts(weights: list[int], draws: int, source: random.Random) -> list[int]:
    """Draws as the program does: two numbers of 32 bits."""
    table = alias_table(weights)
    counts = [0] * len(weights)
    bits = source.getrandbits
    slots = len(table)
    for _ in range(draws):
        index, alias, threshold = table[bits(32) * slots >> 32]
        if threshold != ALWAYS and bits(32) >= threshold:
            index = alias
        counts[index] += 1
    return counts


@pytest.mark.parametrize(
    ("weights", "limit"),
    [([1, 65535], 23.93), ([1, 1, 1, 2], 30.66), ([5, 0, 1, 30, 7, 7, 65], 35.89)],
    ids=str,
)
def test_a_million_draws(weights: list[int], limit: float) -> None:
    """Chi-square against what chance exceeds once in a million; the seed is fixed, so it cannot fail by chance."""
    counts = draw_counts(weights, DRAWS, random.Random(7))
    total = sum(weights)
    score = 0.0
    for weight, count in zip(weights, counts, strict=True):
        if not weight:
            assert count == 0
            continue
        expected = DRAWS * weight / total
        score += (count - expected) ** 2 / expected
    assert score < limit
