"""What has gone wrong with service proxies: reports of Kubernetes and of other proxies, each by objects and real traffic.

The numbers are those of issues of kubernetes/kubernetes, unless another project is named.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.test_connect_changes import clients, heard, wait_for_all
from tests.kernel.test_connect_node import NODE, pod, told
from tests.lib.applying import problems
from tests.lib.balanced import REFUSED, Balanced
from tests.lib.child import Child
from tests.lib.servers import Server
from tests.lib.svc import Ran, svc
from tests.unit.kubernetes_objects import Object, endpoint, endpoint_slice, node, service
from tests.unit.kubernetes_objects import balanced as load_balancer

__all__ = ["pod"]

VIP, LB, EXTERNAL = "10.96.0.20", "192.0.2.40", "203.0.113.7"
PODS = [f"10.244.1.{n}" for n in (1, 2, 3)]
UDP_PORT = [{"name": "", "port": 8080, "protocol": "UDP"}]
BOTH = [{"name": "t", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 8080, "protocol": "UDP"}]
Apply = Callable[..., Ran]


@pytest.fixture
def backends(balanced: Balanced) -> list[str]:
    """Three pods that listen, by the node's own stack, and an address of the node."""
    balanced.world.sh("; ".join(f"ip addr add {each}/32 dev lo" for each in PODS))
    return [balanced.farm.open(each, 8080, "tcp udp") for each in PODS]


@pytest.fixture
def apply(balanced: Balanced, tmp_path: Path) -> Apply:
    """Objects applied as a whole cluster's, on node-a."""

    def run(*objects: Object, options: tuple[object, ...] = (), prune: bool = True) -> Ran:
        file = tmp_path / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, node("node-a")]}))
        return svc("apply", "-f", file, "--node", "node-a", *(["--prune"] if prune else []), *options)

    return run


def reached(balanced: Balanced, address: str = VIP, port: int = 80, kind: str = "tcp") -> set[str]:
    """Who gets new connections; of three, one is overlooked once in ten thousand million times."""
    return set(balanced.ask_often(60, address, port, kind))


def test_one_host_with_two_ports_from_two_slices(
    balanced: Balanced, backends: list[str], apply: Apply
) -> None:
    """101935: endpoints of host networks differ by their ports alone."""
    other = balanced.farm.open(PODS[0], 8081)
    slices = [
        endpoint_slice(PODS[0], name=f"web-{port}", ports=[{"name": "", "port": port}])
        for port in (8080, 8081)
    ]
    apply(service(), *slices)
    assert reached(balanced) == {backends[0], other}


@pytest.mark.parametrize("left", [[], [PODS[1]]], ids=["to-zero", "to-another"])
def test_datagrams_to_who_has_left(
    balanced: Balanced, backends: list[str], apply: Apply, left: list[str]
) -> None:
    """139628, 59368, 42473: clients of a UDP service are told, by whatever address they came."""
    balanced.world.sh(f"ip addr add {NODE}/32 dev lo")
    dns = load_balancer(
        "dns", LB, ports=[{"port": 53, "protocol": "UDP", "nodePort": 30053}], externalIPs=[EXTERNAL]
    )
    apply(dns, endpoint_slice(PODS[0], of="dns", ports=UDP_PORT))
    places = [(VIP, 53), (LB, 53), (EXTERNAL, 53), (NODE, 30053)]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(balanced.client(*place, "udp")) for place in places]
        for one in sockets:
            one.send(b"?")
            assert balanced.farm.taker("udp") == backends[0]
        ran = apply(dns, endpoint_slice(*left, of="dns", ports=UDP_PORT))
        assert f"ended {len(places)} UDP sockets of backends that left" in ran.err
        for one in sockets:
            with pytest.raises(ConnectionAbortedError):
                one.recv(10)
    for place in places:
        if left:
            assert balanced.ask(*place, "udp") == backends[1]
        else:
            assert balanced.error(*place, "udp") == REFUSED


