"""Whole processes side by side: each round runs every command once, so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VENV = os.path.dirname(sys.executable)
SVCCTL = f"{VENV}/svcctl"


class Ran(NamedTuple):
    """One run: seconds by the clock, seconds of processor time, most memory in bytes."""

    wall: float
    cpu: float
    memory: int


class Times(NamedTuple):
    """Many runs of one command, in seconds."""

    least: float
    median: float
    least_cpu: float


def run(command: Sequence[str]) -> Ran:
    """Run to its end with stdout thrown away. Raises RuntimeError when it fails."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        began = time.perf_counter()
        child = os.posix_spawn(
            command[0], list(command), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)]
        )
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - began
    finally:
        os.close(null)
    if status:
        raise RuntimeError(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return Ran(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def rounds(commands: Mapping[str, Callable[[int], Sequence[str]]], count: int) -> dict[str, Times]:
    """`count` rounds of all commands; each is made from the round's number. A first round is not counted."""
    found: dict[str, list[Ran]] = {name: [] for name in commands}
    for turn in range(-1, count):
        for name, make in commands.items():
            ran = run(make(turn))
            if turn >= 0:
                found[name].append(ran)
    return {
        name: Times(
            min(ran.wall for ran in runs),
            statistics.median(ran.wall for ran in runs),
            min(ran.cpu for ran in runs),
        )
        for name, runs in found.items()
    }
