"""What two Services claim goes to one of them, whatever their order; what belongs to somebody else is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from svcctl.model.prefix import parse_prefix
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.options import Options
from tests.unit.kubernetes_objects import (
    balanced,
    endpoint_slice,
    fronts,
    node,
    plan,
    service,
    told,
)

pytestmark = pytest.mark.unit

OLD, NEW = "2022-09-12T22:10:09Z", "2024-01-01T00:00:00Z"
SLICES = [endpoint_slice("10.244.1.1", of="a"), endpoint_slice("10.244.2.1", of="b")]


def pair(created_a: str, created_b: str, a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Services a and b, each with an address of its own."""
    return [
        service("a", created=created_a, **{"clusterIP": "10.96.0.1", **a}),
        service("b", created=created_b, **{"clusterIP": "10.96.0.2", **b}),
        *SLICES,
    ]


@pytest.mark.parametrize(
    ("created_a", "created_b", "winner"),
    [(OLD, NEW, "a"), (NEW, OLD, "b"), (OLD, OLD, "a"), ("", "", "a"), ("", NEW, "b")],
)
def test_the_oldest_wins(created_a: str, created_b: str, winner: str) -> None:
    external = {"externalIPs": ["172.17.0.1"]}
    found = plan(*pair(created_a, created_b, external, external))
    assert fronts(found)["172.17.0.1:80/tcp"] == f"test/{winner}:80/tcp"
    loser = "b" if winner == "a" else "a"
    assert told(found, "warning", f"Service test/{loser}", "172.17.0.1:80/tcp", f"test/{winner}:80/tcp")
    assert len(found.notices) == 1


def test_the_loser_keeps_the_rest_and_gets_it_when_the_winner_has_gone() -> None:
    external = {"externalIPs": ["172.17.0.1"]}
    a, b, *slices = pair(OLD, NEW, external, external)
    assert fronts(plan(a, b, *slices))["10.96.0.2:80/tcp"] == "test/b:80/tcp"
    assert fronts(plan(b, *slices))["172.17.0.1:80/tcp"] == "test/b:80/tcp"


def test_a_time_that_yaml_made_a_date() -> None:
    external = {"externalIPs": ["172.17.0.1"]}
    for created, winner in ((NEW, "b"), (OLD, "a")):  # the same time is no difference
        a, b, *slices = pair(created, OLD, external, external)
        b["metadata"]["creationTimestamp"] = datetime(2022, 9, 12, 22, 10, 9, tzinfo=UTC)
        found = desired([b, a, *slices], Options(node="node-a"))
        assert fronts(found)["172.17.0.1:80/tcp"] == f"test/{winner}:80/tcp"


def test_of_three_each_loser_hears_of_the_winner() -> None:
    external = {"externalIPs": ["172.17.0.1"]}
    found = plan(
        *pair(NEW, NEW, external, external),
        service("c", clusterIP="10.96.0.3", created=OLD, externalIPs=external["externalIPs"]),
    )
    assert fronts(found)["172.17.0.1:80/tcp"] == "test/c:80/tcp"
    for loser in "ab":
        assert told(found, "warning", f"test/{loser}", "it is test/c:80/tcp's")


def test_a_cluster_address_twice() -> None:
    found = plan(*pair(NEW, OLD, {"clusterIP": "10.96.0.2"}, {}))
    assert fronts(found) == {"10.96.0.2:80/tcp": "test/b:80/tcp"}
    assert [each.name for each in found.services] == ["test/b:80/tcp"]
    assert told(found, "warning", "test/a", "10.96.0.2:80/tcp")


def test_nobody_takes_a_cluster_address_however_old() -> None:
    found = plan(*pair(OLD, NEW, {"externalIPs": ["10.96.0.2"]}, {}))
    assert fronts(found)["10.96.0.2:80/tcp"] == "test/b:80/tcp"


def test_nor_what_a_load_balancer_was_given() -> None:
    given = balanced("b", "192.0.2.1", clusterIP="10.96.0.2", created=NEW)
    found = plan(service("a", clusterIP="10.96.0.1", created=OLD, externalIPs=["192.0.2.1"]), given, *SLICES)
    assert fronts(found)["192.0.2.1:80/tcp"] == "test/b:80/tcp"


def test_node_ports() -> None:
    def ports(protocol: str) -> dict[str, Any]:
        return {"type": "NodePort", "ports": [{"port": 80, "protocol": protocol, "nodePort": 30080}]}

    found = plan(*pair(NEW, OLD, ports("TCP"), ports("TCP")))
    assert fronts(found)["0.0.0.0:30080/tcp"] == "test/b:80/tcp"
    assert {each.name: each.node_port for each in found.services} == {
        "test/a:80/tcp": 0,
        "test/b:80/tcp": 30080,
    }
    assert told(found, "warning", "test/a", "0.0.0.0:30080/tcp")
    assert not told(plan(*pair(NEW, OLD, ports("TCP"), ports("UDP"))), "does not get")


def test_a_node_port_of_one_service_twice() -> None:
    ports = [{"name": name, "port": port, "nodePort": 30080} for name, port in (("x", 80), ("y", 81))]
    found = plan(service(type="NodePort", ports=ports))
    assert fronts(found)["0.0.0.0:30080/tcp"] == "test/web:x/tcp"
    assert told(found, "warning", "test/web:y/tcp")


def test_source_ranges_go_with_the_last_load_balancer() -> None:
    loser = balanced(
        "a", "192.0.2.1", clusterIP="10.96.0.1", created=NEW, loadBalancerSourceRanges=["10.0.0.0/8"]
    )
    found = plan(loser, balanced("b", "192.0.2.1", clusterIP="10.96.0.2", created=OLD), *SLICES)
    assert [each.sources for each in found.services] == [(), ()]


