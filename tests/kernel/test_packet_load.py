"""Upgrades, detach and unload under bulk and new connections: whose bytes are all there, and what becomes of the rest.

By default 100 MB and 300 connections; SVCCTL_LONG=1: 2 GB, and 1,000 connections a second.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from svcctl.bpf import probe
from tests.lib.balanced import VIP
from tests.lib.echo import Echo, Traffic
from tests.lib.pods import Pod, pods
from tests.lib.svc import svc
from tests.lib.veths import wait
from tests.lib.world import World

pytestmark = pytest.mark.timeout(600)

LONG = os.environ.get("SVCCTL_LONG") == "1"
SIZE, CONNECTIONS, RATE = (2_000_000_000, 10_000, 1_000) if LONG else (100_000_000, 300, 250)
SMALL = ("--max-flows", 20000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)
WORKLOADS = ("pod*", "--role", "workload")
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)


class Here(NamedTuple):
    """A client, and the backend of a service that echoes."""

    client: Pod
    backend: Pod
    server: Echo
    direct: Echo
    """On another port: a client's port may serve a connection to it and one to the service."""


@pytest.fixture(params=("tcx", "clsact") if LONG else ("",))
def here(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """By what the kernel has; with SVCCTL_LONG by filters as well."""
    if request.param == "tcx" and not probe.tcx():
        pytest.skip("this kernel has no tcx links")
    if request.param == "clsact":
        monkeypatch.setenv("SVCCTL_TC", "clsact")
    svc("load", "--no-dispatcher")
    with pods(2) as (client, backend):
        svc("attach", "dev", *WORKLOADS, *SMALL)
        svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", f"{backend.address}:8080")
        server, direct = Echo(backend, 8080), Echo(backend, 8081)
        try:
            yield Here(client, backend, server, direct)
        finally:
            server.close()
            direct.close()


def test_upgrades(here: Here) -> None:
    """New programs and larger maps, of flows too: nothing is lost of what goes through the service meanwhile."""
    traffic = Traffic(here.client, (VIP, 80), SIZE, CONNECTIONS, RATE)
    try:
        traffic.go_on()
        flows = 20000
        while True:
            flows += 1000
            for options in (("--force",), ("--max-services", flows // 100), ("--max-flows", flows)):
                svc("upgrade", *options)
                traffic.go_on()
            if traffic.moved >= SIZE // 2:  # by default the first time round: a second or two
                break
        traffic.finish()
    finally:
        traffic.close()
    assert svc("check").out == "no problems found\n"


def test_detach_and_unload(here: Here) -> None:
    """What passes untranslated goes on to its last byte; what is translated, if it is attached again in silence."""
    client, backend, server, _ = here
    traffic = Traffic(client, (backend.address, 8081), SIZE // 4, CONNECTIONS // 3, RATE)
    try:
        with client.socket() as quiet:
            quiet.connect((VIP, 80))
            talk(quiet)
            traffic.go_on()
            server.settle(quiet)
            svc("detach", "dev", *WORKLOADS[:1])
            traffic.go_on()
            assert refused(client)
            svc("attach", "dev", *WORKLOADS)
            traffic.go_on()
            talk(quiet)
            with client.socket() as another:
                another.connect((VIP, 80))
                talk(another)
            svc("unload", "--yes")
            traffic.go_on()
            assert refused(client)
            # As the manual says: the backend is reset by a host that does not know it, the client is not told.
            end = server.end_of(quiet)
            end.sendall(b"?")
            wait(lambda: not server.is_open(end))
            assert quiet.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            assert quiet.getpeername() == (VIP, 80)
        traffic.finish()
    finally:
        traffic.close()


def talk(one: socket.socket) -> None:
    one.sendall(b"hello")
    assert one.recv(16) == b"hello"


def refused(client: Pod) -> bool:
    """A new connection to the service's address learns at once that nobody is there."""
    with client.socket() as one:
        return one.connect_ex((VIP, 80)) in UNREACHABLE
