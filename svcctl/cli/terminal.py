"""A terminal that is looked at for a while: one key at a time, and left as it was found whatever ends it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcctl.cli.env import isatty

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Terminated(Exception):
    """SIGTERM or SIGHUP came."""


class Keys:
    """Keys as they are struck, if stdin is a terminal in the foreground."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> str:
        """The keys struck at once within that time; "" when there was none, or when nobody is there to strike one."""
        from select import select

        ready, _, _ = select([] if self._fd is None else [self._fd], (), (), max(seconds, 0))
        if not ready or self._fd is None:
            return ""
        struck = os.read(self._fd, 64).decode("ascii", "replace")
        if not struck:  # hung up
            self._fd = None
        return struck


@contextmanager
def keys() -> Iterator[Keys]:
    """The terminal gives single keys and does not show them; before and after, as it was.

    Raises Terminated for SIGTERM and SIGHUP, so that what has been drawn on can be led back.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        if not isatty(sys.stdin):
            yield Keys(None)
            return
        import termios
        import tty

        fd = sys.stdin.fileno()
        mode = termios.tcgetattr(fd)
        try:
            tty.setcbreak(fd, termios.TCSADRAIN)
            yield Keys(fd)
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, mode)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
