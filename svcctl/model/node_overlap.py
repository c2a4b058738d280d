"""Prefixes of nodes that have something of another node's in them. The closest one says whose an address is, so nothing
is lost by it; but what nobody speaks of goes to the node with the wide prefix, which may not be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.node import shown
from svcctl.model.prefix import format_prefix, mask_address
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.prefix import Prefix

OWN = ""
"""In place of a node's name: this node."""
NAMED = 3
"""So many of the things in a prefix are named; of others there is the number."""


class Overlap(Record):
    """A pods' prefix of a node (OWN: this one), what of other nodes is in it, and how many backends of this one are."""

    node: str
    prefix: Prefix
    inside: tuple[tuple[str, Prefix], ...] = ()
    backends: int = 0

    def __str__(self) -> str:
        """`pod prefix 10.244.0.0/16 has in it 10.244.1.0/24 of this node, which stays there`."""
        things = [
            f"{shown(prefix)} of {f'node {name}' if name else 'this node'}"
            for name, prefix in self.inside[:NAMED]
        ]
        if len(self.inside) > NAMED:
            things.append(f"{len(self.inside) - NAMED} more of other nodes")
        if self.backends:
            things.append(f"{self.backends} backend{'s' if self.backends > 1 else ''} of this node")
        stays = "which stays" if len(self.inside) + self.backends == 1 else "which stay"
        return f"pod prefix {format_prefix(*self.prefix)} has in it {', '.join(things)}, {stays} there"


def overlaps(claims: Mapping[Prefix, str], backends: Iterable[tuple[int, bytes]] = ()) -> list[Overlap]:
    """What the prefixes of `claims`, whose each is, have in them; `backends` are addresses of this node's.

    A host in a prefix of its own node is nothing to tell, nor is what is in a closer prefix of its node.
    """
    lengths: dict[int, set[int]] = {}
    for prefix in claims:
        lengths.setdefault(prefix.family, set()).add(prefix.length)
    around = {family: sorted(found, reverse=True) for family, found in lengths.items()}
    inside: dict[Prefix, list[tuple[str, Prefix]]] = {}
    for prefix, name in sorted(claims.items()):
        outer = _around(prefix, claims, around)
        if outer is not None and claims[outer] != name:
            inside.setdefault(outer, []).append((name, prefix))
    counts: dict[Prefix, int] = {}
    for family, address in backends:
        outer = _closest(family, address, claims, around)
        if outer is not None and claims[outer] != OWN:
            counts[outer] = counts.get(outer, 0) + 1
    return [
        Overlap(claims[prefix], prefix, tuple(inside.get(prefix, ())), counts.get(prefix, 0))
        for prefix in sorted({*inside, *counts})
    ]


def _around(prefix: Prefix, claims: Mapping[Prefix, str], lengths: Mapping[int, list[int]]) -> Prefix | None:
    """The closest prefix that has this one in it."""
    shorter = [length for length in lengths[prefix.family] if length < prefix.length]
    return _find(prefix.family, prefix.address, claims, shorter)


def _closest(
    family: int, address: bytes, claims: Mapping[Prefix, str], lengths: Mapping[int, list[int]]
) -> Prefix | None:
    return _find(family, address, claims, lengths.get(family, []))


def _find(family: int, address: bytes, claims: Mapping[Prefix, str], lengths: Iterable[int]) -> Prefix | None:
    from svcctl.model.constants import IPV4
    from svcctl.model.prefix import Prefix

    for length in lengths:
        bits = 96 + length if family == IPV4 else length
        found = Prefix(family, mask_address(address, bits), length)
        if found in claims:
            return found
    return None
