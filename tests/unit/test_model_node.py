"""Other nodes: what can be said of one, and plans from what there is to what inputs ask for."""

from __future__ import annotations

from typing import Any

import pytest

from svcctl.errors import Conflict, UsageProblem
from svcctl.model.desired import KUBERNETES, NATIVE, Desired, Node
from svcctl.model.node import (
    NUMBERS,
    ClusterNode,
    OwnNode,
    difference,
    node_of,
    number_for,
    short_name,
    step_for,
)
from svcctl.model.node_plan import HaveNodes, NodePlan, plan_nodes
from svcctl.model.prefix import Prefix, parse_address, parse_prefix

OWN = "192.0.2.11"


def addresses(text: str) -> tuple[tuple[int, bytes], ...]:
    return tuple(map(parse_address, text.split()))


def prefixes(text: str) -> tuple[Prefix, ...]:
    return tuple(map(parse_prefix, text.split()))


def node(name: str, where: str, pods: str = "", zone: str = "", owner: str = "") -> ClusterNode:
    return node_of(name, addresses(where), prefixes(pods), zone, owner)


def asked(name: str, where: str, pods: str = "", **fields: Any) -> Node:
    return Node(name, addresses(where), prefixes(pods), **fields)


def kubernetes(*nodes: Node, **fields: Any) -> Desired:
    return Desired(KUBERNETES, "kubernetes", nodes=nodes, says_nodes=True, **fields)


def native(*nodes: Node) -> Desired:
    return Desired(NATIVE, "", nodes=nodes, says_nodes=True)


def have(*nodes: ClusterNode, **fields: Any) -> HaveNodes:
    """`fields` are those of OwnNode."""
    return HaveNodes({one.name: one for one in nodes}, OwnNode(**fields), prefixes(OWN))


def actions(plan: NodePlan) -> dict[str, str]:
    return {step.name: step.action for step in plan.steps}


def test_the_first_address_of_a_family_is_the_end_of_tunnels() -> None:
    one = node("a", "192.0.2.9 2001:db8::2 192.0.2.3 2001:db8::1 192.0.2.4 192.0.2.9")
    assert one.end(4) == parse_address("192.0.2.9")[1]
    assert one.end(6) == parse_address("2001:db8::2")[1]
    assert one.addresses[2:] == addresses("192.0.2.3 192.0.2.4 2001:db8::1")
    assert node("b", "192.0.2.9").end(6) == bytes(16)


@pytest.mark.parametrize(
    ("where", "pods"),
    [
        ("", ""),
        ("127.0.0.1", ""),
        ("0.0.0.0", ""),
        ("224.0.0.1", ""),
        ("::", ""),
        ("::1", ""),
        ("ff02::1", ""),
        ("fe80::1", ""),
        ("192.0.2.1", "0.0.0.0/0"),
        ("192.0.2.1", "::/0"),
        ("192.0.2.1", "::/8"),
        ("192.0.2.1", "::/80"),
    ],
)
def test_what_no_node_can_have(where: str, pods: str) -> None:
    with pytest.raises(UsageProblem):
        node("a", where, pods)


@pytest.mark.parametrize(
    ("name", "zone"), [("", ""), ("a" * 65, ""), ("a\n", ""), ("a", "z" * 33), ("a", "\x1b")]
)
def test_names(name: str, zone: str) -> None:
    with pytest.raises(UsageProblem):
        node(name, "192.0.2.1", zone=zone)


def test_a_number_comes_from_the_name() -> None:
    assert number_for("a", ()) == number_for("a", {number_for("b", ())})
    taken: set[int] = set()
    for name in map(str, range(2000)):
        number = number_for(name, taken)
        assert number not in taken
        assert 1 <= number <= NUMBERS
        taken.add(number)
    first = number_for("a", ())
    assert number_for("a", {first}) == first % NUMBERS + 1


def test_long_names_stay_apart() -> None:
    one, other = short_name("n" * 100), short_name("n" * 99 + "m")
    assert one != other
    assert max(len(one), len(other)) <= 64
    assert short_name("n" * 64) == "n" * 64
    assert len(short_name("é" * 100).encode()) <= 64


def test_what_differs() -> None:
    old = node("a", "192.0.2.12", "10.244.2.0/24", "z")
    new = node("a", "192.0.2.13", "10.244.3.0/24")
    assert difference(old, new) == [
        "address -192.0.2.12",
        "address +192.0.2.13",
        "pod prefix -10.244.2.0/24",
        "pod prefix +10.244.3.0/24",
        "tunnel 192.0.2.12 -> 192.0.2.13",
        "zone z -> none",
    ]
    assert step_for(old._replace(owner="x"), old).action == "unchanged"


