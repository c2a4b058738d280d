"""What `describe` says of real sockets, and what it refuses, each by name."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from svcctl.host import socket_info
from svcctl.host.socket_info import NotASocket, WrongSocket, describe
from tests.lib.child import needs_root
from tests.lib.world import World, world

V4 = socket.AF_INET
V6 = socket.AF_INET6
MAPPED = bytes(10) + b"\xff\xff"


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        yield one


def _make(
    family: int, kind: int, address: str | None, *options: tuple[int, int, int], protocol: int = 0
) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    for option in options:
        one.setsockopt(*option)
    if address is not None:
        one.bind((address, 0))
        if kind == socket.SOCK_STREAM:
            one.listen()
    return one


DUAL = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
ONLY = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
REUSEPORT = (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize(
    ("family", "address", "option", "serves"),
    [
        (V4, "127.0.0.1", REUSEPORT, (4,)),
        (V4, "0.0.0.0", REUSEPORT, (4,)),
        (V6, "::1", ONLY, (6,)),
        (V6, "::1", DUAL, (6,)),
        (V6, "::", ONLY, (6,)),
        (V6, "::", DUAL, (4, 6)),
        (V6, "::ffff:127.0.0.1", DUAL, (4,)),
        (V6, "::ffff:0.0.0.0", DUAL, (4,)),
    ],
)
def test_accepted(
    w: World, kind: int, family: int, address: str, option: tuple[int, int, int], serves: tuple[int, ...]
) -> None:
    with _make(family, kind, address, option) as one:
        flags = fcntl.fcntl(one, fcntl.F_GETFL)
        info = describe(one.fileno())
        assert fcntl.fcntl(one, fcntl.F_GETFL) == flags
        assert info.family == (4 if family == V4 else 6)
        assert info.protocol == (6 if kind == socket.SOCK_STREAM else 17)
        assert info.listening == (kind == socket.SOCK_STREAM)
        assert not info.connected
        raw = socket.inet_pton(family, address)
        assert info.address == (MAPPED + raw if family == V4 else raw)
        assert info.port == one.getsockname()[1]
        # The kernel sets it itself on a socket bound to an IPv6 address.
        assert info.v6only == (option == ONLY or address == "::1")
        assert info.reuseport == (option == REUSEPORT)
        assert info.cookie == int.from_bytes(one.getsockopt(socket.SOL_SOCKET, 57, 8), "little")
        assert info.inode == os.fstat(one.fileno()).st_ino
        assert info.netns_inode == w.netns_inode
        assert info.netns_cookie is None or info.netns_cookie > 0
        assert info.serves() == serves


@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK])
def test_file_status_flags_stay(flags: int) -> None:
    with _make(V4, socket.SOCK_STREAM, "127.0.0.1") as one:
        fcntl.fcntl(one, fcntl.F_SETFL, flags)
        before = fcntl.fcntl(one, fcntl.F_GETFL)
        describe(one.fileno())
        assert fcntl.fcntl(one, fcntl.F_GETFL) == before


@pytest.mark.parametrize(
    ("make", "number", "told"),
    [
        (lambda: socket.socket(socket.AF_UNIX), errno.EAFNOSUPPORT, "a unix socket"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), errno.EAFNOSUPPORT, "a unix socket"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), errno.EAFNOSUPPORT, "a unix socket"),
        (
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
            errno.EAFNOSUPPORT,
            "a netlink socket",
        ),
        (lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), errno.EAFNOSUPPORT, "a packet socket"),
        (lambda: socket.socket(V4, socket.SOCK_RAW, 1), errno.ESOCKTNOSUPPORT, "a raw socket"),
        (lambda: socket.socket(V4, socket.SOCK_STREAM, 262), errno.EPROTONOSUPPORT, "an MPTCP socket"),
        (lambda: socket.socket(V4, socket.SOCK_DGRAM, 136), errno.EPROTONOSUPPORT, "a UDP-Lite socket"),
        (lambda: socket.socket(V4, socket.SOCK_DGRAM, 1), errno.EPROTONOSUPPORT, "an ICMP socket"),
        (lambda: socket.socket(V4, socket.SOCK_STREAM, 132), errno.EPROTONOSUPPORT, "an SCTP socket"),
        (lambda: socket.socket(V4), errno.EBADFD, "a TCP socket that is not listening"),
        (lambda: socket.socket(V4, socket.SOCK_DGRAM), errno.EBADFD, "not bound to a port"),
    ],
)
def test_refused(w: World, make: Callable[[], socket.socket], number: int, told: str) -> None:
    w.sh("sysctl -qw net.ipv4.ping_group_range='0 2147483647'")
    try:
        one = make()
    except OSError as error:
        pytest.skip(f"this kernel has none: {error}")
    with one, pytest.raises(WrongSocket) as caught:
        describe(one.fileno())
    assert told in caught.value.reason
    assert caught.value.errno == number


def test_connected() -> None:
    for family, address in ((V4, "127.0.0.1"), (V6, "::1")):
        with _make(family, socket.SOCK_STREAM, address) as server, socket.socket(family) as client:
            client.connect(server.getsockname())
            accepted, _ = server.accept()
            with accepted, pytest.raises(WrongSocket, match="TCP socket that is connected"):
                describe(accepted.fileno())
            info = describe(client.fileno(), any_state=True)
            assert info.connected
            assert not info.listening
            assert describe(server.fileno()).listening
        with _make(family, socket.SOCK_DGRAM, address) as one:
            one.connect((address, 9))
            with pytest.raises(WrongSocket, match="UDP socket that is connected") as caught:
                describe(one.fileno())
            assert caught.value.port == one.getsockname()[1]
            assert caught.value.errno == errno.EBADFD


def test_shut_down_listener() -> None:
    with _make(V4, socket.SOCK_STREAM, "127.0.0.1") as one:
        one.shutdown(socket.SHUT_RDWR)
        with pytest.raises(WrongSocket, match="not listening"):
            describe(one.fileno())
        one.listen()
        assert describe(one.fileno()).listening


def test_not_a_socket(tmp_path: object) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(NotASocket, match="not a socket") as caught:
        describe(fd)
    assert caught.value.errno == errno.ENOTSOCK
    os.close(fd)
    for number in (fd, 100000, -1):
        with pytest.raises(NotASocket, match="not open") as caught:
            describe(number)
        assert caught.value.errno == errno.EBADF


def test_path_descriptor_of_a_socket() -> None:
    with _make(V4, socket.SOCK_STREAM, "127.0.0.1") as one:
        fd = os.open(f"/proc/self/fd/{one.fileno()}", os.O_PATH)
        with pytest.raises(NotASocket, match="O_PATH"):
            describe(fd)
        os.close(fd)


def test_of_another_namespace(w: World) -> None:
    """A socket stays where it was made, whoever has it."""
    here = w.netns_inode
    with _make(V4, socket.SOCK_STREAM, "127.0.0.1") as one, world() as other:
        assert other.netns_inode != here
        info = describe(one.fileno())
        assert info.netns_inode == here
        with _make(V4, socket.SOCK_DGRAM, "127.0.0.1") as two:
            there = describe(two.fileno())
        assert there.netns_inode == other.netns_inode
        assert info.netns_cookie is None or info.netns_cookie != there.netns_cookie


def test_without_net_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_info, "_SIOCGSKNS", 0x89FF)
    with _make(V4, socket.SOCK_STREAM, "127.0.0.1") as one:
        assert describe(one.fileno()).netns_inode is None
