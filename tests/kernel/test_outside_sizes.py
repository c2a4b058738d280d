"""Sizes: networks of 1500 bytes on both sides of a tunnel, fragments, offloads, and the ICMP errors that go with them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from socket import AF_INET

import pytest

from tests.lib.nodes import UPLINK, VIP, VIP6, Bed, at, backend_of, bed
from tests.lib.outside import FAMILIES, datagrams, pattern, stream
from tests.lib.pods import Namespace, batch, switch_offloads
from tests.lib.tunnelled import await_error, listen_to_errors, path_mtu
from tests.lib.world import sh, world

NODE_PORT = 30080
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
MODE = pytest.mark.parametrize("mode", ["tunnel", "dsr"])
VIPS: dict[int, str] = {FAMILIES["v4"]: VIP, FAMILIES["v6"]: VIP6}
UDP_SEGMENT, SOL_UDP = 103, 17
ROOM: dict[int, int] = {FAMILIES["v4"]: 1450, FAMILIES["v6"]: 1430}
"""What a tunnel through a network of 1500 bytes takes."""
HEADERS: dict[int, int] = {FAMILIES["v4"]: 28, FAMILIES["v6"]: 48}


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Two nodes with a pod each."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with world(), bed(1, 1) as one:
        yield one


@pytest.fixture(autouse=True)
def _nothing_learned(made: Bed) -> None:
    """No path's size is known from an earlier test."""
    for one in (made.client, made.nodes[1], *(pod for node in made.nodes for pod in node.pods)):
        forget_paths(one)


def forget_paths(where: Namespace) -> None:
    """Drop what was learned of paths' sizes in a namespace."""
    with where.inside():
        sh("ip -4 route flush cache; ip -6 route flush cache; ip tcp_metrics flush all")


@contextlib.contextmanager
def remote(made: Bed, mode: str = "tunnel") -> Iterator[Namespace]:
    """A service with one backend, on the second node, which is given."""
    backend = made.nodes[1].pods[0]
    options = {"node_port": NODE_PORT, "kind": "load-balancer", "external_mode": mode}
    with made.serving("web", *at(VIP, VIP6), backends=backend_of(backend), **options):
        yield backend


def places(made: Bed, family: int) -> list[tuple[str, int]]:
    """The node port at the first node, and the load balancer's address."""
    return [(made.nodes[0].own(family), NODE_PORT), (VIPS[family], 80)]


@FAMILY
@MODE
def test_what_is_too_big_is_told(made: Bed, family: int, mode: str) -> None:
    """A datagram that is not to be cut: the service's address tells what the tunnel takes, and that much passes."""
    with remote(made, mode) as backend, backend.listen(8080, "udp", family) as listener:
        for place in places(made, family):
            with made.client.socket("udp", family) as one:
                listen_to_errors(one, whole=True)
                one.connect(place)
                one.send(pattern(1500 - HEADERS[family]))
                error = await_error(one)
                assert (error.errno, error.info) == (errno.EMSGSIZE, ROOM[family])
                assert (error.offender, error.destination) == (place[0], place)
                assert path_mtu(one) == ROOM[family]
                one.send(pattern(ROOM[family] - HEADERS[family]))
                assert listener.recv(2048) == pattern(ROOM[family] - HEADERS[family])
                with pytest.raises(OSError, match="too long"):
                    one.send(pattern(ROOM[family] - HEADERS[family] + 1))


@FAMILY
def test_an_answer_that_is_too_big_is_told_to_the_pod(made: Bed, family: int) -> None:
    """Through the tunnel back there is as much room; with direct answers there is all of it."""
    for mode in ("dsr", "tunnel"):
        with (
            remote(made, mode) as backend,
            backend.listen(8080, "udp", family) as listener,
            made.client.socket("udp", family) as one,
        ):
            listen_to_errors(listener, whole=True)
            one.sendto(b"?", places(made, family)[0])
            _, peer = listener.recvfrom(16)
            listener.sendto(pattern(1500 - HEADERS[family]), peer)
            if mode == "tunnel":
                error = await_error(listener)
                assert (error.errno, error.info) == (errno.EMSGSIZE, ROOM[family])
                assert error.destination == peer[:2]
            else:
                assert len(one.recv(2048)) == 1500 - HEADERS[family]
            listener.sendto(pattern(1000), peer)
            assert one.recv(2048) == pattern(1000)


@contextlib.contextmanager
def cut(made: Bed) -> Iterator[None]:
    """Nothing longer than 1500 bytes leaves a node."""
    _uplinks(made, on=False)
    try:
        yield
    finally:
        _uplinks(made, on=True)


def _uplinks(made: Bed, *, on: bool) -> None:
    for node in made.nodes:
        with node.inside():
            switch_offloads(UPLINK, on)


@contextlib.contextmanager
def offloads(made: Bed, how: str) -> Iterator[None]:
    """`all`: packets stay as long as their sender made them; `none`: nowhere; `merged`: cut by who sends, merged by who gets.

    Of all links: a node's uplink merges what comes in (GRO) when its own offloads are on.
    """
    if how == "all":
        yield
        return
    hosts = [made.client, *made.nodes]
    pods = [(node, pod) for node in made.nodes for pod in node.pods]
    for host in hosts:
        host.offloads(False)
    for node, pod in pods:
        with node.inside():
            pod.offloads(False)
    if how == "merged":
        _uplinks(made, on=True)
    try:
        yield
    finally:
        for host in hosts:
            host.offloads(True)
        for node, pod in pods:
            with node.inside():
                pod.offloads(True)


