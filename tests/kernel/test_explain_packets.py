"""explain --from: what is said of a workload's packets is what becomes of them."""

from __future__ import annotations

import select
from socket import AF_INET, AF_INET6
from typing import Any

import pytest

from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.model.prefix import parse_prefix
from svcctl.state import nodes
from svcctl.state.place import Place
from svcctl.state.writer import open_writer
from tests.lib.pods import place, pods
from tests.lib.svc import svc
from tests.lib.world import World

SMALL = ("--max-flows", 20000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)


def explained(endpoint: str, source: str) -> dict[str, Any]:
    (found,) = svc("explain", endpoint, "--from", source, "-o", "json").json["explain"]
    packets: dict[str, Any] = found["packets"]
    return packets


def test_packets_of_a_client(world: World) -> None:
    """By its interface, source ranges, internal policy and affinity."""
    svc("load", "--no-dispatcher")
    with pods(3) as (client, first, second):
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        backends = tuple(f"{pod.address}:8080" for pod in (first, second))
        svc("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", backends[0], "--block")
        found = explained("10.96.0.1:80/tcp", client.address)
        assert (found["verdict"], found["interface"], found["service"]) == ("serve", "pod1", "web")
        assert found["backends"] == [{"backend": backends[0], "share": 1.0}]
        assert explained("10.96.0.1:81/tcp", client.address)["verdict"] == "refuse"
        assert explained("10.96.0.1:80/tcp", first.address)["verdict"] == "pass"
        text = svc("explain", "10.96.0.1:80/tcp", "--from", client.address).out
        assert f"packets     by pod1 go to one of {backends[0]}=100%" in text

        svc("service", "set", "web", "--affinity", 600)
        svc("backend", "add", "web", backends[1])
        assert explained("10.96.0.1:80/tcp", client.address).get("affine") is None
        with first.listen(8080) as one, second.listen(8080) as other, client.socket() as stream:
            stream.connect(("10.96.0.1", 80))
            (taker,) = select.select([one, other], [], [], 60)[0]
            taker.accept()[0].close()
            served = backends[taker is other]
        found = explained("10.96.0.1:80/tcp", client.address)
        assert found["affine"] == served
        assert 0 < found["remaining"] <= 600
        svc("backend", "drain", "web", served)
        assert explained("10.96.0.1:80/tcp", client.address).get("affine") is None

        svc("service", "add", "near", "--frontend", "10.96.0.2:80/tcp", "--backend", backends[0])
        svc("service", "set", "near", "--internal-policy", "local")
        found = explained("10.96.0.2:80/tcp", client.address)
        assert (found["verdict"], found["set"], found.get("backends", [])) == ("drop", "local", [])
        assert (
            svc("explain", "10.96.0.3:80/tcp", "--from", client.address, "-o", "json")
            .json["explain"][0]
            .get("packets")
            is None
        )


@pytest.fixture
def outside(world: World) -> World:
    """A node with an interface to the outside, another node, and node ports."""
    svc("load", "--no-dispatcher")
    world.sh(
        "ip link add out0 type veth peer name out1; ip addr add 192.0.2.11/24 dev out0;"
        "ip link set out0 up; ip link set out1 up; ip route add default via 192.0.2.1 dev out0"
    )
    svc("attach", "dev", "out0", "--role", "host", *SMALL)
    svc("load", "--no-dispatcher", "--node-address", "192.0.2.11")
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    svc("nodes", "add", "six", "--address", "2001:db8::13", "--pod-prefix", "10.244.3.0/24")
    return world


CLIENT = "198.51.100.7"


def ways(endpoint: str, source: str = CLIENT) -> dict[str, tuple[Any, ...]]:
    found = explained(endpoint, source)
    assert (found["verdict"], found["outside"], found["interface"]) == ("serve", True, "out0")
    return {one["backend"]: (one["way"], one.get("node"), one.get("direct", False)) for one in found["ways"]}