# Health-check ports.


def health(name: str, number: int, created: str = OLD, **spec: Any) -> dict[str, Any]:
    address = {"a": "10.96.0.1", "b": "10.96.0.2"}[name]
    local = {"externalTrafficPolicy": "Local", "healthCheckNodePort": number}
    return balanced(name, clusterIP=address, created=created, **{**local, **spec})


def ports_of(*objects: dict[str, Any]) -> tuple[dict[str, int], bool]:
    found = plan(*objects, *SLICES)
    return {each.name: each.health_port for each in found.services}, told(
        found, "warning", "health-check port"
    )


def test_a_health_port_that_is_a_node_port() -> None:
    own = [{"name": "app", "nodePort": 32103, "port": 8443}, {"name": "hc", "nodePort": 30989, "port": 8081}]
    assert ports_of(health("a", 30989, ports=own)) == ({"test/a:app/tcp": 0, "test/a:hc/tcp": 0}, True)
    other = service("b", clusterIP="10.96.0.2", type="NodePort", ports=[{"port": 80, "nodePort": 32000}])
    assert ports_of(health("a", 32000), other) == ({"test/a:80/tcp": 0, "test/b:80/tcp": 0}, True)
    other["spec"]["ports"][0]["protocol"] = "UDP"  # nobody who listens for TCP minds
    assert ports_of(health("a", 32000), other) == ({"test/a:80/tcp": 32000, "test/b:80/udp": 0}, False)


def test_a_health_port_of_two() -> None:
    assert ports_of(health("a", 32000, NEW), health("b", 32000, OLD)) == (
        {"test/a:80/tcp": 0, "test/b:80/tcp": 32000},
        True,
    )


# CVE-2020-8554.

CLAIMS = {
    "10.96.0.2": "Service test/b",
    "192.0.2.1": "Service test/c",
    "10.0.0.6": "node node-b",
    "8.8.8.8": "",
}


@pytest.mark.parametrize(("address", "owner"), CLAIMS.items())
def test_an_external_address_that_is_somebody_elses(address: str, owner: str) -> None:
    objects = [
        *pair(OLD, NEW, {"externalIPs": [address], "ports": [{"port": 8443}]}, {}),
        balanced("c", "192.0.2.1", clusterIP="10.96.0.3"),
        node("node-a", "10.0.0.5"),
        node("node-b", "10.0.0.6"),
    ]
    found = plan(*objects)
    assert told(found, "warning", "Service test/a", address, f"the address of {owner}") == bool(owner)
    assert f"{address}:8443/tcp" in fronts(found)


def test_ones_own_address_is_no_news() -> None:
    assert not plan(balanced("web", "192.0.2.1", externalIPs=["192.0.2.1", "10.96.0.20"])).notices


@pytest.mark.parametrize(
    ("allowed", "served"),
    [
        (None, ["192.0.2.5", "198.51.100.5"]),
        ((), []),
        ((parse_prefix("192.0.2.0/24"),), ["192.0.2.5"]),
    ],
)
def test_the_policy(allowed: Any, served: list[str]) -> None:
    addresses = ["192.0.2.5", "198.51.100.5"]
    found = plan(service(externalIPs=addresses), external_ips=allowed)
    assert set(fronts(found)) == {"10.96.0.20:80/tcp"} | {f"{each}:80/tcp" for each in served}
    for address in addresses:
        assert told(found, "warning", "test/web", address, "--external-ips") == (address not in served)


def test_external_addresses_at_ports_without_number_harm_nobody_else() -> None:
    """Each address is a frontend at each port: one Service of a few hundred kilobytes could ask for millions."""
    ports = [{"name": f"p{n}", "port": n} for n in range(1, 101)]
    addresses = [f"10.{n >> 8}.{n & 255}.1" for n in range(1000)]
    greedy = service("greedy", clusterIP="10.96.0.1", created=OLD, ports=ports, externalIPs=addresses)
    other = service("other", clusterIP="10.96.0.2", created=NEW, externalIPs=["192.0.2.5"])
    found = plan(greedy, other)
    assert {"10.96.0.2:80/tcp", "192.0.2.5:80/tcp", "10.96.0.1:100/tcp"} <= set(fronts(found))
    assert len(fronts(found)) == 102
    assert told(found, "warning", "test/greedy", "external IPs are not served", "100000 frontends")
    greedy["spec"]["externalIPs"] = addresses[:100]
    assert len(fronts(plan(greedy, other))) == 10102


def test_notices_of_one_service_are_few() -> None:
    """Whoever writes a Service could hide what is said of others among thousands of lines."""
    ports = [{"name": f"p{n}", "port": n} for n in range(1, 31)]
    addresses = [f"192.0.2.{n}" for n in range(1, 101)]
    first = service("a", clusterIP="10.96.0.1", created=OLD, ports=ports, externalIPs=addresses)
    loser = service("b", clusterIP="10.96.0.2", created=NEW, ports=ports, externalIPs=addresses)
    found = plan(first, loser, service("c", clusterIP="10.96.0.3", externalIPs=["not one"]))
    of_loser = [each.text for each in found.notices if "test/b" in each.subject]
    assert len(of_loser) == 21
    assert of_loser[0].startswith("test/b:p1/tcp does not get 192.0.2.1:1/tcp, 192.0.2.2:1/tcp, ")
    assert of_loser[0].endswith(" and 97 more: they are test/a:p1/tcp's")
    assert of_loser[-1] == "and 10 more such"
    assert told(found, "warning", "test/c", "not one")
