"""Destinations: what a label means for one family and protocol, and the sockets behind it."""

from __future__ import annotations

from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES
from svcctl.record import Record

SLOTS = 16
"""Sockets a destination can have: members of one SO_REUSEPORT group."""


class DestinationKey(Record):
    """(label, family, protocol): the three names that have one destination."""

    label: str
    family: int
    protocol: int

    def __str__(self) -> str:
        """As `format_destination`."""
        return format_destination(self)


class Destination(Record):
    """A destination as the maps hold it.

    `refs` counts bindings that name it (after a crash it may be too high, never too low); bit n of `slots`
    says that socket slot n was filled by a writer, not that its socket still lives.
    """

    key: DestinationKey
    id: int
    refs: int
    slots: int
    flags: int

    def __str__(self) -> str:
        """As `format_destination`."""
        return format_destination(self.key)


def format_destination(key: DestinationKey) -> str:
    """`web#tcp:ipv4`"""
    return f"{key.label}#{PROTOCOL_NAMES[key.protocol]}:{FAMILY_NAMES[key.family]}"


def sort_key(key: DestinationKey) -> tuple[str, int, int]:
    """Listings: by label, ipv4 before ipv6, tcp before udp."""
    return key.label, key.family, key.protocol