def test_packets_from_outside(outside: World) -> None:
    svc(
        "service", "add", "web", "--frontend", "203.0.113.80:80/tcp", "--kind", "external", "--node-port", 30080,
        "--backend", "10.244.2.5:8080", "--backend", "10.244.3.5:8080", "--backend", "192.0.2.77:80",
        "--backend", "192.0.2.11:80",
    )  # fmt: skip
    expected = {
        "10.244.2.5:8080": ("tunnel", "b", False),
        "10.244.3.5:8080": ("nowhere", "six", False),
        "192.0.2.77:80": ("masqueraded", None, False),
        "192.0.2.11:80": ("local", None, False),
    }
    assert ways("203.0.113.80:80/tcp") == expected
    assert ways("192.0.2.11:30080/tcp") == expected
    found = explained("192.0.2.12:30080/tcp", CLIENT)
    assert (found["verdict"], found["why"]) == ("pass", "the address is none that serves node ports")
    text = svc("explain", "203.0.113.80:80/tcp", "--from", CLIENT).out
    assert "10.244.2.5:8080: through the tunnel to node b, and back through it" in text
    assert text.splitlines()[-1].startswith("  result      packets by out0 go to one of ")
    assert "route add local" not in text
    assert "--from CLIENT" in svc("explain", "203.0.113.80:80/tcp").out
    svc("service", "set", "web", "--external-mode", "dsr")
    assert ways("203.0.113.80:80/tcp")["10.244.2.5:8080"] == ("tunnel", "b", True)
    svc("load", "--no-dispatcher", "--no-dsr", "198.51.100.0/24")
    assert ways("203.0.113.80:80/tcp")["10.244.2.5:8080"] == ("tunnel", "b", False)
    assert ways("203.0.113.80:80/tcp", "198.51.101.1")["10.244.2.5:8080"] == ("tunnel", "b", True)
    svc("service", "set", "web", "--external-policy", "local")
    local = ways("203.0.113.80:80/tcp")
    assert local == {"192.0.2.11:80": ("local", None, False)}  # derived from the node's own address
    assert len(ways("203.0.113.80:80/tcp", "10.244.2.9")) == 4  # a pod of another node is inside
    svc("backend", "delete", "web", "192.0.2.11:80")
    found = explained("203.0.113.80:80/tcp", CLIENT)
    assert (found["verdict"], found["set"]) == ("drop", "local")


def test_node_ports_of_other_nodes_for_sockets(outside: World) -> None:
    """The balancer, too, takes another node's address for one that serves node ports."""
    svc(
        "service",
        "add",
        "web",
        "--frontend",
        "10.96.0.1:80/tcp",
        "--node-port",
        30080,
        "--backend",
        "10.1.0.1:80",
    )
    for address, met in (("192.0.2.12", "node port"), ("192.0.2.11", "node port"), ("192.0.2.13", None)):
        (found,) = svc("explain", f"{address}:30080/tcp", "-o", "json").json["explain"]
        assert found["outgoing"].get("met") == met, address


