"""Services of Kubernetes: which count, and what they are reached at."""

from __future__ import annotations

from typing import Any

import pytest

from svcctl.errors import UsageProblem
from svcctl.model.apply_plan import Have, plan_apply
from svcctl.model.service_endpoint import KIND_CLUSTER, KIND_EXTERNAL, KIND_LOAD_BALANCER
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.options import HEADLESS_LABEL, Options
from tests.unit.kubernetes_objects import (
    OUTSIDE,
    POD,
    balanced,
    endpoint,
    endpoint_slice,
    fronts,
    node,
    plan,
    planned,
    reach,
    service,
    table,
    told,
)

pytestmark = pytest.mark.unit

BACKENDS = endpoint_slice(endpoint("10.244.1.1", "node-a"), endpoint("10.244.2.1", "node-b"))
BACKENDS6 = endpoint_slice("fd00:10::1", name="web-6", family="IPv6")
HERE, BOTH = {"10.244.1.1:8080"}, {"10.244.1.1:8080", "10.244.2.1:8080"}
SIX = {"[fd00:10::1]:8080"}
DUAL: dict[str, Any] = {
    "clusterIP": "10.96.0.20",
    "clusterIPs": ["10.96.0.20", "fd00:96::20"],
    "ipFamilies": ["IPv4", "IPv6"],
}


# R1, R2: which Services count.


@pytest.mark.parametrize("value", ["other", ""])
def test_another_proxys(value: str) -> None:
    label = {"service.kubernetes.io/service-proxy-name": value}
    assert not plan(service(labels=label), BACKENDS).services
    assert table(plan(service(), BACKENDS)) == {"10.96.0.20:80/tcp": BOTH}


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "ExternalName", "externalName": "db.example.net", "externalIPs": ["192.0.2.9"]},
        {"clusterIP": "None", "externalIPs": ["192.0.2.9"]},
        {"clusterIP": "None", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
    ],
)
def test_without_frontends(spec: dict[str, Any]) -> None:
    found = plan(service(**spec), BACKENDS)
    assert not found.services
    assert not found.notices  # both are usual


@pytest.mark.parametrize("address", ["", None])
def test_no_address_yet(address: object) -> None:
    found = plan(service(clusterIP=address, externalIPs=["192.0.2.9"]), BACKENDS)
    assert not found.services
    assert told(found, "note", "no cluster IP yet")


def test_the_headless_label_of_a_service() -> None:
    """kube-proxy left such a Service alone up to 1.34, with a slice that does not have the label."""
    labelled = service(labels={"service.kubernetes.io/headless": ""})
    assert plan(labelled, BACKENDS).services
    old = plan(labelled, BACKENDS, compat=(HEADLESS_LABEL,))
    assert not old.services
    assert told(old, "test/web", "service.kubernetes.io/headless")


def test_from_headless_to_a_cluster_address_and_back() -> None:
    assert not fronts(plan(service(clusterIP="None"), BACKENDS))
    assert fronts(plan(service(), BACKENDS))


@pytest.mark.parametrize(
    ("spec", "goes"),
    [
        ({"clusterIP": "None"}, True),
        ({"type": "ExternalName", "clusterIP": None, "externalName": "db.example.net"}, True),
        ({"clusterIP": None, "labels": {"service.kubernetes.io/service-proxy-name": "other"}}, True),
        ({"labels": {"service.kubernetes.io/headless": ""}}, True),
        ({"ports": [{"port": 80, "protocol": "SCTP"}]}, True),
        ({"ports": [{"port": 81}]}, True),
        ({"clusterIP": None}, False),
        ({"clusterIP": "", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}, False),
        ({"namespace": "elsewhere", "clusterIP": "None"}, False),
        ({"name": "web-2", "clusterIP": "None"}, False),
    ],
)
def test_what_a_service_no_longer_has_goes_without_prune(spec: dict[str, Any], goes: bool) -> None:
    """Only with the Service itself, of this owner, and not by a manifest that has no address yet."""
    there = {each.name: each for each in plan(service(), BACKENDS).services}
    now = plan(service(**spec), BACKENDS, compat=(HEADLESS_LABEL,))
    steps = {step.name: step.action for step in plan_apply([now], Have(there)).services}
    assert (steps.pop("test/web:80/tcp", None) == "deleted") == goes
    assert set(steps.values()) <= {"created"}
    others = {name: each._replace(owner="other") for name, each in there.items()}
    assert "test/web:80/tcp" not in {step.name for step in plan_apply([now], Have(others)).services}


