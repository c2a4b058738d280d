"""The one lock: flock(2) on a directory in bpffs, checked to be still the published directory once it is had."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from svcctl.errors import LockTimeout
from svcctl.host import flock

if TYPE_CHECKING:
    from svcctl.host.flock import Holder
    from svcctl.state.place import Place


def _describe(holders: list[Holder]) -> str:
    if not holders:
        return "a process outside this pid namespace"
    return ", ".join(f"pid {h.pid} ({h.command or 'gone'})" for h in holders[:3])


def lock_fd(fd: int, path: str, place: Place, *, exclusive: bool = True) -> int:
    """Take the flock of an open directory, saying on stderr whom the command waits for.

    Returns the nanoseconds waited, 0 if the lock was free. Raises LockTimeout after
    `place.lock_timeout` seconds.
    """
    if flock.try_lock(fd, exclusive):
        return 0
    start = time.monotonic_ns()

    def say(holders: list[Holder]) -> None:
        place.notice(f"waiting for the lock on {path}, held by {_describe(holders)}")

    try:
        flock.lock(fd, exclusive, place.lock_timeout, say)
    except TimeoutError:
        raise LockTimeout(
            f"lock {path}: held by {_describe(flock.holders(fd))} for more than {place.lock_timeout:g} s",
            hint="wait for it to end, or give a longer --lock-timeout",
        ) from None
    return time.monotonic_ns() - start


def open_locked(path: str, place: Place) -> int:
    """A descriptor of the directory `path` with its exclusive flock; see `open_locked_timed`."""
    return open_locked_timed(path, place)[0]


def open_locked_timed(path: str, place: Place) -> tuple[int, int]:
    """A descriptor of the directory `path` with its exclusive flock, and the nanoseconds waited for it.

    The directory may have been removed or replaced while we waited: then the lock is on a dead inode, and the
    path is opened again. Raises FileNotFoundError if it is gone, PermissionError if it may not be opened.
    """
    waited = 0
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            waited += lock_fd(fd, path, place)
            mine, named = os.fstat(fd), os.stat(path, follow_symlinks=False)
        except BaseException:
            os.close(fd)
            raise
        if mine.st_nlink and (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino):
            return fd, waited
        os.close(fd)
