"""Lists from rtnetlink(7) by raw netlink: what a dump takes and gives, for the modules that ask for one kind each."""

from __future__ import annotations

import os
import struct
import sys
from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.host.netns import Netns

_NETLINK_ROUTE = 0
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_NLM_F_DUMP_INTR = 0x10
_RETRIES = 3

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


def dump(netns: Netns, kind: int, body: bytes, answer: int) -> list[bytes]:
    """Payloads of all messages of type `answer` to the request `kind` with `body`, in a namespace.

    A list that changed while the kernel gave it is asked for again, a few times. Raises OSError.
    """
    with netns.entered():
        kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
    try:
        found: list[bytes] = []
        for sequence in range(1, _RETRIES + 1):
            kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST_DUMP, sequence, 0) + body)
            found, whole = _answers(kernel, answer)
            if whole:
                break
        return found
    finally:
        kernel.close()


def _answers(kernel: socket, answer: int) -> tuple[list[bytes], bool]:
    found: list[bytes] = []
    whole = True
    while True:
        data = kernel.recv(1 << 16)
        start = 0
        while start + _HEADER.size <= len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, start)
            body = data[start + _HEADER.size : start + length]
            whole = whole and not flags & _NLM_F_DUMP_INTR
            if kind == _NLMSG_DONE:
                return found, whole
            if kind == _NLMSG_ERROR:
                code = -int.from_bytes(body[:4], sys.byteorder, signed=True)
                if code > 0:
                    raise OSError(code, os.strerror(code), "rtnetlink")
                return found, whole
            if kind == answer:
                found.append(body)
            start += (length + 3) & ~3 if length else len(data)


def attributes(body: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type, content) of each attribute from `start` on. A torn one ends the list."""
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, body[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