@pytest.mark.parametrize("gone", [True, False], ids=["is-not-serving", "still-serves"])
def test_datagrams_to_who_is_not_ready(
    balanced: Balanced, backends: list[str], apply: Apply, gone: bool
) -> None:
    """An endpoint that neither is ready nor serves stays in its slice; its UDP clients are told, TCP goes on."""
    both = service(
        "dns", ports=[{"name": kind[0], "port": 53, "protocol": kind.upper()} for kind in ("tcp", "udp")]
    )
    apply(both, endpoint_slice(PODS[0], of="dns", ports=BOTH))
    ends = [endpoint(PODS[0], ready=False, serving=not gone, terminating=not gone), endpoint(PODS[1])]
    with (
        balanced.client(VIP, 53, "udp") as one,
        balanced.client(VIP, 53) as stream,
        balanced.farm.accept(backends[0])[0] as server,
    ):
        one.send(b"?")
        assert balanced.farm.taker("udp") == backends[0]
        ran = apply(both, endpoint_slice(*ends, of="dns", ports=BOTH))
        assert ("ended 1 UDP socket of backends that left" in ran.err) == gone
        if gone:
            with pytest.raises(ConnectionAbortedError):
                one.recv(10)
        else:
            one.send(b"?")
            assert balanced.farm.taker("udp") == backends[0]
        assert "ended" not in apply(both, endpoint_slice(*ends, of="dns", ports=BOTH)).err
        stream.sendall(b"on")
        assert server.recv(2) == b"on"
    assert balanced.ask(VIP, 53, "udp") == backends[1]


