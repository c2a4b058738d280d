"""`svcctl metrics` as a process, and what a scrape of it says."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.lib.cli import clean_environment

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped(NamedTuple):
    """An answer: status, content type, text."""

    status: int
    content_type: str
    text: str

    @property
    def samples(self) -> Samples:
        """Values by name and labels, as the client library parses them."""
        return parse(self.text)


def parse(text: str) -> Samples:
    """Samples of a text, each series once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found, f"{series} comes twice"
            found[series] = sample.value
    return found


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """The key of one series in `Samples`."""
    return f"svcctl_{name}", frozenset(labels.items())


class Exporter:
    """A running `svcctl metrics ::1 PORT`."""

    def __init__(self, *args: str, before: Callable[[], None] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcctl", "metrics", "::1", "0", *args],
            env=clean_environment(),
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("listening on http://[::1]:"), line + self.process.stderr.read()
        self.port = int(line.rpartition(":")[2].split("/")[0])

    def scrape(self, path: str = "/metrics", method: str = "GET") -> Scraped:
        """One scrape."""
        client = http.client.HTTPConnection("::1", self.port, timeout=60)
        with contextlib.closing(client):
            client.request(method, path)
            answer = client.getresponse()
            return Scraped(answer.status, answer.getheader("Content-Type") or "", answer.read().decode())

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("::1", self.port), timeout=60)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and the rest of stderr."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@contextlib.contextmanager
def exporter(*args: str, before: Callable[[], None] | None = None) -> Iterator[Exporter]:
    """An exporter for the length of a block; it must end well."""
    one = Exporter(*args, before=before)
    try:
        yield one
    finally:
        if one.process.returncode is None:
            code, err = one.stop()
            assert code == 0, err
