"""Manifests as people write them and clusters dump them: what is planned from each, in any order."""

from __future__ import annotations

import pytest

from svcctl.errors import UsageProblem
from svcctl.model.prefix import format_address
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.options import Options
from tests.unit.kubernetes_objects import (
    DATA,
    NODE,
    OUTSIDE,
    POD,
    documents,
    endpoint,
    endpoint_slice,
    fronts,
    node,
    plan,
    reach,
    service,
    table,
    told,
)

pytestmark = pytest.mark.unit

NO_ADDRESS = {
    "01-online-boutique.yaml": 12,
    "02-bookinfo.yaml": 4,
    "04-istiod-traffic-distribution.yaml": 1,
    "06-ingress-nginx-baremetal-nodeport.yaml": 2,
    "07-guestbook-all-in-one.yaml": 3,
    "08-meteor-affinity.json": 1,
    "10-etcd-nodeport-zero.yaml": 1,
    "11-glusterfs-legacy-endpoints.yaml": 1,
    "12-metallb-ipv6-lb.yaml": 1,
    "15-loxilb-sctp-lb.yaml": 1,
    "17-loxilb-udp-lb.yaml": 1,
    "18-loxilb-external-endpoints.yaml": 1,
    "23-kubectl-mixed-list.yaml": 1,
    "25-blixt-udp-multiport.yaml": 1,
}
"""Files of Services as users write them, before an API server gave them addresses -> how many."""


def test_every_file_is_read() -> None:
    listed = {line.partition("\t")[0] for line in (DATA / "SOURCES.tsv").read_text().splitlines()[1:]}
    there = {each.name for each in DATA.iterdir()} - {"SOURCES.tsv"}
    assert there == listed
    for name in sorted(there - {"45-cilium-lb-state-file.yaml"}):
        plan(*documents(name))


@pytest.mark.parametrize(("name", "count"), NO_ADDRESS.items())
def test_no_address_yet(name: str, count: int) -> None:
    found = plan(*documents(name))
    assert not found.services
    notices = [each for each in found.notices if "no cluster IP yet" in each.text]
    assert len({each.subject for each in notices}) == len(notices) == count
    assert any("not one EndpointSlice" in each for each in found.blockers)


@pytest.mark.parametrize("name", ["11-glusterfs-legacy-endpoints.yaml", "18-loxilb-external-endpoints.yaml"])
def test_legacy_endpoints(name: str) -> None:
    assert told(plan(*documents(name)), "warning", "legacy Endpoints", "EndpointSlices")


def test_another_kind_is_told_once() -> None:
    found = plan(*documents("23-kubectl-mixed-list.yaml"))
    assert [each.subject for each in found.notices] == [
        "ReplicationController",
        "Service default/test-service",
    ]


def test_nodes_only() -> None:
    found = plan(*documents("20-kube-router-node-list.yaml"))
    assert not found.services
    assert [each.name for each in found.nodes] == ["node-a", "node-b"]
    mine, other = found.nodes
    assert mine.own
    assert not other.own
    assert [format_address(*each) for each in mine.addresses] == ["10.241.0.20", "2001:db8:ca2:2::2ca1"]
    assert [str(each) for each in other.pod_prefixes] == ["10.242.1.0/24", "2001:db8:42:1001::/64"]


def test_an_old_node() -> None:
    """One pod range without the list of them, labels of old, a time that YAML makes a date, a host name."""
    old = node("node-a", "10.130.13.103", podCIDR="192.168.3.0/24")
    old["metadata"]["labels"] = {"failure-domain.beta.kubernetes.io/zone": "old"}
    old["status"]["addresses"][:0] = [
        {"type": "Hostname", "address": "node-a"},
        {"type": "ExternalIP", "address": "203.0.113.103"},
    ]
    (found,) = plan(old).nodes
    assert [format_address(*each) for each in found.addresses] == ["10.130.13.103", "203.0.113.103"]
    assert [str(each) for each in found.pod_prefixes] == ["192.168.3.0/24"]
    assert found.zone == ""
    assert found.eligible


def test_terminating_one_of_two() -> None:
    found = plan(*documents("30-terminating-one-of-two.yaml"))
    assert table(found) == {"10.96.116.33:8081/tcp": {"10.244.0.113:8081"}}
    assert not found.notices
    assert not found.blockers


@pytest.mark.parametrize(
    ("here", "internal", "outside"),
    [
        ("node-a", {"10.244.1.1:80"}, {"10.244.1.1:80"}),
        ("node-b", {"10.244.2.1:80"}, {"10.244.2.1:80"}),
        ("node-c", "DROP", "DROP"),
    ],
)
def test_both_policies_local(here: str, internal: object, outside: object) -> None:
    found = plan(*documents("32-traffic-policy-local-both.yaml"), node=here)
    both = {"10.244.1.1:80", "10.244.2.1:80"}
    assert reach(found, "10.96.50.104:80/tcp", POD) == internal
    assert reach(found, "192.0.2.1:80/tcp", OUTSIDE) == outside
    assert reach(found, "192.0.2.1:80/tcp", POD) == reach(found, "192.0.2.1:80/tcp", NODE) == both