def test_nodes_of_a_cluster() -> None:
    want = kubernetes(
        asked("self", OWN, "10.244.1.0/24", own=True),
        asked("b", "192.0.2.12", "10.244.2.0/24"),
        asked("c", "192.0.2.13 2001:db8::13", zone="east"),
    )
    plan = plan_nodes([want], have())
    assert actions(plan) == {"b": "created", "c": "created"}
    own = plan.own
    assert own == OwnNode("self", "", "kubernetes", addresses(OWN), prefixes("10.244.1.0/24"))
    there = [step.want for step in plan.steps if step.want is not None]
    assert {one.owner for one in there} == {"kubernetes"}
    again = have(*there, **own._asdict())
    assert not plan_nodes([want], again).changes
    less = kubernetes(asked("b", "192.0.2.12", "10.244.2.0/24"))
    assert actions(plan_nodes([less], again)) == {"b": "unchanged"}
    assert actions(plan_nodes([less], again, prune=True)) == {"b": "unchanged", "c": "deleted"}
    silent = less._replace(says_nodes=False)
    assert actions(plan_nodes([silent], again, prune=True)) == {"b": "unchanged"}


def test_what_is_listed_under_this_nodes_own_name_goes() -> None:
    """As after an apply that was told another node's name."""
    want = kubernetes(
        asked("self", "192.0.2.11", "10.244.1.0/24", own=True), asked("b", "192.0.2.12", "10.244.2.0/24")
    )
    before = have(
        node("self", "192.0.2.11", "10.244.1.0/24", owner="kubernetes"),
        ends=addresses("192.0.2.12"),
        pod_prefixes=prefixes("10.244.2.0/24"),
    )
    notices: list[Any] = []
    plan = plan_nodes([want], before, notices=notices)
    assert actions(plan) == {"b": "created", "self": "deleted"}
    assert not notices
    assert plan.own is not None
    assert (plan.own.ends, plan.own.pod_prefixes) == (addresses(OWN), prefixes("10.244.1.0/24"))


def test_what_another_node_has_of_this_nodes_is_told() -> None:
    """It stays the other's, and the same plan again changes nothing."""
    want = kubernetes(asked("self", "192.0.2.11", "10.244.1.0/24 10.245.1.0/24", own=True))
    other = node("by-hand", "192.0.2.11 192.0.2.12", "10.244.1.0/24")
    notices: list[Any] = []
    plan = plan_nodes([want], have(other), notices=notices)
    assert plan.own is not None
    assert plan.own.pod_prefixes == prefixes("10.245.1.0/24")
    assert not plan.steps
    assert [(one.subject, one.text.split(",")[0]) for one in notices] == [
        ("node by-hand", "has 192.0.2.11"),
        ("node by-hand", "has 10.244.1.0/24"),
    ]
    assert not plan_nodes([want], have(other, **plan.own._asdict())).changes


def test_an_address_that_a_hand_gave_stays() -> None:
    want = kubernetes(asked("self", "192.0.2.99", own=True))
    nowhere = kubernetes(asked("self", "", own=True))
    for one, by_hand, ends in ((want, True, OWN), (want, False, "192.0.2.99"), (nowhere, False, OWN)):
        plan = plan_nodes([one], have(ends=addresses(OWN), ends_by_hand=by_hand))
        assert plan.own is not None
        assert plan.own.ends == addresses(ends)


def test_what_two_claim_of_a_cluster_costs_one_that_address() -> None:
    notices: list[Any] = []
    want = kubernetes(
        asked("b", "192.0.2.12 192.0.2.13", "10.244.2.0/24"),
        asked("c", "192.0.2.13 192.0.2.14", "10.244.2.0/24 10.244.3.0/24"),
        asked("d", f"192.0.2.12 {OWN}"),
        asked("e", ""),
    )
    plan = plan_nodes([want], have(), notices=notices)
    wanted = {step.name: step.want for step in plan.steps}
    assert set(wanted) == {"b", "c"}
    assert wanted["c"] == node("c", "192.0.2.14", "10.244.3.0/24", owner="kubernetes")
    assert len(notices) == 5


