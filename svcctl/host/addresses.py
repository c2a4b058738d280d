"""The addresses of a network namespace: RTM_GETADDR by raw netlink."""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING

from svcctl.host.rtnetlink import attributes, dump

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_MAPPED = bytes(10) + b"\xff\xff"

_IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface


def local_addresses(netns: Netns) -> list[bytes]:
    """Every address of the namespace's interfaces, 16 bytes each, IPv4 v4-mapped, sorted. Raises OSError."""
    answers = dump(netns, _RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0), _RTM_NEWADDR)
    return sorted({address for address in map(_address, answers) if address is not None})


def _address(body: bytes) -> bytes | None:
    """The interface's own address: IFA_LOCAL where there is one (on point-to-point links ADDRESS is the peer's)."""
    found = dict(attributes(body, _IFADDRMSG.size))
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if raw is None:
        return None
    if body[0] == AF_INET:
        return _MAPPED + raw
    return raw if body[0] == AF_INET6 else None
