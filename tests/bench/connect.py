"""What a service costs the sockets that use it, and those that use none; and how that grows with the services.

Program times are the kernel's own, on fresh sockets; they contain what measuring costs, so an empty program on the
same hook stands beside them. The clock's times are of whole sockets, with the statistics off.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import requests, services
from tests.bench.clients import EMPTY, Client, build_client, interleaved, timed
from tests.bench.figures import Figure
from tests.bench.loaded import quietly
from tests.bench.processes import SVCCTL, run
from tests.bench.startup import bpf_calls
from tests.lib.bpf_source import compile_bpf

if TYPE_CHECKING:
    from tests.bench.clients import Timed
    from tests.bench.figures import Report

SIZES = (10, 1_000, 10_000, 60_000)
COUNT, ROUNDS = 10_000, 5
RANDOM = 3_000
CONNECT_GOAL, RELEASE_GOAL, OTHERS_GOAL = 1_200.0, 500.0, 300.0
FLAT_GOAL = 1.2
"""Times with the most services over times with the fewest: what differs is noise, from one state to the next."""
ECHO, ECHO_BACKEND = "10.99.0.1", "127.0.0.2:8080"
NOBODY = "10.98.0.1"

# Packets to all other addresses leave the machine's loopback and are dropped where they arrive: not for that MAC.
NETWORK = """
ip link add bench0 type veth peer name bench1
ip link set bench0 up && ip link set bench1 up
ip addr add 10.0.0.2/24 dev bench0
ip neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev bench0
ip route add default via 10.0.0.1
"""


def measure(report: Report) -> None:
    """All figures of this part."""
    subprocess.run(["sh", "-ec", NETWORK], check=True)
    try:
        with tempfile.TemporaryDirectory(prefix="svcctl-bench-") as name, services.balancer() as balancer:
            _Sockets(Path(name), balancer).measure(report)
            requests.measure(report, balancer)
    finally:
        subprocess.run(["ip", "link", "delete", "bench0"], check=True)


class _Sockets:
    """The measurements on one balancer that is filled step by step."""

    def __init__(self, scratch: Path, balancer: services.Balancer) -> None:
        self.balancer = balancer
        self.client = build_client(scratch)
        self.empty = compile_bpf(EMPTY, scratch, "empty")
        self.times: dict[str, list[float]] = {}
        self.calls: dict[str, list[int]] = {}
        self.source = random.Random(1)

    def measure(self, report: Report) -> None:
        report.section(
            "connect",
            "by number of services, with affinity: BPF run-time statistics of fresh sockets, then the clock"
            f" (the quietest of {ROUNDS} rounds)",
        )
        self.balancer.add("echo", ECHO, [ECHO_BACKEND])
        for size in SIZES:
            began = time.monotonic()
            self.balancer.fill(size)
            took = time.monotonic() - began
            with timed(self.balancer.path, self.balancer.cgroup, self.empty) as programs:
                self._programs(report, size, programs)
            self._clock(report, size)
            self._commands(size)
        report.add(Figure(f"to make the last {SIZES[-1] - SIZES[-2]:,} services", took, "s"))
        self._growth(report)

    def _programs(self, report: Report, size: int, programs: Timed) -> None:
        def of(mode: str, places: list[tuple[str, int]], server: str = "") -> dict[str, float]:
            return programs.of(self._in(mode, places, server), COUNT, ROUNDS)

        def add(
            name: str,
            found: dict[str, float],
            hooks: tuple[str, ...],
            goal: float | None,
            over_empty: bool = False,
        ) -> None:
            whole = sum(found[hook] for hook in hooks)
            empty = sum(found[f"empty {hook}"] for hook in hooks)
            figure = whole - empty if over_empty else whole
            parts = ", ".join(f"{hook} {found[hook]:.0f}" for hook in hooks) if len(hooks) > 1 else ""
            report.add(
                Figure(
                    f"{size:,}: {name}",
                    figure,
                    "ns",
                    f"{whole:.0f} ns",
                    f"empty programs {empty:.0f} ns" + (f"; {parts}" if parts else ""),
                    goal=goal,
                )
            )
            self.times.setdefault(name, []).append(figure)

        one = of("tcp", [(services.address(size // 2), 80)])
        add("connect4", one, ("connect4",), CONNECT_GOAL)
        add("sock_release", one, ("sock_release",), RELEASE_GOAL)
        some = [(services.address(self.source.randrange(size)), 80) for _ in range(RANDOM)]
        add("connect4, each time another", of("tcp", some), ("connect4",), None)
        datagrams = of("fresh", [(ECHO, 80)], ECHO_BACKEND)
        add("a datagram and its answer", datagrams, ("sendmsg4", "recvmsg4", "sock_release"), None)
        add("no service, TCP", of("tcp", [(NOBODY, 81)]), ("connect4", "sock_release"), OTHERS_GOAL)
        address, port = ECHO_BACKEND.split(":")
        datagrams = of("fresh", [(address, int(port))], ECHO_BACKEND)
        # Three programs, each with what measuring costs: half of the sum, which the clock does not see.
        add(
            "no service, UDP, over empty programs",
            datagrams,
            ("sendmsg4", "recvmsg4", "sock_release"),
            OTHERS_GOAL,
            over_empty=True,
        )

    def _clock(self, report: Report, size: int) -> None:
        address, port = ECHO_BACKEND.split(":")
        direct = [(address, int(port))]
        for title, mode in (
            ("TCP connect, close", "accept"),
            ("UDP connect, close", "udp"),
            ("UDP sendto, recvfrom", "dgram"),
        ):
            server = ECHO_BACKEND if mode != "udp" else ""
            ways = [
                Client(self.client, None, mode, direct, server),
                self._in(mode, direct, server),
                self._in(mode, [(ECHO, 80)], server),
            ]
            without, beside, through = interleaved(ways, COUNT, ROUNDS)
            report.add(
                Figure(
                    f"{size:,}: {title}, over direct",
                    through - without,
                    "ns",
                    f"{through:,.0f} ns",
                    f"direct {without:,.0f} ns; beside services, direct {beside:,.0f} ns",
                )
            )

    def _commands(self, size: int) -> None:
        """bpf() calls and least time of commands with that many services there. Leaves nothing."""
        backends = [word for n in range(services.BACKENDS) for word in ("--backend", f"10.97.0.{n}:8080")]
        add = (SVCCTL, "service", "add", "new", "--frontend", "10.97.1.1:80/tcp", *backends)
        delete = (SVCCTL, "service", "delete", "new")
        commands = {
            "service add": add,
            "backend add": (SVCCTL, "backend", "add", "new", "10.97.0.9:8080"),
            "backend drain": (SVCCTL, "backend", "drain", "new", "10.97.0.9:8080"),
            "backend delete": (SVCCTL, "backend", "delete", "new", "10.97.0.9:8080"),
            "service delete": delete,
        }
        if size in (SIZES[0], SIZES[-1]):
            for name, command in commands.items():
                self.calls.setdefault(name, []).append(bpf_calls(command))
            least = []
            for _ in range(5):
                least.append(run(add).wall)
                quietly(*delete[1:])
            self.times.setdefault("service add", []).append(min(least) * 1e3)

    def _growth(self, report: Report) -> None:
        few, many = f"{SIZES[0]:,}", f"{SIZES[-1]:,}"
        for name, goal in (
            ("connect4", FLAT_GOAL),
            ("sock_release", FLAT_GOAL),
            ("no service, TCP", FLAT_GOAL),
            ("connect4, each time another", None),
        ):
            times = self.times[name]
            shown = ", ".join(f"{taken:.0f} at {size:,}" for taken, size in zip(times, SIZES, strict=True))
            report.add(
                Figure(
                    f"{name}: {many} services over {few}",
                    times[-1] / times[0],
                    "",
                    f"{times[-1]:.0f} ns",
                    f"itself: {shown}",
                    goal=goal,
                )
            )
        for name, calls in self.calls.items():
            report.add(
                Figure(
                    f"bpf() calls of {name}: growth",
                    max(calls) - min(calls),
                    "",
                    f"{calls[-1]}",
                    f"itself: {calls[0]} at {few}, {calls[-1]} at {many}",
                    goal=0,
                )
            )
        before, after = self.times["service add"]
        report.add(
            Figure(
                f"service add: {many} services over {few}",
                after / before,
                "",
                f"{after:.1f} ms",
                f"itself: {before:.1f} ms at {few}, {after:.1f} ms at {many}",
            )
        )

    def _in(self, mode: str, places: list[tuple[str, int]], server: str) -> Client:
        return Client(self.client, self.balancer.cgroup, mode, places, server)
