"""Whose sockets are served: node ports and loopback frontends, other namespaces, --sockets host, --exclude-udp."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.bpf.link import query_programs
from svcctl.host.cgroup import open_cgroup
from svcctl.maps import catalog
from tests.lib.applying import problems
from tests.lib.balanced import REFUSED, VIP, VIP6, Balanced, balanced, join, needs_cookie, own_cgroup
from tests.lib.child import Child, child
from tests.lib.svc import svc
from tests.lib.world import World
from tests.unit.kubernetes_objects import endpoint_slice, node, service

NODE, PEER = "192.0.2.1", "192.0.2.2"
CONNECT = """
def connect(address, port, kind="tcp", patience=60):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    s.settimeout(patience)
    try:
        s.connect((address, port))
        return list(s.getpeername()[:2]), s.connect_ex and 0
    except OSError as problem:
        return None, problem.errno
    finally:
        s.close()
"""


@pytest.fixture
def pod(balanced: Balanced) -> Iterator[Child]:
    """A process of the same cgroup in a network namespace of its own, with a route to the node."""
    with child(CONNECT, prefix=("unshare", "-n")) as one:
        balanced.world.sh(
            f"ip link add node0 type veth peer name pod0 netns {one.pid}; ip address add {NODE}/24 dev node0; "
            "ip link set node0 up"
        )
        words = f"ip link set lo up; ip address add {PEER}/24 dev pod0; ip link set pod0 up; ip route add default via {NODE}"
        one.run(f"import subprocess\nsubprocess.run({words!r}, shell=True, check=True)")
        yield one


def told(pod: Child, address: str, port: int, kind: str = "tcp", patience: float = 60) -> object:
    """What a connect from the pod comes to: 0 or an errno; None: nothing within as many seconds."""
    return pod.run(f"out = connect({address!r}, {port}, {kind!r}, {patience})")[1]


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_node_port(balanced: Balanced, kind: str) -> None:
    """Every address of the node, loopback and the zero address; nobody else's address."""
    needs_cookie(balanced)
    four, six = balanced.farm.open("127.0.1.1", 8080, kind), balanced.farm.open("::1", 8080, kind)
    balanced.world.sh(f"ip address add {NODE}/32 dev lo; ip address add 2001:db8::1/128 dev lo nodad")
    balanced.add("web", f"{VIP}:80/{kind}", f"[{VIP6}]:80/{kind}", backends=[four, six], node_port=30080)
    for address in (NODE, "127.0.0.1", "127.9.9.9", "0.0.0.0"):
        with balanced.client(address, 30080, kind) as one:
            assert one.getpeername() == ("127.0.0.1" if address == "0.0.0.0" else address, 30080)
            if kind == "udp":
                one.send(b"?")
            assert balanced.farm.taker(kind) == four
    for address in ("2001:db8::1", "::1", "::"):
        assert balanced.ask(address, 30080, kind) == six
    assert balanced.ask(f"::ffff:{NODE}", 30080, kind, socket.AF_INET6) == four
    assert balanced.error("198.51.100.1", 30080, kind) == errno.ENETUNREACH
    assert balanced.error("255.1.2.3", 30080, kind) != 0
    # Other ports, and the other protocol, are the node's own business.
    assert balanced.error(NODE, 30081, "tcp") == errno.ECONNREFUSED
    other = "udp" if kind == "tcp" else "tcp"
    assert balanced.error(NODE, 30080, other) == (errno.ECONNREFUSED if other == "tcp" else 0)
    svc("service", "set", "web", "--node-port", 0)
    assert balanced.error(NODE, 30080, "tcp") == errno.ECONNREFUSED
    assert balanced.ask(VIP, 80, kind) == four


@pytest.mark.parametrize(
    ("limits", "four", "six"),
    [
        (["192.0.2.0/24"], False, True),
        (["192.0.2.0/24,127.0.0.0/8"], True, True),
        (["127.0.0.1"], True, True),
        (["2001:db8::/32"], True, False),
        (["2001:db8::/32", "::1"], True, True),
        (["primary"], False, False),
        (["all"], True, True),
    ],
)
def test_node_ports_on_loopback(
    balanced: Balanced, tmp_path: Path, limits: list[str], four: bool, six: bool
) -> None:
    """Only where --node-port-addresses has it, as kube-proxy; a family of which nothing is said is served everywhere."""
    needs_cookie(balanced)
    backends = balanced.farm.open("127.0.1.1", 8080), balanced.farm.open("::1", 8080)
    balanced.world.sh(f"ip address add {NODE}/32 dev lo; ip address add 2001:db8::1/128 dev lo nodad")
    balanced.add("web", f"{VIP}:80/tcp", f"[{VIP6}]:80/tcp", backends=list(backends), node_port=30080)
    file = tmp_path / "objects.json"
    items = [
        node("node-a", NODE, "2001:db8::1"),
        service(clusterIP="10.96.0.21"),
        endpoint_slice("10.244.1.1"),
    ]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    words = [word for limit in limits for word in ("--node-port-addresses", limit)]
    svc("apply", "-f", file, "--node", "node-a", *words)
    for served, backend, addresses in (
        (four, backends[0], ("127.0.0.1", "127.9.9.9", "0.0.0.0")),
        (six, backends[1], ("::1", "::")),
    ):
        for address in addresses:
            result = svc(
                "explain", f"[{address}]:30080/tcp" if ":" in address else f"{address}:30080/tcp"
            ).out
            assert (backend in result) == served, result
            if served:
                assert balanced.ask(address, 30080) == backend
            else:
                assert balanced.error(address, 30080) == errno.ECONNREFUSED
    assert problems() == []