MANY = [{"name": f"p{number}", "port": 10000 + number} for number in range(300)]
TOO_MUCH = {
    "backends": [
        service("big", MANY, clusterIP="10.96.0.21"),
        endpoint_slice(*(f"10.9.{n >> 8}.{n & 255}" for n in range(900)), of="big", ports=MANY),
    ],
    "frontends": [
        balanced(
            "big", *(f"192.0.{n >> 8}.{n & 255}" for n in range(300)), ports=MANY, clusterIP="10.96.0.21"
        )
    ],
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_service_that_asks_for_too_much_stops_nobody_else(what: str) -> None:
    """And keeps what it had, whatever else goes."""
    before = plan(service("big", MANY[:1], clusterIP="10.96.0.21"), service("gone", clusterIP="10.96.0.22"))
    there = {each.name: each for each in before.services}
    now = desired([service(), BACKENDS, *TOO_MUCH[what]], Options(node="node-a"))
    assert table(now) == {"10.96.0.20:80/tcp": BOTH}
    assert told(now, "warning", "Service test/big", "left out", what)
    for prune in (False, True):
        made = plan_apply([now], Have(there), prune=prune)
        steps = {step.name: step.action for step in made.services}
        assert steps.pop("test/web:80/tcp") == "created"
        assert steps == ({"test/gone:80/tcp": "deleted"} if prune else {})
        assert not any("2 services" in doubt for doubt in made.doubts)


def test_an_address_that_is_lost_to_an_older_service_is_given_up_without_prune() -> None:
    later = [service("b", created="2024-01-01T00:00:00Z"), endpoint_slice("10.244.1.1", of="b")]
    first = plan(*later)
    there = {each.name: each for each in first.services}
    older = [service("a", created="2023-01-01T00:00:00Z"), endpoint_slice("10.244.1.2", of="a")]
    made = plan_apply([plan(*later, *older)], Have(there))
    assert {step.name: step.action for step in made.services} == {
        "test/a:80/tcp": "created",
        "test/b:80/tcp": "deleted",
    }
    assert made.notices == ()


# R5: names. R6: defaults.


def test_names_of_services() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    found = plan(service(ports=ports), service("other", clusterIP="10.96.0.21"), BACKENDS)
    assert [each.name for each in found.services] == [
        "test/other:80/tcp",
        "test/web:dns/udp",
        "test/web:http/tcp",
    ]


def test_the_owner() -> None:
    assert planned(service(), BACKENDS).owner == "kubernetes"
    found = plan(service(), BACKENDS, owner="east")
    assert found.owner == found.services[0].owner == "east"


def test_names_that_yaml_reads_as_numbers() -> None:
    slices = endpoint_slice("10.244.1.1", ports=[{"name": "80", "port": 8080}])
    assert table(plan(service(ports=[{"name": 80, "port": 80}]), slices)) == {"10.96.0.20:80/tcp": HERE}


def test_defaults() -> None:
    """A manifest without namespace, protocol, type and policies."""
    bare = service()
    del bare["metadata"]["namespace"]
    slices = endpoint_slice("10.244.1.1", namespace="default", ports=[{"port": 8080}])
    one = planned(bare, slices)
    assert one.name == "default/web:80/tcp"
    assert (one.affinity_seconds, one.internal_local, one.external_local, one.node_port) == (
        0,
        False,
        False,
        0,
    )
    assert not one.block
    assert not one.drop
    assert reach(plan(bare, slices), "10.96.0.20:80/tcp") == HERE


# R7, R8: families.


def test_both_families() -> None:
    found = plan(service(**DUAL), BACKENDS, BACKENDS6)
    assert table(found) == {"10.96.0.20:80/tcp": BOTH, "[fd00:96::20]:80/tcp": SIX}


def test_the_sixth_version_first() -> None:
    turned = {
        "clusterIP": "fd00:96::20",
        "clusterIPs": DUAL["clusterIPs"][::-1],
        "ipFamilies": ["IPv6", "IPv4"],
    }
    assert plan(service(**turned), BACKENDS, BACKENDS6) == plan(service(**DUAL), BACKENDS, BACKENDS6)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"clusterIP": "fd00:96::25"}, {"[fd00:96::25]:80/tcp": "REJECT"}),
        # Without families that of the first address, as the API server fills in the rest.
        ({"clusterIPs": DUAL["clusterIPs"]}, {"10.96.0.20:80/tcp": BOTH}),
        ({"ipFamilies": ["IPv4"]}, {"10.96.0.20:80/tcp": BOTH}),
        ({"ipFamilies": ["IPv4"], "clusterIPs": DUAL["clusterIPs"]}, {"10.96.0.20:80/tcp": BOTH}),
    ],
)
def test_families(spec: dict[str, Any], wanted: object) -> None:
    assert table(plan(service(**spec), BACKENDS)) == wanted


