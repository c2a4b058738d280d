"""What an apply decides: made, changed, left alone, removed; whose objects are whose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import Conflict, UsageProblem
from svcctl.model.apply_plan import API_SERVER, Have, is_same, plan_apply
from svcctl.model.constants import TCP, UDP
from svcctl.model.desired import KUBERNETES, Desired
from svcctl.model.service import Service, check_service
from svcctl.model.service_plan import diff, is_empty
from tests.lib.applying import binding, desired, service
from tests.unit.service_values import NOW, services

WEB = service("web", "10.0.0.1:80/tcp", "10.1.0.1:80 10.1.0.2:80")
DNS = service("dns", "10.0.0.2:53/udp", "10.1.0.9:53")


def have(*there: Service, **fields: object) -> Have:
    return Have({one.name: one._replace(id=number) for number, one in enumerate(there, 1)}, **fields)  # type: ignore[arg-type]


def actions(wanted: Desired, there: Have, **options: Any) -> dict[str, str]:
    return {step.name: step.action for step in plan_apply([wanted], there, **options).services}


def test_created_changed_unchanged() -> None:
    other = WEB._replace(affinity_seconds=5)
    assert actions(desired(WEB, DNS), have()) == {"dns": "created", "web": "created"}
    assert actions(desired(WEB, DNS), have(WEB, DNS)) == {"dns": "unchanged", "web": "unchanged"}
    assert actions(desired(other), have(WEB, DNS)) == {"web": "changed"}
    assert not plan_apply([desired(WEB)], have(WEB)).changes
    assert plan_apply([desired(other)], have(WEB)).changes


def test_prune_removes_what_this_owner_made() -> None:
    there = have(
        WEB, DNS, service("hand", "10.0.0.3:1/tcp", owner=""), service("k", "10.0.0.4:1/tcp", owner="other")
    )
    assert actions(desired(WEB), there) == {"web": "unchanged"}
    assert actions(desired(WEB), there, prune=True) == {"web": "unchanged", "dns": "deleted"}
    assert actions(desired(), there, prune=True) == {"web": "deleted", "dns": "deleted"}
    assert actions(desired(owner="nobody"), there, prune=True) == {}
    # Nobody's owner is "": it is never pruned.
    assert actions(desired(owner=""), there, prune=True) == {}


def test_a_port_that_its_service_no_longer_has_goes_without_prune() -> None:
    """A port of a Service is renamed: its address must not stay with the old name, and the old backends."""

    def port(name: str, address: str, owner: str = KUBERNETES) -> Service:
        return service(name, address, "10.1.0.1:80", owner=owner)

    there = have(
        port("a/web:http/tcp", "10.0.0.1:80/tcp"),
        port("a/web:dns/udp", "10.0.0.1:53/udp", "other"),
        port("a/web-2:http/tcp", "10.0.0.2:80/tcp"),
        port("b/web:http/tcp", "10.0.0.3:80/tcp"),
        port("web", "10.0.0.4:80/tcp"),
    )
    wanted = desired(port("a/web:main/tcp", "10.0.0.1:80/tcp"), owner=KUBERNETES, kind=KUBERNETES)
    assert actions(wanted, there) == {"a/web:http/tcp": "deleted", "a/web:main/tcp": "created"}
    assert plan_apply([wanted], there).notices == ()
    native = desired(port("a/web:main/tcp", "10.0.0.9:80/tcp", "native"))
    assert actions(native, there) == {"a/web:main/tcp": "created"}


def test_what_was_made_by_hand_becomes_the_askers_only_when_it_differs() -> None:
    there = have(WEB._replace(owner=""))
    same = plan_apply([desired(WEB)], there).services[0]
    assert (same.action, same.want) == ("unchanged", same.have)
    (step,) = plan_apply([desired(WEB._replace(affinity_seconds=9))], there).services
    assert step.action == "changed"
    assert step.note == "was made by hand"
    assert step.want is not None
    assert step.want.owner == "native"


def test_what_another_owner_made_is_a_conflict() -> None:
    there = have(WEB._replace(owner="kubernetes", affinity_seconds=9), DNS._replace(owner="kubernetes"))
    with pytest.raises(Conflict, match="service 'web' belongs to kubernetes") as raised:
        plan_apply([desired(WEB)], there)
    assert raised.value.exit_code == 6
    with pytest.raises(Conflict):  # whatever is thought of the input
        plan_apply([desired(WEB)], there, force=True)
    steps = plan_apply([desired(WEB, DNS)], there, take_over=True).services
    assert [(step.action, step.note, step.want and step.want.owner) for step in steps] == [
        ("changed", "was kubernetes's", "native"),
        ("changed", "was kubernetes's", "native"),
    ]


def test_what_is_as_wanted_is_left_alone_and_told() -> None:
    """Whosever it is: an owner that it does not get must not be a surprise of the next prune."""
    there = have(
        DNS._replace(owner="kubernetes"),
        WEB._replace(owner=""),
        bindings={A.key(): "web", B.key(): "web"},
        owners={A.key(): "other"},
    )
    wanted = desired(DNS, WEB, bindings=[A, B])
    plan = plan_apply([wanted], there)
    assert {step.action for step in plan.services} == {"unchanged"}
    assert not plan.changes
    services, bindings = plan.notices
    assert services.subject == "2 services"
    assert "still of another owner: 'dns' (kubernetes), 'web' (made by hand)" in services.text
    assert bindings.subject == "2 bindings"
    assert "web#tcp:[192.0.2.0/24]:443 (other)" in bindings.text
    taken = plan_apply([wanted], there, take_over=True)
    assert [(step.action, step.note) for step in taken.services] == [
        ("changed", "was kubernetes's"),
        ("changed", "was made by hand"),
    ]
    assert taken.bindings.plan.is_empty
    assert taken.bindings.owners == {A.key(): "native", B.key(): "native"}
    assert [old for _, _, old in taken.bindings.adopted] == ["other", ""]
    assert taken.notices == ()
    # Who has it already is told nothing, and takes nothing.
    mine = have(DNS, WEB, bindings={A.key(): "web"}, owners={A.key(): "native"})
    for take_over in (False, True):
        same = plan_apply([desired(DNS, WEB, bindings=[A])], mine, take_over=take_over)
        assert (same.changes, same.notices) == (False, ())


def test_a_frontend_that_another_service_holds() -> None:
    there = have(service("old", "10.0.0.1:80/tcp 10.0.0.1:81/tcp", "10.1.0.7:80", owner="other"))
    with pytest.raises(
        Conflict, match=r"frontend 10.0.0.1:80/tcp of 'web' belongs to service 'old' \(other's\)"
    ):
        plan_apply([desired(WEB)], there)
    steps = plan_apply([desired(WEB)], there, take_over=True).services
    assert {step.name: step.action for step in steps} == {"web": "created", "old": "changed"}
    old = next(step.want for step in steps if step.name == "old")
    assert old is not None
    assert [each.frontend.port for each in old.frontends] == [81]
    assert old.owner == "other"


def test_taking_a_node_port_or_the_last_balanced_frontend_leaves_a_service_that_can_be() -> None:
    there = have(
        service("old", "10.0.0.1:80/tcp", node_port=30080, kind=2, sources="192.0.2.0/24", owner="other"),
    )
    taker = service("web", "10.0.0.1:80/tcp", node_port=30080)
    (step,) = (
        one for one in plan_apply([desired(taker)], there, take_over=True).services if one.name == "old"
    )
    assert step.want is not None
    assert (step.want.frontends, step.want.node_port, step.want.sources) == ((), 0, ())
    check_service(step.want)


def test_frontends_that_move_within_an_apply() -> None:
    there = have(WEB, service("new", "10.0.0.9:80/tcp"))
    moved = [WEB._replace(frontends=DNS.frontends), service("new", "10.0.0.1:80/tcp")]
    assert actions(desired(*moved), there) == {"new": "changed", "web": "changed"}
    # Renamed: the old one goes with prune; without, it is in the way.
    renamed = WEB._replace(name="renamed")
    assert actions(desired(renamed), have(WEB), prune=True) == {"renamed": "created", "web": "deleted"}
    with pytest.raises(Conflict):
        plan_apply([desired(renamed)], have(WEB))


def test_desires_that_exclude_each_other() -> None:
    with pytest.raises(UsageProblem, match="asked for twice"):
        plan_apply([desired(WEB), desired(WEB, owner="other")], have())
    with pytest.raises(UsageProblem, match="asked for by 'web' and 'also'"):
        plan_apply([desired(WEB, service("also", "10.0.0.1:80/tcp"))], have())
    with pytest.raises(UsageProblem, match="weight"):
        plan_apply([desired(WEB._replace(members=(WEB.members[0]._replace(weight=-1),)))], have())


def test_the_state_of_a_backend_comes_from_the_input() -> None:
    """Drained by hand: the input says active, so it is; and since when is the state's own."""
    first, second = (member._replace(since_ns=NOW - 9) for member in WEB.members)
    there = have(WEB._replace(members=(first._replace(state=1, until_ns=NOW), second)))
    (step,) = plan_apply([desired(WEB)], there, now_ns=NOW).services
    assert step.action == "changed"
    assert step.want is not None
    assert [(member.state, member.since_ns, member.until_ns) for member in step.want.members] == [
        (0, NOW, 0),
        (0, NOW - 9, 0),
    ]


