"""The C library, loaded on first use, for the few system calls Python 3.11 has no function for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

# The same on every architecture svcctl runs on (asm-generic and x86 share all numbers from 424 up).
SYS_PIDFD_OPEN = 434
SYS_PIDFD_GETFD = 438

CLONE_NEWNET = 0x40000000

_loaded: ctypes.CDLL | None = None


def libc() -> ctypes.CDLL:
    """The process's own C library; `call` is the usual way to use it."""
    global _loaded
    if _loaded is None:
        # ctypes takes 2 ms to import: commands that never get here do not pay for it.
        import ctypes

        _loaded = ctypes.CDLL(None, use_errno=True)
    return _loaded


def call(function: str, *arguments: object, path: str | None = None, path2: str | None = None) -> int:
    """Call a libc function that answers -1 on failure, and return its result.

    Strings must be passed as bytes. A failure is raised as the OSError subclass of its errno; `path` and
    `path2` only go into its text.
    """
    import ctypes

    result: int = getattr(libc(), function)(*arguments)
    if result == -1:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), path, None, path2)
    return result
