"""EndpointSlices: which count, which of their endpoints get new connections, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest

from svcctl.model.service import IN_BOTH, IN_CLUSTER, IN_LOCAL
from svcctl.model.service_endpoint import ACTIVE, DOWN, DRAINING, format_backend
from svcctl.model.sources.options import HEADLESS_LABEL
from tests.unit.kubernetes_objects import (
    NODE,
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

FRONT = "10.96.0.20:80/tcp"
VIP = "192.0.2.1:80/tcp"
NODE_PORT = "0.0.0.0:30080/tcp"
A, B, C = "10.244.1.1", "10.244.2.1", "10.244.3.1"
READY: dict[str, Any] = {"ready": True, "serving": True, "terminating": False}
LEAVING: dict[str, Any] = {"ready": False, "serving": True, "terminating": True}
GONE: dict[str, Any] = {"ready": False, "serving": False, "terminating": True}
NOT_YET: dict[str, Any] = {"ready": False, "serving": False, "terminating": False}
EVERYWHERE: dict[str, Any] = {
    "type": "LoadBalancer",
    "ports": [{"port": 80, "nodePort": 30080}],
    "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
}


def served(*slices: dict[str, Any], **options: Any) -> set[str] | str:
    return reach(plan(service(), *slices, **options), FRONT)


def at(*addresses: str, port: int = 8080) -> set[str]:
    return {f"{each}:{port}" for each in addresses}


def states(
    *slices: dict[str, Any], spec: dict[str, Any] | None = None, **options: Any
) -> dict[str, tuple[int, int]]:
    """Backend -> state and sets."""
    one = planned(service(**(spec or {})), *slices, **options)
    return {format_backend(each.backend): (each.state, each.sets) for each in one.members}


# R3, R4: which slices count.


def test_slices_are_the_services_of_their_namespace() -> None:
    assert served(endpoint_slice(A, namespace="other")) == "REJECT"
    assert served(endpoint_slice(A, of="other")) == "REJECT"
    assert served(endpoint_slice(A), endpoint_slice(B, name="by-hand")) == at(A, B)


@pytest.mark.parametrize("labels", [{}, None, {"kubernetes.io/service-name": ""}, {"app": "web"}])
def test_a_slice_that_is_nobodys(labels: object) -> None:
    lost = endpoint_slice(A)
    lost["metadata"]["labels"] = labels
    found = plan(service(), lost)
    assert reach(found, FRONT) == "REJECT"
    assert told(found, "warning", "EndpointSlice test/web-1", "kubernetes.io/service-name")


def test_a_slice_without_a_name() -> None:
    nameless = endpoint_slice(A)
    del nameless["metadata"]["name"]
    found = plan(service(), nameless)
    assert reach(found, FRONT) == "REJECT"
    assert told(found, "warning", "EndpointSlice", "no name")
    assert not found.blockers


def test_slices_that_are_left_alone() -> None:
    names = endpoint_slice("web.example.net", family="FQDN")
    headless = endpoint_slice(A)
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    for one in (names, headless):
        found = plan(service(), one)
        assert reach(found, FRONT) == "REJECT"
        assert not found.notices
    assert told(plan(service(), endpoint_slice(A, family="IP")), "warning", "addressType is 'IP'")


def test_the_other_proxys_label_of_a_slice() -> None:
    """Only up to 1.34."""
    labelled = endpoint_slice(A)
    labelled["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "x"
    assert served(labelled) == at(A)
    assert served(labelled, compat=(HEADLESS_LABEL,)) == "REJECT"


def test_slices_of_v1beta1() -> None:
    """With not-ready endpoints, as an older balancer served them."""
    old = endpoint_slice(endpoint(A, **READY), endpoint(B, **NOT_YET))
    old["apiVersion"] = "discovery.k8s.io/v1beta1"
    for each, where in zip(old["endpoints"], ("node-a", "node-b"), strict=True):
        each["topology"] = {"kubernetes.io/hostname": where, "topology.kubernetes.io/zone": "z"}
    found = plan(service(internalTrafficPolicy="Local"), old)
    assert reach(found, FRONT) == at(A)
    assert reach(plan(service(internalTrafficPolicy="Local"), old, node="node-b"), FRONT) == "DROP"
    assert told(found, "v1beta1", "topology")
    item = {key: value for key, value in old.items() if key not in ("apiVersion", "kind")}
    listed = {"apiVersion": old["apiVersion"], "kind": "EndpointSliceList", "items": [item]}
    assert plan(service(internalTrafficPolicy="Local"), listed) == found
    old["apiVersion"] = "discovery.k8s.io/v1"  # which has other uses for that field, if any
    assert reach(plan(service(internalTrafficPolicy="Local"), old), FRONT) == "DROP"


def test_legacy_endpoints_beside_slices() -> None:
    legacy = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "test"}}
    found = plan(service(), legacy, endpoint_slice(A))
    assert reach(found, FRONT) == at(A)
    assert [(each.level, each.subject) for each in found.notices] == [("note", "Endpoints")]


# R5: ports.


def test_ports_by_name_and_number_of_each_slice() -> None:
    front = service(ports=[{"name": "http", "port": 80, "targetPort": "web"}])
    slices = [
        endpoint_slice(A, name="x", ports=[{"name": "http", "port": 8080}]),
        endpoint_slice(B, name="y", ports=[{"name": "http", "port": 9090}]),
    ]
    assert reach(plan(front, *slices), FRONT) == at(A) | at(B, port=9090)


def test_the_target_port_is_never_read() -> None:
    for target in (1234, "http", None, [1]):
        front = service(ports=[{"port": 80, "targetPort": target}])
        assert reach(plan(front, endpoint_slice(A)), FRONT) == at(A)


def test_slices_of_more_ports_than_a_service_made_by_a_controller() -> None:
    """The API server takes 20000."""
    many = [{"name": f"p{number}", "port": 10000 + number} for number in range(101)]
    found = plan(service(ports=many), endpoint_slice("10.244.1.1", ports=many))
    assert reach(found, "10.96.0.20:10100/tcp") == {"10.244.1.1:10100"}


@pytest.mark.parametrize("number", [-1, 65536, 70000])
def test_a_port_of_a_slice_that_is_none_costs_that_port(number: int) -> None:
    """The API server does not look at it."""
    ports = [{"name": "bad", "port": number}, {"name": "", "port": 8080}]
    found = plan(service(), endpoint_slice(A, ports=ports))
    assert reach(found, FRONT) == at(A)
    assert told(found, "warning", "EndpointSlice test/web-1", "'bad'", str(number))


def test_names_that_do_not_meet_are_told() -> None:
    found = plan(service(), endpoint_slice(A, ports=[{"name": "http", "port": 8080}]))
    assert reach(found, FRONT) == "REJECT"
    assert told(found, "note", "test/web", "port ''/TCP", "'http'/TCP")
    assert not plan(service(), endpoint_slice(ports=[])).notices  # no pods: the controller's slice


def test_protocols_are_part_of_the_name() -> None:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]
    given = [
        {"name": "dns", "port": 5353, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 5354, "protocol": "TCP"},
    ]
    found = plan(service(ports=ports), endpoint_slice(A, ports=given))
    assert reach(found, "10.96.0.20:53/udp") == at(A, port=5353)
    assert reach(found, "10.96.0.20:53/tcp") == at(A, port=5354)
    other = endpoint_slice(A, ports=[{"name": "dns", "port": 53, "protocol": "TCP"}])
    assert reach(plan(service(ports=ports[:1]), other), "10.96.0.20:53/udp") == "REJECT"


@pytest.mark.parametrize(
    ("port", "meets"),
    [
        ({"name": "", "port": 8080}, True),
        ({"port": 8080}, True),
        ({"name": None, "port": 8080}, False),
        ({"name": "", "port": None}, False),
        ({"name": "", "port": 0}, False),
        ({"name": ""}, False),
    ],
)
def test_ports_of_slices(port: dict[str, Any], meets: bool) -> None:
    assert served(endpoint_slice(A, ports=[port])) == (at(A) if meets else "REJECT")


# R15 to R18: endpoints.


@pytest.mark.parametrize(
    ("conditions", "usable"),
    [
        (None, True),
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        (READY, True),
        (NOT_YET, False),
        (GONE, False),
        (LEAVING, True),  # there is no better one
        ({"ready": False, "serving": True, "terminating": False}, False),
        # of a Service with publishNotReadyAddresses
        ({"ready": True, "serving": True, "terminating": True}, True),
        ({"ready": True, "serving": False, "terminating": True}, True),
    ],
)
def test_conditions(conditions: dict[str, Any] | None, usable: bool) -> None:
    one = {"addresses": [A], "conditions": conditions}
    assert served(endpoint_slice(one)) == (at(A) if usable else "REJECT")


def test_the_first_address_alone() -> None:
    assert served(endpoint_slice({"addresses": [A, B]})) == at(A)
    assert served(endpoint_slice({"addresses": []}, {"addresses": None}, {}, B)) == at(B)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("0.0.0.0", "zero"),
        ("169.254.1.1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("fd00::1", "not IPv4"),
        ("web.example.net", "not an address"),
        ("10.244.1.1 ", "not an address"),
    ],
)
def test_addresses_that_no_pod_has(address: str, why: str) -> None:
    found = plan(service(), endpoint_slice(address, address, A))
    assert reach(found, FRONT) == at(A)
    assert told(found, "warning", "EndpointSlice test/web-1", "2 endpoints left out", why)


@pytest.mark.parametrize("address", ["::1", "::", "fe80::1", "ff02::1", "::ffff:10.244.1.1", "10.244.1.1"])
def test_addresses_that_no_pod_has_in_the_sixth_version(address: str) -> None:
    found = plan(service(clusterIP="fd00::20"), endpoint_slice(address, "fd00::1", family="IPv6"))
    assert reach(found, "[fd00::20]:80/tcp") == {"[fd00::1]:8080"}
    assert told(found, "warning", "EndpointSlice test/web-1", "1 endpoint left out")


def test_local_is_the_name_of_the_node() -> None:
    slices = endpoint_slice(endpoint(A, "node-a"), endpoint(B, "node-a.example.net"), endpoint(C))
    for name in ("node-a", " Node-A\n"):
        assert [each.local for each in planned(service(), slices, node=name).members] == [True, False, False]
    assert not any(each.local for each in planned(service(), slices, node="").members)


SAME = "172.30.4.119"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (READY, GONE, at(SAME)),
        (GONE, READY, at(SAME)),
        (NOT_YET, LEAVING, "REJECT"),  # the one that is not terminating counts
        (READY, NOT_YET, at(SAME)),
        (NOT_YET, READY, at(SAME)),
        ({"ready": True, "serving": True, "terminating": True}, NOT_YET, "REJECT"),
        (LEAVING, GONE, at(SAME)),
    ],
)
def test_an_address_that_is_used_again(first: dict[str, Any], second: dict[str, Any], wanted: object) -> None:
    both = [endpoint(SAME, **first), endpoint(SAME, **second)]
    assert served(endpoint_slice(*both)) == wanted
    assert served(endpoint_slice(*both[::-1])) == wanted
    assert served(*(endpoint_slice(each, name=f"web-{number}") for number, each in enumerate(both))) == wanted


def test_of_equal_doubles_the_first_slice_counts() -> None:
    slices = [endpoint_slice(endpoint(SAME, f"node-{name}"), name=name) for name in "ba"]
    assert planned(service(), *slices).members[0].local
    assert len(planned(service(), *slices).members) == 1


def test_two_ports_of_one_host() -> None:
    slices = [
        endpoint_slice("10.0.1.1", name=f"web-{port}", ports=[{"name": "", "port": port}])
        for port in (8080, 8081)
    ]
    assert served(*slices) == {"10.0.1.1:8080", "10.0.1.1:8081"}


# R20: candidates, and the states of those that are none.


def test_leaving_ones_are_used_when_there_is_nothing_else() -> None:
    leaving = [endpoint(A, **LEAVING), endpoint(B, **LEAVING)]
    assert served(endpoint_slice(*leaving)) == at(A, B)
    assert served(endpoint_slice(*leaving, endpoint(C, **READY))) == at(C)
    assert served(endpoint_slice(endpoint(A, **GONE), endpoint(B, **GONE))) == "REJECT"


def test_states() -> None:
    serving: dict[str, Any] = {"ready": False, "serving": True, "terminating": False}
    ends = [
        endpoint(A, "node-a", **READY),
        endpoint(B, **LEAVING),
        endpoint(C, **GONE),
        endpoint("10.244.4.1", **NOT_YET),
        endpoint("10.244.5.1", **serving),
    ]
    assert states(endpoint_slice(*ends)) == {
        f"{A}:8080": (ACTIVE, IN_BOTH),
        f"{B}:8080": (DRAINING, IN_BOTH),
        f"{C}:8080": (DOWN, IN_BOTH),
        "10.244.4.1:8080": (DOWN, IN_BOTH),
        "10.244.5.1:8080": (DRAINING, IN_BOTH),
    }


def test_each_set_falls_back_by_itself() -> None:
    local: dict[str, Any] = {**EVERYWHERE, "externalTrafficPolicy": "Local"}
    slices = endpoint_slice(endpoint(A, "node-a", **LEAVING), endpoint(B, "node-b", **READY))
    found = plan(service(**local), slices)
    assert reach(found, VIP, OUTSIDE) == at(A)
    assert reach(found, VIP, POD) == reach(found, FRONT) == at(B)
    assert states(slices, spec=local) == {f"{A}:8080": (ACTIVE, IN_LOCAL), f"{B}:8080": (ACTIVE, IN_BOTH)}
    assert states(slices)[f"{A}:8080"] == (DRAINING, IN_BOTH)  # no policy asks for the local set
    assert IN_CLUSTER | IN_LOCAL == IN_BOTH


def test_the_local_set_does_not_fall_back_while_it_has_a_ready_one() -> None:
    local: dict[str, Any] = {**EVERYWHERE, "externalTrafficPolicy": "Local"}
    slices = endpoint_slice(endpoint(A, "node-a", **LEAVING), endpoint(B, "node-a", **READY))
    assert reach(plan(service(**local), slices), VIP, OUTSIDE) == at(B)
    assert states(slices, spec=local)[f"{A}:8080"] == (DRAINING, IN_BOTH)


# R21, R22: policies.


def test_local_policies_do_not_touch_the_other_side() -> None:
    """Endpoints are on another node only."""
    there = endpoint_slice(endpoint(B, "node-b"))
    external = plan(service(**EVERYWHERE, externalTrafficPolicy="Local"), there)
    assert reach(external, FRONT) == at(B)
    for front in (VIP, NODE_PORT):
        assert reach(external, front, OUTSIDE) == "DROP"
        assert reach(external, front, POD) == reach(external, front, NODE) == at(B)
    internal = plan(service(**EVERYWHERE, internalTrafficPolicy="Local"), there)
    assert reach(internal, FRONT) == "DROP"
    for front in (VIP, NODE_PORT):
        for client in (OUTSIDE, POD, NODE):
            assert reach(internal, front, client) == at(B)


def test_nobody_anywhere_is_refused_everywhere() -> None:
    for policy in ("Cluster", "Local"):
        spec = {
            **EVERYWHERE,
            "externalTrafficPolicy": policy,
            "internalTrafficPolicy": policy,
            "externalIPs": ["192.0.2.5"],
        }
        for slices in ([], [endpoint_slice(endpoint(A, "node-a", **GONE))]):
            found = plan(service(**spec), *slices)
            assert len(fronts(found)) == 4
            for front in fronts(found):
                for client in (OUTSIDE, POD, NODE):
                    assert reach(found, front, client) == "REJECT"


# R24: topology.


def hinted(*hints: dict[str, Any]) -> dict[str, Any]:
    return endpoint_slice(*(endpoint(f"10.244.{number}.1", **each) for number, each in enumerate(hints, 1)))


@pytest.mark.parametrize(
    ("hints", "wanted"),
    [
        ([{"zones": ["z"]}, {"zones": ["y"]}], at(A)),
        ([{"zones": ["z", "y"]}, {"zones": ["y", "z"]}], at(A, B)),
        ([{"zones": ["x"]}, {"zones": ["y"]}], at(A, B)),
        ([{"zones": ["z"]}, {}], at(A, B)),
        ([{"zones": ["z"]}, {"zones": []}], at(A, B)),
        # Hints are missing where nobody would be sent.
        ([{"zones": ["z"]}, {"zones": ["y"]}, {**NOT_YET}], at(A)),
        ([{"zones": ["z"]}, {"zones": ["y"]}, {**LEAVING}], at(A)),
        # Nodes go first, zones are what is left.
        ([{"nodes": ["node-a"]}, {"nodes": ["node-b"]}], at(A)),
        ([{"nodes": ["node-b"]}, {"nodes": ["node-c"]}], at(A, B)),
        ([{"nodes": ["node-b"], "zones": ["z"]}, {"nodes": ["node-c"], "zones": ["y"]}], at(A)),
        ([{"nodes": ["node-a"], "zones": ["y"]}, {"nodes": ["node-b"], "zones": ["z"]}], at(A)),
        ([{"nodes": ["node-a"]}, {"zones": ["z"]}], at(A, B)),
        # With nothing ready the hints are not asked.
        ([{"zones": ["y"], **LEAVING}, {"zones": ["z"], **LEAVING}], at(A, B)),
    ],
)
def test_hints(hints: list[dict[str, Any]], wanted: object) -> None:
    assert served(hinted(*hints), node("node-a", zone="z")) == wanted
    assert served(hinted(*hints), zone="z") == wanted


def test_only_hints_are_followed() -> None:
    one = service(trafficDistribution="PreferClose")
    one["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": "auto"}
    slices = endpoint_slice(A, B)
    for each, zone in zip(slices["endpoints"], ("z", "y"), strict=True):
        each["zone"] = zone
    assert reach(plan(one, slices, zone="z"), FRONT) == at(A, B)


def test_hints_are_for_both_kinds_of_traffic_and_not_for_the_local_set() -> None:
    slices = endpoint_slice(endpoint(A, "node-a", zones=["y"]), endpoint(B, "node-b", zones=["z"]))
    spread = plan(service(**EVERYWHERE), slices, zone="z")
    for front in (FRONT, VIP, NODE_PORT):
        assert reach(spread, front, OUTSIDE) == at(B)
    local = plan(
        service(**EVERYWHERE, externalTrafficPolicy="Local", internalTrafficPolicy="Local"), slices, zone="z"
    )
    assert reach(local, VIP, OUTSIDE) == reach(local, FRONT) == at(A)
    assert reach(local, VIP, POD) == at(B)


def test_connections_to_those_that_hints_leave_out_live() -> None:
    slices = endpoint_slice(
        endpoint(A, "node-a", zones=["y"]), endpoint(B, "node-b", zones=["z"]), endpoint(C, zones=["y"])
    )
    assert states(slices, zone="z") == {
        f"{A}:8080": (ACTIVE, IN_LOCAL),
        f"{B}:8080": (ACTIVE, IN_BOTH),
        f"{C}:8080": (ACTIVE, 0),
    }


def test_each_family_has_its_own_hints() -> None:
    dual: dict[str, Any] = {"clusterIPs": ["10.96.0.20", "fd00:96::20"], "ipFamilies": ["IPv4", "IPv6"]}
    four = endpoint_slice(endpoint(A, zones=["z"]), endpoint(B, zones=["y"]))
    six = endpoint_slice("fd00::1", "fd00::2", name="six", family="IPv6")
    found = plan(service(**dual), four, six, zone="z")
    assert reach(found, FRONT) == at(A)
    assert reach(found, "[fd00:96::20]:80/tcp") == {"[fd00::1]:8080", "[fd00::2]:8080"}


def test_a_nodes_label_goes_before_what_was_said() -> None:
    slices = endpoint_slice(endpoint(A, zones=["z"]), endpoint(B, zones=["y"]))
    assert served(slices, node("node-a", zone="y"), zone="z") == at(B)
    assert served(slices, node("node-a"), zone="z") == at(A)


def test_a_policy_that_was_none_before_has_no_effect_on_affinity() -> None:
    """A client keeps its endpoint of the local set: the affinity is the service's, whatever the set."""
    one = planned(
        balanced("web", "192.0.2.1", externalTrafficPolicy="Local", sessionAffinity="ClientIP"),
        endpoint_slice(A),
    )
    assert one.affinity_seconds == 10800
    assert one.external_local
