"""svcctl.record against typing.NamedTuple, which it stands for."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest

from svcctl.record import Record


class Ours(Record):
    """Fields of every kind."""

    a: int
    b: str
    c: tuple[int, ...] = (1, 2)
    d: None = None

    @property
    def both(self) -> str:
        return f"{self.a}{self.b}"


class Theirs(NamedTuple):
    a: int
    b: str
    c: tuple[int, ...] = (1, 2)
    d: None = None

    @property
    def both(self) -> str:
        return f"{self.a}{self.b}"


BOTH = pytest.mark.parametrize("kind", [Ours, Theirs])


@BOTH
def test_made_in_every_way(kind):
    made = kind(1, "x")
    assert made == (1, "x", (1, 2), None) == kind(b="x", a=1) == kind(1, "x", (1, 2), None)
    assert kind(1, "x", c=()) == kind(1, "x", ()) == kind._make((1, "x", (), None))
    assert (made.a, made.b, made.c, made.d, made.both) == (1, "x", (1, 2), None, "1x")
    assert isinstance(made, tuple)
    assert hash(made) == hash((1, "x", (1, 2), None))
    assert kind._fields == kind.__match_args__ == ("a", "b", "c", "d")
    assert kind._field_defaults == {"c": (1, 2), "d": None}


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [
        lambda kind: kind(1),
        lambda kind: kind(1, "x", (), None, 5),
        lambda kind: kind(1, "x", e=5),
        lambda kind: kind(1, "x", a=5),
        lambda kind: kind._make((1, 2)),
    ],
)
def test_refused(kind, wrong):
    with pytest.raises(TypeError):
        wrong(kind)


@BOTH
def test_used_as_a_named_tuple(kind):
    made = kind(1, "x")
    assert made._replace(b="y") == (1, "y", (1, 2), None)
    assert type(made._replace(b="y")) is kind
    with pytest.raises((ValueError, TypeError)):
        made._replace(e=1)
    with pytest.raises(AttributeError):
        made.a = 2
    with pytest.raises(AttributeError):
        made.e = 2
    assert made._asdict() == {"a": 1, "b": "x", "c": (1, 2), "d": None}
    assert repr(made) == f"{kind.__name__}(a=1, b='x', c=(1, 2), d=None)"
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert copied == made
        assert type(copied) is kind
    match made:
        case kind(a, b):
            assert (a, b) == (1, "x")
