"""Start-up: what one command costs beside a bare `import click`, and how its system calls grow with the state."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from tests.bench import loaded
from tests.bench.figures import Figure
from tests.bench.processes import SVCCTL, rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.figures import Report

ROUNDS = 40
GOAL_MS = 12.0
SIZES = (0, 1_000, 100_000)
PEER = (sys.executable, "-c", "import click")


def measure(report: Report) -> None:
    """All figures of this part."""
    report.section(
        "start-up",
        "whole processes, ms over `python -c 'import click'` of the same venv (least of all rounds)",
    )
    with loaded.state() as state:
        state.fill(loaded.hosts(1_000, seed=1))
        _times(report)
        _calls(report, state)


def _times(report: Report) -> None:
    def fresh(verb: str) -> Sequence[str]:
        return (SVCCTL, verb, "web", "tcp", "198.51.100.7", "443")

    commands = {
        "python -c 'import click'": lambda _: PEER,
        "bind, a new binding": lambda _: fresh("bind"),
        "bind, one that is there": lambda _: fresh("bind"),
        "unbind": lambda _: fresh("unbind"),
        "destinations": lambda _: (SVCCTL, "destinations"),
        "version": lambda _: (SVCCTL, "version"),
        "--help": lambda _: (SVCCTL, "--help"),
    }
    times = rounds(commands, ROUNDS)
    peer = times.pop("python -c 'import click'")
    for name, found in times.items():
        over = (found.least - peer.least) * 1e3
        report.add(
            Figure(
                name,
                over,
                "ms",
                f"{found.least * 1e3:.1f} ms",
                f"{peer.least * 1e3:.1f} ms, medians {found.median * 1e3:.1f} and {peer.median * 1e3:.1f},"
                f" processor {found.least_cpu * 1e3:.1f} and {peer.least_cpu * 1e3:.1f}",
                goal=GOAL_MS if name.startswith(("bind", "unbind")) else None,
            )
        )


def _calls(report: Report, state: loaded.Loaded) -> None:
    """bpf() calls of the same `bind` on states of different sizes: the goal is no difference."""
    for kind, prefix in (("an address", "198.51.100.7"), ("a prefix", "198.51.0.0/16")):
        found = []
        for size in SIZES:
            state.fill(loaded.hosts(size, seed=1))
            found.append(bpf_calls((SVCCTL, "bind", "new", "tcp", prefix, "443")))
        shown = ", ".join(f"{calls} at {size:,}" for calls, size in zip(found, SIZES, strict=True))
        report.add(
            Figure(
                f"bpf() calls of bind, {kind}: growth",
                max(found) - min(found),
                "",
                f"{found[-1]}",
                f"itself: {shown}",
                goal=0,
            )
        )


def bpf_calls(command: Sequence[str], writing: bool = False) -> int:
    """How many bpf() calls a command makes, all of its threads and children; only those that write maps if asked."""
    with tempfile.NamedTemporaryFile("r") as log:
        subprocess.run(
            ["strace", "-f", "-qq", "-e", "trace=bpf", "-e", "signal=none", "-o", log.name, *command],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ,
        )
        lines = [line for line in log if " bpf(" in line]
    if writing:
        lines = [line for line in lines if line.split("bpf(", 1)[1].startswith(WRITING)]
    return len(lines)


WRITING = (
    "BPF_MAP_UPDATE",
    "BPF_MAP_DELETE",
    "BPF_MAP_LOOKUP_AND_DELETE",
    "BPF_MAP_CREATE",
    "BPF_PROG_LOAD",
    "BPF_OBJ_PIN",
    "BPF_LINK",
)
