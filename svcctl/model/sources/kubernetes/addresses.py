"""Addresses of Kubernetes objects, with what an older API server let pass, and what some of them may not be."""

from __future__ import annotations

from _socket import AF_INET, inet_pton
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.model.constants import IPV4
from svcctl.model.prefix import MAPPED, parse_address, split_prefix
from svcctl.model.service_endpoint import is_loopback, is_zero

if TYPE_CHECKING:
    Address = tuple[int, bytes]
    """Family and 16 bytes, as in `model/prefix.py`."""

NOT_AN_ADDRESS = "not an address"
LINK_LOCAL = "a link-local address"


class Addresses:
    """Reads addresses and remembers them: a pod's address is in the slices of several services."""

    def __init__(self) -> None:
        self._known: dict[str, Address | None] = {}
        self._endpoints: dict[str, tuple[int, bytes, str]] = {}

    def read(self, text: str) -> Address | None:
        """(family, 16 bytes); None for what is no address, or an IPv4 address written as IPv6.

        Leading zeros of IPv4 numbers are decimal, as kube-proxy reads what older API servers admitted.
        """
        if text not in self._known:
            self._known[text] = _read(text)
        return self._known[text]

    def endpoint(self, text: str) -> tuple[int, bytes, str]:
        """(family, 16 bytes, "" or why it can be no endpoint's); family 0 if it is not even an address.

        Endpoints of loopback would lead to whatever listens on this node alone (CVE-2020-8558).
        """
        known = self._endpoints.get(text)
        if known is None:
            known = self._endpoints[text] = _plain(text) or _judged(_read(text))
        return known


def _plain(text: str) -> tuple[int, bytes, str] | None:
    """An address of 10.0.0.0/8, as most pods have: there are a hundred thousand of them."""
    if not text.startswith("10."):
        return None
    try:
        return IPV4, MAPPED + inet_pton(AF_INET, text), ""
    except (OSError, ValueError):
        return None


def _judged(address: Address | None) -> tuple[int, bytes, str]:
    return (*address, special(*address)) if address else (0, b"", NOT_AN_ADDRESS)


def special(family: int, address: bytes) -> str:
    """What keeps the address from being an endpoint's or an external one; "" if nothing does."""
    if is_zero(family, address):
        return "the zero address"
    if is_loopback(family, address):
        return "a loopback address"
    if family == IPV4:
        if address[12:14] == b"\xa9\xfe":
            return LINK_LOCAL
        broadcast = address[12:] == b"\xff\xff\xff\xff"
        return "a multicast or broadcast address" if broadcast or address[12] & 0xF0 == 0xE0 else ""
    if address[0] == 0xFE and address[1] & 0xC0 == 0x80:
        return LINK_LOCAL
    return "a multicast address" if address[0] == 0xFF else ""


def read_range(text: str) -> tuple[int, bytes, int] | None:
    """A prefix (family, masked address, length), spaces around it allowed; None for what is none."""
    host, slash, mask = text.strip().partition("/")
    try:
        return split_prefix(host + slash + mask)
    except UsageProblem:
        plain = _without_zeros(host)
    try:
        return split_prefix(plain + slash + mask) if plain else None
    except UsageProblem:
        return None


def _read(text: str) -> Address | None:
    try:
        return parse_address(text)
    except UsageProblem:
        plain = _without_zeros(text)
    try:
        return parse_address(plain) if plain else None
    except UsageProblem:
        return None


def _without_zeros(text: str) -> str:
    """An IPv4 address without leading zeros; "" for anything else."""
    parts = text.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts):
        return ".".join(part.lstrip("0") or "0" for part in parts)
    return ""
