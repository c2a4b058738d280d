"""Processes: pid files, pidfds, children, descriptors and the network namespace they are in."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from svcctl.errors import Incompatible, NotFound, PermissionProblem, UsageProblem
from svcctl.host.syscalls import SYS_PIDFD_GETFD, SYS_PIDFD_OPEN, call

if TYPE_CHECKING:
    from collections.abc import Iterator

# Reading /proc/PID/fd and /proc/PID/ns and pidfd_getfd(2) all ask the same question, ptrace_may_access().
PTRACE_HINT = "run it with CAP_SYS_PTRACE: the process has other owners or more capabilities than svcctl"

_LONGEST_COMMAND = 80
_PID_LIMIT = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels; real pids are smaller


def parse_pid_or_file(text: str) -> int:
    """A pid, or the pid in the first line of the file of that name.

    UsageProblem: neither a number from 1 to 4194303 nor a file with one. NotFound, PermissionProblem: of the
    file.
    """
    if not text:
        raise UsageProblem("read pid: : neither a number nor a file")
    if text.isascii() and text.isdigit():
        return _checked(int(text[:20]), f"read pid: {text}")
    if text[0] in "-+" and text[1:].isdigit():
        raise UsageProblem(f"read pid: {text}: not a process number")
    try:
        with open(text, "rb") as file:
            first = file.readline(4096).strip()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"read pid file: {text}: no such file") from None
    except PermissionError:
        raise PermissionProblem(f"read pid file: {text}: permission denied") from None
    except (OSError, ValueError) as error:
        raise UsageProblem(f"read pid file: {text}: {getattr(error, 'strerror', None) or error}") from None
    if not first.isdigit():
        shown = first[:40].decode("utf-8", "replace")
        raise UsageProblem(f"read pid file: {text}: expected a process number, got {shown!r}")
    return _checked(int(first[:20]), f"read pid file: {text}")


def pidfd_open(pid: int) -> int:
    """A descriptor (close-on-exec) of the process; it never comes to mean another process.

    NotFound: no such process. UsageProblem: `pid` is a thread. Incompatible: before Linux 5.3.
    """
    what = f"open process: {pid}"
    try:
        return call("syscall", _long(SYS_PIDFD_OPEN), _long(pid), _long(0))
    except ProcessLookupError:
        raise NotFound(f"{what}: no such process") from None
    except OSError as error:
        # A thread that is not the leader: EINVAL until Linux 6.17, ENOENT from there on.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            raise UsageProblem(f"{what}: not a process, perhaps a thread of one") from None
        if error.errno == errno.ENOSYS:
            raise Incompatible(f"{what}: this kernel has no pidfd_open (Linux 5.3)") from None
        raise


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """Duplicate descriptor `fd` of the process into this one (close-on-exec; the open file is shared).

    OSError EBADF: it is not open there; ProcessLookupError: the process has exited. PermissionProblem.
    """
    try:
        return call("syscall", _long(SYS_PIDFD_GETFD), _long(pidfd), _long(fd), _long(0))
    except PermissionError:
        message = f"take descriptor of process: {fd}: operation not permitted"
        raise PermissionProblem(message, hint=PTRACE_HINT) from None
    except OSError as error:
        if error.errno == errno.ENOSYS:
            message = f"take descriptor of process: {fd}: this kernel has no pidfd_getfd (Linux 5.6)"
            raise Incompatible(message) from None
        raise


def has_exited(pidfd: int, wait_s: float = 0.0) -> bool:
    """Whether the process has exited, after waiting up to `wait_s` seconds for that."""
    from select import POLLIN, poll

    poller = poll()
    poller.register(pidfd, POLLIN)
    return bool(poller.poll(wait_s * 1000))


def children(pid: int, recursive: bool = False) -> list[int]:
    """Children of all threads of the process, parents before children; empty when it has gone.

    Recursive: theirs too. A process whose own parent has exited belongs to another ancestor by then.
    """
    found: list[int] = []
    queue = [pid]
    parents: dict[int, list[int]] | None = None
    while queue:
        parent = queue.pop(0)
        own = _children_of(parent)
        if own is None:
            parents = _by_parent() if parents is None else parents
            own = parents.get(parent, [])
        fresh = [child for child in own if child not in found and child != pid]
        found.extend(fresh)
        if recursive:
            queue.extend(fresh)
    return found


def netns_inode(pid: int) -> int:
    """Inode of the network namespace the process is in. NotFound, PermissionProblem."""
    what = f"look at network namespace of process: {pid}"
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except PermissionError:
        raise PermissionProblem(f"{what}: permission denied", hint=PTRACE_HINT) from None
    except (FileNotFoundError, ProcessLookupError):
        raise NotFound(f"{what}: no such process") from None


def socket_fds(pid: int) -> Iterator[tuple[int, int]]:
    """All sockets among the process's descriptors: (descriptor, inode), duplicates and O_PATH ones as well.

    Reads links, opens nothing: no state of the process changes. NotFound, PermissionProblem.
    """
    what = f"list descriptors of process: {pid}"
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except PermissionError:
        raise PermissionProblem(f"{what}: permission denied", hint=PTRACE_HINT) from None
    except (FileNotFoundError, ProcessLookupError):
        raise NotFound(f"{what}: no such process") from None
    for name in names:
        try:
            link = os.readlink(f"{directory}/{name}")
        except PermissionError:
            raise PermissionProblem(f"{what}: permission denied", hint=PTRACE_HINT) from None
        except OSError:
            continue  # closed since it was listed
        if link.startswith("socket:["):
            yield int(name), int(link[8:-1])


def command(pid: int) -> str:
    """The process's command line, arguments joined with spaces, at most 80 printable characters.

    A kernel thread or zombie has none: its name in square brackets. A process that has gone: an empty string.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4096)
        if raw:
            words = raw.rstrip(b"\0").replace(b"\0", b" ")
        else:
            with open(f"/proc/{pid}/comm", "rb") as file:
                words = b"[" + file.read(64).rstrip(b"\n") + b"]"
    except OSError:
        return ""
    text = "".join(sign if sign.isprintable() else "?" for sign in words.decode("utf-8", "replace"))
    return text if len(text) <= _LONGEST_COMMAND else text[: _LONGEST_COMMAND - 3] + "..."


def _checked(pid: int, what: str) -> int:
    if not 0 < pid < _PID_LIMIT:
        raise UsageProblem(f"{what}: a process number is from 1 to {_PID_LIMIT - 1}")
    return pid


def _children_of(pid: int) -> list[int] | None:
    """From /proc/PID/task/TID/children; None when the kernel lacks it (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/status"):
                return None
    return found


def _by_parent() -> dict[int, list[int]]:
    """All processes by parent, from the second word after the name in /proc/PID/stat."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            found.setdefault(parent, []).append(int(name))
    return found


def _long(value: int) -> object:
    import ctypes

    return ctypes.c_long(value)
