"""flock(2) with a time limit, and who holds such a lock."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02
_NOTICE_AFTER = 0.25  # most commands are done long before: a notice would only be noise


class Holder(Record):
    """A process that has a lock. `alive` False: it took the lock and has gone; who has it now is unknown."""

    pid: int
    alive: bool
    command: str


def try_lock(fd: int, exclusive: bool) -> bool:
    """Take the lock on the open file if that is possible at once; whether it was.

    Needs a descriptor that was opened for reading or writing (O_PATH: EBADF). Converting a shared lock
    into an exclusive one is not atomic and may lose it; see flock(2).
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(
    fd: int,
    exclusive: bool,
    timeout_s: float,
    on_wait: Callable[[list[Holder]], None] | None = None,
    *,
    notice_after_s: float = _NOTICE_AFTER,
) -> None:
    """Take the lock, waiting up to `timeout_s` seconds for it (0: do not wait). Raises TimeoutError.

    `on_wait` is called once, with the holders, when the wait has taken `notice_after_s` seconds. The kernel
    has no timed flock, and a signal would need the main thread: so this asks again, every 1 to 20 ms.
    """
    if try_lock(fd, exclusive):
        return
    start = time.monotonic()
    pause = _FIRST_PAUSE
    while True:
        waited = time.monotonic() - start
        if waited >= timeout_s:
            raise TimeoutError(f"lock not had within {timeout_s:g} s")
        if on_wait is not None and waited >= notice_after_s:
            on_wait(holders(fd))
            on_wait = None
        time.sleep(min(pause, timeout_s - waited))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        if try_lock(fd, exclusive):
            return


def holders(fd: int) -> list[Holder]:
    """Who has a flock on this file, those that wait for it left out; from /proc/locks.

    A holder outside the reader's pid namespace is not listed by the kernel: an empty list after a failed
    attempt means "a process outside this pid namespace". When the process that took the lock has gone, the
    ones that inherited its descriptor are named instead.
    """
    from svcctl.host.process import command

    status = os.fstat(fd)
    file_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found: list[Holder] = []
    for pid in _lock_takers("/proc/locks", file_id):
        if _has_descriptor(pid, file_id) is not False and _exists(pid):
            found.append(Holder(pid, True, command(pid)))
            continue
        # The number is of a process that has gone, or of a new one that has nothing to do with the lock.
        heirs = [heir for heir in _all_pids() if heir != pid and _has_descriptor(heir, file_id)]
        found.extend([Holder(heir, True, command(heir)) for heir in heirs] or [Holder(pid, False, "")])
    return list(dict.fromkeys(found))


def _lock_takers(path: str, file_id: str) -> list[int]:
    """Pids in the lines `N: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF` about this file.

    Major and minor are hexadecimal, the inode decimal. A waiter's line has `->` after the number; in
    /proc/PID/fdinfo/N the line starts with `lock:`.
    """
    pids = []
    with open(path, encoding="ascii", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["lock:"]:
                del words[0]
            if len(words) >= 6 and words[1] == "FLOCK" and words[5] == file_id and words[4].isdigit():
                pids.append(int(words[4]))
    return pids


def _has_descriptor(pid: int, file_id: str) -> bool | None:
    """Whether a descriptor of the process carries a flock on the file; None: may not be looked at."""
    directory = f"/proc/{pid}/fdinfo"
    try:
        names = os.listdir(directory)
    except PermissionError:
        return None
    except OSError:
        return False
    for name in names:
        try:
            if _lock_takers(f"{directory}/{name}", file_id):
                return True
        except PermissionError:
            return None
        except OSError:
            continue  # closed meanwhile
    return False


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