def test_more_specific_frontend_beats_the_node_port(balanced: Balanced) -> None:
    """A service on the node's own address and port is found first. T27."""
    needs_cookie(balanced)
    a, b = balanced.farm.many(2)
    balanced.world.sh(f"ip address add {NODE}/32 dev lo")
    balanced.add("node", f"{VIP}:80/tcp", backends=[a], node_port=30080)
    balanced.add("exact", f"{NODE}:30080/tcp", backends=[b])
    assert balanced.ask(NODE, 30080) == b
    assert balanced.ask("127.0.0.1", 30080) == a


def test_node_port_with_datagrams(balanced: Balanced) -> None:
    """Control data without an address must not find the zero frontend."""
    needs_cookie(balanced)
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend], node_port=30053)
    with balanced.socket("udp") as one:
        one.sendto(b"?", ("127.0.0.1", 30053))
        balanced.farm.reply()
        assert one.recvfrom(64)[1] == ("127.0.0.1", 30053)


def test_loopback_frontend(balanced: Balanced) -> None:
    """hostPort on 127.0.0.1 alone: neither the node's other addresses, nor others of loopback."""
    needs_cookie(balanced)
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.world.sh(f"ip address add {NODE}/32 dev lo")
    balanced.add("lo", "127.0.0.1:8088/tcp", backends=[backend])
    assert balanced.ask("127.0.0.1", 8088) == backend
    assert balanced.error(NODE, 8088) == errno.ECONNREFUSED
    assert balanced.error("127.0.0.2", 8088) == errno.ECONNREFUSED


def test_another_namespace_has_its_own_loopback(balanced: Balanced, pod: Child) -> None:
    """Node ports, loopback and zero addresses serve the node's sockets only; a cluster address serves all."""
    needs_cookie(balanced)
    on_node = balanced.farm.open(NODE, 8080, "tcp udp")
    local = balanced.farm.open("127.0.1.1", 8080, "tcp udp")
    balanced.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[on_node], node_port=30080)
    balanced.add("lo", "127.0.0.1:8088/tcp", "127.0.0.1:8088/udp", backends=[local])
    assert told(pod, VIP, 80) == 0
    assert pod.run(f"out = connect({VIP!r}, 80)")[0] == [VIP, 80]
    balanced.farm.takers()
    for address, port in (("127.0.0.1", 8088), ("127.0.0.1", 30080), ("0.0.0.0", 8088), (NODE, 30080)):
        assert told(pod, address, port) == errno.ECONNREFUSED, address
    before = balanced.stats("web").connections
    assert told(pod, "127.0.0.1", 8088, "udp") == 0  # a datagram socket that goes nowhere
    assert balanced.stats("web").connections == before
    assert balanced.stats("lo").connections == 0
    assert balanced.ask("127.0.0.1", 8088) == local
    assert balanced.ask("127.0.0.1", 30080) == on_node


def test_sockets_host(balanced: Balanced, pod: Child) -> None:
    """`--sockets host`: those of the state directory's namespace only, and back again. T28."""
    needs_cookie(balanced)
    on_node = balanced.farm.open(NODE, 8080, "tcp udp")
    balanced.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[on_node], block=True)
    balanced.add("empty", "10.96.0.99:80/tcp")
    assert told(pod, VIP, 80) == 0
    svc("attach", "cgroup", balanced.cgroup, "--sockets", "host")
    assert told(pod, VIP, 80, patience=2) is None
    assert told(pod, VIP, 81, patience=1) is None
    assert told(pod, "10.96.0.99", 80, patience=1) is None
    assert balanced.stats("empty").no_backend == balanced.drops("BLOCKED") == 0
    balanced.farm.takers()
    assert balanced.ask(VIP, 80) == on_node
    ran = svc("attach", "cgroup", balanced.cgroup, "--sockets", "host")
    assert "unchanged" in ran.out or "already" in ran.out, ran
    svc("attach", "cgroup", balanced.cgroup)  # says nothing of it, so it stays
    assert told(pod, VIP, 80, patience=2) is None
    svc("attach", "cgroup", balanced.cgroup, "--sockets", "all")
    assert told(pod, VIP, 80) == 0