def test_a_family_that_does_not_fit_its_address() -> None:
    found = plan(service(clusterIPs=["10.96.0.20", "10.96.0.21"], ipFamilies=["IPv4", "IPv6"]), BACKENDS)
    assert list(fronts(found)) == ["10.96.0.20:80/tcp"]
    assert told(found, "warning", "10.96.0.21", "IPv6")


def test_addresses_of_a_family_that_the_service_lacks() -> None:
    ports = [{"port": 80, "nodePort": 30080}]
    one = balanced(
        "web", "192.0.2.1", "2001:db8::1", ports=ports, externalIPs=["192.0.2.5", "2001:db8::5"],
        loadBalancerSourceRanges=["2001:db8::/32"],
    )  # fmt: skip
    found = plan(one, BACKENDS, BACKENDS6)
    assert set(fronts(found)) == {
        "10.96.0.20:80/tcp", "192.0.2.1:80/tcp", "192.0.2.5:80/tcp", "0.0.0.0:30080/tcp"
    }  # fmt: skip
    assert found.services[0].sources == ()


# R9, R10, R11: other frontends.


def test_external_addresses() -> None:
    one = planned(
        service(externalIPs=["192.0.2.5", " 192.0.2.6", "192.0.2.5"], externalTrafficPolicy="Local"), BACKENDS
    )
    assert [each.kind for each in one.frontends] == [KIND_CLUSTER, KIND_EXTERNAL, KIND_EXTERNAL]
    assert one.external_local  # of the type ClusterIP too
    assert not planned(service(externalTrafficPolicy="Local"), BACKENDS).external_local


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0", "zero address"),
        ("127.0.0.1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("::ffff:192.0.2.1", "no address"),
        ("fe80::1", "link-local"),
        ("ff02::1", "multicast"),
        ("web.example.net", "no address"),
        ("\x1b[31m", "no address"),
    ],
)
def test_addresses_that_nobody_can_have(address: str, why: str) -> None:
    found = plan(service(externalIPs=[address, "192.0.2.5"]), BACKENDS)
    assert set(fronts(found)) == {"10.96.0.20:80/tcp", "192.0.2.5:80/tcp"}
    assert told(found, "warning", "Service test/web", why)
    assert all(each.text.isprintable() for each in found.notices)


def test_leading_zeros_are_decimal() -> None:
    found = plan(service(clusterIP="010.096.000.020"), endpoint_slice("010.244.001.010"))
    assert table(found) == {"10.96.0.20:80/tcp": {"10.244.1.10:8080"}}


def test_an_address_that_is_there_twice() -> None:
    twice = planned(balanced("web", "192.0.2.1", "10.96.0.20", externalIPs=["192.0.2.1"]), BACKENDS)
    assert [each.kind for each in twice.frontends] == [KIND_CLUSTER, KIND_EXTERNAL]
    filtered = balanced(
        "web", "192.0.2.1", externalIPs=["192.0.2.1"], loadBalancerSourceRanges=["10.0.0.0/8"]
    )
    assert [each.kind for each in planned(filtered, BACKENDS).frontends] == [KIND_CLUSTER, KIND_LOAD_BALANCER]