def test_connections_to_who_has_left(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """100698, 101607, cilium 40969: TCP goes on both ways; new connections go elsewhere.

    So it does when the endpoint goes by degrees, and when the whole service goes.
    """
    apply(service(), endpoint_slice(PODS[0]))
    with balanced.client(VIP, 80) as client, balanced.farm.accept(backends[0])[0] as server:
        server.settimeout(60)
        steps: list[tuple[Object, ...]] = [
            (
                service(),
                endpoint_slice(endpoint(PODS[0], ready=False, serving=False, terminating=True), PODS[1]),
            ),
            (service(), endpoint_slice(PODS[1])),
            (service(), endpoint_slice()),
            (service("other", clusterIP="10.96.0.21"), endpoint_slice(PODS[2], of="other")),
        ]
        for step, objects in enumerate(steps):
            apply(*objects)
            client.send(b"to")
            assert server.recv(10) == b"to"
            server.send(b"back")
            assert client.recv(10) == b"back"
            # A service that is gone names nobody.
            assert client.getpeername() == ((VIP, 80) if step < 3 else (PODS[0], 8080))
            if step < 2:
                assert reached(balanced) == {backends[1]}
            elif step == 2:
                assert balanced.error(VIP, 80) == REFUSED
    assert problems() == []


def test_each_policy_is_for_its_own_side(
    balanced: Balanced, backends: list[str], apply: Apply, pod: Child
) -> None:
    """105470, kube-router 818, 65387, 131765, cilium 11746: the endpoints are all on another node.

    Internal policy says nothing of external addresses, external policy nothing of the cluster's, nor of clients of
    the node and of its pods whatever address they take.
    """
    away = endpoint_slice(endpoint(PODS[0], "node-b"))
    web = {"ports": [{"port": 80, "nodePort": 30080}], "externalIPs": [EXTERNAL]}
    external = [(LB, 80), (EXTERNAL, 80)]
    local, cluster = "Local", "Cluster"
    for inside, outside in ((local, cluster), (cluster, local), (local, local)):
        policies = {"internalTrafficPolicy": inside, "externalTrafficPolicy": outside}
        apply(load_balancer("web", LB, **web, **policies), away)
        for place in [*external, (NODE, 30080)]:
            assert balanced.ask(*place) == backends[0], (policies, place)
        for place in external:
            assert told(pod, *place) == 0, (policies, place)
            assert balanced.farm.taker() == backends[0]
        if inside == local:
            assert balanced.error(VIP, 80) == REFUSED
            assert told(pod, VIP, 80) != 0
        else:
            assert balanced.ask(VIP, 80) == backends[0]
            assert told(pod, VIP, 80) == 0
            assert balanced.farm.taker() == backends[0]


def test_conditions_of_endpoints(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """85643, 50977, cilium 18241, calico 4952: who gets new connections, step by step as pods come and go."""
    leaving = {"ready": False, "serving": True, "terminating": True}
    gone = {"ready": False, "serving": False, "terminating": True}
    published = {"ready": True, "serving": True, "terminating": True}
    starting = {"ready": False, "serving": False, "terminating": False}
    ready = {"ready": True}
    steps: list[tuple[tuple[dict[str, Any], ...], set[int]]] = [
        ((ready, starting, ready), {0, 2}),
        ((leaving, starting, ready), {2}),
        ((leaving, starting, gone), {0}),
        ((leaving, starting, leaving), {0, 2}),
        ((published, starting, leaving), {0}),
        ((gone, starting, gone), set()),
        ((gone, ready, gone), {1}),
    ]
    for conditions, wanted in steps:
        rows = [endpoint(at, **each) for at, each in zip(PODS, conditions, strict=True)]
        apply(service(), endpoint_slice(*rows))
        if wanted:
            assert reached(balanced) == {backends[n] for n in wanted}, conditions
        else:
            assert balanced.error(VIP, 80) == REFUSED


def test_affinity_over_applies(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """55429, 89358: a client keeps its backend by any address, and a new time is in seconds and counts at once."""

    def sticky(seconds: int) -> Object:
        config = {"clientIP": {"timeoutSeconds": seconds}}
        policy = {"externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}
        return load_balancer("web", LB, **policy, sessionAffinityConfig=config)

    apply(sticky(10800), endpoint_slice(*PODS))
    first = balanced.ask(VIP, 80)
    assert reached(balanced) == reached(balanced, LB) == {first}
    for seconds in (10800, 3600, 300):
        apply(sticky(seconds), endpoint_slice(*PODS[::-1]))
        assert reached(balanced) == {first}
        (row,) = svc("affinity", "-o", "json").json["affinity"]
        assert 0 < row["remaining"] <= seconds
    kept = [each for each in PODS if not first.startswith(f"{each}:")]
    apply(sticky(300), endpoint_slice(*kept))
    assert first not in reached(balanced)


@pytest.mark.timeout(300)
def test_one_of_two_on_a_shared_address_goes(balanced: Balanced, server: Server, apply: Apply) -> None:
    """80158: the other one is served all the time, and ports are moved to and fro between them, too."""
    balanced.world.sh(f"ip addr add {PODS[0]}/32 dev lo")
    server.open("a", address=PODS[0], port=8080)
    stays = [
        load_balancer("stays", LB, clusterIP="10.96.0.21", ports=[{"port": 443}]),
        endpoint_slice(PODS[0], of="stays"),
    ]
    goes = [load_balancer("goes", LB, clusterIP="10.96.0.22"), endpoint_slice(PODS[0], of="goes")]
    apply(*stays, *goes)
    with clients(LB, 443) as one:
        for _ in range(4):
            apply(*stays)
            assert balanced.error(LB, 80) != 0
            apply(*stays, *goes)
            wait_for_all(one)
        assert list(heard(one)) == ["a"]


def test_one_number_for_two_protocols(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """20092, 85020, 91404, cilium 9207: TCP and UDP of one address and port, and one of them goes."""
    balanced.world.sh(f"ip addr add {NODE}/32 dev lo")
    ports = [
        {"name": "t", "port": 53, "protocol": "TCP", "nodePort": 30053},
        {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30053},
    ]
    slices = [endpoint_slice(PODS[n], name=f"web-{n}", ports=[BOTH[n]]) for n in (0, 1)]
    apply(service(type="NodePort", ports=ports), *slices)
    for address, port in ((VIP, 53), (NODE, 30053)):
        assert reached(balanced, address, port) == {backends[0]}
        assert reached(balanced, address, port, "udp") == {backends[1]}
    apply(service(type="NodePort", ports=ports[:1]), *slices)
    for address, port in ((VIP, 53), (NODE, 30053)):
        assert balanced.ask(address, port) == backends[0]
        with balanced.socket("udp") as one:
            with contextlib.suppress(OSError):
                one.connect((address, port))
                one.send(b"?")
            assert balanced.farm.takers("udp").total() == 0


def test_headless_and_back(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """33029: frontends come with a cluster address, and go with it, pruned or not, and so does who was a client."""
    web = service(sessionAffinity="ClientIP")
    headless = service(clusterIP="None")
    other = (service("other", clusterIP="10.96.0.21"), endpoint_slice(PODS[2], of="other"))
    for prune in (True, False):
        apply(headless, endpoint_slice(*PODS[:2]), *other, prune=prune)
        assert balanced.error(VIP, 80) != 0
        assert [row["state"] for row in svc("affinity", "-o", "json").json["affinity"]] in ([], ["stale"])
        apply(web, endpoint_slice(*PODS[:2]), *other)
        assert balanced.ask(VIP, 80) in backends[:2]
    apply(headless, *other, prune=False)
    assert balanced.error(VIP, 80) != 0
    assert problems() == []


def test_names_that_do_not_meet(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """123954, cilium 15142: the Service's port has another name than the slice's; refused, and both are named."""
    ran = apply(
        service(ports=[{"name": "http", "port": 80}]),
        endpoint_slice(PODS[0], ports=[{"name": "web-port", "port": 8080}]),
    )
    assert balanced.error(VIP, 80) == REFUSED
    (line,) = [each for each in ran.err.splitlines() if "web-port" in each]
    assert "http" in line


def test_addresses_that_are_somebody_elses(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """97076 (CVE-2020-8554): told of, never taken from a Service, and not served at all where that is said."""
    victim = (service("victim", clusterIP="10.96.0.21"), endpoint_slice(PODS[0], of="victim"))
    thief = service(externalIPs=["10.96.0.21", EXTERNAL], ports=[{"port": 80}, {"name": "more", "port": 81}])
    thief["spec"]["ports"][0]["name"] = "first"
    slices = endpoint_slice(PODS[1], ports=[{"name": each, "port": 8080} for each in ("first", "more")])
    ran = apply(*victim, thief, slices)
    assert "10.96.0.21" in ran.err
    assert "Service test/victim" in ran.err
    assert balanced.ask("10.96.0.21", 80) == backends[0]
    assert balanced.ask(EXTERNAL, 80) == backends[1]
    for policy, served in (
        ("deny", False),
        (f"{EXTERNAL}/32", True),
        ("10.96.0.0/16", False),
        ("allow", True),
    ):
        apply(*victim, thief, slices, options=("--external-ips", policy))
        assert balanced.ask("10.96.0.21", 80) == backends[0]
        assert balanced.ask(VIP, 80) == backends[1]
        row = svc("explain", f"{EXTERNAL}:80/tcp", code=None)
        assert ("test/web" in row.out) == served, row
        if served:
            assert balanced.ask(EXTERNAL, 80) == backends[1]


def test_a_load_balancer_that_is_a_proxy(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """hcloud 727, digitalocean 811, 66607: with the mode Proxy a client's connection leaves the node for it."""
    balanced.world.sh(f"ip addr add {LB}/32 dev lo")
    there = balanced.farm.open(LB, 80)
    web = load_balancer("web", LB)
    apply(web, endpoint_slice(PODS[0]))
    assert balanced.ask(LB, 80) == backends[0]
    web["status"]["loadBalancer"]["ingress"] = [{"ip": LB, "ipMode": "Proxy"}]
    apply(web, endpoint_slice(PODS[0]))
    assert balanced.ask(LB, 80) == there
    assert balanced.ask(VIP, 80) == backends[0]


def test_hints_and_the_zone(balanced: Balanced, backends: list[str], apply: Apply) -> None:
    """101525, PR 106507: by --zone while no Node says it; all of them where a hint or the zone is missing."""
    hinted = [endpoint(at, ready=True, zones=[zone]) for at, zone in zip(PODS, "abb", strict=True)]
    for zone, wanted in (("a", {0}), ("b", {1, 2}), ("c", {0, 1, 2})):
        apply(service(), endpoint_slice(*hinted), options=("--zone", zone))
        assert reached(balanced) == {backends[n] for n in wanted}
    apply(service(), endpoint_slice(*hinted))
    assert reached(balanced) == set(backends)
    hinted[2] = endpoint(PODS[2], ready=True)
    apply(service(), endpoint_slice(*hinted), options=("--zone", "a"))
    assert reached(balanced) == set(backends)
    hinted[2] = endpoint(PODS[2], ready=False)
    apply(service(), endpoint_slice(*hinted), options=("--zone", "a"))
    assert reached(balanced) == {backends[0]}
