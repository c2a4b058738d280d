"""What the program at a node's own interface costs a packet, by test-run: new, established, out of a tunnel, not ours.

A packet of a service is another one after the program, so each is run once only. A single run has its own price, which
an empty program shows on the same packets: what a packet costs is what it takes longer than that, and an empty
program's time in a loop.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import subprocess
from typing import TYPE_CHECKING

from svcctl.bpf.program import Program
from svcctl.maps.catalog import PACKET
from svcctl.maps.packet_layouts import TUNNEL_PORT, TUNNEL_VNI
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from tests.bench.figures import Figure
from tests.bench.loaded import quietly
from tests.bench.packet import inside, namespaces
from tests.bench.services import Balancer
from tests.bench.timed_runs import TimedRuns
from tests.bench.unserved import CONTEXT, REPEAT, empty_program, measure_unserved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.figures import Report

SIZES = (1, 1_000, 10_000)
FLOWS, ROUNDS = 400, 5
OWN, OTHER, POD, REMOTE, CLIENT = "10.10.1.2", "10.10.2.2", "10.244.1.1", "10.244.2.1", "192.0.2.7"
LOCAL_PORT, DIRECT_PORT, PORT = 30080, 30081, 8080
ROLES = {"from_outside": "from outside", "to_outside": "to the outside"}
SYN, ACK, SYN_ACK = 0x02, 0x10, 0x12


def measure(report: Report) -> None:
    """All figures: packets of services, then those of none."""
    for count in SIZES:
        with namespaces(), _node(count), inside("node"):
            title = f"{count:,} service{'s' if count > 1 else ''}"
            with contextlib.ExitStack() as stack:
                _measure_flows(report, title, stack)
            measure_unserved(report, f"outside, {title}", "eth0", goal=True, roles=ROLES)


def _measure_flows(report: Report, title: str, stack: contextlib.ExitStack) -> None:
    report.section(
        f"outside flows, {title}", f"packets of services, by test-run (the least of {ROUNDS} medians)"
    )
    with open_reader(Place()) as reader:
        pins = {shape.name: reader.pin(shape.pin) for shape in PACKET}
    outside, workload = (
        stack.enter_context(Program.open_pinned(pins[name])) for name in ("from_outside", "from_workload")
    )
    empty = stack.enter_context(empty_program())
    uplink, pod = (CONTEXT.pack(socket.if_nametoindex(name)) for name in ("eth0", "pod"))
    loop = min(
        empty.test_run(uplink, _tcp(1, LOCAL_PORT, SYN), repeat=REPEAT).duration_ns for _ in range(ROUNDS)
    )

    def cost(frames: Callable[[range], list[bytes]], *, anew: bool) -> float:
        found = []
        for turn in range(ROUNDS):
            first = 10_000 + (turn * FLOWS if anew else 0)
            packets = frames(range(first, first + FLOWS))
            # Each its own: the kernel writes into the settings how long the packet has become.
            without, taken = (
                statistics.median(TimedRuns([uplink] * FLOWS, frames=packets).of(one))
                for one in (empty, outside)
            )
            found.append(taken - without)
        return max(0.0, min(found)) + loop

    def add(what: str, frames: Callable[[range], list[bytes]], *, anew: bool = False) -> None:
        taken = cost(frames, anew=anew)
        report.add(
            Figure(
                f"{what}: times an empty program",
                taken / loop,
                "",
                f"{taken:.0f} ns",
                f"empty program {loop} ns",
            )
        )

    def all_by(program: Program, context: bytes, frames: list[bytes]) -> None:
        TimedRuns([context] * len(frames), frames=frames).of(program)

    ports = range(10_000, 10_000 + FLOWS)
    add("new, to a pod here", lambda some: [_tcp(one, LOCAL_PORT, SYN) for one in some], anew=True)
    all_by(workload, pod, [_answer(one) for one in ports])
    all_by(outside, uplink, [_tcp(one, LOCAL_PORT, ACK) for one in ports])
    add("established, to a pod here", lambda some: [_tcp(one, LOCAL_PORT, ACK) for one in some])
    add("new, into the tunnel", lambda some: [_tcp(one, DIRECT_PORT, SYN) for one in some], anew=True)
    all_by(outside, uplink, [_tcp(one, DIRECT_PORT, ACK) for one in ports])
    add("established, into the tunnel", lambda some: [_tcp(one, DIRECT_PORT, ACK) for one in some])
    add("new, out of the tunnel", lambda some: [_wrapped(one, SYN) for one in some], anew=True)
    all_by(workload, pod, [_answer(one, "192.0.2.8") for one in ports])
    all_by(outside, uplink, [_wrapped(one, ACK) for one in ports])
    add("established, out of the tunnel", lambda some: [_wrapped(one, ACK) for one in some])


@contextlib.contextmanager
def _node(count: int) -> Iterator[None]:
    """A node with an interface to the outside, a pod, and that many services; /run/netns is private."""
    subprocess.run(
        ["ip", "-batch", "-"], text=True, check=True, input="netns add node\nnetns add out\nnetns add inner\n"
        "link add eth0 netns node type veth peer name eth0 netns out\n"
        "link add pod netns node type veth peer name eth0 netns inner\n",
    )  # fmt: skip
    try:
        for name in ("out", "inner"):
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
        subprocess.run(
            ["ip", "-n", "node", "-batch", "-"], text=True, check=True, input="link set lo up\n"
            f"addr add {OWN}/24 dev eth0\nlink set eth0 up\nroute add default via 10.10.1.1\n"
            "neigh add 10.10.1.1 lladdr 02:00:00:00:00:01 dev eth0\n"
            f"addr add 169.254.1.1/32 dev pod\nlink set pod up\nroute add {POD}/32 dev pod\n"
            f"neigh add {POD} lladdr 02:00:00:00:00:02 dev pod\n",
        )  # fmt: skip
        with inside("node"), open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
            file.write("1")
        with inside("node"):
            _load(count)
        yield
    finally:
        with inside("node"):
            quietly("unload", "--yes")
        subprocess.run(
            ["ip", "-batch", "-"], text=True, check=True, input="netns delete node\nnetns delete out\nnetns delete inner\n"
        )  # fmt: skip


def _load(count: int) -> None:
    quietly("load", "--no-dispatcher")
    quietly("attach", "dev", "eth0", "--role", "host", "--max-services", "16384", "--max-backends", "65536")
    quietly("load", "--no-dispatcher", "--node-address", OWN)
    quietly("attach", "dev", "pod", "--role", "workload")
    quietly("nodes", "add", "other", "--address", OTHER, "--pod-prefix", "10.244.2.0/24")
    Balancer("").fill(count - 1)
    for name, port, backend, mode in (
        ("web", LOCAL_PORT, f"{POD}:{PORT},local", "tunnel"),
        ("far", DIRECT_PORT, f"{REMOTE}:{PORT}", "dsr"),
    ):
        quietly(
            "service", "add", name, "--frontend", f"10.96.0.{port % 100}:80/tcp", "--node-port", str(port),
            "--backend", backend, "--external-mode", mode,
        )  # fmt: skip


def _tcp(port: int, node_port: int, flags: int) -> bytes:
    """A segment of the client to a node port, without payload."""
    return _frame(_segment(CLIENT, OWN, port, node_port, flags, 1000 + (flags == ACK), 5001))


def _answer(port: int, client: str = CLIENT) -> bytes:
    """The pod's to the client's first one."""
    return _frame(_segment(POD, client, PORT, port, SYN_ACK, 5000, 1001))


def _wrapped(port: int, flags: int) -> bytes:
    """The same as the other node would have sent it here, of another client."""
    inner = _segment("192.0.2.8", OTHER, port, LOCAL_PORT, flags, 1000 + (flags == ACK), 5001)
    payload = struct.pack(">II12xH", 0x08 << 24, TUNNEL_VNI << 8, 0x0800) + inner
    udp = struct.pack("!HHHH", 50_000, TUNNEL_PORT, 8 + len(payload), 0)
    return _frame(_ip(17, OTHER, OWN, udp + payload))


def _segment(
    source: str, destination: str, sport: int, dport: int, flags: int, sequence: int, acknowledged: int
) -> bytes:
    tcp = struct.pack(
        "!HHIIBBHHH", sport, dport, sequence, acknowledged if flags & ACK else 0, 0x50, flags, 512, 0, 0
    )
    return _ip(6, source, destination, tcp)


def _ip(protocol: int, source: str, destination: str, payload: bytes) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0)
    return header + socket.inet_aton(source) + socket.inet_aton(destination) + payload


def _frame(packet: bytes) -> bytes:
    return bytes(12) + b"\x08\x00" + packet