@pytest.mark.parametrize(
    ("entry", "served"),
    [
        ({"ip": "192.0.2.16"}, True),
        ({"ip": "192.0.2.16", "ipMode": "VIP"}, True),
        ({"ip": "192.0.2.16", "ipMode": "Proxy"}, False),
        ({"hostname": "lb.example.net"}, False),
        ({"hostname": "lb.example.net", "ip": "192.0.2.16"}, True),
        ({"ip": "169.254.10.1"}, True),
    ],
)
def test_modes_of_load_balancers(entry: dict[str, str], served: bool) -> None:
    ports = [{"port": 80, "nodePort": 30082}]
    status = {"loadBalancer": {"ingress": [entry]}}
    found = plan(
        service(ports=ports, type="LoadBalancer", status=status, loadBalancerIP="192.0.2.99"), BACKENDS
    )
    wanted = {"10.96.0.20:80/tcp", "0.0.0.0:30082/tcp"} | ({f"{entry['ip']}:80/tcp"} if served else set())
    assert set(fronts(found)) == wanted


def test_a_shared_load_balancer() -> None:
    """Ports of one address are different Services', each with its own local set."""
    shared = "192.0.2.4"
    tcp = balanced("tcp", shared, ports=[{"port": 53}], externalTrafficPolicy="Local")
    udp = balanced(
        "udp",
        shared,
        clusterIP="10.96.0.21",
        ports=[{"port": 53, "protocol": "UDP"}],
        externalTrafficPolicy="Local",
    )
    slices = [
        endpoint_slice(endpoint("10.244.1.1", "node-a"), of="tcp"),
        endpoint_slice(
            endpoint("10.244.2.1", "node-b"), of="udp", ports=[{"name": "", "port": 53, "protocol": "UDP"}]
        ),
    ]
    found = plan(tcp, udp, *slices)
    assert not found.notices
    assert reach(found, "192.0.2.4:53/tcp", OUTSIDE) == HERE
    assert reach(found, "192.0.2.4:53/udp", OUTSIDE) == "DROP"
    assert reach(found, "192.0.2.4:53/udp", POD) == {"10.244.2.1:53"}
    alone = plan(tcp, *slices)
    assert alone.services[0] == found.services[0]


def test_node_ports() -> None:
    one = planned(
        service(type="NodePort", ports=[{"port": 80, "nodePort": 30080}], **DUAL), BACKENDS, BACKENDS6
    )
    assert one.node_port == 30080
    for nothing in (0, None):
        assert planned(service(type="NodePort", ports=[{"port": 80, "nodePort": nothing}])).node_port == 0


@pytest.mark.parametrize(("kind", "number"), [("ClusterIP", 30080), ("NodePort", 70000), ("NodePort", -1)])
def test_node_ports_that_cannot_be(kind: str, number: int) -> None:
    found = plan(service(type=kind, ports=[{"port": 80, "nodePort": number}]), BACKENDS)
    assert table(found) == {"10.96.0.20:80/tcp": BOTH}
    assert told(found, "warning", "test/web", "port 80 has no node port")


def test_one_number_for_two_protocols() -> None:
    udp = {"name": "u", "port": 80, "protocol": "UDP", "nodePort": 30053}
    tcp = {"name": "t", "port": 80, "nodePort": 30053}
    both = plan(service(type="NodePort", ports=[tcp, udp]))
    assert not both.notices
    assert {"0.0.0.0:30053/tcp", "0.0.0.0:30053/udp", "10.96.0.20:80/tcp", "10.96.0.20:80/udp"} == set(
        fronts(both)
    )
    without = plan(service(type="NodePort", ports=[tcp]))
    assert without.services[0] == both.services[0]


