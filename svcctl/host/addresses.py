"""The addresses of a network namespace: RTM_GETADDR by raw netlink, as sock_diag.py asks for sockets."""

from __future__ import annotations

import os
import struct
import sys
from _socket import AF_INET, AF_INET6, AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

_NETLINK_ROUTE = 0
_RTM_GETADDR = 22
_RTM_NEWADDR = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_MAPPED = bytes(10) + b"\xff\xff"

_HEADER = struct.Struct("=IHHII")
_IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")


def local_addresses(netns: Netns) -> list[bytes]:
    """Every address of the namespace's interfaces, 16 bytes each, IPv4 v4-mapped, sorted. Raises OSError."""
    with netns.entered():
        kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
    try:
        body = _IFADDRMSG.pack(0, 0, 0, 0, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETADDR, _REQUEST_DUMP, 1, 0) + body)
        return sorted(_answers(kernel))
    finally:
        kernel.close()


def _answers(kernel: socket) -> set[bytes]:
    found: set[bytes] = set()
    while True:
        data = kernel.recv(1 << 16)
        start = 0
        while start + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, start)
            body = data[start + _HEADER.size : start + length]
            if kind == _NLMSG_DONE:
                return found
            if kind == _NLMSG_ERROR:
                code = -int.from_bytes(body[:4], sys.byteorder, signed=True)
                if code > 0:
                    raise OSError(code, os.strerror(code), "list addresses")
                return found
            if kind == _RTM_NEWADDR:
                address = _address(body)
                if address is not None:
                    found.add(address)
            start += (length + 3) & ~3 if length else len(data)


def _address(body: bytes) -> bytes | None:
    """The interface's own address: IFA_LOCAL where there is one (on point-to-point links ADDRESS is the peer's)."""
    family = body[0]
    attributes: dict[int, bytes] = {}
    at = _IFADDRMSG.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if raw is None:
        return None
    if family == AF_INET:
        return _MAPPED + raw
    return raw if family == AF_INET6 else None
