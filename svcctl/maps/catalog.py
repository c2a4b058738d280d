"""Which maps and programs a state directory has: names, shapes, which half they belong to, how they are sized.

The shapes repeat what the C headers declare, so that a command can judge a pinned map without reading an
object file; a test compares them with the built objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.maps import enums, layouts
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.maps.layouts import Layout

HASH, ARRAY, PERCPU_ARRAY, LPM_TRIE, SOCKMAP = 1, 2, 6, 11, 15
"""enum bpf_map_type of linux/bpf.h."""

SK_LOOKUP = 36
"""BPF_SK_LOOKUP of enum bpf_attach_type."""

DEFAULT_BINDINGS = 1_000_000
DEFAULT_DESTINATIONS = 1024
MAX_BINDINGS = 16_000_000
MAX_DESTINATIONS = 1_000_000


class MapShape(Record):
    """Type and sizes in bytes of a map; `usage` its index in `usage`, or None."""

    type: int
    key_size: int
    value_size: int
    usage: int | None = None


class ProgramShape(Record):
    """A program: name in the object, pin names, object file without suffix, attachment hook."""

    number: int
    name: str
    object: str
    pin: str
    link_pin: str
    hook: int


STATE_MAPS = {
    "meta": MapShape(ARRAY, 4, layouts.META.size),
    "usage": MapShape(ARRAY, 4, layouts.USAGE.size),
    "writers": MapShape(ARRAY, 4, layouts.WRITER.size),
    "programs": MapShape(ARRAY, 4, layouts.PROGRAM.size),
    "attachments": MapShape(HASH, layouts.ATTACHMENT_KEY.size, layouts.ATTACHMENT.size),
}

DISPATCH_MAPS = {
    "bindings": MapShape(LPM_TRIE, layouts.BINDING_KEY.size, layouts.BINDING.size, enums.USAGE_BINDINGS),
    "exact": MapShape(HASH, layouts.EXACT_KEY.size, layouts.EXACT.size, enums.USAGE_EXACT),
    "ports": MapShape(ARRAY, 4, layouts.PORTS.size),
    "destinations": MapShape(
        HASH, layouts.DESTINATION_KEY.size, layouts.DESTINATION.size, enums.USAGE_DESTINATIONS
    ),
    "sockets": MapShape(SOCKMAP, 4, 8),
    "hints": MapShape(ARRAY, 4, 4),
    "dispatch_stats": MapShape(PERCPU_ARRAY, 4, layouts.DISPATCH_STATS.size),
    "drop_stats": MapShape(PERCPU_ARRAY, 4, 8),
}

MAPS = STATE_MAPS | DISPATCH_MAPS

LAYOUTS: dict[str, tuple[Layout[Any] | None, Layout[Any] | None]] = {
    "meta": (None, layouts.META),
    "usage": (None, layouts.USAGE),
    "writers": (None, layouts.WRITER),
    "programs": (None, layouts.PROGRAM),
    "attachments": (layouts.ATTACHMENT_KEY, layouts.ATTACHMENT),
    "bindings": (layouts.BINDING_KEY, layouts.BINDING),
    "exact": (layouts.EXACT_KEY, layouts.EXACT),
    "ports": (None, layouts.PORTS),
    "destinations": (layouts.DESTINATION_KEY, layouts.DESTINATION),
    "sockets": (None, None),
    "hints": (None, None),
    "dispatch_stats": (None, layouts.DISPATCH_STATS),
    "drop_stats": (None, None),
}
"""Layouts of key and value; None: one integer of the shape's size."""

PROGRAM_READS = ("bindings", "exact", "ports", "sockets", "hints", "dispatch_stats", "drop_stats")
"""Maps whose ids the dispatcher's program info must list."""

USAGE_OPTIONS = {
    "bindings": "--max-bindings",
    "exact": "--max-bindings",
    "destinations": "--max-destinations",
}
"""The option of load and upgrade that grows a map."""

DISPATCH = ProgramShape(
    enums.PROGRAM_DISPATCH, "dispatch", "dispatch", "prog_dispatch", "link_netns", SK_LOOKUP
)

PROGRAMS = (DISPATCH,)

NEXT = "next_"
"""Prefix of the pins of a swap under way."""


def dispatch_sizes(max_bindings: int, max_destinations: int) -> dict[str, int]:
    """max_entries of each dispatcher map that has no fixed size."""
    return {
        "bindings": max_bindings,
        "exact": max_bindings,
        "destinations": max_destinations,
        "sockets": max_destinations * layouts.SOCKETS_PER_DESTINATION,
        "hints": max_destinations,
        "dispatch_stats": max_destinations,
    }
