"""What the routing table says of an address: rtnetlink(7), one question."""

from __future__ import annotations

import os
import struct
import sys
from _socket import AF_INET, AF_INET6, AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

_NETLINK_ROUTE = 0
_NLMSG_ERROR = 2
_RTM_NEWROUTE = 24
_RTM_GETROUTE = 26
_NLM_F_REQUEST = 1
_RTA_DST = 1
_RTA_OIF = 4
_RTN_LOCAL = 2

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ROUTE = struct.Struct("=8BI")  # struct rtmsg: family, lengths, tos, table, protocol, scope, type; flags
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_AT = _HEADER.size + 7


class Routes:
    """One socket for many questions about the routes of a namespace."""

    def __init__(self, netns: Netns | None = None) -> None:
        self._kernel = _connect(netns)

    def interface_to(self, family: int, address: bytes) -> int:
        """As `interface_to` below."""
        return _interface(_answer(self._kernel, family, address))

    def close(self) -> None:
        """Close the socket."""
        self._kernel.close()


def is_local(family: int, address: bytes, *, netns: Netns | None = None) -> bool:
    """Whether packets to an address (family 4 or 6, 4 or 16 bytes) are for this host.

    That is what local delivery asks: addresses of interfaces and `ip route add local ...` alike. Of the given
    namespace, else the calling thread's. Raises OSError when the kernel does not answer.
    """
    answer = _ask(family, address, netns)
    return answer is not None and answer[_TYPE_AT] == _RTN_LOCAL


def interface_to(family: int, address: bytes, *, netns: Netns | None = None) -> int:
    """Index of the interface that packets to an address leave by, 0 without a route. As `is_local`."""
    return _interface(_ask(family, address, netns))


def _interface(answer: bytes | None) -> int:
    at = _HEADER.size + _ROUTE.size
    while answer is not None and at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _RTA_OIF:
            return int.from_bytes(answer[at + _ATTRIBUTE.size : at + length], sys.byteorder)
        at += max(length + 3 & ~3, _ATTRIBUTE.size)
    return 0


def _ask(family: int, address: bytes, netns: Netns | None) -> bytes | None:
    kernel = _connect(netns)
    try:
        return _answer(kernel, family, address)
    finally:
        kernel.close()


def _answer(kernel: socket, family: int, address: bytes) -> bytes | None:
    """The answer, None without a route."""
    body = _ROUTE.pack(AF_INET if family == 4 else AF_INET6, 8 * len(address), 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address), _RTA_DST) + address
    request = _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body
    kernel.send(request)
    answer = kernel.recv(1 << 14)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        code = -int.from_bytes(answer[_HEADER.size : _HEADER.size + 4], sys.byteorder, signed=True)
        if code in _NO_ROUTE:
            return None
        raise OSError(code, os.strerror(code), "rtnetlink")
    return answer if kind == _RTM_NEWROUTE else None


_NO_ROUTE = (13, 22, 101, 113)
"""EACCES (prohibit), EINVAL (blackhole), ENETUNREACH (no route, or throw), EHOSTUNREACH (unreachable)."""


def _connect(netns: Netns | None) -> socket:
    # A netlink socket stays with the namespace it was made in.
    if netns is None:
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
    with netns.entered():
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
