"""Fault injection with strace: which system calls a command makes after taking the lock, and a kill at each.

strace's `inject=NAME:signal=KILL:when=N` kills on entry to the N-th call of that name; the call itself is not
carried out. N counts each name by itself. Never with `--seccomp-bpf`: strace then injects nothing, silently.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from typing import NamedTuple

from tests.lib.forge import Done, Forge

_CALL = re.compile(r"^([a-z_][a-z_0-9]*)\((BPF_\w+)?")

CHANGING = frozenset(
    "bpf chmod chown exit_group fchmod fchmodat fchown fchownat flock mkdir mkdirat mount rename renameat renameat2"
    " rmdir sendmsg sendto setns umount2 unlink unlinkat write".split()
)
"""Calls that can leave something behind when the process is gone, with the lock itself and the exit."""

UNSTEADY = frozenset(
    "brk clock_gettime futex getrandom getrusage gettimeofday madvise mmap mprotect mremap munmap restart_syscall"
    " rt_sigaction rt_sigprocmask sched_getaffinity sched_yield time".split()
)
"""Calls of the interpreter's own house-keeping, whose number differs from run to run by one or two."""

LOOKING = UNSTEADY | frozenset(
    "access close clock_nanosleep connect dup dup2 dup3 faccessat faccessat2 fcntl fstat fstatfs getdents64 getegid"
    " geteuid getgid getpid getppid getrlimit getsockname getsockopt gettid getuid ioctl kcmp lseek lstat newfstatat"
    " name_to_handle_at open_by_handle_at openat pidfd_getfd pidfd_open poll ppoll pread64 prlimit64 read readlink readlinkat recvfrom recvmsg setsockopt"
    " socket stat statfs statx uname bind prctl epoll_create1 epoll_ctl epoll_wait getpeername socketpair memfd_create".split()
)
"""Calls that leave nothing behind: a kill at one is a kill at the next of CHANGING. memfd_create: libbpf from 1.4 on
takes a place among the descriptors with it."""


BPF_LOOKING = frozenset(
    f"BPF_{command}"
    for command in (
        "BTF_GET_FD_BY_ID BTF_GET_NEXT_ID BTF_LOAD LINK_GET_FD_BY_ID LINK_GET_NEXT_ID MAP_CREATE MAP_GET_FD_BY_ID"
        " MAP_GET_NEXT_ID MAP_GET_NEXT_KEY MAP_LOOKUP_BATCH MAP_LOOKUP_ELEM OBJ_GET OBJ_GET_INFO_BY_FD"
        " PROG_GET_FD_BY_ID PROG_GET_NEXT_ID PROG_LOAD PROG_QUERY"
    ).split()
)
"""Commands of bpf(2) that leave nothing behind: what they make goes with the process until it is pinned."""


class Point(NamedTuple):
    """The `number`-th call (from 1) of `name` in the process. `command`: which of bpf(2)'s it is."""

    name: str
    number: int
    command: str = ""


class Trace(NamedTuple):
    """A plain run: the calls from the lock to the exit."""

    points: list[Point]

    @property
    def changing(self) -> list[Point]:
        """Those where something can be left behind. Fails for a call that nobody has thought about."""
        unknown = {point.name for point in self.points} - CHANGING - LOOKING
        assert not unknown, f"do these calls leave anything behind? {unknown}"
        return [point for point in self.points if point.name in CHANGING and point.command not in BPF_LOOKING]


def trace(forge: Forge, *args: str) -> Trace:
    """Run a command to its end under strace and list its calls. It must end with 0."""
    with tempfile.NamedTemporaryFile(prefix="svcctl-trace-") as file:
        done = forge.run(*args, strace=("-o", file.name))
        assert done.code == 0, f"svcctl {' '.join(args)}: {done.all}{done.strace}"
        lines = file.read().decode("utf-8", "replace").splitlines()
    points: list[Point] = []
    seen: dict[str, int] = {}
    for line in lines:
        match = _CALL.match(line)
        if not match:
            continue
        name = match[1]
        seen[name] = seen.get(name, 0) + 1
        if points or name == "flock":
            points.append(Point(name, seen[name], match[2] or ""))
    assert points, f"svcctl {' '.join(args)} takes no lock"
    assert points[-1].name == "exit_group", points[-1]
    return Trace(points)


def kill_at(forge: Forge, point: Point, *args: str) -> Done:
    """Run a command and kill it on entry to `point`. `code` is -9 if it came that far."""
    return inject(forge, f"{point.name}:signal=KILL:when={point.number}", *args)


def fail_at(forge: Forge, point: Point, error: str, *args: str) -> Done:
    """Run a command in which one call is not carried out and gives `error` instead."""
    return inject(forge, f"{point.name}:error={error}:when={point.number}", *args)


def inject(forge: Forge, what: str, *args: str) -> Done:
    """Run a command with an injection."""
    name = what.partition(":")[0]
    done = forge.run(*args, strace=("-e", f"trace={name}", "-e", f"inject={what}", "-o", "/dev/null"))
    assert "attached" in done.strace, done.strace
    return done


def turn(of: int) -> int:
    """Whose turn it is: another number from 0 to below `of` each day, or SVCCTL_CRASH_SLICE."""
    return int(os.environ.get("SVCCTL_CRASH_SLICE") or time.time() // 86400) % of


def chosen(points: list[Point]) -> list[Point]:
    """The seventh of the points whose turn it is."""
    return points[turn(7) :: 7]


def some(points: list[Point], step: int) -> list[Point]:
    """Each `step`-th of the points, others the next day; and always those that change what is attached."""
    return [
        point
        for number, point in enumerate(points)
        if number % step == turn(step) or point.command.startswith("BPF_LINK_")
    ]
