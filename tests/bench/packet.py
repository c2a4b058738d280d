"""Packets of one namespace to a service of another: direct, svcctl, nftables and iptables as kube-proxy writes them.

Each way has a node and two pods of its own, with its rules in place all the time, so that a round goes through all
ways with nothing between. Client and server (pair.c) share a processor with the softirqs between them: what is
compared is the whole cost of a way, not how well it spreads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from svcctl.host.netns import Netns
from tests.bench import kube_proxy
from tests.bench.figures import Figure
from tests.bench.loaded import quietly
from tests.bench.services import Balancer
from tests.bench.unserved import measure_unserved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.figures import Report

SIZES = (1, 1_000, 10_000)
ROUNDS, MILLISECONDS = 12, 150
QUIET = 3
"""What else the machine does only takes away, in some rounds more than in others: the third best is compared."""
NODE, CLIENT, SERVER = "169.254.1.1", "10.244.0.1", "10.244.0.2"
NODE6, CLIENT6, SERVER6 = "fe80::1", "fd00:244::1", "fd00:244::2"
PORT, ADDRESS, ADDRESS_PORT, ADDRESS6 = 8080, "10.96.0.1", 80, "fd96::1"
GOAL = 3.0
"""Per cent of the direct way that may be lost: at least 0.97 of it."""
TOOLS = ("nft", "iptables-restore", "nsenter", "ip")
MODES = {"connect": "new connections", "request": "requests on one connection", "bulk": "bulk"}


class Took(NamedTuple):
    """One run of pair.c: connections, requests or bytes a second, and nanoseconds of one (none of bulk)."""

    rate: float
    median: int
    p99: int


class Way(NamedTuple):
    """`node` is the name of the namespace that forwards; the pods are `node`-c and `node`-s."""

    node: str
    title: str
    kind: str
    count: int
    v6: bool = False


WAYS = (
    Way("direct", "direct", "direct", 0),
    *(
        Way(f"{kind}{count}", f"{kind}, {count:,} service{'s' if count > 1 else ''}", kind, count)
        for count in SIZES
        for kind in ("svcctl", "nftables", "iptables")
    ),
    Way("again", "direct, the other time", "direct", 0),
    Way("direct6", "direct, IPv6", "direct", 0, True),
    Way("svcctl6", "svcctl, IPv6, 1,000 services", "svcctl", 1_000, True),
)


def need_tools() -> None:
    """Raises RuntimeError when a tool is not there that other ways are made with."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        raise RuntimeError(f"needs {', '.join(missing)}")


def measure(report: Report) -> None:
    """All figures of this part."""
    need_tools()
    with tempfile.TemporaryDirectory(prefix="svcctl-bench-") as scratch, contextlib.ExitStack() as stack:
        program = compiled(scratch)
        stack.enter_context(namespaces())
        for way in WAYS:
            stack.enter_context(_node(way))
            if way.kind == "svcctl":
                stack.enter_context(_svcctl(way))
            else:
                _rules(way)
        last = max((way for way in WAYS if way.kind == "svcctl"), key=lambda way: way.count)
        with inside(last.node):
            measure_unserved(report, f"{last.count:,} services, no flow", f"{last.node}c", goal=True)
        found = _rounds(program)
        for mode, what in MODES.items():
            _report(report, mode, what, {way: found[way, mode] for way in WAYS})
        _growth(report, found)
        with inside(last.node):
            measure_unserved(report, "right after all these connections", f"{last.node}c", goal=True)


def _report(report: Report, mode: str, what: str, found: dict[Way, list[Took]]) -> None:
    report.section(
        f"packet {mode}",
        f"{what} between namespaces on one processor (number {QUIET} of {ROUNDS} rounds, interleaved)",
    )
    unit = 1e9 / 8 if mode == "bulk" else 1
    shown = (lambda rate: f"{rate / unit:.1f} Gbit/s") if mode == "bulk" else (lambda rate: f"{rate:,.0f} /s")
    for way in WAYS[1:]:
        peer = next(one for one in WAYS if one.kind == "direct" and one.v6 == way.v6)
        if way is peer:
            continue
        direct, here = quiet(found[peer]), quiet(found[way])
        middle = statistics.median(took.rate for took in found[peer])
        share = statistics.median(took.rate for took in found[way]) / middle
        beside = f"direct {shown(direct.rate)}: {here.rate / direct.rate:.3f} of it, medians {share:.3f}"
        if mode != "bulk":
            times = [(took.median / 1e3, took.p99 / 1e3) for took in (here, direct)]
            (p50, p99), (p50_direct, p99_direct) = times
            beside += f"; us p50 {p50:.1f} / {p50_direct:.1f}, p99 {p99:.1f} / {p99_direct:.1f}"
        report.add(
            Figure(
                f"{way.title}: fewer than direct",
                (1 - here.rate / direct.rate) * 100,
                "%",
                shown(here.rate),
                beside,
                goal=GOAL if way.kind == "svcctl" else None,
            )
        )


def _growth(report: Report, found: dict[tuple[Way, str], list[Took]]) -> None:
    """What the number of services costs a new connection; svcctl's must not grow beyond what is noise."""
    report.section("packet growth", f"a new connection with {SIZES[-1]:,} services over one with {SIZES[0]}")
    for kind in ("svcctl", "nftables", "iptables"):
        few, many = (
            quiet(found[way, "connect"])
            for way in WAYS
            if way.kind == kind and way.count in (SIZES[0], SIZES[-1]) and not way.v6
        )
        report.add(
            Figure(
                f"{kind}: times as long",
                few.rate / many.rate,
                "",
                f"{1e6 / many.rate:.1f} us",
                f"itself: {1e6 / few.rate:.1f} us",
                goal=1.03 if kind == "svcctl" else None,
            )
        )


