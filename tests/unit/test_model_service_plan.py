"""What commands do to a service, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import Conflict, Exit, NotFound, UsageProblem
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import parse_prefix
from svcctl.model.service import (
    CLUSTER_SET,
    FRONTEND_LOCAL,
    LOCAL_SET,
    Member,
    Service,
    ServiceFrontend,
    blocks_of,
    check_service,
    frontend_flags,
    same_choice,
)
from svcctl.model.service_edit import (
    add_backends,
    add_frontends,
    add_service,
    delete_backends,
    delete_frontends,
    drain_backends,
    set_backends,
    set_options,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DOWN,
    DRAINING,
    KIND_CLUSTER,
    KIND_EXTERNAL,
    KIND_LOAD_BALANCER,
    KIND_NODE_PORT,
    Backend,
    BackendSpec,
    format_frontend,
    parse_backend_spec,
    parse_frontend,
)
from svcctl.model.service_plan import diff, is_empty, lines, steps
from tests.unit.service_values import NOW, backend, backends, member, services, specs

pytestmark = pytest.mark.unit

WEB4 = ServiceFrontend(parse_frontend("10.0.0.1:80/tcp"), KIND_CLUSTER)
DNS4 = ServiceFrontend(parse_frontend("10.0.0.1:53/udp"), KIND_CLUSTER)
WEB6 = ServiceFrontend(parse_frontend("[fd00::1]:80/tcp"), KIND_CLUSTER)
THREE = (member("10.1.0.1:80"), member("10.1.0.2:80", 2), member("10.1.0.3:80", 3))
WEB = check_service(Service("web", id=7, frontends=(WEB4,), members=THREE))


def spec(text: str) -> BackendSpec:
    return parse_backend_spec(text)


def changed_lines(have: Service | None, want: Service | None) -> list[str]:
    return lines(diff(have, want), "web")


def frontends_of(service: Service) -> list[str]:
    return sorted(format_frontend(each.frontend) for each in service.frontends)


def test_add_backends() -> None:
    after = add_backends(WEB, [spec("10.1.0.4:80,weight=5,local"), spec("[2001:db8::1]:80")], NOW)
    assert after.members[:3] == THREE
    assert after.members[3:] == (
        Member(backend("10.1.0.4:80"), 5, ACTIVE, True, NOW),
        Member(backend("[2001:db8::1]:80"), 1, ACTIVE, False, NOW),
    )
    assert changed_lines(WEB, after) == ["backend 10.1.0.4:80 added", "backend [2001:db8::1]:80 added"]
    assert diff(WEB, after).sets == ((IPV4, CLUSTER_SET),)


def test_adding_what_is_there_is_nothing_or_a_change() -> None:
    assert add_backends(WEB, [spec("10.1.0.1:80"), spec("10.1.0.2:80,weight=2")], NOW) is WEB
    after = add_backends(WEB, [spec("10.1.0.2:80")], NOW)
    assert changed_lines(WEB, after) == ["backend 10.1.0.2:80 changed: weight 2 -> 1"]
    assert after.members[1].since_ns == THREE[1].since_ns
    drained = drain_backends(WEB, [backend("10.1.0.1:80")], NOW, 60)
    again = add_backends(drained, [spec("10.1.0.1:80")], NOW + 1)
    assert again.members[0] == Member(backend("10.1.0.1:80"), 1, ACTIVE, False, NOW + 1, 0)


def test_set_backends_changes_what_is_said() -> None:
    after = set_backends(WEB, [spec("10.1.0.1:80,weight=9"), spec("10.1.0.3:80,state=down")], NOW)
    assert after.members[0] == THREE[0]._replace(weight=9)
    assert after.members[2] == THREE[2]._replace(state=DOWN, since_ns=NOW)
    assert changed_lines(WEB, after) == [
        "backend 10.1.0.1:80 changed: weight 1 -> 9",
        "backend 10.1.0.3:80 changed: state active -> down",
    ]
    assert (
        set_backends(after, [spec("10.1.0.1:80,weight=9"), spec("10.1.0.3:80,state=down")], NOW + 1) is after
    )
    assert set_backends(WEB, [spec("10.1.0.1:80,local")], NOW).members[0].local
    with pytest.raises(UsageProblem, match="nothing to set"):
        set_backends(WEB, [spec("10.1.0.1:80")], NOW)


def test_drain_backends() -> None:
    first = [backend("10.1.0.1:80")]
    after = drain_backends(WEB, first, NOW)
    assert after.members[0] == THREE[0]._replace(state=DRAINING, since_ns=NOW)
    assert changed_lines(WEB, after) == ["backend 10.1.0.1:80 changed: state active -> draining"]
    assert drain_backends(after, first, NOW + 1) is after
    timed = drain_backends(after, first, NOW + 1, 100)
    assert timed.members[0] == after.members[0]._replace(until_ns=NOW + 101)
    (line,) = changed_lines(after, timed)
    assert line.startswith("backend 10.1.0.1:80 changed: what is left ends at 20")
    assert diff(after, timed).sets == ()
    # The last command counts, and does not drain anew.
    for more in (10, 100, 1000):
        last = drain_backends(timed, first, NOW + 2, more)
        assert last.members[0] == timed.members[0]._replace(until_ns=NOW + 2 + more)
    without = drain_backends(timed, first, NOW + 2)
    assert without == after
    (line,) = changed_lines(timed, without)
    assert line.startswith("backend 10.1.0.1:80 changed: what is left goes on, no longer ends at 20")


def test_delete_backends_moves_the_last_one() -> None:
    after = delete_backends(WEB, [backend("10.1.0.1:80")])
    assert after.members == (THREE[2], THREE[1])
    assert changed_lines(WEB, after) == ["backend 10.1.0.1:80 deleted"]
    assert delete_backends(WEB, [each.backend for each in THREE]).members == ()
    assert delete_backends(WEB, [THREE[2].backend, THREE[0].backend]).members == (THREE[1],)
    assert delete_backends(WEB, [THREE[0].backend, THREE[0].backend]).members == (THREE[2], THREE[1])
    assert delete_backends(WEB, [backend("10.9.9.9:80")], missing_ok=True) is WEB


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("set", lambda gone: set_backends(WEB, [spec("10.1.0.1:80,weight=2"), BackendSpec(gone, 2)], NOW)),
        ("drain", lambda gone: drain_backends(WEB, [gone], NOW)),
        ("delete", lambda gone: delete_backends(WEB, [gone])),
    ],
    ids=["set", "drain", "delete"],
)
def test_a_backend_that_is_no_member_is_named(name: str, edit: Callable[[Backend], Service]) -> None:
    with pytest.raises(NotFound) as caught:
        edit(backend("10.9.9.9:80"))
    assert caught.value.message == f"backend {name} web: 10.9.9.9:80: no backend of this service"
    assert caught.value.hint == "'svcctl backends web' lists them"


def test_a_backend_named_twice() -> None:
    twice = [spec("10.1.0.4:80"), spec("10.1.0.4:80")]
    assert len(add_backends(WEB, twice, NOW).members) == 4
    with pytest.raises(UsageProblem, match="twice"):
        add_backends(WEB, [spec("10.1.0.4:80"), spec("10.1.0.4:80,weight=2")], NOW)


def test_add_service() -> None:
    assert add_service(None, WEB) == WEB
    same = WEB._replace(id=0, changed_ns=3, members=tuple(reversed(THREE)))
    assert add_service(WEB, same) is WEB
    with pytest.raises(Conflict) as caught:
        add_service(WEB, WEB._replace(affinity_seconds=60, members=THREE[:2]))
    assert caught.value.exit_code == Exit.CONFLICT
    assert caught.value.message == (
        "service add web: there is one of that name, and it differs:"
        " service web: affinity none there, asked for 60s (and 1 more)"
    )
    with pytest.raises(UsageProblem):
        add_service(None, WEB._replace(frontends=(WEB4, WEB4)))


def test_a_service_that_comes_or_goes() -> None:
    plan = diff(None, WEB)
    assert plan.created
    assert not plan.deleted
    assert plan.lanes_added == (IPV4,)
    assert plan.sets == ((IPV4, CLUSTER_SET),)
    assert lines(plan, "web") == [
        "service web added",
        "frontend 10.0.0.1:80/tcp added",
        "backend 10.1.0.1:80 added",
        "backend 10.1.0.2:80 added",
        "backend 10.1.0.3:80 added",
    ]
    plan = diff(WEB, None)
    assert plan.deleted
    assert plan.lanes_removed == (IPV4,)
    assert lines(plan, "web")[0] == "service web deleted"
    assert not is_empty(diff(None, Service("empty")))
    assert is_empty(diff(None, None))


def test_set_options() -> None:
    balanced = WEB._replace(frontends=(WEB4._replace(kind=KIND_LOAD_BALANCER),))
    after = set_options(
        balanced,
        affinity_seconds=60,
        algorithm=1,
        internal_local=True,
        external_local=True,
        block=True,
        drop=True,
        owner="me",
        sources=[parse_prefix("198.51.100.0/24"), parse_prefix("192.0.2.0/24"), parse_prefix("192.0.2.0/24")],
    )
    [line] = changed_lines(balanced, after)
    assert line == (
        "service web changed: affinity none -> 60s, algorithm random -> maglev, internal-policy cluster -> local,"
        " external-policy cluster -> local, block no -> yes, drop no -> yes, owner none -> me,"
        " sources none -> 192.0.2.0/24,198.51.100.0/24"
    )
    assert set_options(after, affinity_seconds=60, sources=after.sources[::-1]) is after
    assert set_options(after) is after
    assert set_options(after, sources=[], affinity_seconds=0).sources == ()
    with pytest.raises(UsageProblem):
        set_options(WEB, affinity_seconds=1 << 24)
    with pytest.raises(UsageProblem):
        set_options(WEB, sources=[parse_prefix("192.0.2.0/24")])


def test_a_policy_changes_flags_and_makes_the_local_set() -> None:
    plan = diff(WEB, set_options(WEB, internal_local=True))
    [change] = plan.frontends_changed
    assert (change.old_flags, change.new_flags) == (0, FRONTEND_LOCAL)
    assert plan.sets == ((IPV4, LOCAL_SET),)
    assert len(lines(plan, "web")) == 1
    plan = diff(WEB, set_options(WEB, external_local=True))
    assert plan.frontends_changed == ()
    assert plan.sets == ((IPV4, LOCAL_SET),)


def test_node_ports_follow_the_frontends() -> None:
    service = set_options(WEB, node_port=30080)
    assert frontends_of(service) == ["0.0.0.0:30080/tcp", "10.0.0.1:80/tcp"]
    assert service.frontends[1].kind == KIND_NODE_PORT
    assert changed_lines(WEB, service) == [
        "service web changed: node-port none -> 30080",
        "frontend 0.0.0.0:30080/tcp added",
    ]
    both = add_frontends(service, [WEB6, DNS4])
    assert frontends_of(both) == sorted(
        "10.0.0.1:80/tcp 10.0.0.1:53/udp [fd00::1]:80/tcp 0.0.0.0:30080/tcp 0.0.0.0:30080/udp [::]:30080/tcp".split()
    )
    assert diff(service, both).lanes_added == (IPV6,)
    moved = set_options(both, node_port=30081)
    assert [text for text in frontends_of(moved) if "3008" in text] == [
        "0.0.0.0:30081/tcp",
        "0.0.0.0:30081/udp",
        "[::]:30081/tcp",
    ]
    assert frontends_of(delete_frontends(moved, [WEB6.frontend, DNS4.frontend])) == [
        "0.0.0.0:30081/tcp",
        "10.0.0.1:80/tcp",
    ]
    assert frontends_of(set_options(moved, node_port=0)) == frontends_of(add_frontends(WEB, [WEB6, DNS4]))
    assert add_service(None, WEB._replace(node_port=30080)) == service
    assert add_service(service, WEB._replace(node_port=30080)) is service
    assert set_options(service, node_port=30080) is service
    with pytest.raises(UsageProblem, match="belongs to the node port"):
        delete_frontends(service, [parse_frontend("0.0.0.0:30080/tcp")])


def test_a_wildcard_frontend_that_was_named_is_nobodys_to_take_away() -> None:
    named = ServiceFrontend(parse_frontend("0.0.0.0:9000/tcp"), KIND_NODE_PORT)
    service = add_frontends(WEB, [named])
    assert named in service.frontends
    assert named in set_options(set_options(service, node_port=30080), node_port=0).frontends


def test_frontends_are_added_changed_and_deleted() -> None:
    both = add_frontends(WEB, [DNS4])
    assert changed_lines(WEB, both) == ["frontend 10.0.0.1:53/udp added"]
    assert diff(WEB, both).sets == ()
    assert add_frontends(both, [DNS4, WEB4]) is both
    other = add_frontends(both, [DNS4._replace(kind=KIND_EXTERNAL)])
    assert changed_lines(both, other) == ["frontend 10.0.0.1:53/udp changed: kind cluster -> external"]
    assert changed_lines(both, delete_frontends(both, [DNS4.frontend])) == [
        "frontend 10.0.0.1:53/udp deleted"
    ]
    with pytest.raises(NotFound, match=r"web: 10.0.0.1:53/udp: no frontend"):
        delete_frontends(WEB, [DNS4.frontend])
    assert delete_frontends(WEB, [DNS4.frontend], missing_ok=True) is WEB


def apply(have: Service, want: Service) -> Service:
    """`have` with the plan carried out, from what the plan says alone."""
    plan = diff(have, want)
    frontends = {each.frontend: each for each in have.frontends}
    for gone in plan.frontends_removed:
        del frontends[gone.frontend]
    frontends.update({each.frontend: each for each in plan.frontends_added})
    frontends.update({each.new.frontend: each.new for each in plan.frontends_changed})
    members = {each.backend: each for each in have.members}
    for left in plan.members_removed:
        del members[left.backend]
    members.update({each.backend: each for each in plan.members_added})
    members.update({each.new.backend: each.new for each in plan.members_changed})
    return want._replace(frontends=tuple(frontends.values()), members=tuple(members.values()))


@given(services, services)
def test_a_plan_is_complete_and_has_nothing_too_much(have: Service, want: Service) -> None:
    plan = diff(have, want)
    assert is_empty(diff(apply(have, want), want))
    assert is_empty(plan) == (not lines(plan, "web"))
    flags = {each.frontend: frontend_flags(have, each) for each in have.frontends}
    changed = {each.new.frontend for each in plan.frontends_changed}
    added = {each.frontend for each in plan.frontends_added}
    for each in want.frontends:
        if each.frontend in flags and each.frontend not in changed:
            assert each in have.frontends
            assert frontend_flags(want, each) == flags[each.frontend]
        assert (each.frontend in added) == (each.frontend not in flags)
    old = {lane.family: lane for lane in blocks_of(have)}
    new = {lane.family: lane for lane in blocks_of(want)}
    assert set(plan.lanes_added) == new.keys() - old.keys()
    assert set(plan.lanes_removed) == old.keys() - new.keys()
    for family in old.keys() & new.keys():
        kept = same_choice(old[family].cluster, new[family].cluster)
        assert ((family, CLUSTER_SET) in plan.sets) == (not kept)
        kept = same_choice(old[family].local, new[family].local)
        assert ((family, LOCAL_SET) in plan.sets) == (not kept)


@given(services)
def test_nothing_changes_when_nothing_did(service: Service) -> None:
    other = service._replace(
        id=0, changed_ns=99, members=service.members[::-1], frontends=service.frontends[::-1]
    )
    assert is_empty(diff(service, other))
    assert steps(diff(service, service), "web") == []


@given(services, st.lists(specs, max_size=4, unique_by=lambda each: each.backend))
def test_adding_twice_is_adding_once(service: Service, wanted: list[BackendSpec]) -> None:
    once = add_backends(service, wanted, NOW)
    assert add_backends(once, wanted, NOW + 1) is once
    assert {each.backend for each in once.members} == {
        *(each.backend for each in service.members),
        *(each.backend for each in wanted),
    }


@given(services, st.lists(backends, max_size=4))
def test_deleting_leaves_the_others_as_they_were(service: Service, gone: list[Backend]) -> None:
    after = delete_backends(service, gone, missing_ok=True)
    assert set(after.members) == {each for each in service.members if each.backend not in gone}
    moved = sum(old != new for old, new in zip(service.members, after.members, strict=False))
    assert moved <= len(set(gone))
    assert delete_backends(after, gone, missing_ok=True) is after
