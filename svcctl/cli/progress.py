"""Progress of long commands: a bar on stderr, on a terminal only, after half a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from svcctl.cli.env import isatty

if TYPE_CHECKING:
    from svcctl.cli.env import Env

PATIENCE = 0.5
"""Seconds before anything is shown."""


class Progress:
    """Steps without a length show as words, counted ones as a bar."""

    def __init__(self, env: Env, what: str) -> None:
        self.what = what
        self.shown = not env.quiet and isatty(sys.stderr)
        self.since = time.monotonic()
        self.bar: Any = None
        self.line = False

    def step(self, name: str) -> None:
        """A part whose length is unknown begins."""
        if self.shown and (name != "reading" or self.line) and time.monotonic() - self.since > PATIENCE:
            sys.stderr.write(f"\r\x1b[K{self.what}: {name} ...")
            sys.stderr.flush()
            self.line = True

    def count(self, done: int, total: int) -> None:
        """`done` of `total` are finished."""
        if not self.shown or time.monotonic() - self.since < PATIENCE:
            return
        if self.bar is None:
            import click

            self._clear()
            self.bar = click.progressbar(length=total, label=self.what, file=sys.stderr)
            self.bar.__enter__()
            self.bar.update(done)
            return
        self.bar.update(done - self.bar.pos)

    def end(self) -> None:
        """Take it off the screen."""
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
            self.bar = None
        self._clear()

    def _clear(self) -> None:
        if self.line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self.line = False
