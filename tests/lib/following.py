"""tests/lib/follow_program.py as a process, with the real kubectl, and what it has said so far."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from svcctl.host.process import children
from tests.lib.api_server import ApiServer
from tests.lib.cli import ROOT, clean_environment

KUBECTL = shutil.which("kubectl")
PATIENCE = 60.0
QUICK = {"first_pause": 0.05, "longest_pause": 0.4, "page": 3, "answer": 30, "proof": 0.5, "apart": 0.05}
"""Short pauses and small pages; `apart` is what most tests would otherwise wait for."""


class Following:
    """The process. `lines` are what it has said; `wait` waits until something is among them."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env=clean_environment(), cwd=ROOT
        )
        self.lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def said(self, key: str) -> list[Any]:
        """Values of a kind of line so far."""
        with self._news:
            return [line[key] for line in self.lines if key in line]

    def wait(self, key: str, true: Callable[[Any], object] = lambda value: True, *, after: int = 0) -> Any:
        """The first line with this key, past the first `after` ones, whose value is as asked for."""
        with self._news:

            def found() -> Any:
                values = [line[key] for line in self.lines if key in line][after:]
                return next(([value] for value in values if true(value)), None)

            done = self._news.wait_for(lambda: found() or self._over, PATIENCE)
            assert done, f"no such {key!r} within {PATIENCE:g} s: {self.lines[-20:]}"
            value = found()
            assert value, f"it ended without such a {key!r}: {self.lines[-20:]}"
            return value[0]

    def wait_applied(self, *names: str) -> None:
        """Until an apply had just these objects."""
        self.wait("apply", lambda found: found == sorted(names))

    def children(self) -> list[int]:
        """The kubectl processes."""
        return children(self.process.pid)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        if not self.said("ended"):
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def gone(pid: int) -> bool:
    """Whether a process is no more, after waiting for that."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@contextlib.contextmanager
def following(api: ApiServer, tmp_path: Any, **options: Any) -> Iterator[Following]:
    """The program for the length of a block; at its end it must stop well, and its children with it."""
    config = api.kubeconfig(tmp_path)
    times = QUICK | options.pop("times", {})
    kubectl = options.pop("kubectl", [KUBECTL, "--kubeconfig", str(config), "--cache-dir", str(tmp_path)])
    given = json.dumps({"kubectl": kubectl, "times": times, **options})
    one = Following([sys.executable, "-W", "error", "-m", "tests.lib.follow_program", given])
    ended = False
    try:
        yield one
        ended = True
    finally:
        left = one.children() if one.process.poll() is None else []
        code = one.stop()
        if ended:
            assert code == 0
            assert all(gone(pid) for pid in left)
