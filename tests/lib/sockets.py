"""Sockets registered under labels by writing the maps as `register` does, for tests of what reads them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from svcctl.maps.layouts import U32, U64
from svcctl.model.destination import Destination, DestinationKey
from svcctl.state import destinations
from svcctl.state.place import Place
from svcctl.state.writer import Writer, lock_state

if TYPE_CHECKING:
    from svcctl.state.session import State

SO_COOKIE = 57


@contextlib.contextmanager
def writer() -> Iterator[Writer]:
    """The state of this namespace, locked, whatever is wrong with it."""
    with lock_state(Place(), "test", any_mode=True) as opened:
        yield opened


def put_socket(state: Writer, one: Destination, slot: int, sock: socket.socket, *, note: bool = True) -> None:
    """Put a socket into a slot of a destination."""
    state.map("sockets").update(U32.pack(one.id * 16 + slot), U64.pack(sock.fileno()))
    if note:
        now = destinations.find(state, one.key) or one
        destinations.put(state, now._replace(slots=now.slots | 1 << slot))


def register(label: str, family: int, protocol: int, *socks: socket.socket) -> None:
    """Put sockets into the first slots of an existing destination."""
    with writer() as state:
        one = find(state, label, family, protocol)
        for slot, sock in enumerate(socks):
            put_socket(state, one, slot, sock)


def find(state: State, label: str, family: int = 4, protocol: int = 6) -> Destination:
    """A destination that must be there."""
    one = destinations.find(state, DestinationKey(label, family, protocol))
    assert one is not None
    return one


def cookie(sock: socket.socket) -> int:
    """The kernel's number for a socket."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")


def tcp(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A listening TCP socket."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def udp(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A bound UDP socket."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, port))
    return sock
