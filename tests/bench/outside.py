"""Node ports asked from outside: svcctl beside nftables and iptables as kube-proxy writes them, and plain routing.

Each way has a client, a router, two nodes and a pod of its own, in network namespaces, with its rules in place all the
time. kube-proxy translates and masquerades on the node that is asked, and has the packets routed; svcctl hands them to
a pod there, or through a tunnel to the other node, whose answers come back that way, or go to the client by themselves.
The way to the other node's pods is the network's business for kube-proxy: once a bare route, once a VXLAN device.
All of it is on one processor: what is compared is the whole cost of a way.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import kube_proxy, outside_runs
from tests.bench.figures import Figure
from tests.bench.loaded import quietly
from tests.bench.packet import Took, compiled, inside, namespaces, need_tools, quiet
from tests.bench.services import Balancer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.figures import Report

SERVICES = 1_000
ROUNDS, MILLISECONDS = 9, 120
MODES = {
    "connect": "new connections",
    "request": "requests on one connection",
    "bulk": "bulk from client to pod",
    "fetch": "bulk from pod to client",
}
NODE_PORT, PORT, VIP = 30080, 8080, "10.96.0.1"
CLIENT, NODE_A, NODE_B = "192.0.2.2", "10.10.1.2", "10.10.2.2"
GOALS = {("a", "tunnel", "route"): 1.0, ("b", "tunnel", "route"): 1.1, ("b", "dsr", "route"): 1.05,
         ("b", "tunnel", "vxlan"): 1.0, ("b", "dsr", "vxlan"): 1.0}  # fmt: skip
"""Times as long as the faster of kube-proxy's two, by the pod's node, our mode and their network between the nodes."""
ROLES = "crabs"
"""Namespaces of a way: client, router, both nodes, and the pod (server)."""


class Way(NamedTuple):
    """`name` begins the names of its namespaces; `pod` is the node whose pod answers, `mode` svcctl's external mode.

    `network` is how kube-proxy's packets come to the other node's pods: by a `route`, or through a `vxlan` device.
    """

    name: str
    title: str
    kind: str
    pod: str
    mode: str = "tunnel"
    network: str = "route"

    def namespace(self, role: str) -> str:
        """The name of one of its namespaces."""
        return f"{self.name}-{role}"

    @property
    def pod_address(self) -> str:
        """Where the pod is."""
        return f"10.244.{'ab'.index(self.pod) + 1}.1"


WAYS = (
    Way("la-routed", "no service, to the node's own pod", "routed", "a"),
    Way("la-svcctl", "svcctl, local", "svcctl", "a"),
    Way("la-nftables", "nftables, local", "nftables", "a"),
    Way("la-iptables", "iptables, local", "iptables", "a"),
    Way("rb-tunnel", "svcctl, remote by tunnel", "svcctl", "b"),
    Way("rb-dsr", "svcctl, remote, direct answers", "svcctl", "b", "dsr"),
    Way("rb-nftables", "nftables, remote", "nftables", "b"),
    Way("rb-iptables", "iptables, remote", "iptables", "b"),
    Way("rv-nftables", "nftables, remote behind a VXLAN device", "nftables", "b", network="vxlan"),
    Way("rv-iptables", "iptables, remote behind a VXLAN device", "iptables", "b", network="vxlan"),
)


def measure(report: Report) -> None:
    """All figures of this part."""
    need_tools()
    with tempfile.TemporaryDirectory(prefix="svcctl-bench-") as scratch, contextlib.ExitStack() as stack:
        program = compiled(scratch)
        stack.enter_context(namespaces())
        for way in WAYS:
            stack.enter_context(_network(way))
            if way.kind == "svcctl":
                stack.enter_context(_svcctl(way))
            else:
                _rules(way)
        found = _rounds(program)
        for mode, what in MODES.items():
            _report(report, mode, what, {way: found[way, mode] for way in WAYS})
    outside_runs.measure(report)


def _rounds(program: str) -> dict[tuple[Way, str], list[Took]]:
    """Every way in every mode, round by round. Who is first changes."""
    found: dict[tuple[Way, str], list[Took]] = {(way, mode): [] for way in WAYS for mode in MODES}
    for turn in range(-1, ROUNDS):
        first = turn % len(WAYS)
        for mode in MODES:
            for way in WAYS[first:] + WAYS[:first]:
                took = _pair(program, mode, way)
                if turn >= 0:  # the first round only warms up, and learns what the paths take
                    found[way, mode].append(took)
    return found


def _pair(program: str, mode: str, way: Way) -> Took:
    to = (way.pod_address, PORT) if way.kind == "routed" else (NODE_A, NODE_PORT)
    words = (
        mode, f"/run/netns/{way.namespace('c')}", f"/run/netns/{way.namespace('s')}", PORT, *to, MILLISECONDS,
        max(os.sched_getaffinity(0)),
    )  # fmt: skip
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise RuntimeError(f"{way.title}, {mode}: {done.stderr}")
    count, elapsed, median, p99 = map(int, done.stdout.split())
    return Took(count * 1e9 / elapsed, median, p99)


def _report(report: Report, mode: str, what: str, found: dict[Way, list[Took]]) -> None:
    """svcctl's ways beside those of kube-proxy to the same pod: how much longer each takes, the faster of the two."""
    report.section(
        f"outside {mode}", f"{what}, {SERVICES:,} services, one processor, {ROUNDS} rounds, interleaved"
    )
    unit, suffix = (1e9 / 8, " Gbit/s") if mode in ("bulk", "fetch") else (1, " /s")

    def shown(way: Way) -> str:
        rate = quiet(found[way]).rate / unit
        return (f"{rate:.1f}" if suffix == " Gbit/s" else f"{rate:,.0f}") + suffix

    for way in (one for one in WAYS if one.kind == "svcctl"):
        for network in ("route", "vxlan"):
            peers = [
                one
                for one in WAYS
                if (one.pod, one.network) == (way.pod, network) and one.kind in ("nftables", "iptables")
            ]
            if not peers:
                continue
            best = max(quiet(found[one]).rate for one in peers)
            middle = max(statistics.median(took.rate for took in found[one]) for one in peers)
            medians = middle / statistics.median(took.rate for took in found[way])
            beside = ", ".join(f"{one.kind} {shown(one)}" for one in (*peers, WAYS[0]))
            behind = "" if network == "route" else " with a VXLAN device"
            report.add(
                Figure(
                    f"{way.title}: times as long as kube-proxy{behind}",
                    best / quiet(found[way]).rate,
                    "",
                    shown(way),
                    f"{beside}; medians {medians:.3f}",
                    goal=GOALS[way.pod, way.mode, network],
                )
            )


