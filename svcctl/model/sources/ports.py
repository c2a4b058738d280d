"""Ports as people write them: numbers, names of /etc/services, and ranges."""

from __future__ import annotations

from _socket import getservbyname
from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue
from svcctl.model.constants import PROTOCOL_NAMES
from svcctl.model.service_endpoint import Frontend, parse_frontend

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PORT = 65535


def parse_ports(text: str, protocol: int, lowest: int = 1) -> Sequence[int]:
    """`80`, `8000-8010`, or `http` as the system's services name it. Raises BadValue."""
    number = _number(text)
    if number is not None:
        if not lowest <= number <= MAX_PORT:
            raise BadValue("port", text, f"expected {lowest}-{MAX_PORT}")
        return (number,)
    first_text, dash, last_text = text.partition("-")
    first, last = _number(first_text), _number(last_text)
    if dash and first is not None and last is not None:
        if not 1 <= first <= last <= MAX_PORT:
            raise BadValue("port", text, f"expected a range within 1-{MAX_PORT}, lower port first")
        return range(first, last + 1)
    name = PROTOCOL_NAMES[protocol]
    try:
        if text.isascii() and text.isprintable():
            return (getservbyname(text, name),)
    except OSError:
        pass
    raise BadValue("port", text, f"expected {lowest}-{MAX_PORT}, a range, or the name of a {name} service")


def parse_frontends(text: str) -> list[Frontend]:
    """`10.0.0.1:80/tcp` as everywhere, and with a name or a range for the port. Raises BadValue."""
    place, slash, protocol = text.rpartition("/")
    host, colon, port = place.rpartition(":")
    if not colon or not slash or not port or host.endswith(":") or (port.isascii() and port.isdigit()):
        return [parse_frontend(text)]
    family, address, _, number = parse_frontend(f"{host}:1/{protocol}")
    try:
        return [Frontend(family, address, one, number) for one in parse_ports(port, number)]
    except BadValue as problem:
        raise BadValue("frontend", text, f"{problem.cause}, got {port!r}") from None


def _number(text: str) -> int | None:
    """ASCII digits without leading zeros."""
    if text.isascii() and text.isdigit() and len(text) <= 9 and (text[0] != "0" or text == "0"):
        return int(text)
    return None
