"""When an apply is due, and how long failures are waited out."""

from __future__ import annotations

import math

from svcctl.follow.pace import Backoff, Pace


def pace() -> Pace:
    return Pace(Backoff(1.0, 30.0, lambda: 1.0))


def test_nothing_to_do() -> None:
    one = pace()
    assert one.due() == math.inf
    one.change(10.0)
    one.begin()
    one.done(10.5, 0.5)
    assert one.due() == math.inf


def test_what_comes_together_is_applied_together() -> None:
    one = pace()
    one.change(10.0)
    one.change(10.15)
    assert one.due() == 10.2


def test_at_most_one_a_second_under_churn() -> None:
    one = pace()
    one.change(10.0)
    one.begin()
    one.change(10.1)  # during the apply
    one.done(10.4, 0.2)
    assert one.due() == 11.4
    one.change(11.0)
    assert one.due() == 11.4


def test_a_slow_apply_leaves_time_for_others() -> None:
    one = pace()
    one.change(0.0)
    one.begin()
    one.done(10.0, 4.0)
    one.change(10.0)
    assert one.due() == 14.0


def test_a_failed_apply_is_tried_again_and_with_the_next_change() -> None:
    one = pace()
    one.change(0.0)
    one.begin()
    assert one.failed(10.0) == 1.0
    assert one.due() == 11.0
    one.begin()
    assert one.failed(11.0) == 2.0
    one.begin()
    assert one.failed(13.0) == 4.0
    assert one.due() == 17.0
    one.change(13.5)
    assert one.due() == 14.0
    one.begin()
    one.done(14.0, 0.0)
    assert one.due() == math.inf
    one.change(20.0)
    one.begin()
    assert one.failed(20.2) == 1.0, "a success ends the growing pauses"


def test_pauses_grow_and_end_growing() -> None:
    low, high = Backoff(1.0, 30.0, lambda: 0.0), Backoff(1.0, 30.0, lambda: 1.0)
    assert [low.next() for _ in range(7)] == [0.5, 1, 2, 4, 8, 15, 15]
    assert [high.next() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    for _ in range(2000):
        assert high.next() == 30


def test_pauses_are_not_the_same_everywhere() -> None:
    assert len({Backoff(1.0, 30.0).next() for _ in range(10)}) > 1
