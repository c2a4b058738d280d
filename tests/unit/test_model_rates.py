"""Rates between two looks at the counters."""

from __future__ import annotations

from svcctl.cli.commands.top import share_out
from svcctl.model.rates import between
from svcctl.model.snapshot import BackendSample, DestinationSample, ServiceSample, Snapshot

EMPTY = Snapshot("1", 1, False, 0.0, 0, 0.0, (), (), (), (("no_socket", 3), ("no_backend", 0)))


def label(name: str, *counters: int) -> DestinationSample:
    lookups, no_socket, errors = counters
    return DestinationSample(name, 4, 6, 1, 2, lookups, no_socket, errors)


def test_of_everything() -> None:
    before = EMPTY._replace(
        destinations=(label("a", 10, 1, 0), label("b", 0, 0, 0)),
        services=(ServiceSample("s", 4, 100, 5, 6, 7, 8, 9),),
        backends=(BackendSample("10.0.0.1:80", 50),),
    )
    after = EMPTY._replace(
        destinations=(label("a", 14, 1, 0), label("b", 20, 2, 0), label("new", 6, 0, 0)),
        services=(ServiceSample("s", 4, 110, 5, 8, 7, 8, 10), ServiceSample("s", 6, 0, 0, 0, 0, 0, 0)),
        backends=(BackendSample("10.0.0.1:80", 60), BackendSample("10.0.0.2:80", 90)),
        drops=(("no_socket", 5), ("no_backend", 0)),
    )
    found = between(before, after, 2.0)
    assert [(one.label, one.sockets, one.lookups, one.no_socket) for one in found.labels] == [
        ("b", 2, 10.0, 1.0),
        ("new", 2, 3.0, 0.0),
        ("a", 2, 2.0, 0.0),
    ]
    assert [(*one,) for one in found.services] == [
        ("s", 4, 5.0, 0.0, 0.0, 0.0, 1.0, 0.5),
        ("s", 6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ]
    assert [(one.backend, one.picks) for one in found.backends] == [("10.0.0.2:80", 45), ("10.0.0.1:80", 5)]
    assert found.drops == {"no_socket": 1.0, "no_backend": 0.0}
    assert (found.lookups, found.connections, found.refused) == (15.0, 5.0, 1.0)


def test_what_was_made_anew_started_at_zero() -> None:
    before = EMPTY._replace(destinations=(label("a", 1000, 0, 0), label("gone", 9, 0, 0)))
    after = EMPTY._replace(destinations=(label("a", 3, 0, 0),))
    (one,) = between(before, after, 1.0).labels
    assert one.lookups == 3.0


def test_equally_busy_ones_keep_their_order() -> None:
    after = EMPTY._replace(destinations=tuple(label(name, 0, 0, 0) for name in "abcd"))
    assert [one.label for one in between(EMPTY, after, 1.0).labels] == list("abcd")


def test_rows_of_a_screen() -> None:
    assert share_out([2, 3, 4], 100) == [2, 3, 4]
    assert share_out([2, 100, 50], 20) == [2, 9, 9]
    assert share_out([60_000, 2], 12) == [10, 2]
    assert share_out([5, 5], 1) == [1, 1]
    assert share_out([], 10) == []
