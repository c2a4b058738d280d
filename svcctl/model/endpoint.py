"""One address, port and protocol: `10.0.0.1:80/tcp`, `[2001:db8::1]:53/udp`."""

from __future__ import annotations

from typing import NamedTuple

from svcctl.model.bad_value import BadValue
from svcctl.model.binding import parse_port, parse_protocol
from svcctl.model.constants import IPV6, PROTOCOL_NAMES
from svcctl.model.prefix import format_host_port, parse_address

EXPECTED = "expected ADDRESS:PORT/PROTOCOL, as in 192.0.2.1:443/tcp or [2001:db8::1]:53/udp"


class Endpoint(NamedTuple):
    """`address` is 16 bytes, v4-mapped for IPv4; `port` 1..65535; `protocol` an IP protocol number."""

    family: int
    address: bytes
    port: int
    protocol: int

    def __str__(self) -> str:
        """As `parse_endpoint` reads it."""
        return f"{format_host_port(self.family, self.address, self.port)}/{PROTOCOL_NAMES[self.protocol]}"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint of a text. Raises UsageProblem; port 0 is refused, for nothing is sent to it."""
    place, slash, protocol = text.rpartition("/")
    host, colon, port = place.rpartition(":")
    if not slash or not colon or not host:
        raise BadValue("endpoint", text, EXPECTED)
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise BadValue("endpoint", text, EXPECTED, hint="put the IPv6 address in square brackets")
    family, address = parse_address(host)
    if bracketed != (family == IPV6):
        raise BadValue("endpoint", text, EXPECTED)
    number = parse_port(port)
    if not number:
        raise BadValue("endpoint", text, "port 0 stands for all ports in bindings; nothing is sent to it")
    return Endpoint(family, address, number, parse_protocol(protocol))