@FAMILY
@MODE
@pytest.mark.parametrize("how", ["all", "none", "merged"])
@pytest.mark.parametrize("clamp", [False, True], ids=["", "clamped"])
def test_bulk_through_networks_of_1500_bytes(
    made: Bed, family: int, mode: str, how: str, clamp: bool
) -> None:
    """No black hole either way: TCP learns by ICMP what passes, or, with the MSS clamped, is told from the beginning."""
    first, second = made.nodes
    for node in made.nodes:
        node.settings("--clamp-mss" if clamp else "--no-clamp-mss")
    before = [node.event("too_big") for node in made.nodes]
    with offloads(made, how), remote(made, mode) as backend, backend.listen(8080, "tcp", family) as listener:
        try:
            for place in places(made, family):
                stream(made.client, listener, place, size=1 << 20)
            with backend.listen(8080, "udp", family) as udp:
                datagrams(made.client, udp, places(made, family)[0], bulk=1 << 18)
        finally:
            for node in made.nodes:
                node.settings("--no-clamp-mss")
    told = [node.event("too_big") - old for node, old in zip((first, second), before, strict=True)]
    assert bool(told[0]) == (not clamp)
    assert bool(told[1]) == (not clamp and mode == "tunnel")


@MODE
def test_fragments(made: Bed, mode: str) -> None:
    """IPv4 datagrams of three fragments, there and back; the first may be lost while the path's size is learned."""
    with remote(made, mode) as backend, backend.listen(8080, "udp") as listener:
        place = places(made, AF_INET)[0]
        with made.client.socket("udp") as one:
            for size in (4000, 4001, 3999):
                got, peer = _until_heard(lambda: one.sendto(pattern(size), place), listener, size)  # noqa: B023
                assert (got == pattern(size), peer[0]) == (True, made.client.address)
                back, who = _until_heard(lambda: listener.sendto(got, peer), one, size)  # noqa: B023
                assert (back == pattern(size), who) == (True, place)


def _until_heard(send: object, listener: socket.socket, size: int) -> tuple[bytes, tuple[str, int]]:
    """A datagram that is sent again until it arrives; those of another size are earlier ones that came twice."""
    until = time.monotonic() + 60
    listener.settimeout(0.5)
    try:
        while True:
            assert time.monotonic() < until, "never arrived"
            with contextlib.suppress(OSError):  # it was too big, says an ICMP error
                send()  # type: ignore[operator]
            with contextlib.suppress(TimeoutError):
                data, peer = listener.recvfrom(1 << 16)
                if len(data) == size:
                    return data, (peer[0], peer[1])
    finally:
        listener.settimeout(30)


@FAMILY
@MODE
def test_many_datagrams_as_one(made: Bed, family: int, mode: str) -> None:
    """UDP that is cut late (GSO): each piece arrives as it was meant, there and back.

    The nodes' uplinks cut it, as network cards do. A veth hands it on whole, and with it that it was in a tunnel:
    the receiver's kernel would not cut it any more.
    """
    with (
        cut(made),
        remote(made, mode) as backend,
        backend.listen(8080, "udp", family) as listener,
        made.client.socket("udp", family) as one,
    ):
        one.sendto(b"?", places(made, family)[0])
        _, peer = listener.recvfrom(16)
        sent = pattern(12_000)
        for sender, receiver, to in ((one, listener, places(made, family)[0]), (listener, one, peer[:2])):
            sender.sendmsg([sent], [(SOL_UDP, UDP_SEGMENT, struct.pack("H", 1200))], 0, to)
            assert [receiver.recv(2048) for _ in range(10)] == [
                sent[at : at + 1200] for at in range(0, 12_000, 1200)
            ]


@FAMILY
@MODE
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_a_closed_port(made: Bed, family: int, mode: str, where: int) -> None:
    """The backend's ICMP error reaches the client, as one of the service about a packet to the service."""
    backend = made.nodes[where].pods[0]
    options = {"node_port": NODE_PORT, "kind": "load-balancer", "external_mode": mode}
    with made.serving("web", *at(VIP, VIP6), backends=backend_of(backend), **options):
        for place in places(made, family):
            with made.client.socket("udp", family) as one:
                listen_to_errors(one)
                one.sendto(pattern(100), place)
                error = await_error(one)
                assert error.errno == errno.ECONNREFUSED
                assert (error.type, error.code) == ((3, 3) if family == AF_INET else (1, 4))
                assert (error.offender, error.destination) == (place[0], place)


@FAMILY
@MODE
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_a_narrow_link_to_the_client(made: Bed, family: int, mode: str, where: int) -> None:
    """The router's ICMP error goes to the service's address, and with that to the first node; it reaches the backend."""
    backend = made.nodes[where].pods[0]
    options = {"node_port": NODE_PORT, "kind": "load-balancer", "external_mode": mode}
    batch(f"link set {made.client.device} mtu 1300")
    try:
        with (
            made.serving("web", *at(VIP, VIP6), backends=backend_of(backend), **options),
            backend.listen(8080, "udp", family) as udp,
            backend.listen(8080, "tcp", family) as tcp,
        ):
            for place in places(made, family):
                with made.client.socket("tcp", family) as one:
                    one.connect(place)
                    server, _ = tcp.accept()
                    with server:
                        server.settimeout(30)
                        server.sendall(pattern(100_000))
                        got = b""
                        while len(got) < 100_000:
                            got += one.recv(1 << 16)
                        assert got == pattern(100_000)
                forget_paths(backend)
                with made.client.socket("udp", family) as one:
                    one.sendto(b"?", place)
                    _, peer = udp.recvfrom(16)
                    listen_to_errors(udp, whole=True)
                    udp.sendto(pattern(1350), peer)
                    error = await_error(udp)
                    assert (error.errno, error.info) == (errno.EMSGSIZE, 1300)
                    assert error.destination == peer[:2]
                forget_paths(backend)
    finally:
        batch(f"link set {made.client.device} mtu 1500")