@pytest.mark.parametrize(
    "name", ["34-dualstack-nodeport-tcp-udp.yaml", "48-kubectl-get-all-three-kinds.json"]
)
def test_dual_stack(name: str) -> None:
    found = plan(*documents(name))
    http4, http6 = (
        {"10.244.1.54:80", "10.244.2.9:80"},
        {"[fd00:10:244:1::247e]:80", "[fd00:10:244:2::a314]:80"},
    )
    tftp4, tftp6 = (
        {"10.244.1.54:69", "10.244.2.9:69"},
        {"[fd00:10:244:1::247e]:69", "[fd00:10:244:2::a314]:69"},
    )
    assert table(found) == {
        "10.96.207.99:80/tcp": http4,
        "[fd00:10:96::b050]:80/tcp": http6,
        "10.96.207.99:69/udp": tftp4,
        "[fd00:10:96::b050]:69/udp": tftp6,
        "0.0.0.0:30181/tcp": http4,
        "[::]:30181/tcp": http6,
        "0.0.0.0:32757/udp": tftp4,
        "[::]:32757/udp": tftp6,
    }
    assert [each.name for each in found.services] == [
        "default/echo-dualstack:http/tcp",
        "default/echo-dualstack:tftp/udp",
    ]
    assert {each.owner for each in found.services} == {"kubernetes"}
    assert not found.blockers


def test_a_tainted_node() -> None:
    found = plan(*documents("48-kubectl-get-all-three-kinds.json"), node="node-b")
    assert {each.name: each.eligible for each in found.nodes} == {"node-a": True, "node-b": False}


@pytest.mark.parametrize(
    ("zone", "backends"),
    [
        ("foo", {"10.244.1.1:80"}),
        ("bar", {"10.244.1.1:80"}),
        ("quux", {"10.244.2.1:80"}),
        ("zone-a", {"10.244.1.1:80", "10.244.2.1:80"}),
        ("baz", {"10.244.1.1:80", "10.244.2.1:80"}),
        ("", {"10.244.1.1:80", "10.244.2.1:80"}),
    ],
)
def test_zone_hints(zone: str, backends: object) -> None:
    objects = documents("35-zone-hints-two-slices.yaml")
    said = plan(*objects, zone=zone)
    from_node = plan(*objects, node("node-a", zone=zone))
    assert table(said) == table(from_node) == {"10.96.50.104:80/tcp": backends}
    assert told(said, "zone hints are not followed") == (not zone)


def test_source_ranges_and_external_ips() -> None:
    found = plan(*documents("38-source-ranges-externalips.yaml"))
    one = {"10.244.1.1:80"}
    for address in ("203.0.113.9", "10.9.9.9"):
        assert reach(found, "10.0.0.1:80/tcp", POD, address) == one
        assert reach(found, "10.0.0.3:80/tcp", OUTSIDE, address) == one
    assert reach(found, "10.0.0.2:80/tcp", OUTSIDE, "203.0.113.9") == "DROP"
    assert reach(found, "10.0.0.2:80/tcp", OUTSIDE, "10.9.9.9") == one
    assert len(fronts(found)) == 3


def test_one_slice_name_in_two_namespaces() -> None:
    found = plan(*documents("40-same-slice-name-two-namespaces.yaml"))
    assert table(found) == {
        "10.96.50.104:80/tcp": {"10.244.1.1:80"},
        "10.96.50.105:80/tcp": {"10.245.1.1:80"},
    }
    assert {each.affinity_seconds for each in found.services} == {10800}


def test_a_state_file_of_another_program() -> None:
    with pytest.raises(UsageProblem, match=r"^\$\.kind: is missing"):
        desired(documents("45-cilium-lb-state-file.yaml"), Options(node="node-a"))


def test_three_big_slices() -> None:
    addresses = [f"10.244.{number // 200}.{number % 200 + 1}" for number in range(250)]
    slices = [
        endpoint_slice(*addresses[at : at + 100], name=f"web-{at}", ports=[{"name": "", "port": 80}])
        for at in (0, 100, 200)
    ]
    front = service(type="NodePort", ports=[{"port": 80, "nodePort": 31907}])
    before = plan(front, *slices)
    everyone = {f"{each}:80" for each in addresses}
    assert table(before) == {"10.96.0.20:80/tcp": everyone, "0.0.0.0:31907/tcp": everyone}
    del slices[1]["endpoints"][50]
    after = plan(front, *slices)
    gone = set(before.services[0].members) - set(after.services[0].members)
    assert len(gone) == 1
    assert set(after.services[0].members) < set(before.services[0].members)


def test_a_slice_only() -> None:
    found = plan(endpoint_slice(endpoint("10.244.0.88", "node-a", ready=True)))
    assert not found.services
    assert not found.notices  # of a Service that comes later, or has gone: normal


def test_ports_without_a_service_address() -> None:
    """The issue 60749 of kubernetes, as its reporter had it: nothing is served before there is an address."""
    ports = [
        {"name": "app", "nodePort": 32103, "port": 8443},
        {"name": "hc", "nodePort": 30989, "port": 8081},
    ]
    unborn = service(
        ports=ports, type="LoadBalancer", healthCheckNodePort=30989, externalTrafficPolicy="Local"
    )
    del unborn["spec"]["clusterIP"]
    found = plan(unborn)
    assert not found.services
    assert told(found, "note", "Service test/web", "no cluster IP yet")
