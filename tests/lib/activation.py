"""Passing sockets to `svcctl register` as systemd does, and with the real systemd-socket-activate."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from tests.lib.svc import Ran, svc_process

# Moves the descriptors to 3, 4, ... and becomes the command, so that LISTEN_PID is right.
_LAUNCHER = """
import fcntl, os, sys
count = int(sys.argv[1])
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in sys.argv[2:2 + count]]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.environ.setdefault("LISTEN_FDS", str(count))
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


def register_fds(
    fds: Sequence[int],
    label: str,
    *more: str,
    code: int | None = 0,
    names: Sequence[str] | None = None,
    env: dict[str, str] | None = None,
) -> Ran:
    """`svcctl register LABEL`, with descriptors handed over as systemd does."""
    variables = dict(env or {})
    if names is not None:
        variables["LISTEN_FDNAMES"] = ":".join(names)
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(len(fds)), *map(str, fds)]
    return svc_process(
        "register", label, *more, code=code, prefix=launcher, env=variables, pass_fds=list(fds)
    )


def register_sockets(sockets: Sequence[socket.socket], label: str, *more: str, code: int | None = 0) -> Ran:
    """The same with Python's sockets."""
    return register_fds([one.fileno() for one in sockets], label, *more, code=code)