def test_where_a_backend_is(outside: World) -> None:
    """What is not said of a backend, its address tells."""
    world = outside
    world.sh(
        "ip addr add 10.9.9.9/32 dev lo; ip link add pod5 type veth peer name pod6; ip link set pod5 up;"
        "ip link set pod6 up; ip route add 10.5.0.0/24 dev pod5; ip route add 10.244.2.9/32 dev pod5"
    )
    svc("attach", "dev", "pod5", "--role", "workload")
    with open_writer(Place(), "test") as writer, writer.changing():
        writer.map("node_addresses").update(
            nodes.key_of(parse_prefix("10.244.1.0/24")), U32.pack(enums.NODE_POD)
        )
    svc(
        "service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", "10.9.9.9:80",
        "--backend", "10.244.1.5:80", "--backend", "10.244.2.5:80", "--backend", "10.7.7.7:80",
        "--backend", "10.244.1.6:80,local=no", "--backend", "127.0.0.1:80", "--backend", "10.5.0.1:80",
        "--backend", "10.244.2.9:80",
    )  # fmt: skip

    def local() -> set[str]:
        rows = svc("backends", "web", "-o", "json").json["backends"]
        return {row["backend"] for row in rows if row.get("local")}

    # A route to a workload is closer than another node's prefix.
    assert local() == {"10.9.9.9:80", "10.244.1.5:80", "10.5.0.1:80", "10.244.2.9:80"}
    svc(
        "backend", "add", "web", "10.244.1.7:80", "10.244.2.7:80", "10.7.7.8:80,local", "10.9.9.9:81,local=no"
    )
    more = {"10.244.1.7:80", "10.7.7.8:80"}
    assert local() == {"10.9.9.9:80", "10.244.1.5:80", "10.5.0.1:80", "10.244.2.9:80"} | more


def test_source_ranges(world: World) -> None:
    """Which one admits, or that none does: what packets meet."""
    svc("load", "--no-dispatcher")
    with pods(2) as (client, server), server.listen(8080) as listener:
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        add = ("service", "add", "web", "--frontend", "203.0.113.1:80/tcp", "--kind", "load-balancer")
        backend = f"{server.address}:8080"
        svc(*add, "--backend", backend, "--source", "198.51.100.0/24", "--source", "2001:db8::/32")
        found = explained("203.0.113.1:80/tcp", client.address)
        assert (found["verdict"], found.get("admitted_by")) == ("drop", None)
        text = svc("explain", "203.0.113.1:80/tcp", "--from", client.address).out
        assert f"sources     {client.address} is not admitted: it is in none of 198.51.100.0/24\n" in text
        assert "not chosen" not in text

        wide = f"{client.address.rpartition('.')[0]}.0/24"
        svc("service", "delete", "web")
        svc(*add, "--backend", backend, "--source", wide, "--source", "0.0.0.0/1", "--source", "128.0.0.0/1")
        found = explained("203.0.113.1:80/tcp", client.address)
        assert (found["verdict"], found["admitted_by"]) == ("serve", wide)
        text = svc("explain", "203.0.113.1:80/tcp", "--from", client.address).out
        assert f"packets     by pod1 go to one of {backend}=100%; {wide} admits the client\n" in text
        assert f"sources     {client.address} is admitted by {wide}\n" in text
        with client.socket() as stream:
            stream.connect(("203.0.113.1", 80))
            listener.accept()[0].close()
        for noun in ("frontends", "nat"):
            (row,) = svc(noun, "-o", "json").json[noun]
            assert row["result"] == "filters", row
        text = svc("explain", "203.0.113.1:80/tcp").out
        assert f"sources     admitted are 0.0.0.0/1, {wide}, 128.0.0.0/1\n" in text
        (whole,) = svc("explain", "203.0.113.1:80/tcp", "-o", "json").json["explain"]
        assert whole["outgoing"]["sources"] == ["0.0.0.0/1", wide, "128.0.0.0/1"]


def test_a_backend_behind_an_attached_workload(world: World) -> None:
    """It is on this node, whoever its address belongs to; one that routes lead elsewhere is not."""
    svc("load", "--no-dispatcher")
    with pods(2) as (here, other):
        svc("attach", "dev", here.device, "--role", "workload", *SMALL)
        backends = [place(one.own(family), 80) for one in (here, other) for family in (AF_INET, AF_INET6)]
        words = [word for one in backends for word in ("--backend", one)]
        fronts = ("--frontend", "10.96.0.1:80/tcp", "--frontend", "[fd96::1]:80/tcp")
        svc("service", "add", "web", *fronts, *words)
        rows = svc("backends", "web", "-o", "json").json["backends"]
        assert {row["backend"] for row in rows if row.get("local")} == set(backends[:2])
