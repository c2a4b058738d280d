"""Hypothesis strategies for model values, and a second opinion on prefixes by the standard library."""

from __future__ import annotations

import ipaddress

from hypothesis import strategies as st

from svcctl.model.binding import Binding
from svcctl.model.constants import IPV4, IPV6, TCP, UDP

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAPPED = int(ipaddress.IPv6Address("::ffff:0:0"))

labels = st.text(min_size=1, max_size=60).filter(
    lambda text: text.isprintable() and not text.isspace() and len(text.encode()) <= 255
)
ports = st.one_of(st.sampled_from([0, 1, 80, 443, 65534, 65535]), st.integers(0, 65535))
ipv4 = st.builds(
    lambda number, length: ipaddress.ip_network((number, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)
ipv6 = st.builds(
    lambda number, length: ipaddress.ip_network((number, length), strict=False),
    st.integers(0, 2**128 - 1).filter(lambda number: number >> 32 != MAPPED >> 32),
    st.integers(0, 128),
).filter(lambda network: isinstance(network, ipaddress.IPv6Network))
networks = st.one_of(ipv4, ipv6)


def bytes16(address: Address) -> bytes:
    """The address as the maps hold it."""
    return (int(address) + (MAPPED if address.version == 4 else 0)).to_bytes(16, "big")


def binding_of(label: str, protocol: int, network: Network, port: int) -> Binding:
    family = IPV4 if network.version == 4 else IPV6
    return Binding(label, protocol, family, bytes16(network.network_address), network.prefixlen, port)


bindings = st.builds(binding_of, labels, st.sampled_from([TCP, UDP]), networks, ports)

# A small world, in which prefixes meet: 10.0.0.0/28 and its IPv6 namesake, three ports.
SMALL_PORTS = (80, 81)
small4 = st.builds(
    lambda low, length: ipaddress.ip_network((0x0A000000 | low, length), strict=False),
    st.integers(0, 15),
    st.sampled_from([0, 8, 28, 29, 30, 31, 32]),
)
small6 = st.builds(
    lambda low, length: ipaddress.ip_network((0x20010DB8 << 96 | low, length), strict=False),
    st.integers(0, 15),
    st.sampled_from([0, 32, 124, 126, 127, 128]),
)
small_bindings = st.builds(
    binding_of,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([TCP, TCP, UDP]),
    st.one_of(small4, small4, small6),
    st.sampled_from([0, *SMALL_PORTS]),
)
small_addresses = st.one_of(
    st.integers(0, 16).map(lambda low: ipaddress.IPv4Address(0x0A000000 | low)),
    st.integers(0, 16).map(lambda low: ipaddress.IPv6Address(0x20010DB8 << 96 | low)),
    st.just(ipaddress.IPv6Address(0xFFFF << 32 | 0x0A000001)),
)
