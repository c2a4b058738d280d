"""A child process whose output is read as it comes, without waiting, and that ends with its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

from svcctl.host.syscalls import libc

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_READ = 1 << 18
_KEPT_OF_STDERR = 4096
_PATIENCE = 2.0


class Child:
    """A running command, with nothing on its standard input.

    It leads a session of its own, so that what a terminal sends to the parent does not reach it, and is ended
    with whatever it has started. Raises OSError when the program cannot be run.
    """

    def __init__(self, words: Sequence[str]) -> None:
        parent = os.getpid()
        prctl = libc().prctl  # looked up here: the child of a fork should do as little as it can

        def dies_with_parent() -> None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=dies_with_parent,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out: IO[bytes] = self._process.stdout
        self._err: IO[bytes] = self._process.stderr
        self._said = b""
        self._err_open = True
        os.set_blocking(self._out.fileno(), False)
        os.set_blocking(self._err.fileno(), False)

    def filenos(self) -> list[int]:
        """When one of them is readable, `read` has something to do."""
        return [self._out.fileno(), *([self._err.fileno()] if self._err_open else [])]

    def read(self) -> bytes | None:
        """What it has written since the last call: None for nothing, b"" when there will be no more."""
        self._listen()
        try:
            return os.read(self._out.fileno(), _READ)
        except BlockingIOError:
            return None

    def end(self) -> tuple[int, str]:
        """End it if it still runs, wait for that: its exit code (-N: of signal N) and the end of its stderr.

        After `read` has returned b"" it is given two seconds to end by itself.
        """
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._listen()
        self._out.close()
        self._err.close()
        lines = self._said.decode("utf-8", "backslashreplace").strip().splitlines()
        return self._process.returncode, lines[-1].strip() if lines else ""

    def stop(self) -> None:
        """Ask it to end, and end it."""
        self._signal(signal.SIGTERM)
        self.end()

    def _listen(self) -> None:
        """Take what is on stderr, so that it never fills up; the end of it is kept."""
        try:
            while piece := os.read(self._err.fileno(), 65536):
                self._said = (self._said + piece)[-_KEPT_OF_STDERR:]
            self._err_open = False
        except BlockingIOError:
            pass

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
