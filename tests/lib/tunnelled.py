"""Tunnelled packets made by hand, sent by whoever a test likes, and the errors that a socket is told."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from socket import AF_INET, AF_INET6
from typing import NamedTuple

from svcctl.maps.packet_layouts import TUNNEL_PORT, TUNNEL_VNI
from tests.lib.frames import IP, TCP, UDP, IPv6, Raw
from tests.lib.pods import Namespace

SO_NO_CHECK, UDP_NO_CHECK6_TX = 11, 101
IP_MTU_DISCOVER, IP_RECVERR, IP_MTU, IP_TTL = 10, 11, 14, 2
IPV6_MTU_DISCOVER, IPV6_MTU, IPV6_RECVERR, IPV6_UNICAST_HOPS = 23, 24, 25, 16
PMTUDISC_DO = 2
MSG_ERRQUEUE = 0x2000
_ORIGIN_ICMP = {2: AF_INET, 3: AF_INET6}


def datagram(
    source: tuple[str, int], destination: tuple[str, int], payload: bytes = b"?", ttl: int = 64, tos: int = 0
) -> bytes:
    """A UDP packet, from its IP header on."""
    return _ip(source, destination, ttl, UDP(sport=source[1], dport=destination[1]), payload, tos)


def segment(source: tuple[str, int], destination: tuple[str, int], flags: str = "S", ttl: int = 64) -> bytes:
    """A TCP packet without payload, from its IP header on."""
    return _ip(source, destination, ttl, TCP(sport=source[1], dport=destination[1], flags=flags), b"")


def _ip(
    source: tuple[str, int],
    destination: tuple[str, int],
    ttl: int,
    layer: object,
    payload: bytes,
    tos: int = 0,
) -> bytes:
    if ":" in source[0]:
        return bytes(IPv6(src=source[0], dst=destination[0], hlim=ttl, tc=tos) / layer / Raw(payload))
    return bytes(IP(src=source[0], dst=destination[0], ttl=ttl, tos=tos) / layer / Raw(payload))


def wrapped(inner: bytes, vni: int = TUNNEL_VNI, kind: int | None = None, flags: int = 0x08) -> bytes:
    """What a tunnel puts before a packet, from the VXLAN header on; `kind`: another type than that of the packet."""
    if kind is None:
        kind = 0x86DD if inner and inner[0] >> 4 == 6 else 0x0800
    return struct.pack(">II12xH", flags << 24, vni << 8, kind) + inner


def send(
    where: Namespace,
    family: int,
    to: str,
    payload: bytes,
    *,
    checksum: bool = False,
    port: int = TUNNEL_PORT,
    source: str = "",
    tos: int = 0,
) -> None:
    """A datagram of a namespace's own, as a tunnel's outer packet: without a checksum unless said."""
    with where.socket("udp", family) as one:
        if tos and family == AF_INET:
            one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        elif tos:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        if not checksum and family == AF_INET:
            one.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        elif not checksum:
            one.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
        one.bind((source or where.own(family), 0))
        one.sendto(payload, (to, port))


class Told(NamedTuple):
    """An ICMP error: errno, type, code, the MTU it tells, who sent it, and where the packet went that it is about."""

    errno: int
    type: int
    code: int
    info: int
    offender: str
    destination: tuple[str, int]


def listen_to_errors(one: socket.socket, *, whole: bool = False) -> None:
    """Have ICMP errors queued; `whole`: nothing is to be cut in fragments."""
    if one.family == AF_INET:
        one.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        if whole:
            one.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
    else:
        one.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        if whole:
            one.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)


def receive_tos(one: socket.socket) -> tuple[bytes, int]:
    """A datagram and its TOS or traffic class, of a socket that `tell_tos` has seen."""
    data, ancillary, _, _ = one.recvmsg(2048, 64)
    ((_, _, value),) = ancillary
    return data, value[0]


def tell_tos(one: socket.socket) -> None:
    """Have a socket told the TOS or traffic class of what it receives from now on."""
    if one.family == AF_INET:
        one.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    else:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)


def path_mtu(one: socket.socket) -> int:
    """Of a connected socket, as its kernel knows it."""
    if one.family == AF_INET:
        return one.getsockopt(socket.IPPROTO_IP, IP_MTU)
    return one.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU)


def hops(one: socket.socket, count: int) -> None:
    """How many hops its packets may make."""
    if one.family == AF_INET:
        one.setsockopt(socket.IPPROTO_IP, IP_TTL, count)
    else:
        one.setsockopt(socket.IPPROTO_IPV6, IPV6_UNICAST_HOPS, count)


def told(one: socket.socket) -> Told | None:
    """The next error in a socket's queue that came as ICMP, if there is one."""
    patience = one.gettimeout()
    one.setblocking(False)
    try:
        while True:
            _, ancillary, _, where = one.recvmsg(2048, 512, MSG_ERRQUEUE)
            for _, _, data in ancillary:
                number, origin, kind, code, _, info, _ = struct.unpack_from("=IBBBBII", data)
                if origin in _ORIGIN_ICMP:
                    family = _ORIGIN_ICMP[origin]
                    start, size = (20, 4) if family == AF_INET else (24, 16)
                    offender = socket.inet_ntop(family, data[start : start + size])
                    return Told(number, kind, code, info, offender, (where[0], where[1]))
    except BlockingIOError:
        return None
    finally:
        one.settimeout(patience)


def await_error(one: socket.socket) -> Told:
    """The error that is to come."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            select.select([one], [], [], 0.2)
        if (error := told(one)) is not None:
            return error
    raise AssertionError("no ICMP error has come")
