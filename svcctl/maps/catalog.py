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

HASH, ARRAY, PROG_ARRAY, PERCPU_ARRAY, LRU_HASH, LPM_TRIE, ARRAY_OF_MAPS, SOCKMAP = 1, 2, 3, 6, 9, 11, 12, 15
"""enum bpf_map_type of linux/bpf.h."""

SK_LOOKUP = 36
"""BPF_SK_LOOKUP of enum bpf_attach_type."""

DEFAULT_BINDINGS = 1_000_000
DEFAULT_DESTINATIONS = 1024
MAX_BINDINGS = 16_000_000
MAX_DESTINATIONS = 1_000_000
DEFAULT_SERVICES = 4096
DEFAULT_BACKENDS = 65_536
DEFAULT_SOCKETS = 131_072
DEFAULT_FLOWS = 131_072
MAX_SERVICES = 1_000_000
MAX_BACKENDS = 4_000_000
MAX_SOCKETS = 16_000_000
MAX_FLOWS = 16_000_000


REVERSE_COUNTS = 262_144
"""SVC_REVERSE_COUNTS of svc_service_maps.h: entries of `reverse_counts`; a cookie's is its rest by that."""


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
    "attach_rules": MapShape(HASH, layouts.ATTACH_RULE_KEY.size, layouts.ATTACH_RULE.size),
    "drop_stats": MapShape(PERCPU_ARRAY, 4, 8),
}
"""Maps every state directory has. Programs of all halves count in drop_stats."""

DISPATCH_MAPS = {
    "bindings": MapShape(LPM_TRIE, layouts.BINDING_KEY.size, layouts.BINDING.size, enums.USAGE_BINDINGS),
    "exact": MapShape(HASH, layouts.EXACT_KEY.size, layouts.EXACT.size, enums.USAGE_EXACT),
    "ports": MapShape(ARRAY, 4, layouts.PORTS.size),
    "binding_owners": MapShape(LPM_TRIE, layouts.BINDING_KEY.size, layouts.OWNER.size),
    "destinations": MapShape(
        HASH, layouts.DESTINATION_KEY.size, layouts.DESTINATION.size, enums.USAGE_DESTINATIONS
    ),
    "sockets": MapShape(SOCKMAP, 4, 8),
    "hints": MapShape(ARRAY, 4, 4),
    "dispatch_stats": MapShape(PERCPU_ARRAY, 4, layouts.DISPATCH_STATS.size),
}

# Sizes of bpf/include/svc_service_types.h; service_layouts.py has the fields, for commands that need them.
SERVICE_MAPS = {
    "config": MapShape(ARRAY, 4, 64),
    "frontends": MapShape(HASH, 20, 8, enums.USAGE_FRONTENDS),
    "current": MapShape(ARRAY, 4, 8, enums.USAGE_LANES),
    "blocks": MapShape(HASH, 4, 40, enums.USAGE_BLOCKS),
    "slots": MapShape(HASH, 8, 16, enums.USAGE_SLOTS),
    "members": MapShape(HASH, 8, 4, enums.USAGE_MEMBERS),
    "backends": MapShape(HASH, 4, 40, enums.USAGE_BACKENDS),
    "service_stats": MapShape(ARRAY, 4, 64),
    "node_addresses": MapShape(LPM_TRIE, 20, 4),
    "source_ranges": MapShape(LPM_TRIE, 24, 4, enums.USAGE_SOURCE_RANGES),
    "affinity": MapShape(LRU_HASH, 24, 16),
    "reverse": MapShape(HASH, 8, 200),
    "reverse_counts": MapShape(ARRAY, 4, 4),
    "service_names": MapShape(HASH, 256, 4, enums.USAGE_SERVICES),
    "lut": MapShape(ARRAY_OF_MAPS, 4, 4),
    "lut_sets": MapShape(HASH, 16, 16),
    "services": MapShape(HASH, 4, 384),
    "service_fronts": MapShape(HASH, 8, 24, enums.USAGE_SERVICE_FRONTS),
    "service_members": MapShape(HASH, 8, 32, enums.USAGE_SERVICE_MEMBERS),
    "node_port_nets": MapShape(HASH, 20, 4),
    "backend_ids": MapShape(HASH, 20, 104),
}