def quiet(runs: list[Took]) -> Took:
    """The quiet rounds' rate and times, each for itself."""
    return Took(
        sorted(took.rate for took in runs)[-QUIET],
        sorted(took.median for took in runs)[QUIET - 1],
        sorted(took.p99 for took in runs)[QUIET - 1],
    )


def _rounds(program: str) -> dict[tuple[Way, str], list[Took]]:
    """Every way in every mode, round by round. Who is first changes."""
    found: dict[tuple[Way, str], list[Took]] = {(way, mode): [] for way in WAYS for mode in MODES}
    for turn in range(-1, ROUNDS):
        first = turn % len(WAYS)
        for mode in MODES:
            for way in WAYS[first:] + WAYS[:first]:
                took = _pair(program, mode, way)
                if turn >= 0:  # the first round only warms up
                    found[way, mode].append(took)
    return found


def _pair(program: str, mode: str, way: Way) -> Took:
    server, address = (SERVER6, ADDRESS6) if way.v6 else (SERVER, ADDRESS)
    to = (server, PORT) if way.kind == "direct" else (address, ADDRESS_PORT)
    words = (
        mode, f"/run/netns/{way.node}-c", f"/run/netns/{way.node}-s", PORT, *to, MILLISECONDS,
        max(os.sched_getaffinity(0)),
    )  # fmt: skip
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise RuntimeError(f"{way.title}, {mode}: {done.stderr}")
    count, elapsed, median, p99 = map(int, done.stdout.split())
    return Took(count * 1e9 / elapsed, median, p99)


def compiled(scratch: str) -> str:
    """Path of pair.c as a program."""
    source = os.path.join(os.path.dirname(__file__), "pair.c")
    compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "clang-19", "clang", "cc")), None)
    if compiler is None:
        raise RuntimeError("needs clang or cc")
    subprocess.run([compiler, "-O2", "-Wall", "-o", f"{scratch}/pair", source], check=True)
    return f"{scratch}/pair"


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """/run/netns is covered in this mount namespace alone: what is made there goes with it."""
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "/run/netns"], check=True)


@contextlib.contextmanager
def _node(way: Way) -> Iterator[None]:
    """A namespace that forwards between two pods."""
    node = way.node
    names = (node, f"{node}-c", f"{node}-s")
    batch = partial(subprocess.run, text=True, check=True)
    batch(["ip", "-batch", "-"], input="".join(f"netns add {name}\n" for name in names))
    try:
        lines = ["link set lo up"]
        for pod, address, address6 in (("c", CLIENT, CLIENT6), ("s", SERVER, SERVER6)):
            device = f"{node}{pod}"
            within = [
                "link set lo up", f"addr add {address}/32 dev eth0", "link set eth0 up",
                f"route add default via {NODE} dev eth0 onlink",
                f"addr add {address6}/128 dev eth0 nodad", f"route add default via {NODE6} dev eth0",
            ]  # fmt: skip
            batch(
                ["ip", "-batch", "-"],
                input=f"link add {device} netns {node} type veth peer name eth0 netns {node}-{pod}\n",
            )
            batch(["ip", "-n", f"{node}-{pod}", "-batch", "-"], input="\n".join(within) + "\n")
            lines += [
                f"addr add {NODE}/32 dev {device}",
                f"link set {device} up",
                f"route add {address}/32 dev {device}",
                f"addr add {NODE6}/64 dev {device} nodad",
                f"route add {address6}/128 dev {device}",
            ]
        batch(["ip", "-n", node, "-batch", "-"], input="\n".join(lines) + "\n")
        for name, setting, value in (
            (node, "ipv4/ip_forward", "1"),
            (node, "ipv6/conf/all/forwarding", "1"),
            (f"{node}-c", "ipv4/ip_local_port_range", "1024 65000"),
        ):
            with inside(name), open(f"/proc/sys/net/{setting}", "w", encoding="ascii") as file:
                file.write(value)
        yield
    finally:
        batch(["ip", "-batch", "-"], input="".join(f"netns delete {name}\n" for name in names))


@contextlib.contextmanager
def _svcctl(way: Way) -> Iterator[None]:
    """A state of the node, attached to the pods' veths, with that many services."""
    with inside(way.node):
        quietly("load", "--no-dispatcher")
    try:
        with inside(way.node):
            sizes = ("--max-services", "16384", "--max-backends", "65536")
            quietly("attach", "dev", f"{way.node}*", "--role", "workload", *sizes)
            balancer = Balancer("")
            balancer.fill(way.count - 1)
            web = (f"[{ADDRESS6}]", f"[{SERVER6}]") if way.v6 else (ADDRESS, SERVER)
            balancer.add("web", web[0], [f"{web[1]}:{PORT}"], affinity=0)
        yield
    finally:
        with inside(way.node):
            quietly("unload", "--yes")


def _rules(way: Way) -> None:
    """What kube-proxy would have written to the node."""
    if way.kind == "nftables":
        rules = kube_proxy.nftables(way.count, NODE, ADDRESS, ADDRESS_PORT, SERVER, PORT)
        command = ["nft", "-f", "-"]
    elif way.kind == "iptables":
        rules = kube_proxy.iptables(way.count, ADDRESS, ADDRESS_PORT, SERVER, PORT)
        command = ["iptables-restore"]
    else:
        return
    with inside(way.node):
        subprocess.run(command, input=rules, text=True, check=True)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The calling thread in a namespace of /run/netns for the length of a block."""
    with Netns.open(f"/run/netns/{name}") as netns, netns.entered():
        yield
