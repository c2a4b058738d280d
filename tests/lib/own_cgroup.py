"""A cgroup of the test's own, processes in it, and services that the balancer serves them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from svcctl.host import cgroup
from tests.lib.guard import cgroup_name
from tests.lib.until import remove_cgroup

SIZES = ("--max-services", "32", "--max-backends", "64", "--max-sockets", "512")


@contextlib.contextmanager
def own_cgroup() -> Iterator[str]:
    """A cgroup that nobody else has; removed afterwards, whoever is still in it goes to the root."""
    path = make()
    try:
        yield path
    finally:
        remove(path)


def make() -> str:
    """Make a cgroup that nobody else has."""
    path = f"{cgroup.mount_point()}/{cgroup_name('own')}"
    os.mkdir(path)
    return path


def remove(path: str) -> None:
    """Remove a cgroup, if it is still there."""
    if not os.path.isdir(path):
        return
    for below in os.listdir(path):
        if os.path.isdir(f"{path}/{below}"):
            remove(f"{path}/{below}")
    leave(path)
    remove_cgroup(path)


def enter(path: str, pid: int = 0) -> None:
    """Move a process, this one by default, into a cgroup. Sockets made before stay where they were made."""
    with open(f"{path}/cgroup.procs", "w") as file:
        file.write(str(pid))


def leave(path: str) -> None:
    """Move everybody out."""
    with open(f"{path}/cgroup.procs") as file:
        pids = file.read().split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            enter(cgroup.mount_point(), int(pid))