# Sizes of bpf/include/svc_packet_types.h; packet_layouts.py has the fields.
PACKET_MAPS = {
    "flows": MapShape(LRU_HASH, 40, 104),
    "halfopen": MapShape(LRU_HASH, 40, 104),
    "fragments": MapShape(LRU_HASH, 12, 16),
    "flow_filter": MapShape(ARRAY, 4, 32),
    "devices": MapShape(HASH, 4, 8),
    "nodes": MapShape(HASH, 4, 200),
    "packet_config": MapShape(ARRAY, 4, 128),
    "packet_stats": MapShape(PERCPU_ARRAY, 4, 8),
    "packet_scratch": MapShape(PERCPU_ARRAY, 4, 432),
    "tails": MapShape(PROG_ARRAY, 4, 4),
}
"""Maps of the packet path alone.

`tails` and `packet_scratch` mean nothing outside; `tails` belongs to its object: filled when that is loaded, never
carried over. An entry of `halfopen` is found only if `flow_filter` says so: they go together.
"""

ADDED = ("nodes",)
"""Maps that a state of this very layout may lack, as it was made before there were such: `upgrade` makes them."""

MAPS = STATE_MAPS | DISPATCH_MAPS | SERVICE_MAPS | PACKET_MAPS

LAYOUTS: dict[str, tuple[Layout[Any] | None, Layout[Any] | None]] = {
    "meta": (None, layouts.META),
    "usage": (None, layouts.USAGE),
    "writers": (None, layouts.WRITER),
    "programs": (None, layouts.PROGRAM),
    "attachments": (layouts.ATTACHMENT_KEY, layouts.ATTACHMENT),
    "attach_rules": (layouts.ATTACH_RULE_KEY, layouts.ATTACH_RULE),
    "bindings": (layouts.BINDING_KEY, layouts.BINDING),
    "exact": (layouts.EXACT_KEY, layouts.EXACT),
    "ports": (None, layouts.PORTS),
    "binding_owners": (layouts.BINDING_KEY, layouts.OWNER),
    "destinations": (layouts.DESTINATION_KEY, layouts.DESTINATION),
    "sockets": (None, None),
    "hints": (None, None),
    "dispatch_stats": (None, layouts.DISPATCH_STATS),
    "drop_stats": (None, None),
}
"""Layouts of key and value of all but service and packet maps; None: one integer of the shape's size."""


def map_layouts(name: str) -> tuple[Layout[Any] | None, Layout[Any] | None]:
    """Layouts of key and value of any map; None: one integer of the shape's size."""
    if name in SERVICE_MAPS:
        from svcctl.maps.service_layouts import MAP_LAYOUTS

        return MAP_LAYOUTS[name]
    if name in PACKET_MAPS:
        from svcctl.maps.packet_layouts import MAP_LAYOUTS as PACKET_LAYOUTS

        return PACKET_LAYOUTS[name]
    return LAYOUTS[name]


PROGRAM_READS = ("bindings", "exact", "ports", "sockets", "hints", "dispatch_stats", "drop_stats")
"""Maps whose ids the dispatcher's program info must list."""

SERVICE_READS = (
    "config", "frontends", "current", "blocks", "slots", "members", "backends", "service_stats",
    "node_addresses", "affinity", "reverse", "reverse_counts", "lut", "drop_stats",
)  # fmt: skip
"""Maps that connect and sendmsg read; the other balancer programs read some of them."""

PACKET_READS = ("flows", "halfopen", "flow_filter", "packet_config", "packet_stats", "drop_stats", "tails")
"""Maps that every program of the packet path reads which translates."""

USAGE_OPTIONS = {
    "bindings": "--max-bindings",
    "exact": "--max-bindings",
    "destinations": "--max-destinations",
    "service_names": "--max-services",
    "frontends": "--max-services",
    "service_fronts": "--max-services",
    "current": "--max-services",
    "blocks": "--max-services",
    "source_ranges": "--max-services",
    "backends": "--max-backends",
    "service_members": "--max-backends",
    "slots": "--max-backends",
    "members": "--max-backends",
    "reverse": "--max-sockets",
    "affinity": "--max-sockets",
    "flows": "--max-flows",
    "halfopen": "--max-flows",
    "nodes": "",
    "node_addresses": "",
}
"""The option of load, attach and upgrade that grows a map; "": none does."""

FILLED = ("affinity", "reverse", "flows", "halfopen", "nodes", "node_addresses")
"""Maps whose entries are counted when somebody asks: programs fill them, or they are small."""

DISPATCH = ProgramShape(
    enums.PROGRAM_DISPATCH, "dispatch", "dispatch", "prog_dispatch", "link_netns", SK_LOOKUP
)

# enum bpf_attach_type of linux/bpf.h.
_CGROUP_HOOKS = (
    ("connect4", 10),
    ("connect6", 11),
    ("sendmsg4", 14),
    ("sendmsg6", 15),
    ("recvmsg4", 19),
    ("recvmsg6", 20),
    ("getpeername4", 29),
    ("getpeername6", 30),
    ("sock_release", 34),
)
CONNECT = tuple(
    ProgramShape(enums.PROGRAM_DISPATCH + 1 + n, name, "connect", f"prog_{name}", f"link_{name}", hook)
    for n, (name, hook) in enumerate(_CGROUP_HOOKS)
)
UDP_HOOKS = frozenset(("sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6"))
"""What `attach cgroup --exclude-udp` leaves out."""
REFUSING_HOOKS = frozenset(("connect4", "connect6", "sendmsg4", "sendmsg6"))
"""Programs that exist twice in the object: `<name>_eperm` for kernels without bpf_set_retval in these hooks."""

