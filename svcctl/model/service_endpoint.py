"""Frontends and backends as text: `10.0.0.1:80/tcp`, `[2001:db8::1]:53/udp`, `10.1.2.3:8080,weight=3`.

Addresses are held as everywhere: 16 bytes in network order, IPv4 v4-mapped, with the family beside them.
Ports are 1..65535 as plain numbers.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple

from svcctl.model.bad_value import BadValue, show
from svcctl.model.constants import IPV4, IPV6, PROTOCOL_NAMES, PROTOCOL_NUMBERS
from svcctl.model.prefix import MAPPED, format_host_port

TYPE_CHECKING = False

KIND_CLUSTER = 0
KIND_EXTERNAL = 1
KIND_LOAD_BALANCER = 2
KIND_NODE_PORT = 3
KIND_NUMBERS = {
    "cluster": KIND_CLUSTER,
    "external": KIND_EXTERNAL,
    "load-balancer": KIND_LOAD_BALANCER,
    "node-port": KIND_NODE_PORT,
}
"""As enum svc_frontend_kind."""
KIND_NAMES = {number: name for name, number in KIND_NUMBERS.items()}

ACTIVE = 0
DRAINING = 1
DOWN = 2
STATE_NUMBERS = {"active": ACTIVE, "draining": DRAINING, "down": DOWN}
"""As enum svc_member_state."""
STATE_NAMES = {number: name for name, number in STATE_NUMBERS.items()}

DEFAULT_WEIGHT = 1
MAX_WEIGHT = 65535

_ATTRIBUTES = "weight=N, state=active|draining|down, local"
_SWITCH = {"local": True, "local=yes": True, "local=no": False}
_LOOPBACK6 = bytes(15) + b"\1"
_ZERO4 = MAPPED + bytes(4)

# Functional, here and below: a class compiles one string per field whenever it is imported.
Frontend = NamedTuple(  # noqa: UP014
    "Frontend", [("family", int), ("address", bytes), ("port", int), ("protocol", int)]
)
"""Where clients connect to. Sorts as listings do: ipv4 first, by address, port, tcp before udp."""

Backend = NamedTuple("Backend", [("family", int), ("address", bytes), ("port", int)])  # noqa: UP014
"""Where connections end up."""

if TYPE_CHECKING:

    class BackendSpec(NamedTuple):
        """A backend and what was said of it; None: nothing was said."""

        backend: Backend
        weight: int | None = None
        state: int | None = None
        local: bool | None = None

else:
    from collections import namedtuple

    BackendSpec = namedtuple("BackendSpec", "backend weight state local", defaults=(None, None, None))


def parse_frontend(text: str) -> Frontend:
    """`10.0.0.1:80/tcp` or `[2001:db8::1]:53/udp`. Raises UsageProblem.

    The zero address is read: it is what node ports look like. Multicast and broadcast are no place for a
    service and are refused.
    """
    if not text:
        raise BadValue("frontend", text, "a frontend cannot be empty")
    place, slash, name = text.partition("/")
    protocol = PROTOCOL_NUMBERS.get(name)
    if protocol is None:
        if slash:
            raise BadValue("frontend", text, f"expected tcp or udp after the slash, got {show(name)}")
        hint = f"write {text}/tcp or {text}/udp" if ":" in text and text.isprintable() else None
        raise BadValue("frontend", text, "has no protocol", hint=hint)
    family, address, port = _parse_place("frontend", text, place)
    return Frontend(family, address, port, protocol)


def parse_backend(text: str) -> Backend:
    """`10.1.2.3:8080` or `[2001:db8::1]:8080`. Raises UsageProblem.

    Refused beside what `parse_frontend` refuses: the zero address, and link-local IPv6, which means nothing
    without an interface. Loopback is a backend like any other.
    """
    family, address, port = _parse_place("backend", text, text)
    if is_zero(family, address):
        raise BadValue("backend", text, "the zero address is no host")
    if family == IPV6 and address[0] == 0xFE and address[1] & 0xC0 == 0x80:
        raise BadValue("backend", text, "is link-local: it means nothing without an interface")
    return Backend(family, address, port)


def parse_backend_spec(text: str) -> BackendSpec:
    """`10.1.2.3:8080,weight=3,state=draining,local`; everything behind the port is optional.

    `local` (also `local=yes`, `local=no`) says that the backend is on this node. Raises UsageProblem.
    """
    place, *attributes = text.split(",")
    backend = parse_backend(place)
    if not attributes:
        return BackendSpec(backend)
    weight: int | None = None
    state: int | None = None
    local: bool | None = None
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name == "weight" and weight is None:
            weight = parse_weight(value)
        elif name == "state" and state is None:
            state = parse_state(value)
        elif attribute in _SWITCH and local is None:
            local = _SWITCH[attribute]
        elif name in ("weight", "state") or attribute in _SWITCH:
            raise BadValue("backend", text, f"says {name} twice")
        else:
            raise BadValue("backend", text, f"expected {_ATTRIBUTES}, got {show(attribute)}")
    return BackendSpec(backend, weight, state, local)


def parse_weight(text: str) -> int:
    """0..65535 in ASCII digits; 0: no new connections. Raises UsageProblem."""
    number = _number(text)
    if number is None or number > MAX_WEIGHT:
        raise BadValue("weight", text, f"expected 0-{MAX_WEIGHT}")
    return number


def parse_state(text: str) -> int:
    """`active`, `draining` or `down` to its number. Raises UsageProblem."""
    state = STATE_NUMBERS.get(text)
    if state is None:
        raise BadValue("state", text, "expected active, draining or down")
    return state


def format_frontend(frontend: Frontend) -> str:
    """Text that `parse_frontend` reads back."""
    family, address, port, protocol = frontend
    return f"{format_host_port(family, address, port)}/{PROTOCOL_NAMES[protocol]}"


def format_backend(backend: Backend) -> str:
    """Text that `parse_backend` reads back."""
    return format_host_port(*backend)


def is_zero(family: int, address: bytes) -> bool:
    """Whether it is 0.0.0.0 or ::, which stands for every address of the node in a frontend."""
    return address == (_ZERO4 if family == IPV4 else bytes(16))


def zero_address(family: int) -> bytes:
    """0.0.0.0 or ::, 16 bytes."""
    return _ZERO4 if family == IPV4 else bytes(16)


def is_loopback(family: int, address: bytes) -> bool:
    """Whether it is in 127.0.0.0/8 or ::1."""
    return address[12] == 127 if family == IPV4 else address == _LOOPBACK6


def _parse_place(what: str, text: str, place: str) -> tuple[int, bytes, int]:
    """(family, 16 bytes, port) of ADDRESS:PORT. `text` is all that was given, for the message."""
    bracketed = place.startswith("[")
    if bracketed:
        host, close, rest = place[1:].partition("]")
        if not close:
            raise BadValue(what, text, "has [ without ]")
        colon, port_text = rest[:1], rest[1:]
    else:
        host, colon, port_text = place.rpartition(":")
        if ":" in host:
            raise BadValue(what, text, "an IPv6 address needs brackets", hint=_bracket_hint(place, text))
        if not colon:
            host = place
    if not host:
        raise BadValue(what, text, "has no address")
    if "%" in host:
        raise BadValue(what, text, "has a zone", hint=f"a {what} is not tied to an interface: leave it out")
    try:
        packed = inet_pton(AF_INET6 if bracketed else AF_INET, host)
    except (OSError, ValueError):
        kind = "an IPv6" if bracketed else "an IPv4"
        raise BadValue(what, text, f"{show(host)} is not {kind} address", hint=_host_hint(host)) from None
    if colon != ":":
        raise BadValue(what, text, "expected a colon and a port behind the address")
    port = _number(port_text)
    if not port or port > 65535:
        raise BadValue(what, text, f"expected a port of 1-65535, got {show(port_text)}")
    if not bracketed:
        if packed[0] & 0xF0 == 0xE0 or packed == b"\xff\xff\xff\xff":
            raise BadValue(what, text, "is a multicast or broadcast address")
        return IPV4, MAPPED + packed, port
    if packed[:12] == MAPPED:
        hint = f"write {text.replace(place, format_host_port(IPV4, packed, port), 1)}"
        raise BadValue(what, text, "is an IPv4 address written as IPv6 (v4-mapped)", hint=hint)
    if packed[0] == 0xFF:
        raise BadValue(what, text, "is a multicast address")
    return IPV6, packed, port


def _number(text: str) -> int | None:
    """Up to five ASCII digits without sign, spaces or leading zeros; None for anything else."""
    if text.isascii() and text.isdigit() and len(text) <= 5 and (text[0] != "0" or text == "0"):
        return int(text)
    return None


def _bracket_hint(place: str, text: str) -> str | None:
    host, _, port = place.rpartition(":")
    try:
        packed = inet_pton(AF_INET6, host)
    except (OSError, ValueError):
        return None
    if packed[:12] == MAPPED:
        host = inet_ntop(AF_INET, packed[12:])
        return f"write {text.replace(place, f'{host}:{port}', 1)}"
    return f"write {text.replace(place, f'[{host}]:{port}', 1)}"


def _host_hint(host: str) -> str | None:
    parts = host.split(".")
    digits = all(part.isascii() and part.isdigit() for part in parts)
    if len(parts) == 4 and digits and any(len(part) > 1 and part[0] == "0" for part in parts):
        return "leave out leading zeros: some programs read them as octal"
    if host[0].isalpha() and ":" not in host:
        return "names are not resolved: give the address"
    return None
