"""Bindings: (protocol, prefix, port) -> label, their 24-byte key, their text and their order.

The key is the trie's: u32 prefix length in bits, u8 protocol, u8 family, u16 port, 16 bytes of address.
Length and port are in the host's byte order, the address in network order. Protocol, family and port are
fully matched in front of the address, which is why the length counts 32 bits more. The key of the hash of
full-length bindings is its last 20 bytes.
"""

from __future__ import annotations

from _struct import Struct
from sys import byteorder

from svcctl.model.bad_value import BadValue
from svcctl.model.constants import FAMILY_NUMBERS, IPV4, IPV6, PROTOCOL_NAMES, PROTOCOL_NUMBERS, TCP, UDP
from svcctl.model.label import check_label
from svcctl.model.prefix import MAPPED, Prefix, format_prefix, mask_address, parse_prefix
from svcctl.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = Struct("=IBBH16s")
HEADER_BITS = 32
"""Bits of protocol, family and port in front of the address."""
EXACT_BITS = HEADER_BITS + 128
"""Prefix length of a key that names one address: it lives in the hash, not in the trie."""
LENGTH_BYTE = 0 if byteorder == "little" else 3
"""Index of the only byte of a key's u32 prefix length that is not zero."""

_ORDER = Struct(">BBB16sH")


class Binding(Record):
    """One binding. `address` is 16 bytes, v4-mapped for IPv4; `length` 0..32 or 0..128; port 0: all ports."""

    label: str
    protocol: int
    family: int
    address: bytes
    length: int
    port: int

    def __str__(self) -> str:
        """As `format_binding`."""
        return format_binding(self)

    @property
    def prefix(self) -> Prefix:
        """Family, address and length together."""
        return Prefix(self.family, self.address, self.length)

    @property
    def bits(self) -> int:
        """The key's prefix length: 32 for /0 of IPv6, 128 for /0 of IPv4, 160 for one address."""
        return HEADER_BITS + self.length + (96 if self.family == IPV4 else 0)

    def key(self) -> bytes:
        """The 24 bytes that name this binding everywhere."""
        return KEY.pack(self.bits, self.protocol, self.family, self.port, self.address)

    @classmethod
    def from_key(cls, key: bytes, label: str) -> Binding:
        """The binding of a key as a map holds it. Raises ValueError for one that svcctl never writes."""
        fault = key_fault(key)
        if fault is not None:
            raise ValueError(f"binding key {key.hex()}: {fault}")
        bits, protocol, family, port, address = KEY.unpack(key)
        return cls(label, protocol, family, address, bits - (128 if family == IPV4 else HEADER_BITS), port)


def parse_binding(label: str, protocol: str, prefix: str, port: str) -> Binding:
    """A binding from the four words of a command line. Raises UsageProblem naming the first bad one."""
    name = check_label(label)
    number = parse_protocol(protocol)
    family, address, length = parse_prefix(prefix)
    return Binding(name, number, family, address, length, parse_port(port))


def parse_port(text: str) -> int:
    """0..65535 in ASCII digits, without sign, spaces or leading zeros. Raises UsageProblem."""
    if text.isascii() and text.isdigit() and len(text) <= 5 and (text[0] != "0" or text == "0"):
        port = int(text)
        if port <= 65535:
            return port
    raise BadValue("port", text, "expected 0-65535")


def parse_protocol(text: str, words: Sequence[str] = ("tcp", "udp")) -> int:
    """`tcp` or `udp` to its number. Raises UsageProblem, which names `words`, all that may stand there."""
    protocol = PROTOCOL_NUMBERS.get(text)
    if protocol is None:
        raise BadValue("protocol", text, f"expected {', '.join(words[:-1])} or {words[-1]}")
    return protocol


def parse_family(text: str) -> int:
    """`ipv4` or `ipv6` to its number. Raises UsageProblem."""
    family = FAMILY_NUMBERS.get(text)
    if family is None:
        raise BadValue("family", text, "expected ipv4 or ipv6")
    return family


def format_binding(binding: Binding) -> str:
    """`web#tcp:[127.0.0.1/32]:80`"""
    prefix = format_prefix(binding.family, binding.address, binding.length)
    return f"{binding.label}#{PROTOCOL_NAMES[binding.protocol]}:[{prefix}]:{binding.port}"


def key_fields(key: bytes) -> tuple[str, str, int]:
    """(protocol name, prefix text, port) of a sound key: a listing's row without making a Binding."""
    bits, protocol, family, port, address = KEY.unpack(key)
    length = bits - (128 if family == IPV4 else HEADER_BITS)
    return PROTOCOL_NAMES[protocol], format_prefix(family, address, length), port


def is_exact_key(key: bytes) -> bool:
    """Whether the key names one address, so that it lives in the hash."""
    return key[LENGTH_BYTE] == EXACT_BITS


def key_fault(key: bytes) -> str | None:
    """What is wrong with a key found in a map, or None. Readers of maps must not trust them."""
    if len(key) != KEY.size:
        return f"{len(key)} bytes instead of {KEY.size}"
    bits, protocol, family, _, address = KEY.unpack(key)
    if protocol not in (TCP, UDP):
        return f"unknown protocol {protocol}"
    if family not in (IPV4, IPV6):
        return f"unknown family {family}"
    if not (128 if family == IPV4 else HEADER_BITS) <= bits <= EXACT_BITS:
        return f"prefix length {bits} is out of range"
    if (address[:12] == MAPPED) != (family == IPV4):
        return "the address is of the other family"
    if mask_address(address, bits - HEADER_BITS) != address:
        return "the address has bits below the prefix length"
    return None


def listing_order(key: bytes) -> bytes:
    """Sorts keys as listings do.

    tcp before udp, ipv4 before ipv6, longer prefixes first, then by address, concrete ports ascending
    before port 0: of the bindings that match one connection, the one that gets it comes first.
    """
    bits, protocol, family, port, address = KEY.unpack(key)
    return _ORDER.pack(protocol, family, EXACT_BITS - bits, address, (port - 1) & 0xFFFF)


def sort_key(binding: Binding) -> tuple[bytes, str]:
    """`listing_order` for Bindings, with the label last."""
    return listing_order(binding.key()), binding.label
