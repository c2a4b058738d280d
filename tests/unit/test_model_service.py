"""Services: who is eligible, what a set is made of, which flags a frontend has, what is refused."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import UsageProblem
from svcctl.model import service as model
from svcctl.model import service_endpoint as endpoint
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.label import MAX_OWNER_BYTES
from svcctl.model.prefix import parse_address, parse_prefix
from svcctl.model.service import (
    DROP,
    FRONTEND_FILTERED,
    FRONTEND_HOST,
    FRONTEND_LOCAL,
    FRONTEND_OUTSIDE,
    REJECT,
    BackendSet,
    Service,
    ServiceFrontend,
    admitting,
    blocked_addresses,
    blocks_of,
    check_service,
    check_service_name,
    eligible,
    families,
    frontend_flags,
    overdue,
    reaches_outside,
    same_set,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DOWN,
    DRAINING,
    KIND_CLUSTER,
    KIND_EXTERNAL,
    KIND_LOAD_BALANCER,
    KIND_NODE_PORT,
    parse_frontend,
)
from tests.lib.cli import ROOT
from tests.unit.service_values import NOW, backend, member, services

pytestmark = pytest.mark.unit

WEB4 = ServiceFrontend(parse_frontend("10.0.0.1:80/tcp"), KIND_CLUSTER)
WEB6 = ServiceFrontend(parse_frontend("[fd00::1]:80/tcp"), KIND_CLUSTER)


def web(*members: model.Member, **options: object) -> Service:
    values: dict[str, object] = {"frontends": (WEB4,), "members": members, **options}
    return check_service(Service("web", **values))  # type: ignore[arg-type]


def only_lane(service: Service) -> model.Lane:
    [lane] = blocks_of(service)
    return lane


def places(found: BackendSet | None) -> list[str]:
    assert found is not None
    return [f"{endpoint.format_backend(each)}={weight}" for each, weight in found.members]


def test_the_numbers_are_those_of_the_headers() -> None:
    text = (ROOT / "bpf" / "include" / "svc_service_types.h").read_text()
    header = {name: int(number) for name, number in re.findall(r"\b(SVC_\w+) = (\d+),", text)}
    for prefix, values in (
        ("SVC_KIND_", endpoint.KIND_NUMBERS),
        ("SVC_MEMBER_", endpoint.STATE_NUMBERS),
        (
            "SVC_FRONTEND_",
            {name: getattr(model, f"FRONTEND_{name}") for name in "LOCAL FILTERED HOST BLOCK".split()},
        ),
        ("SVC_VERDICT_", {"REJECT": REJECT, "DROP": DROP}),
    ):
        for name, number in values.items():
            assert header[prefix + name.upper().replace("-", "_")] == number
    assert f"char owner[{MAX_OWNER_BYTES}];" in text
    assert f"char name[{model.MAX_NAME_BYTES}];" in text
    assert "0: random, 1: maglev, 2: maglev, stable" in text
    assert model.ALGORITHM_NUMBERS == {"random": 0, "maglev": 1, "maglev-stable": 2}


def test_only_active_members_with_a_weight_get_connections() -> None:
    service = web(
        member("10.1.0.1:80", 3, ACTIVE),
        member("10.1.0.2:80", 0, ACTIVE),
        member("10.1.0.3:80", 3, DRAINING),
        member("10.1.0.4:80", 3, DOWN),
        member("[2001:db8::1]:80"),
    )
    assert [each.backend for each in eligible(service.members, IPV4)] == [backend("10.1.0.1:80")]
    assert [each.backend for each in eligible(service.members, IPV6)] == [backend("[2001:db8::1]:80")]
    assert eligible(service.members, IPV4, local_only=True) == []
    assert places(only_lane(service).cluster) == ["10.1.0.1:80=3"]


def test_no_backend_rejects_or_drops() -> None:
    for members in ((), (member("10.1.0.1:80", 0),), (member("10.1.0.1:80", 1, DOWN),), (member("[::1]:1"),)):
        for drop, verdict in ((False, REJECT), (True, DROP)):
            found = only_lane(web(*members, drop=drop))
            assert found.cluster.members == ()
            assert found.cluster.verdict == verdict
            assert found.local is None


def test_a_local_set_without_backends_drops_while_others_have_some() -> None:
    away, here = member("10.1.0.1:80"), member("10.1.0.2:80", 2, ACTIVE, True)
    for policy in ("internal_local", "external_local"):
        lane = only_lane(web(away, **{policy: True}))
        assert lane.local is not None
        assert lane.local.verdict == DROP
        assert places(lane.cluster) == ["10.1.0.1:80=1"]
        lane = only_lane(web(away, here, **{policy: True}))
        assert places(lane.local) == ["10.1.0.2:80=2"]
        assert places(lane.cluster) == ["10.1.0.1:80=1", "10.1.0.2:80=2"]
        lane = only_lane(web(**{policy: True}))
        assert lane.local is not None
        assert lane.local.verdict == REJECT


def test_each_family_of_the_frontends_has_a_lane() -> None:
    service = web(member("10.1.0.1:80"), member("[2001:db8::1]:80"), frontends=(WEB6, WEB4))
    assert families(service) == [IPV4, IPV6]
    assert [(lane.family, places(lane.cluster)) for lane in blocks_of(service)] == [
        (IPV4, ["10.1.0.1:80=1"]),
        (IPV6, ["[2001:db8::1]:80=1"]),
    ]
    assert [lane.family for lane in blocks_of(service._replace(frontends=(WEB6,)))] == [IPV6]
    assert blocks_of(Service("web")) == []


@given(services, st.randoms(use_true_random=False))
def test_sets_do_not_depend_on_the_order_of_anything(service: Service, source: Random) -> None:
    shuffled = service._replace(
        members=tuple(source.sample(service.members, len(service.members))),
        frontends=tuple(source.sample(service.frontends, len(service.frontends))),
        sources=tuple(source.sample(service.sources, len(service.sources))),
    )
    assert blocks_of(shuffled) == blocks_of(service)


@given(services)
def test_sets_hold_who_is_eligible_and_the_local_set_is_part_of_the_other(service: Service) -> None:
    for lane in blocks_of(service):
        expected = {each.backend: each.weight for each in eligible(service.members, lane.family)}
        assert dict(lane.cluster.members) == expected
        asked = service.internal_local or service.external_local or reaches_outside(service)
        assert (lane.local is not None) == asked
        if lane.local is not None:
            assert set(lane.local.members) <= set(lane.cluster.members)


def test_what_makes_a_new_block() -> None:
    service = web(member("10.1.0.1:80"), member("10.1.0.2:80", 2))
    before = only_lane(service).cluster
    unchanged: tuple[dict[str, Any], ...] = (
        {"name": "other"},
        {"id": 9},
        {"block": True},
        {"drop": True},
        {"owner": "somebody"},
        {"changed_ns": 5},
        {"external_local": True},
        {"internal_local": True},
        {"members": (*service.members, member("[2001:db8::1]:80"))},
        {"members": tuple(each._replace(since_ns=1, local=True) for each in service.members)},
    )
    for change in unchanged:
        assert same_set(before, only_lane(service._replace(**change)).cluster), change
    changed: tuple[dict[str, Any], ...] = (
        {"affinity_seconds": 60},
        {"algorithm": 1},
        {"sources": (parse_prefix("192.0.2.0/24"),)},
        {"members": service.members[:1]},
        {"members": ()},
        {"members": (*service.members, member("10.1.0.3:80", 1, DRAINING))},
        {"members": (service.members[0], service.members[1]._replace(weight=3))},
        {"members": (service.members[0], service.members[1]._replace(state=DRAINING))},
    )
    for change in changed:
        assert not same_set(before, only_lane(service._replace(**change)).cluster), change


def test_both_sets_of_a_family_can_be_one_block() -> None:
    lane = only_lane(web(member("10.1.0.1:80", 1, ACTIVE, True), internal_local=True))
    assert lane.local is not None
    assert lane.cluster != lane.local
    assert same_set(lane.cluster, lane.local)
    assert not same_set(lane.cluster, None)
    assert same_set(None, None)


@pytest.mark.parametrize("external_local", [False, True])
def test_the_internal_policy_is_for_the_cluster_kind(external_local: bool) -> None:
    """Clients of this host get all backends behind external frontends, whatever either policy says."""
    for kind in (KIND_CLUSTER, KIND_EXTERNAL, KIND_LOAD_BALANCER, KIND_NODE_PORT):
        each = ServiceFrontend(WEB4.frontend, kind)
        for internal_local in (False, True):
            service = web(frontends=(each,), internal_local=internal_local, external_local=external_local)
            is_local = bool(frontend_flags(service, each) & FRONTEND_LOCAL)
            assert is_local == (internal_local and kind == KIND_CLUSTER)


@pytest.mark.parametrize(
    ("text", "kind", "flags"),
    [
        ("10.0.0.1:80/tcp", KIND_CLUSTER, 0),
        ("10.0.0.1:80/tcp", KIND_EXTERNAL, 0),
        ("10.0.0.1:80/tcp", KIND_LOAD_BALANCER, FRONTEND_FILTERED),
        ("10.0.0.1:80/tcp", KIND_NODE_PORT, FRONTEND_HOST),
        ("0.0.0.0:30080/tcp", KIND_NODE_PORT, FRONTEND_HOST),
        ("[::]:30080/tcp", KIND_NODE_PORT, FRONTEND_HOST),
        ("127.0.0.53:53/udp", KIND_CLUSTER, FRONTEND_HOST),
        ("[::1]:53/udp", KIND_CLUSTER, FRONTEND_HOST),
        ("[::1]:53/udp", KIND_LOAD_BALANCER, FRONTEND_HOST | FRONTEND_FILTERED),
        ("[fd00::1]:53/udp", KIND_CLUSTER, 0),
    ],
)
def test_flags(text: str, kind: int, flags: int) -> None:
    each = ServiceFrontend(parse_frontend(text), kind)
    other = ServiceFrontend(parse_frontend("192.0.2.1:1/tcp"), KIND_LOAD_BALANCER)
    service = web(frontends=(each, other), sources=(parse_prefix("192.0.2.0/24"),))
    flags |= 0 if kind == KIND_CLUSTER else FRONTEND_OUTSIDE
    assert frontend_flags(service, each) == flags
    assert frontend_flags(service._replace(sources=()), each) == flags & ~FRONTEND_FILTERED


def test_a_range_of_everything_filters_nothing() -> None:
    fronts = [
        ServiceFrontend(parse_frontend(text), KIND_LOAD_BALANCER)
        for text in ("10.0.0.1:80/tcp", "[fd00::1]:80/tcp")
    ]
    for texts, filtered in (
        (["192.0.2.0/24", "::/0"], [FRONTEND_FILTERED, 0]),
        (["192.0.2.0/24", "0.0.0.0/0"], [0, FRONTEND_FILTERED]),
        (["192.0.2.0/24"], [FRONTEND_FILTERED, FRONTEND_FILTERED]),
    ):
        service = web(frontends=tuple(fronts), sources=tuple(parse_prefix(text) for text in texts))
        assert [frontend_flags(service, each) & FRONTEND_FILTERED for each in fronts] == filtered


def test_the_closest_range_admits() -> None:
    ranges = [parse_prefix(text) for text in ("10.0.0.0/8", "10.9.0.0/16", "0.0.0.0/1", "2001:db8::/32")]
    for text, by in (
        ("10.9.1.1", "10.9.0.0/16"),
        ("10.1.1.1", "10.0.0.0/8"),
        ("1.1.1.1", "0.0.0.0/1"),
        ("192.0.2.1", None),
        ("2001:db8::1", "2001:db8::/32"),
        ("::1", None),
    ):
        closest = admitting(ranges, *parse_address(text))
        assert (None if closest is None else str(closest)) == by


def test_blocked_addresses() -> None:
    frontends = (
        WEB4,
        ServiceFrontend(parse_frontend("10.0.0.1:81/udp"), KIND_CLUSTER),
        WEB6,
        ServiceFrontend(parse_frontend("0.0.0.0:30080/tcp"), KIND_NODE_PORT),
    )
    service = web(frontends=frontends, block=True, node_port=30080)
    assert blocked_addresses(service) == [WEB4.frontend[:2], WEB6.frontend[:2]]
    assert blocked_addresses(service._replace(block=False)) == []


def test_overdue() -> None:
    ends = [
        each._replace(state=DRAINING, until_ns=until)
        for each, until in (
            (member("10.1.0.1:80"), 0),
            (member("10.1.0.2:80"), NOW - 1),
            (member("10.1.0.3:80"), NOW),
            (member("10.1.0.4:80"), NOW + 1),
        )
    ]
    assert overdue(web(*ends), NOW) == ends[1:3]


@pytest.mark.parametrize("name", ["web", "default/web:http/tcp", "x" * 255, "é" * 127, "two words", "-o"])
def test_names(name: str) -> None:
    assert check_service_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "é" * 128, "a\nb", "a\tb", "\x1b[1m", "\udcff", "a\u202eb", "\0"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        check_service_name(name)
    assert caught.value.message.startswith("service name ")
    caught.value.message.encode()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"name": ""}, "cannot be empty"),
        ({"owner": "x" * 65}, "64 at most"),
        ({"owner": "a\nb"}, "cannot be printed"),
        ({"affinity_seconds": 1 << 24}, "16777215"),
        ({"affinity_seconds": -1}, "16777215"),
        ({"algorithm": 3}, "random or maglev"),
        ({"node_port": 65536}, "1-65535"),
        ({"node_port": 30080}, "needs another frontend"),
        ({"frontends": (WEB4, WEB4)}, "named twice"),
        ({"frontends": (WEB4, WEB4._replace(kind=KIND_EXTERNAL))}, "named twice"),
        ({"frontends": (WEB4._replace(kind=4),)}, "unknown kind"),
        ({"frontends": (ServiceFrontend(parse_frontend("[::]:80/tcp"), KIND_CLUSTER),)}, "for node ports"),
        ({"frontends": (ServiceFrontend(parse_frontend("127.0.0.1:80/tcp"), 0),), "block": True}, "loopback"),
        ({"sources": (parse_prefix("192.0.2.0/24"),)}, "load-balancer"),
        ({"members": (member("10.1.0.1:80"), member("10.1.0.1:80", 2))}, "named twice"),
        ({"members": (member("10.1.0.1:80", 65536),)}, "0-65535"),
        ({"members": (member("10.1.0.1:80", -1),)}, "0-65535"),
        ({"members": (member("10.1.0.1:80", 1, 3),)}, "unknown state"),
    ],
)
def test_what_a_service_cannot_be(change: dict[str, object], part: str) -> None:
    service = web(member("10.1.0.1:80"))
    with pytest.raises(UsageProblem, match=part):
        check_service(service._replace(**change))  # type: ignore[arg-type]


def test_the_longest_affinity_is_accepted() -> None:
    assert web(affinity_seconds=(1 << 24) - 1).affinity_seconds == 16777215
