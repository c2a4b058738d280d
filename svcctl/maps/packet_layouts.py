"""Mirrors of the structs in bpf/include/svc_packet_types.h; as layouts.py, in a file of its own because commands
that know no packets need not load it.
"""

from __future__ import annotations

from typing import Any

from svcctl.maps.layouts import Layout
from svcctl.record import Record

ROUTE_SHIFT = 28
FILTER_BUCKETS, FILTER_MARKS = 65_536, 7
"""Entries of `flow_filter`, and how many keys each has room for."""
TUNNEL_VNI, TUNNEL_PORT = 0xCA11C0, 4789
"""VXLAN network identifier of our tunnels, and the UDP port unless another one is set."""


class FlowKey(Record):
    """struct svc_flow_key: addresses and ports of a packet as it comes in."""

    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    protocol: int
    pad: bytes = b""


class FlowValue(Record):
    """struct svc_flow: what the packets of one direction become. Times are CLOCK_MONOTONIC.

    Up to `check` it never changes.
    """

    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    kind: int
    lane: int
    service: int
    backend: int
    check: int
    created_ns: int
    seen_ns: int
    reset_ns: int
    block: int
    route: int
    route_time: int
    sequence: int
    seen: int
    other: int
    device: int = 0
    node: int = 0


class FragmentKey(Record):
    """struct svc_fragment_key; addresses in network byte order, as 32-bit words."""

    source: int
    destination: int
    id: int
    protocol: int
    pad: int = 0


class FragmentValue(Record):
    """struct svc_fragment."""

    source_port: int
    destination_port: int
    pad: int
    seen_ns: int


class FilterBucket(Record):
    """struct svc_filter_bucket: the marks of the keys used last, 32-bit words, the latest first."""

    lock: int
    recent: bytes


class Device(Record):
    """struct svc_device: an attached interface; the key is its index."""

    role: int
    flags: int
    mtu: int = 0


class NodeValue(Record):
    """struct svc_node: a node of the cluster, by its number; addresses of 16 bytes, all zeros: none."""

    address4: bytes
    address6: bytes
    name: bytes
    owner: bytes
    zone: bytes
    flags: int
    pad: int = 0


class PacketConfig(Record):
    """struct svc_packet_config: times in milliseconds; until `hold_until_ns` (CLOCK_MONOTONIC) no flow is opened."""

    flags: int
    syn_ms: int
    established_ms: int
    fins_ms: int
    reset_ms: int
    after_reset_ms: int
    udp_ms: int
    fragment_ms: int
    first_port: int
    ports: int
    pad: int = 0
    hold_until_ns: int = 0
    address4: bytes = b""
    address6: bytes = b""
    tunnel_port: int = 0
    tunnel_mtu: int = 0
    no_dsr: int = 0
    reserved: bytes = b""


FLOW_KEY = Layout("svc_flow_key", FlowKey, "16s 16s H H B 3s")
FLOW = Layout("svc_flow", FlowValue, "16s 16s H H I I I I I Q Q Q I I I I B B H I")
FRAGMENT_KEY = Layout("svc_fragment_key", FragmentKey, "I I H B B")
FRAGMENT = Layout("svc_fragment", FragmentValue, "H H I Q")
FILTER_BUCKET = Layout("svc_filter_bucket", FilterBucket, "I 28s")
DEVICE = Layout("svc_device", Device, "I H H")
NODE = Layout("svc_node", NodeValue, "16s 16s 64s 64s 32s I I")
PACKET_CONFIG = Layout("svc_packet_config", PacketConfig, "I I I I I I I I H H I Q 16s 16s H H I 40s")

MAP_LAYOUTS: dict[str, tuple[Layout[Any] | None, Layout[Any] | None]] = {
    "flows": (FLOW_KEY, FLOW),
    "halfopen": (FLOW_KEY, FLOW),
    "fragments": (FRAGMENT_KEY, FRAGMENT),
    "flow_filter": (None, FILTER_BUCKET),
    "devices": (None, DEVICE),
    "nodes": (None, NODE),
    "packet_config": (None, PACKET_CONFIG),
    "packet_stats": (None, None),
    "packet_scratch": (None, None),
    "tails": (None, None),
}
"""As catalog.LAYOUTS, of the maps of the packet path."""

ALL: tuple[Layout[Any], ...] = (
    FLOW_KEY, FLOW, FRAGMENT_KEY, FRAGMENT, FILTER_BUCKET, DEVICE, NODE, PACKET_CONFIG,
)  # fmt: skip

CHECK_FACTORS = (
    0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F,
    0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3, 0x1D8E4E27C47D124F, 0xEB44ACCAB455D165,
    0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
)  # fmt: skip
