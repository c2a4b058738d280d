"""Asking the loaded dispatcher directly: BPF_PROG_TEST_RUN with a struct bpf_sk_lookup as context."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from svcctl.bpf.program import Program
from svcctl.model.constants import IPV4

# cookie, family, protocol, remote_ip4, remote_ip6, remote_port (network order) and padding, local_ip4,
# local_ip6, local_port (host order), ingress_ifindex. Older kernels end before the last one and take zeros there.
_CONTEXT = Struct("=Q2I4s16s2sH4s16s2I4x")
_AF_INET, _AF_INET6 = 2, 10
SK_DROP, SK_PASS = 0, 1


class Answer(NamedTuple):
    """The program's verdict (SK_PASS, SK_DROP) and the cookie of the socket it chose, 0 for none."""

    verdict: int
    cookie: int


PASSED = Answer(SK_PASS, 0)
DROPPED = Answer(SK_DROP, 0)


def look_up(program: Program, protocol: int, family: int, address: bytes, port: int) -> Answer:
    """What the program does with a connection to `address` (16 bytes, IPv4 v4-mapped) and `port`.

    The kernel answers EOPNOTSUPP when the chosen socket is in a SO_REUSEPORT group.
    """
    done = program.test_run(context(protocol, family, address, port), ctx_size_out=_CONTEXT.size)
    return Answer(done.retval, int.from_bytes(done.ctx[:8], "little" if _little() else "big"))


def context(protocol: int, family: int, address: bytes, port: int) -> bytes:
    """The struct bpf_sk_lookup of a connection from the loopback address to `address` and `port`."""
    ipv4 = family == IPV4
    return _CONTEXT.pack(
        0,
        _AF_INET if ipv4 else _AF_INET6,
        protocol,
        b"\x7f\x00\x00\x01" if ipv4 else bytes(4),
        bytes(16) if ipv4 else bytes(15) + b"\x01",
        b"\xd0\x00",
        0,
        address[12:] if ipv4 else bytes(4),
        bytes(16) if ipv4 else address,
        port,
        0,
    )


def _little() -> bool:
    from sys import byteorder

    return byteorder == "little"
