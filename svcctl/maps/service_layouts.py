"""Mirrors of the structs in bpf/include/svc_service_types.h; as layouts.py, in a file of its own because
commands that know no services need not load it.
"""

from __future__ import annotations

from typing import Any

from svcctl.maps.layouts import Layout
from svcctl.record import Record

REVERSE_ENTRIES = 4
FRONTEND_CHECK_SHIFT = 8
ALWAYS = 0xFFFFFFFF
"""A threshold that is never missed."""


class FrontendKey(Record):
    """struct svc_frontend_key. Port and protocol 0: the whole address."""

    address: bytes
    port: int
    protocol: int
    pad: int = 0


class FrontendWord(Record):
    """struct svc_frontend: `mark` is flags and, from bit 8 on, a digest of the key."""

    lane: int
    mark: int


class Current(Record):
    """struct svc_current: the two blocks of a lane, 0 for none."""

    cluster: int
    local: int


class Block(Record):
    """struct svc_block."""

    block: int
    service: int
    lane: int
    slots: int
    affinity_seconds: int
    verdict: int
    ranges: int
    lut: int
    lut_size: int
    members: int


class SlotKey(Record):
    """struct svc_slot_key."""

    block: int
    slot: int


class Slot(Record):
    """struct svc_slot."""

    backend: int
    alias: int
    threshold: int
    block: int


class MemberKey(Record):
    """struct svc_member_key; its value is the slot, or 0xffffffff for a member without one."""

    block: int
    backend: int


class BackendValue(Record):
    """struct svc_backend: written once, but for `picks`, to which programs add."""

    address: bytes
    port: int
    flags: int
    node: int
    id: int
    pad: int
    picks: int


class AffinityKey(Record):
    """struct svc_affinity_key."""

    service: int
    kind: int
    client: bytes


class AffinityValue(Record):
    """struct svc_affinity; `used_ns` is CLOCK_MONOTONIC."""

    backend: int
    pad: int
    used_ns: int


class ReverseEntry(Record):
    """struct svc_reverse_entry; service 0: empty."""

    backend_address: bytes
    frontend_address: bytes
    backend_port: int
    frontend_port: int
    service: int
    lane: int
    backend: int


class Reverse(Record):
    """struct svc_reverse; `entries` are four ReverseEntry back to back."""

    lock: int
    next: int
    entries: bytes


class ServiceStats(Record):
    """struct svc_service_stats of one lane."""

    connections: int
    no_backend: int
    dropped: int
    affinity: int
    remembered: int
    unstable: int
    reverse_full: int
    reserved: int


class Config(Record):
    """struct svc_config.

    `drain_ns` (CLOCK_REALTIME): no drain ends before; 0: none does. `pending_ns`: since when a change of the
    desired state could not be applied; 0: none waits.
    """

    node_cookie: int
    flags: int
    node_ports: int
    blocked: int
    udp_affinity_seconds: int
    drain_ns: int = 0
    pending_ns: int = 0
    tables: int = 0
    first_node_port: int = 0
    last_node_port: int = 0
    reserved: bytes = b""


class NodeKey(Record):
    """struct svc_node_key."""

    prefixlen: int
    address: bytes


class RangeKey(Record):
    """struct svc_range_key: `prefixlen` counts from `set`."""

    prefixlen: int
    set: int
    address: bytes


class ServiceName(Record):
    """struct svc_service_name."""

    name: bytes
    pad: int = 0


class ServiceValue(Record):
    """struct svc_service."""

    name: bytes
    algorithm: int
    owner: bytes
    id: int
    flags: int
    affinity_seconds: int
    lane4: int
    lane6: int
    frontends: int
    members: int
    node_port: int
    changed_ns: int
    ranges: int
    base: int
    health_port: int = 0
    local_ready: int = 0
    sources: int = 0
    table_size: int = 0


class LutKey(Record):
    """struct svc_lut_key."""

    digest: bytes


class Lut(Record):
    """struct svc_lut. `place` in the map `lut`."""

    place: int
    size: int
    refs: int
    reserved: int = 0


class ItemKey(Record):
    """struct svc_service_item_key."""

    service: int
    number: int


class ServiceFrontendValue(Record):
    """struct svc_service_frontend."""

    address: bytes
    port: int
    protocol: int
    pad: int
    kind: int


class MemberValue(Record):
    """struct svc_service_member. Times are CLOCK_REALTIME."""

    backend: int
    weight: int
    state: int
    flags: int
    since_ns: int
    until_ns: int