def test_a_change_of_type_leaves_the_right_frontends() -> None:
    ports = [{"port": 80, "nodePort": 30080}]
    wanted = {
        "ExternalName": set(),
        "ClusterIP": {"10.96.0.20:80/tcp"},
        "NodePort": {"10.96.0.20:80/tcp", "0.0.0.0:30080/tcp"},
        "LoadBalancer": {"10.96.0.20:80/tcp", "0.0.0.0:30080/tcp"},
    }
    for kind, those in wanted.items():
        assert set(fronts(plan(service(type=kind, ports=ports), BACKENDS))) == those


# R12: where node ports are served.


@pytest.mark.parametrize(
    ("wanted", "prefixes"),
    [
        (("all",), []),
        (("10.0.0.0/8",), ["10.0.0.0/8", "::/0"]),
        (("fd00::/8",), ["0.0.0.0/0", "fd00::/8"]),
        (("10.0.0.0/8", "192.0.2.0/24", "fd00::/8"), ["10.0.0.0/8", "192.0.2.0/24", "fd00::/8"]),
        (("primary",), ["10.0.0.5/32", "fd00::5/128"]),
        (("primary", "127.0.0.0/8"), ["10.0.0.5/32", "127.0.0.0/8", "fd00::5/128"]),
    ],
)
def test_node_port_addresses(wanted: tuple[str, ...], prefixes: list[str]) -> None:
    mine = node("node-a", "10.0.0.5", "192.168.1.5", "fd00::5")
    found = plan(service(), BACKENDS, mine, node("node-b", "10.0.0.6"), node_port_addresses=wanted)
    assert [str(each) for each in found.node_port_addresses or ()] == prefixes
    assert (found.node_port_addresses is None) == (not wanted)
    assert told(found, "node ports", "every") == any(each in prefixes for each in ("::/0", "0.0.0.0/0"))


def test_the_primary_address_of_one_family() -> None:
    found = plan(service(), BACKENDS, node("node-a", "10.0.0.5"), node_port_addresses=("primary",))
    assert [str(each) for each in found.node_port_addresses or ()] == ["10.0.0.5/32"]
    unknown = plan(service(), BACKENDS, node_port_addresses=("primary",))
    assert any("primary address" in each for each in unknown.blockers)
    assert plan(service(), BACKENDS).node_port_addresses is None  # no say: it stays as it is
    with pytest.raises(UsageProblem, match="all stands alone"):
        plan(service(), BACKENDS, node_port_addresses=("all", "10.0.0.0/8"))


# R13, R14, R31: ports.


def test_ports_are_services_of_their_own() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "admin", "port": 81}]
    slices = endpoint_slice("10.244.1.1", ports=[{"name": "http", "port": 8080}])
    found = plan(service(ports=ports, sessionAffinity="ClientIP"), slices)
    assert table(found) == {"10.96.0.20:80/tcp": HERE, "10.96.0.20:81/tcp": "REJECT"}


def test_sctp_alone_is_left_out() -> None:
    ports = [{"name": "s", "port": 9, "protocol": "SCTP"}, {"name": "http", "port": 80}]
    found = plan(service(ports=ports), BACKENDS)
    assert list(fronts(found)) == ["10.96.0.20:80/tcp"]
    assert told(found, "warning", "test/web", "port s", "SCTP")


@pytest.mark.parametrize(
    ("ports", "left"),
    [
        ([{"name": "a", "port": 80}, {"name": "b", "port": 80}], ["test/web:a/tcp"]),
        ([{"name": "a", "port": 80}, {"name": "a", "port": 81}], ["test/web:a/tcp"]),
        ([{"port": 80}, {"port": 81}], ["test/web:80/tcp"]),
        ([{"port": 80}, {"name": "80", "port": 81}], ["test/web:80/tcp"]),
    ],
)
def test_ports_that_cannot_be_told_apart(ports: list[dict[str, Any]], left: list[str]) -> None:
    found = plan(service(ports=ports), BACKENDS)
    assert [each.name for each in found.services] == left
    assert told(found, "warning", "test/web", "left out")


def test_no_ports_at_all() -> None:
    bare = service()
    bare["spec"]["ports"] = None
    assert told(plan(bare, BACKENDS), "warning", "has no ports")
