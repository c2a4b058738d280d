"""What a Service of Kubernetes says beside its addresses: affinity, source ranges, health-check ports."""

from __future__ import annotations

from typing import Any

import pytest

from svcctl.model.prefix import parse_prefix
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


# R25: affinity.


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        ({"sessionAffinity": "None"}, 0),
        ({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}, 0),
        ({"sessionAffinity": "ClientIP"}, 10800),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {}}, 10800),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}}, 10),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86400}}},
            86400,
        ),
    ],
)
def test_affinity(spec: dict[str, Any], seconds: int) -> None:
    """In seconds, for every frontend of the port."""
    one = planned(service(**spec), BACKENDS)
    assert one.affinity_seconds == seconds


@pytest.mark.parametrize("seconds", [0, -1, 86401, 10**15])
def test_affinity_that_cannot_be(seconds: int) -> None:
    config = {"clientIP": {"timeoutSeconds": seconds}}
    found = plan(service(sessionAffinity="ClientIP", sessionAffinityConfig=config), BACKENDS)
    assert found.services[0].affinity_seconds == 10800
    assert told(found, "warning", "86400")


# R27: source ranges.


def test_ranges_are_for_load_balancers_alone() -> None:
    ports = [{"port": 80, "nodePort": 30080}]
    one = balanced(
        "web", "192.0.2.1", ports=ports, externalIPs=["192.0.2.5"], loadBalancerSourceRanges=[" 10.0.0.0/8 "]
    )
    found = plan(one, BACKENDS)
    stranger = "203.0.113.9"
    assert reach(found, "192.0.2.1:80/tcp", OUTSIDE, stranger) == "DROP"
    assert reach(found, "192.0.2.1:80/tcp", POD, "10.2.3.4") == BOTH
    for front in ("192.0.2.5:80/tcp", "0.0.0.0:30080/tcp", "10.96.0.20:80/tcp"):
        assert reach(found, front, OUTSIDE, stranger) == BOTH


@pytest.mark.parametrize(
    ("ranges", "four", "six"),
    [
        ([], BOTH, SIX),
        (["10.0.0.0/8"], "DROP", SIX),
        (["fd00::/8"], BOTH, "DROP"),
        (["10.0.0.0/8", "fd00::/8"], "DROP", "DROP"),
        (["0.0.0.0/0"], BOTH, SIX),
        (["0.0.0.0/0", "fd00::/8"], BOTH, "DROP"),
        (["10.0.0.0/8", "203.0.113.0/24"], BOTH, SIX),
        (["nonsense"], "NOTHING", "NOTHING"),
        (["10.0.0.0/8", "nonsense"], "DROP", "NOTHING"),
    ],
)
def test_ranges_of_each_family(ranges: list[str], four: object, six: object) -> None:
    """A family without a range is open, as with kube-proxy; but not if one could not be read."""
    one = balanced("web", "192.0.2.1", "2001:db8::1", loadBalancerSourceRanges=ranges, **DUAL)
    found = plan(one, BACKENDS, BACKENDS6)
    assert reach(found, "192.0.2.1:80/tcp", OUTSIDE, "203.0.113.9") == four
    assert reach(found, "[2001:db8::1]:80/tcp", OUTSIDE, "2001:db8:9::9") == six
    assert told(found, "note", "IPv6 load balancer admits everybody") == (
        ranges[:1] == ["10.0.0.0/8"] and six == SIX
    )
    assert told(found, "warning", "nonsense") == ("nonsense" in ranges)


def test_an_unread_range_does_not_open_an_external_address() -> None:
    one = balanced("web", "192.0.2.1", externalIPs=["192.0.2.1"], loadBalancerSourceRanges=["nonsense"])
    assert list(fronts(plan(one, BACKENDS))) == ["10.96.0.20:80/tcp"]


@pytest.mark.parametrize(("ranges", "own"), [("10.0.0.0/8", True), ("192.168.0.0/16", False)])
def test_the_node_may_come_from_the_balancers_address(ranges: str, own: bool) -> None:
    one = balanced("web", "192.0.2.1", loadBalancerSourceRanges=[ranges])
    (found,) = plan(one, BACKENDS, node("node-a", "10.0.0.5"), node("node-b", "192.168.0.1")).services
    assert (parse_prefix("192.0.2.1") in found.sources) == own


def test_the_annotation_is_for_clouds() -> None:
    one = balanced("web", "192.0.2.1")
    one["metadata"]["annotations"] = {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}
    assert planned(one, BACKENDS).sources == ()


# R28: health-check ports.


def healthy(name: str = "web", number: int = 32000, **spec: Any) -> dict[str, Any]:
    return balanced(name, **{"externalTrafficPolicy": "Local", "healthCheckNodePort": number, **spec})


@pytest.mark.parametrize(("here", "ready"), [("node-a", 2), ("node-b", 1), ("node-c", 0)])
def test_health_ports(here: str, ready: int) -> None:
    """Each port of the Service says the same: addresses are counted once over all of them."""
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    slices = endpoint_slice(
        endpoint("10.244.1.1", "node-a"), endpoint("10.244.1.2", "node-a"), endpoint("10.244.2.1", "node-b"),
        endpoint("10.244.1.3", "node-a", ready=False), ports=[{"name": "a", "port": 8080}, {"name": "b", "port": 81}],
    )  # fmt: skip
    found = plan(healthy(ports=ports), slices, node=here)
    assert {(each.health_port, each.local_ready) for each in found.services} == {(32000, ready)}


def test_both_families_are_the_same_pods() -> None:
    six = endpoint_slice(
        endpoint("fd00:10::1", "node-a"), endpoint("fd00:10::2", "node-a"), name="six", family="IPv6"
    )
    for slices, ready in (((BACKENDS, six), 2), ((BACKENDS,), 1)):
        assert planned(healthy(**DUAL), *slices).local_ready == ready


def test_terminating_endpoints_are_served_and_not_healthy() -> None:
    leaving = endpoint("10.244.1.1", "node-a", ready=False, serving=True, terminating=True)
    found = plan(healthy(type="LoadBalancer", status={"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}),
                 endpoint_slice(leaving, endpoint("10.244.2.1", "node-b")))  # fmt: skip
    assert reach(found, "192.0.2.1:80/tcp", OUTSIDE) == HERE
    assert found.services[0].local_ready == 0
    assert found.services[0].health_port == 32000


@pytest.mark.parametrize(
    "spec", [{"externalTrafficPolicy": "Cluster"}, {"type": "NodePort"}, {"number": 0}, {"number": 70000}]
)
def test_no_health_port(spec: dict[str, Any]) -> None:
    one = planned(healthy(**spec), BACKENDS)
    assert (one.health_port, one.local_ready) == (0, 0)
