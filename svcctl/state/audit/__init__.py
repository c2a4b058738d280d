"""The invariants between the maps, the pins and the kernel. ARCHITECTURE.md has the table; the names are its rows.

`audit` reads everything and returns what is broken, each with the function that mends it, where mending needs
no decision. Used by `check`, `check --repair`, and by the first command after one that died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog
from svcctl.state.audit import bindings, cgroups, devices, kernel, meta, pins, sockets
from svcctl.state.audit.finding import Finding

if TYPE_CHECKING:
    from svcctl.state.writer import Writer

INVARIANTS = (
    "temporary",
    "pins",
    "orphans",
    "modes",
    "sizes",
    "identity",
    "mark",
    "writers",
    "programs",
    "attachments",
    "strays",
    "ids",
    "destinations",
    "bindings",
    "references",
    "ports",
    "usage",
    "sockets",
    "hints",
    "services",
    "lanes",
    "frontends",
    "blocks",
    "tables",
    "backends",
    "balancer",
    "nodes",
    "counters",
)
"""Every row, in the order in which they are looked at. `temporary` is looked at by `check` itself."""

BY_HAND = ("pins", "programs")
"""Rows that only a hand can break: mended when a hand asks for it, not in passing."""


def audit(writer: Writer, *, deep: bool = False) -> list[Finding]:
    """Everything that is broken. Needs the lock and root; changes nothing.

    `deep` also walks what no command that died can have left: all slots and counters of ids that were never
    handed out, and the sockets themselves. Without it the rows of `BY_HAND` are found, not mended: a command
    that meets a missing pin says so and puts nothing in its place. Raises Incompatible for state of another
    layout.
    """
    found = _find(writer, deep)
    if deep:
        return found
    return [
        one._replace(repair=None, advice="'svcctl check --repair' mends it")
        if one.repair and one.invariant in BY_HAND
        else one
        for one in found
    ]


def _find(writer: Writer, deep: bool) -> list[Finding]:
    found = list(pins.find(writer))
    if not pins.usable(writer):
        return found or meta.unusable(writer)  # without its maps the rest cannot be judged
    found += meta.find(writer)
    if any(one.invariant == "identity" for one in found):
        return found
    found += kernel.find(writer, deep)
    if writer.has_dispatcher():
        found += bindings.find(writer)
        found += sockets.find(writer, deep)
    found += cgroups.find(writer, deep)
    found += devices.find(writer, deep)
    if writer.has_half(catalog.BALANCER):
        from svcctl.state.audit import nodes, services

        found += services.find(writer, deep)
        found += nodes.find(writer)
    return found


__all__ = ["INVARIANTS", "Finding", "audit"]
