"""Plans: what they contain, and that applying them one step at a time never misleads a connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from svcctl.model.binding import Binding, parse_binding
from svcctl.model.constants import IPV4, IPV6, TCP
from svcctl.model.plan import Plan, limit, plan
from svcctl.model.precedence import choose
from tests.unit.model_values import SMALL_PORTS, bytes16, small_bindings

State = dict[bytes, str]
Owner = Binding | None

states = st.lists(small_bindings, max_size=10, unique_by=Binding.key).map(
    lambda some: {each.key(): each.label for each in some}
)
PLACES = [
    *((IPV4, bytes16(ipaddress.IPv4Address(0x0A000000 | low))) for low in (*range(16), 16)),
    *((IPV6, bytes16(ipaddress.IPv6Address(0x20010DB8 << 96 | low))) for low in range(16)),
]


def keyed(*texts: str) -> State:
    """`label protocol prefix port` lines as a state."""
    parsed = [parse_binding(*text.split()) for text in texts]
    return {each.key(): each.label for each in parsed}


def steps(state: State, change: Plan, *, reverse: bool = False) -> Iterator[State]:
    """The state after each single write, as a writer goes through the plan."""
    state = dict(state)
    edits: list[tuple[bytes, str | None]] = [*change.added]
    edits += [(key, new) for key, new, _ in change.replaced]
    edits += [(key, None) for key, _ in change.removed]
    for key, label in reversed(edits) if reverse else edits:
        if label is None:
            del state[key]
        else:
            state[key] = label
        yield dict(state)


def owners(state: State) -> list[Owner]:
    """Who gets a connection, with the label at that moment, for each place and port of the small world."""
    some = [Binding.from_key(key, label) for key, label in state.items()]
    return [choose(some, TCP, *place, port)[0] for place in PLACES for port in SMALL_PORTS]


@given(states, states)
def test_contents(have: State, want: State) -> None:
    change = plan(have, want)
    assert dict(change.added) == {key: want[key] for key in want.keys() - have.keys()}
    assert dict(change.removed) == {key: have[key] for key in have.keys() - want.keys()}
    assert {key: (new, old) for key, new, old in change.replaced} == {
        key: (want[key], have[key]) for key in want.keys() & have.keys() if want[key] != have[key]
    }
    assert change.unchanged + len(change.added) + len(change.replaced) == len(want)
    assert change.changes == len(change.added) + len(change.replaced) + len(change.removed)
    assert change.is_empty == (have == want)
    assert plan(want, want).is_empty
    *_, last = [have, *steps(have, change)]
    assert last == want


@given(states, states)
@settings(max_examples=150, deadline=None)
def test_every_moment_is_the_old_rule_or_the_new_one(have: State, want: State) -> None:
    """The promise of plan.py, as far as single atomic writes can give it.

    For each connection the owner (binding and label, or nobody) between any two writes is the owner before
    all writes or the owner after all of them, and it changes at most once.
    """
    before, after = owners(have), owners(want)
    switched = [old == new for old, new in zip(before, after, strict=True)]
    for state in steps(have, plan(have, want)):
        for n, owner in enumerate(owners(state)):
            if switched[n]:
                assert owner == after[n]
            elif owner == after[n]:
                switched[n] = True
            else:
                assert owner == before[n]
    assert all(switched)


def test_the_order_matters() -> None:
    """The same writes backwards do mislead: the property above is not empty."""
    have = keyed("old tcp 10.0.0.0/8 80")
    want = keyed("wide tcp 10.0.0.0/28 80", "new tcp 10.0.0.1 80")
    change = plan(have, want)
    at_host = PLACES.index((IPV4, bytes16(ipaddress.IPv4Address("10.0.0.1")))) * len(SMALL_PORTS)

    def seen(*, reverse: bool) -> list[str | None]:
        found = [owners(state)[at_host] for state in steps(have, change, reverse=reverse)]
        return [owner.label if owner else None for owner in found]

    assert seen(reverse=False) == ["new", "new", "new"]
    assert seen(reverse=True) == [None, "wide", "new"]


def test_a_replaced_key_waits_for_the_added() -> None:
    """A port is carved out of a binding while the rest of it goes to another label: the port never moves."""
    have = keyed("a tcp 10.0.0.0/8 0")
    want = keyed("a tcp 10.0.0.0/8 80", "b tcp 10.0.0.0/8 0")
    for state in steps(have, plan(have, want)):
        assert [owner and owner.label for owner in owners(state)[:1]] == ["a"]


def test_order_of_each_list() -> None:
    few = keyed("a tcp 10.0.0.0/8 80")
    many = keyed(
        "b tcp 10.0.0.0/8 80",
        "a tcp 10.0.0.0/8 0",
        "a tcp 10.0.0.1 0",
        "a tcp 10.0.0.0/24 80",
        "a tcp 10.0.0.1 80",
    )

    def texts(changes: list[tuple[bytes, str]]) -> list[str]:
        return [str(Binding.from_key(*each)) for each in changes]

    added = texts(plan(few, many).added)
    assert added == [
        "a#tcp:[10.0.0.1/32]:80",
        "a#tcp:[10.0.0.1/32]:0",
        "a#tcp:[10.0.0.0/24]:80",
        "a#tcp:[10.0.0.0/8]:0",
    ]
    assert texts(plan(many, few).removed) == added[::-1]
    assert plan(few, many).replaced == [(next(iter(few)), "b", "a")]


@given(states, states, st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_limit(have: State, want: State, labels: set[str]) -> None:
    scope = limit(have, want, labels)
    change = plan(scope.have, scope.want)
    outside = {key: label for key, label in have.items() if label not in labels}
    taken = {key for key, _, _ in scope.taken}
    *_, last = [have, *steps(have, change)]
    assert last == {**outside, **{key: label for key, label in want.items() if label in labels}}
    assert taken == {key for key in outside if want.get(key) in labels}
    assert all(have[key] == old and want[key] == new for key, new, old in scope.taken)
    assert taken <= {key for key, _, _ in change.replaced}
