"""Addresses and prefixes: text to the 16 bytes that the maps hold, and back.

IPv4 is stored v4-mapped (::ffff:a.b.c.d) with the family beside it, so that both families share one key
and `::/0` still never matches IPv4. Text in the v4-mapped form is refused: it could mean either family.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from svcctl.model.bad_value import BadValue, show
from svcctl.model.constants import IPV4, IPV6
from svcctl.record import Record

MAPPED = bytes(10) + b"\xff\xff"
"""The first 12 bytes of every IPv4 address in a map."""

# Looking the text up refuses signs, spaces, leading zeros and digits of other scripts in one step.
_LENGTHS = {str(length): length for length in range(129)}


class Prefix(Record):
    """A masked prefix. `address` is 16 bytes, network order, IPv4 v4-mapped; `length` is 0..32 or 0..128."""

    family: int
    address: bytes
    length: int

    def __str__(self) -> str:
        """As `format_prefix`."""
        return format_prefix(self.family, self.address, self.length)

    @property
    def is_host(self) -> bool:
        """Whether it holds exactly one address."""
        return self.length == (32 if self.family == IPV4 else 128)


def parse_prefix(text: str) -> Prefix:
    """`192.0.2.0/24`, `2001:db8::/32`, or a bare address, which means that host. Host bits are cleared.

    Raises UsageProblem for anything else: zones, the v4-mapped form, leading zeros, short forms such as
    127.1, spaces, an empty mask.
    """
    return Prefix(*split_prefix(text))


def split_prefix(text: str) -> tuple[int, bytes, int]:
    """`parse_prefix` for readers of a million of them: the same three values as a plain tuple."""
    host, slash, mask = text.partition("/")
    if ":" not in host:
        try:
            packed = inet_pton(AF_INET, host)
        except (OSError, ValueError):
            raise _bad_prefix(text) from None
        length = _LENGTHS.get(mask, 999) if slash else 32
        if length >= 32:
            if length > 32:
                raise _bad_prefix(text)
            return IPV4, MAPPED + packed, 32
        gone = 32 - length
        return IPV4, MAPPED + (int.from_bytes(packed, "big") >> gone << gone).to_bytes(4, "big"), length
    try:
        packed = inet_pton(AF_INET6, host)
    except (OSError, ValueError):
        raise _bad_prefix(text) from None
    length = _LENGTHS.get(mask, 999) if slash else 128
    if length > 128 or packed[:12] == MAPPED:
        raise _bad_prefix(text)
    gone = 128 - length
    if not gone:
        return IPV6, packed, 128
    return IPV6, (int.from_bytes(packed, "big") >> gone << gone).to_bytes(16, "big"), length


def parse_address(text: str) -> tuple[int, bytes]:
    """One address without a mask: (family, 16 bytes). Raises UsageProblem."""
    if "/" in text:
        raise BadValue("address", text, "expected one address, without a mask")
    try:
        family, address, _ = split_prefix(text)
    except BadValue as problem:
        raise BadValue("address", text, problem.cause, hint=problem.hint) from None
    return family, address


def mask_address(address: bytes, bits: int) -> bytes:
    """Clears all but the first `bits` (0..128) of 16 bytes."""
    gone = 128 - bits
    return (int.from_bytes(address, "big") >> gone << gone).to_bytes(16, "big")


def format_address(family: int, address: bytes) -> str:
    """The shortest usual text of 16 bytes: `127.0.0.1` or `2001:db8::1`."""
    if family == IPV4:
        return inet_ntop(AF_INET, address[12:])
    return inet_ntop(AF_INET6, address)


def format_host_port(family: int, address: bytes, port: int) -> str:
    """`127.0.0.1:80`, `[::1]:80`"""
    host = format_address(family, address)
    return f"{host}:{port}" if family == IPV4 else f"[{host}]:{port}"


def format_prefix(family: int, address: bytes, length: int) -> str:
    """Text that `parse_prefix` reads back; hosts carry their /32 or /128 too."""
    return f"{format_address(family, address)}/{length}"


def is_zero_host(family: int, address: bytes, length: int) -> bool:
    """Whether it is 0.0.0.0/32 or ::/128.

    That is what a zero address without a mask means, and it is nearly never what was wanted (/0 is "any"):
    no connection arrives there. Commands warn.
    """
    if family == IPV4:
        return length == 32 and address[12:] == bytes(4)
    return length == 128 and address == bytes(16)


def covers(prefix: tuple[int, bytes, int], family: int, address: bytes) -> bool:
    """Whether the address, 16 bytes of that family, is inside the prefix (family, address, length)."""
    if prefix[0] != family:
        return False
    bits = prefix[2] + 96 if family == IPV4 else prefix[2]
    return mask_address(address, bits) == prefix[1]


def overlaps(one: tuple[int, bytes, int], other: tuple[int, bytes, int]) -> bool:
    """Whether one of the two prefixes contains the other."""
    if one[2] > other[2]:
        one, other = other, one
    return covers(one, other[0], other[1])


def _bad_prefix(text: str) -> BadValue:
    """Why `split_prefix` refused the text. Only reached with such a text, so it can take its time."""
    host, slash, mask = text.partition("/")
    if not text:
        return BadValue("prefix", text, "an address or prefix cannot be empty")
    if "%" in host:
        hint = "bindings are not tied to an interface: leave out the zone"
        return BadValue("prefix", text, "has a zone", hint=hint)
    family = AF_INET6 if ":" in host else AF_INET
    name, longest = ("an IPv6", 128) if ":" in host else ("an IPv4", 32)
    try:
        packed = inet_pton(family, host)
    except (OSError, ValueError):
        cause = f"{show(host)} is not {name} address" if slash else f"not {name} address"
        return BadValue("prefix", text, cause, hint=_address_hint(host))
    if slash and _LENGTHS.get(mask, 999) > longest:
        return BadValue("prefix", text, f"expected a mask length of 0-{longest} after the slash")
    length = _LENGTHS[mask] if slash else longest
    address = inet_ntop(AF_INET, packed[12:])
    hint = f"write {address}/{length - 96}" if 96 <= length < 128 else f"write {address}"
    return BadValue("prefix", text, "is an IPv4 address written as IPv6 (v4-mapped)", hint=hint)


def _address_hint(host: str) -> str | None:
    parts = host.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts):
        if any(len(part) > 1 and part[0] == "0" for part in parts):
            return "leave out leading zeros: some programs read them as octal"
    elif ":" not in host and 1 < len(parts) < 4 and all(part.isascii() and part.isdigit() for part in parts):
        return "write all four numbers"
    if host != host.strip():
        return "remove the space"
    return None