def test_the_api_server_keeps_its_last_backends() -> None:
    api = service(API_SERVER, "10.96.0.1:443/tcp", "192.0.2.1:6443 192.0.2.2:6443", owner="kubernetes")
    empty = api._replace(members=())
    down = api._replace(members=(api.members[0]._replace(state=2),))
    for input in (empty, down):
        plan = plan_apply([desired(input, owner="kubernetes")], have(api))
        assert [step.action for step in plan.services] == ["unchanged"]
        assert "keeps its backends" in plan.notices[0].text
    # What else the input says of it counts; real backends replace those it kept; an ordinary service goes to none.
    (step,) = plan_apply([desired(empty._replace(affinity_seconds=7))], have(api), take_over=True).services
    assert step.want is not None
    assert (step.want.affinity_seconds, len(step.want.members)) == (7, 2)
    one = api._replace(members=api.members[:1])
    (step,) = plan_apply([desired(one, owner="kubernetes")], have(api)).services
    assert step.want is not None
    assert len(step.want.members) == 1
    (step,) = plan_apply([desired(WEB._replace(members=()))], have(WEB)).services
    assert step.want is not None
    assert step.want.members == ()
    # Nor is it pruned.
    gone = plan_apply([desired(owner="kubernetes")], have(api), prune=True)
    assert gone.services == ()
    assert "kept" in gone.notices[0].text
    assert actions(desired(owner="kubernetes"), have(api), prune=True, force=True) == {API_SERVER: "deleted"}
    # With nothing to keep there is nothing kept.
    assert actions(desired(empty, owner="kubernetes"), have()) == {API_SERVER: "created"}


