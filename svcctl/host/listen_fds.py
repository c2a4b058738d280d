"""Sockets handed over by systemd: the environment of sd_listen_fds(3)."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST = 3
_MOST = 65536
_HINT = "start it from a unit with Sockets= or with systemd-socket-activate, or use register-pid"


def listen_fds(environ: Mapping[str, str] | None = None) -> list[tuple[int, str]]:
    """(descriptor, name) of each socket passed, `unknown` for one without a name. Never empty.

    The descriptors are made close-on-exec and stay open; what they are is not looked at. UsageProblem: no
    sockets were passed, they were meant for another process, or the variables do not fit together.
    """
    variables = os.environ if environ is None else environ
    what = "take sockets from systemd"
    count_text = variables.get("LISTEN_FDS", "")
    if not count_text:
        raise UsageProblem(f"{what}: LISTEN_FDS: not set", hint=_HINT)
    count = _number(count_text)
    if count is None or count > _MOST:
        raise UsageProblem(f"{what}: LISTEN_FDS: expected a number, got {count_text!r}", hint=_HINT)
    if count == 0:
        raise UsageProblem(f"{what}: LISTEN_FDS: no sockets were passed", hint=_HINT)
    pid_text = variables.get("LISTEN_PID", "")
    pid = _number(pid_text)
    if pid is None:
        got = f"expected a process number, got {pid_text!r}" if pid_text else "not set"
        raise UsageProblem(f"{what}: LISTEN_PID: {got}", hint=_HINT)
    if pid != os.getpid():
        raise UsageProblem(
            f"{what}: LISTEN_PID: the sockets were passed to process {pid}, this is {os.getpid()}",
            hint="start svcctl directly from ExecStart=; in a shell script, with exec",
        )
    names = _names(variables.get("LISTEN_FDNAMES"), count, what)
    for fd in range(_FIRST, _FIRST + count):
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            message = f"{what}: descriptor {fd}: not open, but LISTEN_FDS is {count}"
            raise UsageProblem(message, hint=_HINT) from None
        fcntl.fcntl(fd, fcntl.F_SETFD, flags | fcntl.FD_CLOEXEC)
    return list(zip(range(_FIRST, _FIRST + count), names, strict=True))


def _names(text: str | None, count: int, what: str) -> list[str]:
    if text is None:
        return ["unknown"] * count
    names = text.split(":")
    if len(names) != count:
        raise UsageProblem(f"{what}: LISTEN_FDNAMES: {len(names)} names for {count} sockets")
    return names


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None
