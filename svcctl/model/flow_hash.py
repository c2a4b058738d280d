"""From a flow to a slot of a Maglev table, as the programs do it (bpf/include/svc_maglev.h)."""

from __future__ import annotations

FACTOR = 0x9E3779B97F4A7C15
"""An odd number with its bits well spread: 2^64 over the golden ratio."""

_MASK = (1 << 64) - 1


def flow_hash(client: bytes, frontend: bytes, client_port: int, frontend_port: int, protocol: int) -> int:
    """64 bits of two addresses of 16 bytes, two ports and an IP protocol number."""
    value = 0
    for address in (client, frontend):
        for start in (0, 8):
            value = _word(value, int.from_bytes(address[start : start + 8], "big"))
    return _end(_word(value, client_port << 32 | frontend_port << 16 | protocol))


def cookie_hash(cookie: int) -> int:
    """64 bits of a socket's cookie: what the connect balancer goes by."""
    return _end(_word(0, cookie))


def slot_of(value: int, size: int) -> int:
    """The slot of a hash in a table of `size`."""
    return (value >> 32) * size >> 32


def _word(value: int, word: int) -> int:
    value = (value ^ word) * FACTOR & _MASK
    return value ^ value >> 32


def _end(value: int) -> int:
    value = value * FACTOR & _MASK
    value ^= value >> 29
    return value * FACTOR & _MASK
