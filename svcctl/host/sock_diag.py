"""Sockets of a network namespace as the kernel lists them: sock_diag(7) by raw netlink, 0.1 ms a question."""

from __future__ import annotations

import os
import struct
import sys
from _socket import AF_INET, AF_INET6, AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, socket
from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

# States of <net/tcp_states.h>; UDP uses two of them.
ESTABLISHED = 1
CLOSE = 7
LISTEN = 10

_TCP = 6
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLM_F_REQUEST_DUMP = 0x301
_NLM_F_DUMP_INTR = 0x10
_INET_DIAG_SKV6ONLY = 11
_RETRIES = 2
MAPPED = bytes(10) + b"\xff\xff"

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBxI2s46x")  # struct inet_diag_req_v2; the id is empty but for the source port
_ANSWER = struct.Struct("=BBxx2s2x16s16xIQ12xII")  # struct inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")


class DiagSocket(Record):
    """A socket as the kernel lists it.

    `family` is 4 or 6; `address` has 4 or 16 bytes in network order (an IPv6 socket bound to an IPv4 address:
    16, v4-mapped). `inode` is 0 when no process has it open. `v6only` is None for IPv4. `ifindex` is the
    device it is bound to, else 0.
    """

    family: int
    protocol: int
    address: bytes
    port: int
    state: int
    inode: int
    cookie: int
    uid: int
    v6only: bool | None
    ifindex: int

    @property
    def mapped_address(self) -> bytes:
        """`address` as the maps and svcctl.model have it: 16 bytes, IPv4 v4-mapped."""
        return self.address if len(self.address) == 16 else MAPPED + self.address


def dump(
    family: int, protocol: int, states: int, port: int | None = None, *, netns: Netns | None = None
) -> list[DiagSocket]:
    """All sockets of a family (4 or 6), protocol (6 or 17), states (bits: `1 << LISTEN`), local port.

    Of the given namespace, else the calling thread's. Needs no capability, but for entering a namespace.
    Raises OSError when the kernel cannot answer: ENOENT without the tcp_diag or udp_diag module.
    """
    diag_family = AF_INET if family == 4 else AF_INET6
    request = _REQUEST.pack(diag_family, protocol, 0, states, (port or 0).to_bytes(2, "big"))
    kernel = connect(netns)
    try:
        found, complete = _ask(kernel, request, protocol)
        for _ in range(_RETRIES):
            if complete:
                break
            found, complete = _ask(kernel, request, protocol)
        return found
    finally:
        kernel.close()


def listeners(protocol: int, port: int | None = None, *, netns: Netns | None = None) -> list[DiagSocket]:
    """Sockets of both families that take what comes: listening TCP, unconnected UDP (clients' among them)."""
    states = 1 << (LISTEN if protocol == _TCP else CLOSE)
    return dump(4, protocol, states, port, netns=netns) + dump(6, protocol, states, port, netns=netns)


def connect(netns: Netns | None) -> socket:
    """A sock_diag socket of the given namespace, else of the calling thread's.

    It stays with the namespace it was made in: the visit is over when the question is asked.
    """
    if netns is None:
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    with netns.entered():
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)


def _ask(kernel: socket, request: bytes, protocol: int) -> tuple[list[DiagSocket], bool]:
    """One dump; False beside it when the kernel says that its tables changed meanwhile."""
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    kernel.send(header + request)
    found: list[DiagSocket] = []
    complete = True
    while True:
        data = kernel.recv(1 << 16)
        start = 0
        while start + _HEADER.size <= len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, start)
            complete = complete and not flags & _NLM_F_DUMP_INTR
            body = data[start + _HEADER.size : start + length]
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                code = -int.from_bytes(body[:4], sys.byteorder, signed=True) if len(body) >= 4 else 0
                if code > 0:
                    raise OSError(code, os.strerror(code), "sock_diag")
                return found, complete
            if kind == _SOCK_DIAG_BY_FAMILY and len(body) >= _ANSWER.size:
                found.append(_decode(body, protocol))
            start += (length + 3) & ~3 if length else len(data)


def _decode(body: bytes, protocol: int) -> DiagSocket:
    diag_family, state, port, address, ifindex, cookie, uid, inode = _ANSWER.unpack_from(body)
    ipv4 = diag_family == AF_INET
    return DiagSocket(
        family=4 if ipv4 else 6,
        protocol=protocol,
        address=address[:4] if ipv4 else address,
        port=int.from_bytes(port, "big"),
        state=state,
        inode=inode,
        cookie=cookie,
        uid=uid,
        v6only=None if ipv4 else _v6only(body),
        ifindex=ifindex,
    )


def _v6only(body: bytes) -> bool:
    start = _ANSWER.size
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if kind == _INET_DIAG_SKV6ONLY:
            return body[start + _ATTRIBUTE.size] != 0
        if length < _ATTRIBUTE.size:
            break
        start += (length + 3) & ~3
    return False