def test_what_two_claim_of_a_file_is_a_conflict() -> None:
    for nodes in (
        [asked("b", "192.0.2.12"), asked("c", "192.0.2.12")],
        [asked("b", "192.0.2.12", "10.0.0.0/8"), asked("c", "192.0.2.13", "10.0.0.0/8")],
        [asked("b", OWN), asked("self", "192.0.2.11", own=True)],
        [asked("b", OWN), asked("c", "192.0.2.10"), asked("self", OWN)],
    ):
        with pytest.raises(Conflict):
            plan_nodes([native(*nodes)], have())
    with pytest.raises(Conflict, match="belongs to node 'a'"):
        plan_nodes([native(asked("b", "192.0.2.12"))], have(node("a", "192.0.2.12")))
    nested = [asked("b", "192.0.2.12", "10.0.0.0/8"), asked("c", "192.0.2.13", "10.1.0.0/16")]
    assert len(plan_nodes([native(*nested)], have()).steps) == 2


def test_a_file_for_all_nodes_says_which_one_this_is_by_its_address_or_its_name() -> None:
    nodes = [asked("a", OWN, "10.244.1.0/24", zone="east"), asked("b", "192.0.2.12", "10.244.2.0/24")]
    plan = plan_nodes([native(*nodes)], have())
    assert actions(plan) == {"b": "created"}
    assert plan.own == OwnNode("a", "east", "", addresses(OWN), prefixes("10.244.1.0/24"))
    there = [step.want for step in plan.steps if step.want is not None]
    again = have(*there, **plan.own._asdict())
    assert not plan_nodes([native(*nodes)], again).changes
    # On the other one it is the other way round.
    other = HaveNodes({}, OwnNode(), prefixes("192.0.2.12"))
    plan = plan_nodes([native(*nodes)], other)
    assert actions(plan) == {"a": "created"}
    assert plan.own is not None
    assert (plan.own.name, plan.own.pod_prefixes) == ("b", prefixes("10.244.2.0/24"))
    # Before there are addresses the name says it; an address that is there says more.
    plan = plan_nodes([native(*nodes)], HaveNodes({}, name="b"))
    assert (actions(plan), plan.own and plan.own.name) == ({"a": "created"}, "b")
    plan = plan_nodes([native(*nodes)], have()._replace(name="b"))
    assert (actions(plan), plan.own and plan.own.name) == ({"b": "created"}, "a")
    assert plan_nodes([native(*nodes)], HaveNodes({}, name="c")).own is None


def test_what_a_hand_gave_this_node_stays_unless_the_file_says_it_was_a_hand() -> None:
    before = OwnNode("a", "", "", addresses(OWN), prefixes("10.244.9.0/24"), True, True)
    other = asked("a", f"192.0.2.99 {OWN}", "10.244.1.0/24")
    plan = plan_nodes([native(other)], have(**before._asdict()))
    assert not plan.changes
    plan = plan_nodes([native(other._replace(by_hand=("addresses",)))], have(**before._asdict()))
    assert plan.own == before._replace(ends=addresses("192.0.2.99"))
    plan = plan_nodes([native(other._replace(by_hand=("pod_prefixes",)))], have(ends=addresses(OWN)))
    assert plan.own is not None
    assert (plan.own.pod_prefixes, plan.own.pods_by_hand) == (prefixes("10.244.1.0/24"), True)
    assert not plan.own.ends_by_hand
    nothing = plan_nodes([native(Node("a", own=True))], have(**before._asdict()))
    assert not nothing.changes


def test_a_node_made_by_hand_becomes_the_inputs_and_one_of_another_owner_does_not() -> None:
    want = kubernetes(asked("b", "192.0.2.13"))
    (step,) = plan_nodes([want], have(node("b", "192.0.2.12"))).steps
    assert (step.action, step.note) == ("changed", "was made by hand")
    others = have(node("b", "192.0.2.12", owner="else"))
    with pytest.raises(Conflict, match="belongs to else"):
        plan_nodes([want], others)
    (step,) = plan_nodes([want], others, take_over=True).steps
    assert step.note == "was else's"
    many = [node(f"n{number}", f"192.0.3.{number}", owner="else") for number in range(7)]
    with pytest.raises(Conflict, match=r"node 'n4' belongs to else; and 2 more$"):
        plan_nodes([kubernetes(*(asked(f"n{n}", f"192.0.4.{n}") for n in range(7)))], have(*many))
    same = have(node("b", "192.0.2.13", owner="else"))
    assert actions(plan_nodes([want], same)) == {"b": "unchanged"}
    (step,) = plan_nodes([want], same, take_over=True).steps
    assert (step.action, step.want and step.want.owner) == ("changed", "kubernetes")
    assert actions(plan_nodes([kubernetes(asked("x", "192.0.2.3"))], others, prune=True)) == {"x": "created"}


def test_asked_for_twice() -> None:
    with pytest.raises(UsageProblem, match="asked for twice"):
        plan_nodes([native(asked("b", "192.0.2.12")), kubernetes(asked("b", "192.0.2.12"))], have())