@contextlib.contextmanager
def _network(way: Way) -> Iterator[None]:
    """A client, two nodes and a router between them; one node has a pod. Links take 1500 bytes."""
    names = [way.namespace(role) for role in ROLES]
    _ip("", *(f"netns add {name}" for name in names))
    router = way.namespace("r")
    lines = ["link set lo up"]
    try:
        for role, network in (("c", "192.0.2"), ("a", "10.10.1"), ("b", "10.10.2")):
            name = way.namespace(role)
            _ip("", f"link add to_{role} netns {router} type veth peer name eth0 netns {name}")
            _ip(
                name,
                "link set lo up",
                f"addr add {network}.2/24 dev eth0",
                "link set eth0 up",
                f"route add default via {network}.1",
            )
            lines += [f"addr add {network}.1/24 dev to_{role}", f"link set to_{role} up"]
        _ip(router, *lines, f"route add 10.244.1.0/24 via {NODE_A}", f"route add 10.244.2.0/24 via {NODE_B}")
        node, pod = way.namespace(way.pod), way.namespace("s")
        _ip("", f"link add pod netns {node} type veth peer name eth0 netns {pod}")
        _ip(
            node,
            "addr add 169.254.1.1/32 dev pod",
            "link set pod up",
            f"route add {way.pod_address}/32 dev pod",
        )
        _ip(
            pod,
            "link set lo up",
            f"addr add {way.pod_address}/32 dev eth0",
            "link set eth0 up",
            "route add default via 169.254.1.1 dev eth0 onlink",
        )
        if way.network == "vxlan":
            _overlay(way)
        for role in "rab":
            _set(way.namespace(role), "ip_forward", "1")
        _set(way.namespace("c"), "ip_local_port_range", "1024 65000")
        yield
    finally:
        _ip("", *(f"netns delete {name}" for name in names))


def _overlay(way: Way) -> None:
    """Pods of the other node behind a VXLAN device, as flannel and its like set it up: 50 bytes less for pods."""
    for role, own, other, number in (("a", NODE_A, NODE_B, 1), ("b", NODE_B, NODE_A, 2)):
        far = 3 - number
        _ip(
            way.namespace(role),
            f"link add vx type vxlan id 7 dev eth0 local {own} remote {other} dstport 4789",
            f"addr add 10.244.{number}.0/32 dev vx",
            "link set vx up",
            f"route add 10.244.{far}.0/24 via 10.244.{far}.0 dev vx onlink",
        )
    _ip(way.namespace("b"), "link set pod mtu 1450")
    _ip(way.namespace("s"), "link set eth0 mtu 1450")


def _ip(namespace: str, *lines: str) -> None:
    command = ["ip", *(("-n", namespace) if namespace else ()), "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)


def _set(namespace: str, name: str, value: str) -> None:
    with inside(namespace), open(f"/proc/sys/net/ipv4/{name}", "w", encoding="ascii") as file:
        file.write(value)


@contextlib.contextmanager
def _svcctl(way: Way) -> Iterator[None]:
    """A state on both nodes, each knowing the other one."""
    with contextlib.ExitStack() as stack:
        for role, own, other in (("a", NODE_A, NODE_B), ("b", NODE_B, NODE_A)):
            name = way.namespace(role)
            with inside(name):
                quietly("load", "--no-dispatcher")
            stack.callback(_unload, name)
            with inside(name):
                sizes = ("--max-services", "4096", "--max-backends", "16384")
                quietly("attach", "dev", "eth0", "--role", "host", *sizes)
                quietly("load", "--no-dispatcher", "--node-address", own)
                if role == way.pod:
                    quietly("attach", "dev", "pod", "--role", "workload")
                number = 2 if role == "a" else 1
                quietly("nodes", "add", "other", "--address", other, "--pod-prefix", f"10.244.{number}.0/24")
                Balancer("").fill(SERVICES - 1)
                local = ",local" if role == way.pod else ""
                quietly(
                    "service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--node-port", str(NODE_PORT),
                    "--backend", f"{way.pod_address}:{PORT}{local}", "--external-mode", way.mode,
                )  # fmt: skip
        yield


def _unload(name: str) -> None:
    with inside(name):
        quietly("unload", "--yes")


def _rules(way: Way) -> None:
    """What kube-proxy would have written to the node that is asked."""
    if way.kind == "nftables":
        rules = kube_proxy.nftables(SERVICES, NODE_A, VIP, 80, way.pod_address, PORT, NODE_PORT)
        command = ["nft", "-f", "-"]
    elif way.kind == "iptables":
        rules = kube_proxy.iptables(SERVICES, VIP, 80, way.pod_address, PORT, NODE_PORT)
        command = ["iptables-restore"]
    else:
        return
    with inside(way.namespace("a")):
        subprocess.run(command, input=rules, text=True, check=True)
