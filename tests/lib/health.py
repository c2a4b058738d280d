"""`svcctl health` as a process, what it answers, and services that have a health-check port."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from svcctl.model.service import Service
from svcctl.state.place import Place
from svcctl.state.service_change import apply_change, plan_change
from svcctl.state.services import get
from svcctl.state.writer import open_writer
from tests.lib.cli import clean_environment

PATIENCE = 60.0


class Answered(NamedTuple):
    """Status, headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(port: int, path: str = "/", host: str = "127.0.0.1") -> Answered:
    """One request. Raises OSError when nobody listens."""
    client = http.client.HTTPConnection(host, port, timeout=60)
    with contextlib.closing(client):
        client.request("GET", path)
        answer = client.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, headers, answer.read())


def status(port: int, path: str = "/", host: str = "127.0.0.1") -> int:
    """The status of one request; 0: nobody listens, or the port was closed before the request was looked at."""
    try:
        return ask(port, path, host).status
    except (ConnectionRefusedError, ConnectionResetError):
        return 0


def wait_for(expected: int, port: int, path: str = "/", host: str = "127.0.0.1") -> None:
    """Until the status is as expected."""
    end = time.monotonic() + PATIENCE
    while (found := status(port, path, host)) != expected:
        assert time.monotonic() < end, f"{host} {port}{path}: {found}, not {expected}"
        time.sleep(0.02)


def change(name: str, **fields: Any) -> None:
    """Change fields of a service that is there."""
    with open_writer(Place(), "test") as writer:
        have = get(writer, name, "test")
        want: Service = have.service._replace(**fields)
        apply_change(writer, plan_change(writer, have, want))


class HealthProcess:
    """A running `svcctl health`; `lines`: the first thing it has said."""

    def __init__(self, *args: str, before: Callable[[], None] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcctl", "health", *args],
            env=clean_environment(),
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )
        assert self.process.stderr is not None
        self.lines = [self.process.stderr.readline()]
        assert ": " in self.lines[0], self.lines[0] + self.process.stderr.read()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and all of stderr."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, "".join(self.lines) + err


@contextlib.contextmanager
def health(*args: str, before: Callable[[], None] | None = None) -> Iterator[HealthProcess]:
    """The server for the length of a block; it must end well."""
    one = HealthProcess(*args, before=before)
    try:
        yield one
    finally:
        if one.process.returncode is None:
            code, err = one.stop()
            assert code == 0, err
