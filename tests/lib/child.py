"""A second process under a test's control: it runs Python statements sent to it, one line at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LOOP = """
import json, os, socket, sys, time
sys.path.insert(0, sys.argv[1])
scope = {"os": os, "socket": socket, "sys": sys, "time": time, "keep": []}
for line in sys.stdin:
    scope.pop("out", None)
    exec(json.loads(line), scope)
    print(json.dumps(scope.get("out")), flush=True)
"""


class Child:
    """A running child. `run` executes statements there and returns what they left in the variable `out`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def run(self, code: str) -> Any:
        """Execute `code` in the child, wait for its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the child has died of {code!r}"
        return json.loads(line)

    def send(self, code: str) -> None:
        """Have `code` executed in the child and do not wait; no `run` may follow."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it and wait for that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def child(code: str = "", *, prefix: tuple[str, ...] = (), **kwargs: Any) -> Iterator[Child]:
    """Start a child in the calling thread's namespaces and have it run `code`. `prefix`: words before it."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-I", "-S", "-c", _LOOP, ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **kwargs,
    )
    one = Child(process)
    try:
        one.run(code)
        yield one
    finally:
        one.end()


def needs_root() -> None:
    """Skip the test, or with it the module, without root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