def test_broken_ones_are_made_anew() -> None:
    there = have(WEB, DNS, broken=("web", "dns"), shared=("dns",))
    steps = plan_apply([desired(WEB)], there).services
    assert [(step.name, step.action, step.anew) for step in steps] == [
        ("dns", "changed", True),
        ("web", "changed", True),
    ]


A, B = binding("web", TCP, "192.0.2.0/24", 443), binding("web", UDP, "192.0.2.1", 53)


def bindings(wanted: Desired, there: Have, **options: Any) -> tuple[int, int, int, int]:
    steps = plan_apply([wanted], there, **options).bindings
    plan = steps.plan
    return len(plan.added), len(plan.replaced), len(plan.removed), len(steps.unchanged)


def test_bindings() -> None:
    both = {A.key(): "web", B.key(): "web"}
    assert bindings(desired(bindings=[A, B]), have()) == (2, 0, 0, 0)
    assert bindings(desired(bindings=[A, B]), have(bindings=both)) == (0, 0, 0, 2)
    assert bindings(desired(bindings=[A]), have(bindings=both), prune=True) == (0, 0, 0, 1)
    owned = dict.fromkeys(both, "native")
    assert bindings(desired(bindings=[A]), have(bindings=both, owners=owned)) == (0, 0, 0, 1)
    assert bindings(desired(bindings=[A]), have(bindings=both, owners=owned), prune=True) == (0, 0, 1, 1)
    assert bindings(desired(bindings=[]), have(bindings=both, owners=owned), prune=True) == (0, 0, 2, 0)
    # A source without a say about bindings prunes none.
    assert bindings(desired(bindings=None), have(bindings=both, owners=owned), prune=True) == (0, 0, 0, 0)
    # An owner that was left behind by what is gone removes nothing.
    assert bindings(desired(bindings=[]), have(owners=owned), prune=True) == (0, 0, 0, 0)


def test_bindings_of_others() -> None:
    blue = A._replace(label="blue")
    there = have(bindings={A.key(): "web"}, owners={A.key(): "other"})
    with pytest.raises(Conflict, match=r"binding web#tcp:\[192.0.2.0/24\]:443 belongs to other"):
        plan_apply([desired(bindings=[blue])], there)
    steps = plan_apply([desired(bindings=[blue])], there, take_over=True).bindings
    assert steps.plan.replaced == [(A.key(), "blue", "web")]
    assert steps.owners == {A.key(): "native"}
    by_hand = plan_apply([desired(bindings=[blue])], have(bindings={A.key(): "web"})).bindings
    assert by_hand.owners == {A.key(): "native"}
    # Asked for in nobody's name, as a saved state is: it is nobody's.
    nobody = plan_apply([desired(bindings=[blue, B], owner="")], there, take_over=True).bindings
    assert (nobody.owners, nobody.disowned) == ({}, (A.key(),))
    with pytest.raises(UsageProblem, match="with label"):
        plan_apply([desired(bindings=[A, blue])], have())


@given(services, services, st.sampled_from(["", "kubernetes"]))
def test_same_is_what_the_diff_of_services_says(one: Service, other: Service, owner: str) -> None:
    one, other = one._replace(owner=owner), other._replace(owner=owner)
    assert is_same(
        one, one._replace(members=tuple(reversed(one.members)), frontends=tuple(reversed(one.frontends)))
    )
    assert is_same(one, other) == is_empty(diff(one, other))


def test_whatever_is_said_of_a_service_makes_a_difference() -> None:
    """A field that is added must be looked at, or an apply would pass it over."""
    for field in Service._fields:
        value = getattr(WEB, field)
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else ()
        if isinstance(value, str) or value == other:
            continue
        changed: dict[str, Any] = {field: other}
        same = is_same(WEB, WEB._replace(**changed))
        assert same == (field in ("id", "changed_ns")), field
