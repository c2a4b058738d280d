"""Waiting for what comes a moment later, and above all for what the kernel does in its own time.

A link, program or map whose last holder was a pin goes after a grace period, through a work queue: on a busy machine
that is tens of milliseconds after unlink(2) has returned. The same holds for cgroups and network namespaces.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from errno import EBUSY
from typing import TypeVar

from svcctl.bpf.link import Link, LinkInfo, query_programs
from svcctl.host import cgroup
from tests.lib.servers import SLOWNESS

_T = TypeVar("_T")
PATIENCE = 60.0 * SLOWNESS


def until(found: Callable[[], _T], what: Callable[[], object] | str = "what was waited for") -> _T:
    """Wait until something is true, and return it. Fails after a minute."""
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end, (
            f"not within {PATIENCE:g} s: {what if isinstance(what, str) else what()}"
        )
        time.sleep(0.005)
    return value


def lets_go(pid: int, *words: str) -> None:
    """Wait until a process has nothing open whose name has one of these words in it."""

    def held() -> list[str]:
        names = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        return [name for name in names if any(word in name for word in words)]

    until(lambda: not held(), lambda: f"process {pid} without {held()}")


def remove_cgroup(path: str) -> None:
    """Remove a cgroup without children. Processes that were waited for leave theirs a moment later."""

    def removed() -> bool:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno != EBUSY:
                raise
            return False
        return True

    until(removed, lambda: f"{path}: still there are {_text(f'{path}/cgroup.procs').split()}")


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def lose_link(pin: str) -> None:
    """Remove the only pin of a link, and wait until what it had attached is off."""
    with Link.open_pinned(pin) as link:
        info = link.info
    target = _open_target(info)
    try:
        os.unlink(pin)
        until(lambda: info.program_id not in query_programs(target, info.attach_type or 0), pin)
    finally:
        if not info.ifindex:
            os.close(target)


def _open_target(info: LinkInfo) -> int:
    """What it is attached to: the calling thread's namespace, a cgroup, or an interface, whose number it is."""
    if info.netns_inode:
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return cgroup.open_id(info.cgroup_id) if info.cgroup_id else info.ifindex or 0
