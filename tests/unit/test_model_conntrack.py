"""When a flow is over: the table of states and idle times, each row also with the directions swapped."""

from __future__ import annotations

import pytest

from svcctl.model.conntrack import (
    FIN,
    REPLY,
    RST,
    Timeouts,
    expired,
    idle_limit_ms,
    is_closed,
    state_name,
)
from svcctl.model.constants import TCP, UDP
from tests.lib.flow_table import ROWS, Row

S = 1_000_000_000


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("swapped", [False, True])
def test_table(row: Row, swapped: bool) -> None:
    """The very limit is still alive, a millisecond more is not."""
    seen, other = (row.other, row.seen) if swapped else (row.seen, row.other)
    limit = idle_limit_ms(
        Timeouts(),
        row.protocol,
        seen=seen,
        other=other,
        answered=row.answered,
        was_reset=row.was_reset,
        one_sided=row.one_sided,
    )
    assert limit == row.limit_s * 1000
    now = 10_000 * S
    assert not expired(limit, now, now - row.limit_s * S)
    assert expired(limit, now, now - row.limit_s * S - 1)


def test_a_flow_is_as_old_as_its_later_direction() -> None:
    """A download keeps the direction of the requests alive, and the other way round."""
    assert not expired(1000, 5 * S, 0, 5 * S)
    assert not expired(1000, 5 * S, 4 * S, 0)
    assert expired(1000, 5 * S, 3 * S, 0)


def test_another_processors_clock() -> None:
    assert not expired(0, 5 * S, 6 * S)


def test_two_hours_end_everything() -> None:
    for row in ROWS:
        assert expired(row.limit_s * 1000, 7200 * S + 1, 0), row


@pytest.mark.parametrize(
    ("seen", "other", "closed"),
    [
        (0, 0, False),
        (FIN, 0, False),
        (0, FIN, False),
        (FIN, FIN, True),
        (RST, 0, True),
        (0, RST, True),
        (FIN, RST, True),
    ],
)
def test_closed(seen: int, other: int, closed: bool) -> None:
    """What a SYN may follow as a new connection."""
    assert is_closed(seen, other) is closed
    assert is_closed(seen, other, one_sided=True) is (closed or seen == FIN)


@pytest.mark.parametrize(
    ("protocol", "seen", "other", "answered", "name"),
    [
        (UDP, 0, 0, False, "unreplied"),
        (UDP, 0, REPLY, False, "replied"),
        (UDP, 0, 0, True, "replied"),
        (TCP, 0, 0, False, "syn-sent"),
        (TCP, 0, REPLY, False, "syn-received"),
        (TCP, 0, REPLY, True, "established"),
        (TCP, FIN, REPLY, True, "client-closed"),
        (TCP, 0, REPLY | FIN, True, "backend-closed"),
        (TCP, FIN, REPLY | FIN, True, "closed"),
        (TCP, FIN | RST, FIN, True, "reset"),
        (TCP, 0, RST, False, "reset"),
    ],
)
def test_names(protocol: int, seen: int, other: int, answered: bool, name: str) -> None:
    assert state_name(protocol, seen=seen, other=other, answered=answered) == name