TCX_INGRESS, TCX_EGRESS = 46, 47
"""enum bpf_attach_type; clsact has its own two hooks below Linux 6.6, and no links."""
PACKET = tuple(
    ProgramShape(
        enums.PROGRAM_INDEX[f"SVC_PROGRAM_{name.upper()}"],
        name,
        "packet",
        f"prog_{name}",
        "",
        hook,
    )
    for name, hook in (
        ("from_workload", TCX_INGRESS),
        ("to_workload", TCX_EGRESS),
        ("from_outside", TCX_INGRESS),
        ("to_outside", TCX_EGRESS),
    )
)
"""Roles of interfaces, each with a program a direction. Each interface has links of its own: `link_ingress_<index>`."""
ROLE_PROGRAMS = {
    enums.ROLE_WORKLOAD: ("from_workload", "to_workload"),
    enums.ROLE_HOST: ("from_outside", "to_outside"),
}
PROGRAMS = (DISPATCH, *CONNECT, *PACKET)


class Half(Record):
    """One of the kernel halves: its object, maps and programs; `marker` is a map it always has once it was made."""

    name: str
    object: str
    maps: dict[str, MapShape]
    programs: tuple[ProgramShape, ...]
    marker: str


DISPATCHER = Half("dispatcher", "dispatch", DISPATCH_MAPS, (DISPATCH,), "destinations")
BALANCER = Half("balancer", "connect", SERVICE_MAPS, CONNECT, "services")
PACKETS = Half("packets", "packet", PACKET_MAPS, PACKET, "flows")
"""Its object declares the service maps as well, and reads them."""
HALVES = (DISPATCHER, BALANCER, PACKETS)
TAILS = "tails"
"""The map of programs. It is made anew whenever the programs are, and loses them with its last pin."""

_READS = {
    "dispatch": PROGRAM_READS,
    **dict.fromkeys(REFUSING_HOOKS, SERVICE_READS),
    "sock_release": ("reverse", "reverse_counts"),
    "from_workload": (
        *PACKET_READS, "fragments", "config", "frontends", "current", "blocks", "members", "devices",
    ),
    "to_workload": (*PACKET_READS, "fragments"),
    "from_outside": (*PACKET_READS, "fragments"),
    "to_outside": (),
}  # fmt: skip


def reads(shape: ProgramShape) -> tuple[str, ...]:
    """Maps whose ids the kernel's information on a program must list."""
    return _READS.get(shape.name, ("current", "blocks", "reverse", "reverse_counts"))


SHARED_MAPS = ("drop_stats",)
"""State maps that the objects of the halves declare too: always reused."""

NEXT = "next_"
"""Prefix of the pins of a swap under way."""


def service_sizes(max_services: int, max_backends: int, max_sockets: int) -> dict[str, int]:
    """max_entries of each service map that has no fixed size.

    A service has up to two lanes, a lane two sets, a set two blocks while it changes; a membership is in up to two
    sets.
    """
    return {
        "frontends": max_services * 4,
        "current": max_services * 2,
        "blocks": max_services * 8,
        "slots": max_backends * 4,
        "members": max_backends * 4,
        "backends": max_backends,
        "service_stats": max_services * 2,
        "source_ranges": max_services * 4,
        "affinity": max_sockets,
        "reverse": max_sockets,
        "service_names": max_services,
        "services": max_services,
        "service_fronts": max_services * 4,
        "service_members": max_backends * 2,
        "backend_ids": max_backends,
    }


def packet_sizes(max_flows: int) -> dict[str, int]:
    """max_entries of each map of the packet path that has no fixed size; two entries a flow.

    Flows that were never answered have a quarter of that to themselves. LRU maps of less than 256 entries a CPU
    forget early.
    """
    return {"flows": max_flows * 2, "halfopen": max(max_flows // 2, 4096)}


def dispatch_sizes(max_bindings: int, max_destinations: int) -> dict[str, int]:
    """max_entries of each dispatcher map that has no fixed size."""
    return {
        "bindings": max_bindings,
        "exact": max_bindings,
        "binding_owners": max_bindings * 2,
        "destinations": max_destinations,
        "sockets": max_destinations * layouts.SOCKETS_PER_DESTINATION,
        "hints": max_destinations,
        "dispatch_stats": max_destinations,
    }
