"""The kernel's list of sockets, compared with what the sockets say of themselves."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from svcctl.host import sock_diag
from svcctl.host.netns import Netns
from svcctl.host.socket_info import describe
from tests.lib.child import child, needs_root
from tests.lib.world import World, world

OTHER = f"svcctl-diag-{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        one.sh(f"ip netns add {OTHER}; ip -n {OTHER} link set lo up")
        try:
            yield one
        finally:
            one.sh(f"ip netns del {OTHER}")


CASES = [
    (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", None),
    (socket.AF_INET, socket.SOCK_STREAM, "0.0.0.0", None),
    (socket.AF_INET6, socket.SOCK_STREAM, "::1", None),
    (socket.AF_INET6, socket.SOCK_STREAM, "::", 0),
    (socket.AF_INET6, socket.SOCK_STREAM, "::", 1),
    (socket.AF_INET6, socket.SOCK_STREAM, "::ffff:127.0.0.1", 0),
    (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1", None),
    (socket.AF_INET6, socket.SOCK_DGRAM, "::", 0),
    (socket.AF_INET6, socket.SOCK_DGRAM, "::", 1),
]


@pytest.mark.parametrize(("family", "kind", "address", "v6only"), CASES)
def test_agrees_with_the_socket(family: int, kind: int, address: str, v6only: int | None) -> None:
    with socket.socket(family, kind) as one:
        if v6only is not None:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        one.bind((address, 0))
        if kind == socket.SOCK_STREAM:
            assert sock_diag.listeners(6, one.getsockname()[1]) == []
            one.listen()
        info = describe(one.fileno())
        (found,) = sock_diag.listeners(info.protocol, info.port)
        assert found.inode == info.inode
        assert found.cookie == info.cookie
        assert (found.family, found.protocol, found.port) == (info.family, info.protocol, info.port)
        assert found.address == socket.inet_pton(family, address)
        assert found.v6only == (None if family == socket.AF_INET else info.v6only)
        assert found.uid == os.geteuid()
        assert found.ifindex == 0
        assert found in sock_diag.listeners(info.protocol)
        assert sock_diag.listeners(info.protocol, info.port ^ 1) == []


def test_connected_ones_are_another_state() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            (only,) = sock_diag.listeners(6, port)
            assert only.state == sock_diag.LISTEN
            (there,) = sock_diag.dump(4, 6, 1 << sock_diag.ESTABLISHED, port)
            assert there.inode == os.fstat(accepted.fileno()).st_ino
            accepted.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.connect(("127.0.0.1", 9))
        assert sock_diag.listeners(17, one.getsockname()[1]) == []


def test_bound_to_a_device() -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        one.bind(("0.0.0.0", 0))
        one.listen()
        (found,) = sock_diag.listeners(6, one.getsockname()[1])
        assert found.ifindex == socket.if_nametoindex("lo")


def test_many() -> None:
    """More than fits into one answer of the kernel."""
    many = [socket.create_server(("127.0.0.1", 0)) for _ in range(900)]
    try:
        found = {entry.inode for entry in sock_diag.listeners(6)}
        assert found == {os.fstat(one.fileno()).st_ino for one in many}
    finally:
        for one in many:
            one.close()


def test_of_another_namespace() -> None:
    code = "keep.append(socket.create_server(('127.0.0.1', 4444)))"
    with child(code, prefix=("ip", "netns", "exec", OTHER)), Netns.open(f"/run/netns/{OTHER}") as other:
        assert sock_diag.listeners(6, 4444) == []
        (found,) = sock_diag.listeners(6, 4444, netns=other)
        assert found.address == bytes([127, 0, 0, 1])


def test_error_of_the_kernel_is_raised() -> None:
    with pytest.raises(OSError, match="sock_diag") as caught:
        sock_diag.dump(4, 200, 1 << sock_diag.LISTEN)
    assert caught.value.errno in (errno.ENOENT, errno.EINVAL)