class BackendKey(Record):
    """struct svc_backend_key."""

    address: bytes
    port: int
    pad: int = 0


class BackendId(Record):
    """struct svc_backend_id."""

    id: int
    refs: int
    zone: bytes
    node: bytes


FRONTEND_KEY = Layout("svc_frontend_key", FrontendKey, "16s H B B")
FRONTEND = Layout("svc_frontend", FrontendWord, "I I")
CURRENT = Layout("svc_current", Current, "I I")
BLOCK = Layout("svc_block", Block, "I I I I I I I I I I")
SLOT_KEY = Layout("svc_slot_key", SlotKey, "I I")
SLOT = Layout("svc_slot", Slot, "I I I I")
MEMBER_RESTS = 1 << 31
"""SVC_MEMBER_RESTS, in a value of `members`: it gets no new connections. Else the value is its slot."""
MEMBER_KEY = Layout("svc_member_key", MemberKey, "I I")
BACKEND = Layout("svc_backend", BackendValue, "16s H H I I I Q")
AFFINITY_KEY = Layout("svc_affinity_key", AffinityKey, "I I 16s")
AFFINITY = Layout("svc_affinity", AffinityValue, "I I Q")
REVERSE_ENTRY = Layout("svc_reverse_entry", ReverseEntry, "16s 16s H H I I I")
REVERSE = Layout("svc_reverse", Reverse, "I I 192s")
SERVICE_STATS = Layout("svc_service_stats", ServiceStats, "Q Q Q Q Q Q Q Q")
CONFIG = Layout("svc_config", Config, "Q I I I I Q Q I H H 16s")
NODE_KEY = Layout("svc_node_key", NodeKey, "I 16s")
RANGE_KEY = Layout("svc_range_key", RangeKey, "I I 16s")
SERVICE_NAME = Layout("svc_service_name", ServiceName, "255s B")
SERVICE = Layout("svc_service", ServiceValue, "255s B 64s I I I I I I I I Q I I I I I I")
LUT_KEY = Layout("svc_lut_key", LutKey, "16s")
LUT = Layout("svc_lut", Lut, "I I I I")
ITEM_KEY = Layout("svc_service_item_key", ItemKey, "I I")
# The nested key is spelt out; BTF has it as one field.
SERVICE_FRONTEND = Layout("svc_service_frontend", ServiceFrontendValue, "16s H B B I")
MEMBER = Layout("svc_service_member", MemberValue, "I I I I Q Q")
BACKEND_KEY = Layout("svc_backend_key", BackendKey, "16s H H")
BACKEND_ID = Layout("svc_backend_id", BackendId, "I I 32s 64s")

MAP_LAYOUTS: dict[str, tuple[Layout[Any] | None, Layout[Any] | None]] = {
    "config": (None, CONFIG),
    "frontends": (FRONTEND_KEY, FRONTEND),
    "current": (None, CURRENT),
    "blocks": (None, BLOCK),
    "slots": (SLOT_KEY, SLOT),
    "members": (MEMBER_KEY, None),
    "backends": (None, BACKEND),
    "service_stats": (None, SERVICE_STATS),
    "node_addresses": (NODE_KEY, None),
    "source_ranges": (RANGE_KEY, None),
    "affinity": (AFFINITY_KEY, AFFINITY),
    "reverse": (None, REVERSE),
    "reverse_counts": (None, None),
    "service_names": (SERVICE_NAME, None),
    "lut": (None, None),
    "lut_sets": (LUT_KEY, LUT),
    "services": (None, SERVICE),
    "service_fronts": (ITEM_KEY, SERVICE_FRONTEND),
    "service_members": (ITEM_KEY, MEMBER),
    "node_port_nets": (NODE_KEY, None),
    "backend_ids": (BACKEND_KEY, BACKEND_ID),
}
"""As catalog.LAYOUTS, of the service maps."""

ALL = (
    FRONTEND_KEY, FRONTEND, CURRENT, BLOCK, SLOT_KEY, SLOT, MEMBER_KEY, BACKEND, AFFINITY_KEY, AFFINITY,
    REVERSE_ENTRY, REVERSE, SERVICE_STATS, CONFIG, NODE_KEY, RANGE_KEY, SERVICE_NAME, SERVICE, LUT_KEY, LUT, ITEM_KEY,
    SERVICE_FRONTEND, MEMBER, BACKEND_KEY, BACKEND_ID,
)  # fmt: skip
