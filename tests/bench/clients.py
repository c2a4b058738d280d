"""Clients in C (sockets.c), and what BPF programs took while they ran, by the kernel's run-time statistics."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from typing import TYPE_CHECKING

from svcctl.bpf.lib import LIBRARY
from svcctl.bpf.link import Link
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.maps import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BPF_STATS_RUN_TIME = 0
HOOKS = {shape.name: shape.hook for shape in catalog.CONNECT}

EMPTY = """
SEC("cgroup/connect4") int empty_connect4(void *ctx) { return 1; }
SEC("cgroup/sendmsg4") int empty_sendmsg4(void *ctx) { return 1; }
SEC("cgroup/recvmsg4") int empty_recvmsg4(void *ctx) { return 1; }
SEC("cgroup/sock_release") int empty_sock_release(void *ctx) { return 1; }
"""
"""Beside the balancer's on the same hooks: what the kernel's measuring itself comes to."""


def build_client(scratch: Path) -> str:
    """Compile sockets.c; the path of the program. Raises RuntimeError without a compiler."""
    source = os.path.join(os.path.dirname(__file__), "sockets.c")
    compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "clang-19", "clang", "cc")), None)
    if compiler is None:
        raise RuntimeError("needs clang or cc")
    program = str(scratch / "sockets")
    subprocess.run([compiler, "-O2", "-Wall", "-o", program, source], check=True)
    return program


class Client:
    """Runs one mode of sockets.c on a list of addresses."""

    def __init__(
        self, program: str, cgroup: str | None, mode: str, places: Sequence[tuple[str, int]], server: str = ""
    ) -> None:
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - lives as long as the client
        for address, port in places:
            family = struct.pack("=H", socket.AF_INET)
            self.file.write(family + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8))
        self.file.flush()
        self.before = [program, cgroup or "-", mode]
        self.after = [self.file.name, *([server] if server else [])]

    def run(self, count: int) -> float:
        """ns an operation by the clock, of the quietest part."""
        done = subprocess.run(
            [*self.before, str(count), *self.after], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(self.before)}: {done.stderr}")
        return float(done.stdout)

    def close(self) -> None:
        """Remove the file."""
        self.file.close()


def interleaved(clients: Sequence[Client], count: int, rounds: int) -> list[float]:
    """The least of all rounds of each, in ns an operation. The clients are closed."""
    try:
        runs = [[client.run(count) for client in clients] for _ in range(rounds)]
    finally:
        for client in clients:
            client.close()
    return list(map(min, zip(*runs, strict=True)))


class Timed:
    """Programs, ours and empty ones, while the kernel measures them."""

    def __init__(self, programs: dict[str, Program]) -> None:
        self.programs = programs

    def of(self, client: Client, count: int, rounds: int) -> dict[str, float]:
        """ns a run of each program that ran at least once an operation, in its quietest round. Closes the client."""
        least: dict[str, float] = {}
        try:
            for _ in range(rounds):
                before = self._read()
                client.run(count)
                for name, (time, runs) in self._read().items():
                    ran = runs - before[name][1]
                    if ran >= count:
                        least[name] = min(least.get(name, 1e9), (time - before[name][0]) / ran)
        finally:
            client.close()
        return least

    def _read(self) -> dict[str, tuple[int, int]]:
        found = {name: program.info for name, program in self.programs.items()}
        return {name: (info.run_time_ns, info.run_count) for name, info in found.items()}


@contextlib.contextmanager
def timed(state: str, cgroup: str, empty: str) -> Iterator[Timed]:
    """The programs pinned in a state directory, and those of the object `empty` beside them on the cgroup.

    The kernel measures as long as the descriptor of the statistics is open: no longer than this process lives.
    """
    with contextlib.ExitStack() as stack:
        statistics = ctypes.CDLL(LIBRARY, use_errno=True).bpf_enable_stats(BPF_STATS_RUN_TIME)
        if statistics < 0:
            raise OSError(ctypes.get_errno(), "enable BPF statistics")
        stack.callback(os.close, statistics)
        fd = os.open(cgroup, os.O_RDONLY)
        stack.callback(os.close, fd)
        programs = {
            name: stack.enter_context(Program.open_pinned(f"{state}/prog_{name}"))
            for name in ("connect4", "sendmsg4", "recvmsg4", "sock_release")
        }
        with Object.open(empty) as opened:
            opened.load()
            for name in list(programs):
                beside = stack.enter_context(opened.program(f"empty_{name}"))
                stack.enter_context(Link.create(beside, fd, HOOKS[name]))
                programs[f"empty {name}"] = beside
        yield Timed(programs)
