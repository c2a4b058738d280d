"""Talk between a client outside and a backend somewhere in the cluster: who sees whom, and whether every byte is right."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterable
from socket import AF_INET6

from tests.lib.pods import Namespace, take_port

FAMILIES = {"v4": socket.AF_INET, "v6": AF_INET6}
BULK = 4 << 20
DATAGRAM = 1200
RESET = struct.pack("ii", 1, 0)
_pattern = random.Random(6).randbytes(BULK)


def pattern(size: int) -> bytes:
    """Bytes that repeat nowhere."""
    assert size <= BULK
    return _pattern[:size]


def receive(one: socket.socket, size: int) -> bytes:
    """So many bytes, or what came before the end."""
    got = bytearray()
    while len(got) < size and (data := one.recv(min(1 << 18, size - len(got)))):
        got += data
    return bytes(got)


def exchange(client: socket.socket, server: socket.socket, size: int = BULK) -> None:
    """As many bytes each way at once, all of them as they were sent."""
    sent = pattern(size)
    problems: list[OSError] = []

    def send(one: socket.socket) -> None:
        try:
            one.sendall(sent)
        except OSError as error:
            problems.append(error)

    got: dict[socket.socket, bytes] = {}
    threads = [threading.Thread(target=send, args=(one,)) for one in (client, server)]
    for thread in threads:
        thread.start()
    try:
        for one in (server, client):
            got[one] = receive(one, size)
    finally:
        if len(got) < 2:
            client.shutdown(socket.SHUT_RDWR)
            server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    assert not problems
    assert [data == sent for data in got.values()] == [True, True]


def stream(
    client: Namespace,
    listener: socket.socket,
    place: tuple[str, int],
    *,
    source: str | None = None,
    port: int = 0,
    size: int = BULK,
) -> tuple[str, int]:
    """A TCP connection: requests, then bulk both ways. The client's address as the server sees it.

    `source`: what that is expected to be, the client's own by default; `port`: the client's.
    """
    family = listener.family
    with client.socket("tcp", family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            one.bind((client.own(family), port))
        else:
            take_port(one)
        one.connect(place)
        server, peer = listener.accept()
        with server:
            server.settimeout(60)
            assert one.getpeername()[:2] == place
            own = one.getsockname()[:2]
            assert peer[0] == (source or own[0])
            if source is None and not port:
                assert peer[1] == own[1]
            for number in range(3):
                one.sendall(b"request %d" % number)
                assert server.recv(64) == b"request %d" % number
                server.sendall(b"answer %d" % number)
                assert one.recv(64) == b"answer %d" % number
            exchange(one, server, size)
            one.shutdown(socket.SHUT_WR)
            assert server.recv(1) == b""
            server.shutdown(socket.SHUT_WR)
            assert one.recv(1) == b""
    return peer[0], peer[1]


def datagrams(
    client: Namespace,
    server: socket.socket,
    place: tuple[str, int],
    *,
    source: str | None = None,
    sizes: Iterable[int] = (1, 100, DATAGRAM),
    bulk: int = 1 << 20,
) -> tuple[str, int]:
    """Datagrams there and back, then many in a row. The client's address as the server sees it."""
    with client.socket("udp", server.family) as one:
        take_port(one)
        peer = ("", 0)
        for size in sizes:
            one.sendto(pattern(size), place)
            data, found = server.recvfrom(1 << 16)
            assert data == pattern(size)
            assert found[0] == (source or client.own(server.family))
            if source is None:
                assert found[1] == one.getsockname()[1]
            assert peer in (("", 0), found[:2])
            peer = found[:2]
            server.sendto(data, found)
            data, who = one.recvfrom(1 << 16)
            assert (data == pattern(size), who[:2]) == (True, place)
        _many(one, server, place, peer, bulk)
    return peer


def _many(
    one: socket.socket, server: socket.socket, place: tuple[str, int], peer: tuple[str, int], bulk: int
) -> None:
    """Few enough under way at once that no queue of sockets or processors drops one."""
    sent = pattern(bulk)
    for start in range(0, bulk, DATAGRAM * 16):
        parts = [sent[at : at + DATAGRAM] for at in range(start, min(start + DATAGRAM * 16, bulk), DATAGRAM)]
        for part in parts:
            one.sendto(part, place)
        for part in parts:
            data, found = server.recvfrom(1 << 16)
            assert (data == part, found[:2]) == (True, peer)
            server.sendto(data, found)
        for part in parts:
            data, who = one.recvfrom(1 << 16)
            assert (data == part, who[:2]) == (True, place)


def talk(
    client: Namespace,
    kind: str,
    listener: socket.socket,
    place: tuple[str, int],
    *,
    source: str | None = None,
) -> tuple[str, int]:
    """`stream` or `datagrams`, with little bulk."""
    if kind == "tcp":
        return stream(client, listener, place, source=source, size=1 << 18)
    return datagrams(client, listener, place, source=source, bulk=1 << 16)


def refusal(
    client: Namespace, kind: str, family: int, place: tuple[str, int], patience: float = 30, source: str = ""
) -> str:
    """How an attempt ends: `refused`, `silence`, `unreachable`, or `open`. `source`: the client's address."""
    with client.socket(kind, family) as one:
        one.settimeout(patience)
        if source:
            one.bind((source, 0))
        try:
            one.connect(place)
            if kind == "udp":
                one.send(b"?")
                one.recv(16)
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silence"
        except OSError as error:
            return f"unreachable: {error}"
        if kind == "tcp":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return "open"