def hooks(path: str) -> list[str]:
    """Names of the hooks with exactly one program on the cgroup."""
    fd = open_cgroup(path)
    try:
        counts = {shape.name: len(query_programs(fd, shape.hook)) for shape in catalog.CONNECT}
    finally:
        os.close(fd)
    assert set(counts.values()) <= {0, 1}
    return [name for name, count in counts.items() if count]


def test_exclude_udp(balanced: Balanced) -> None:
    """UDP is left alone, without its hooks; changed later, both ways, no stale hook stays. T30."""
    backend = balanced.farm.open("127.0.1.1", 8080, "tcp udp")
    balanced.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[backend], block=True)
    everything = [shape.name for shape in catalog.CONNECT]
    assert hooks(balanced.cgroup) == everything
    for _ in range(2):
        svc("attach", "cgroup", balanced.cgroup, "--exclude-udp")
        assert hooks(balanced.cgroup) == [one for one in everything if one not in catalog.UDP_HOOKS]
        assert balanced.error(VIP, 80, "udp") == errno.ENETUNREACH
        assert balanced.error(VIP, 81, "udp") == errno.ENETUNREACH
        assert balanced.error(VIP, 81, "tcp") == REFUSED
        with balanced.socket("udp") as one, pytest.raises(OSError) as failed:
            one.sendto(b"?", (VIP, 80))
        assert failed.value.errno == errno.ENETUNREACH
        assert balanced.ask(VIP, 80) == backend
        svc("attach", "cgroup", balanced.cgroup)
        assert balanced.error(VIP, 80, "udp") == errno.ENETUNREACH
        svc("attach", "cgroup", balanced.cgroup, "--include-udp")
        assert hooks(balanced.cgroup) == everything
        assert balanced.ask(VIP, 80, "udp") == backend
        with balanced.socket("udp") as one:
            one.sendto(b"?", (VIP, 80))
            balanced.farm.reply()
            assert one.recvfrom(64)[1] == (VIP, 80)
    svc("check")


def test_excluded_from_the_start(world: World) -> None:
    with balanced(
        world, "--exclude-udp", "--max-services", 16, "--max-backends", 64, "--max-sockets", 256
    ) as made:
        assert not catalog.UDP_HOOKS & set(hooks(made.cgroup))
        backend = made.farm.open("127.0.1.1", 8080, "tcp udp")
        made.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[backend])
        assert made.error(VIP, 80, "udp") == errno.ENETUNREACH
        assert made.ask(VIP, 80) == backend


def test_socket_and_cgroup(balanced: Balanced) -> None:
    """A socket belongs to the cgroup it was made in, wherever its process goes."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    make = "s = socket.socket()\nkeep.append(s)\ns.settimeout(60)\nout = 0"
    ask = f"out = keep[-1].connect_ex(({VIP!r}, 80))"
    with own_cgroup() as outside, child() as one:
        one.run(make)  # inside
        join(outside, one.pid)
        assert one.run(ask) == 0
        one.run(make)  # outside
        assert one.run(ask) == errno.ENETUNREACH
        join(balanced.cgroup, one.pid)
        assert one.run(ask) == errno.ENETUNREACH
        one.run(make)
        assert one.run(ask) == 0
    with own_cgroup(balanced.cgroup) as below, child() as one:
        join(below, one.pid)
        one.run(make)
        assert one.run(ask) == 0


def test_socket_made_before_the_balancer(world: World) -> None:
    """A socket of the subtree is served whenever it was made."""
    with own_cgroup() as path, child() as one:
        join(path, one.pid)
        one.run("s = socket.socket()\ns.settimeout(60)\nkeep.append(s)")
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", path, "--max-services", 16, "--max-backends", 64, "--max-sockets", 256)
        with socket.create_server(("127.0.1.1", 8080)) as listener:
            svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", "127.0.1.1:8080")
            assert one.run(f"out = keep[0].connect_ex(({VIP!r}, 80))") == 0
            assert one.run("out = list(keep[0].getpeername())") == [VIP, 80]
            listener.accept()[0].close()
        svc("unload", "--yes")
        # Without the balancer the real peer is seen.
        assert one.run("out = list(keep[0].getpeername())") == ["127.0.1.1", 8080]
