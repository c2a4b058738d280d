"""Services on attached interfaces while everything under them is replaced: no connection fails, no byte changes."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from svcctl.bpf import probe
from tests.lib.balanced import VIP
from tests.lib.echo import RESET, Echo
from tests.lib.pods import Pod, pods
from tests.lib.svc import svc
from tests.lib.veths import wait
from tests.lib.world import World

SMALL = ("--max-flows", 20000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)
PIECE = bytes(range(256)) * 64


class Clients:
    """One long connection with bulk both ways and short ones one after the other, until stopped."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.stop = threading.Event()
        self.moved = self.opened = 0
        self.problems: list[str] = []
        with pod.inside():  # a thread has the namespace of who starts it
            self.threads = [threading.Thread(target=work) for work in (self._bulk, self._short)]
            for thread in self.threads:
                thread.start()

    def _bulk(self) -> None:
        sent, got = hashlib.sha256(), hashlib.sha256()
        try:
            with self._connect() as one:
                while not self.stop.is_set():
                    one.sendall(PIECE)
                    sent.update(PIECE)
                    self._take(one, got)
                    self.moved += len(PIECE)
            if sent.digest() != got.digest():
                self.problems.append("bytes have changed")
        except OSError as error:
            self.problems.append(f"bulk: {error}")

    def _take(self, one: socket.socket, got: hashlib._Hash) -> None:
        left = len(PIECE)
        while left:
            data = one.recv(left)
            if not data:
                raise ConnectionError("closed early")
            got.update(data)
            left -= len(data)

    def _short(self) -> None:
        while not self.stop.is_set() and not self.problems:
            try:
                with self._connect() as one:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    one.sendall(b"?")
                    assert one.recv(1) == b"?"
                self.opened += 1
            except OSError as error:
                self.problems.append(f"connection {self.opened}: {error}")

    def _connect(self) -> socket.socket:
        one = socket.socket()
        one.settimeout(60)
        one.connect((VIP, 80))
        return one

    def go_on(self) -> None:
        """Both have got further."""
        moved, opened = self.moved, self.opened
        wait(lambda: self.problems or (self.moved > moved + 10 * len(PIECE) and self.opened > opened + 10))
        assert not self.problems

    def close(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture(params=("tcx", "clsact"))
def clients(
    request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Clients]:
    """Traffic of a pod through a service to another one."""
    if request.param == "tcx" and not probe.tcx():
        pytest.skip("this kernel has no tcx links")
    if request.param == "clsact":
        monkeypatch.setenv("SVCCTL_TC", "clsact")
    svc("load", "--no-dispatcher")
    with pods(2) as (client, backend):
        svc("attach", "dev", "pod*", "--role", "workload", *SMALL)
        svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", f"{backend.address}:8080")
        server = Echo(backend, 8080)
        made = Clients(client)
        try:
            made.go_on()
            yield made
        finally:
            made.close()
            server.close()


def test_upgrades(clients: Clients) -> None:
    """Programs swapped, service maps grown, a backend more and less, an interface said to be attached again."""
    for words in (
        ("upgrade", "--force"),
        ("upgrade", "--max-services", 65),
        ("attach", "dev", "pod1", "--role", "workload", "--timeout", "udp=50"),
        ("check", "--repair"),
        ("upgrade", "--force"),
    ):
        svc(*words)
        clients.go_on()
    assert svc("check").out == "no problems found\n"
    clients.close()
    assert not clients.problems
    assert clients.opened > 50


def test_mending(clients: Clients) -> None:
    """Pins that are lost and made again, some with new programs."""
    directory = f"/sys/fs/bpf/{os.stat('/proc/thread-self/ns/net').st_ino}_svcctl"
    for name in ("packet_scratch", "fragments", "prog_from_workload"):
        os.unlink(f"{directory}/{name}")
        svc("check", "--repair")
        clients.go_on()
    assert svc("check").out == "no problems found\n"
