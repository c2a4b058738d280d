"""A node that dies under its flows: with tables another one goes on with every one of them, and the first again later."""

from __future__ import annotations

import hashlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from socket import AF_INET6

import pytest

from tests.lib.many_flows import Backends, Flows, descriptors, keep_alive
from tests.lib.nodes import VIP, VIP6, Bed, at, backend_of, bed
from tests.lib.outside import FAMILIES, pattern
from tests.lib.world import world

MODE = pytest.mark.parametrize("mode", ["dsr", "tunnel"])
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
TIMES = 6
"""How often the pattern is downloaded."""


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Three nodes: the first has no pod, the second two, the third one."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with world(), bed(0, 2, 1) as one:
        yield one


@pytest.fixture
def place(made: Bed, family: int, mode: str) -> Iterator[tuple[str, int]]:
    """The load balancer's address, which the first node has, of a service with tables and all pods."""
    pods = [pod for node in made.nodes for pod in node.pods]
    backends = [text for pod in pods for text in backend_of(pod)]
    options = {"algorithm": "maglev", "table_size": 1021, "external_mode": mode, "kind": "load-balancer"}
    made.route(made.nodes[0])
    with made.serving("web", *at(VIP, VIP6), backends=backends, **options):
        yield (VIP6 if family == AF_INET6 else VIP), 80
    made.mend(made.nodes[0])


@MODE
@FAMILY
def test_a_download_goes_on(made: Bed, family: int, mode: str, place: tuple[str, int]) -> None:
    """Its node is cut off in the middle of it, and the router sends the client's packets to another one.

    Through a tunnel the backend's node learns of that from what the client says next, and sends to the dead one until
    then. A client that only listens says nothing without data: it keeps the connection alive.
    """
    first, _, third = made.nodes
    pods = [pod for node in made.nodes for pod in node.pods]
    whole = pattern(4 << 20)
    expected = hashlib.sha256()
    for _ in range(TIMES):
        expected.update(whole)
    listeners = [pod.listen(8080, "tcp", family) for pod in pods]
    servers: list[threading.Thread] = []

    def serve(number: int) -> None:
        one, _ = listeners[number].accept()
        with one:
            one.settimeout(60)
            for _ in range(TIMES):
                one.sendall(whole)

    try:
        # One client after the other, until one has been served by each node that has pods.
        for _ in range(2):
            made.route(first)
            with made.client.socket("tcp", family) as client:
                client.settimeout(60)
                keep_alive(client)
                client.connect(place)
                number = _taker(listeners)
                servers.append(threading.Thread(target=serve, args=(number,)))
                servers[-1].start()
                got, size = hashlib.sha256(), 0
                while data := client.recv(1 << 18):
                    before, size = size, size + len(data)
                    got.update(data)
                    if before < 1 << 20 <= size:
                        made.cut(first)
                        made.route(third)
                servers[-1].join()
                assert (size, got.digest()) == (TIMES << 22, expected.digest())
            made.mend(first)
    finally:
        for listener in listeners:
            listener.close()
    # Picked up, or, where the backend was its own, no more another node's.
    assert third.event("picked_up") + third.event("node_changed") > 0


def _taker(listeners: list[socket.socket]) -> int:
    ready = select.select(listeners, [], [], 30)[0]
    assert len(ready) == 1
    return listeners.index(ready[0])


@MODE
@FAMILY
def test_every_flow_goes_on(made: Bed, family: int, mode: str, place: tuple[str, int]) -> None:
    """A thousand of them, while the first node dies, while the third has them, and while the first is back."""
    first, second, third = made.nodes
    count = 1000 if mode == "dsr" and family != AF_INET6 else 200
    with descriptors(count * 2 + 200):
        backends = Backends([pod for node in made.nodes for pod in node.pods], 8080, family)
        flows = None
        try:
            flows = Flows(made.client, family, place, count)
            flows.go_on(2)
            taken = {flow.backend for flow in flows.all}
            assert taken == {0, 1, 2}
            before = [node.event("node_changed") for node in (second, third)]

            def dies() -> None:
                made.cut(first)
                made.route(third)

            def is_back() -> None:
                made.mend(first)
                made.route(first)

            flows.go_on(2, dies)
            flows.go_on(2)
            assert third.event("picked_up") > 0
            flows.go_on(2, is_back)
            flows.go_on(2)
            after = [node.event("node_changed") for node in (second, third)]
            assert all(new > old for new, old in zip(after, before, strict=True))
            assert sum(backends.accepted) == count
        finally:
            if flows is not None:
                flows.close()
            backends.close()


@MODE
@FAMILY
def test_datagrams_keep_their_backend(made: Bed, family: int, mode: str, place: tuple[str, int]) -> None:
    """UDP has no connection that would break: what tells is that each flow's datagrams still go to the same backend."""
    first, _, third = made.nodes
    pods = [pod for node in made.nodes for pod in node.pods]
    listeners = [pod.listen(8080, "udp", family) for pod in pods]
    clients = [made.client.socket("udp", family) for _ in range(60)]
    try:
        chosen = []
        for node in (first, third, first):
            if node is third:
                made.cut(first)
            else:
                made.mend(first)
            made.route(node)
            chosen.append([_ask(client, listeners, place) for client in clients])
        assert chosen[0] == chosen[1] == chosen[2]
        assert set(chosen[0]) == {0, 1, 2}
    finally:
        for one in (*listeners, *clients):
            one.close()


def _ask(client: socket.socket, listeners: list[socket.socket], place: tuple[str, int]) -> int:
    """Which backend gets a datagram; it answers."""
    client.sendto(b"?", place)
    number = _taker(listeners)
    data, peer = listeners[number].recvfrom(16)
    listeners[number].sendto(data, peer)
    data, who = client.recvfrom(16)
    assert (data, who[:2]) == (b"?", place)
    return number
