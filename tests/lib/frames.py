"""Frames for BPF_PROG_TEST_RUN: built by scapy, and their checksums summed up here, by code that knows no program's tricks."""

from __future__ import annotations

import struct
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

__all__ = [
    "ICMP", "IP", "TCP", "UDP", "Dot1Q", "Ether", "ICMPv6DestUnreach", "ICMPv6EchoReply", "ICMPv6EchoRequest",
    "ICMPv6PacketTooBig", "IPOption_NOP",
    "IPv6", "IPv6ExtHdrHopByHop", "Packet", "Raw", "addresses", "check", "ether", "flow", "mapped", "read",
]  # fmt: skip

CLIENT_MAC, HOST_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"


def ether(*layers: Packet) -> bytes:
    """A frame from a workload to its gateway."""
    frame: Packet = Ether(src=CLIENT_MAC, dst=HOST_MAC)
    for layer in layers:
        frame = frame / layer
    return bytes(frame)


def flow(
    kind: str, source: str, sport: int, destination: str, dport: int, payload: bytes = b"", **fields: Any
) -> bytes:
    """A TCP (flags=, seq=, ack=) or UDP frame; `ttl=` and `options=` are of the IP header."""
    ttl, options = fields.pop("ttl", 64), fields.pop("options", [])
    if ":" in source:
        ip: Packet = IPv6(src=source, dst=destination, hlim=ttl)
    else:
        ip = IP(src=source, dst=destination, ttl=ttl, options=options)
    layer = TCP if kind == "tcp" else UDP
    return ether(ip, layer(sport=sport, dport=dport, **fields), Raw(payload))


def read(frame: bytes) -> Packet:
    """A frame, dissected."""
    return Ether(frame)


def addresses(frame: bytes) -> tuple[str, str]:
    """Source and destination of the IP header."""
    if frame[12:14] == b"\x08\0":
        return inet_ntop(AF_INET, frame[26:30]), inet_ntop(AF_INET, frame[30:34])
    return inet_ntop(AF_INET6, frame[22:38]), inet_ntop(AF_INET6, frame[38:54])


def _sum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def check(frame: bytes) -> None:
    """Assert that every checksum of a frame is right, those of a packet quoted whole in an ICMP error included."""
    kind = struct.unpack_from("!H", frame, 12)[0]
    if kind == 0x0800:
        _check4(frame[14:])
    elif kind == 0x86DD:
        _check6(frame[14:])


def _check4(ip: bytes) -> None:
    header = (ip[0] & 0xF) * 4
    assert _sum(ip[:header]) == 0xFFFF, "IPv4 header"
    length, fragment = struct.unpack_from("!H2xH", ip, 2)
    if fragment & 0x3FFF == 0:
        _check_rest(ip[9], ip[12:20], ip[header:length])


def _check6(ip: bytes) -> None:
    length = struct.unpack_from("!H", ip, 4)[0]
    _check_rest(ip[6], ip[8:40], ip[40 : 40 + length])


def _check_rest(protocol: int, addresses: bytes, rest: bytes) -> None:
    pseudo = addresses + struct.pack("!II", len(rest), protocol)
    if protocol == 6 and len(rest) >= 20:
        assert _sum(pseudo + rest) == 0xFFFF, "TCP"
    elif protocol == 17 and len(rest) >= 8 and (rest[6:8] != b"\0\0" or len(addresses) == 32):
        assert _sum(pseudo + rest) == 0xFFFF, "UDP"
    elif protocol == 1:
        assert _sum(rest) == 0xFFFF, "ICMP"
        if rest[0] in (3, 4, 11, 12) and len(rest) >= 28:
            quoted = rest[8:]
            assert _sum(quoted[: (quoted[0] & 0xF) * 4]) == 0xFFFF, "quoted IPv4 header"
            if struct.unpack_from("!H", quoted, 2)[0] == len(quoted):
                _check4(quoted)
    elif protocol == 58:
        assert _sum(pseudo + rest) == 0xFFFF, "ICMPv6"
        if 1 <= rest[0] <= 4 and len(rest) >= 48 and struct.unpack_from("!H", rest, 12)[0] == len(rest) - 48:
            _check6(rest[8:])


def mapped(address: str) -> bytes:
    """16 bytes as keys have them."""
    if ":" in address:
        return inet_pton(AF_INET6, address)
    return bytes(10) + b"\xff\xff" + inet_pton(AF_INET, address)
