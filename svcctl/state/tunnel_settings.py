"""What `load` says of packets: this node's ends of tunnels, their port and size, source ports, who gets no DSR.

The settings are kept in `packet_config`, so there must be a packet path; `packets.py` makes it. The prefixes of
clients without DSR are a set in `source_ranges`, as a service's source ranges are; other prefixes get another number,
and what nothing leads to any more is deleted after a wait for the programs that run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.errors import Conflict, Full
from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import format_address, format_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.maps.packet_layouts import PacketConfig
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.model.prefix import Prefix
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

NODE_PORTS = (30_000, 32_767)
"""Ports that Kubernetes takes for node ports unless it is told otherwise."""
SWITCHES = {
    "clamp": enums.PACKET_CLAMP,
    "keep_flows": enums.PACKET_KEEP,
    "reset_unknown": enums.PACKET_RESET_UNKNOWN,
}
"""Field of the settings -> flag in `packet_config`."""


def with_addresses(
    config: PacketConfig, addresses: Iterable[tuple[int, bytes]], *, by_hand: bool
) -> PacketConfig:
    """The settings with other ends of tunnels, the first of each family that is given."""
    ends: dict[int, bytes] = {}
    for family, address in addresses:
        ends.setdefault(family, address)
    flags = config.flags & ~enums.PACKET_ADDRESS_BY_HAND
    if by_hand and ends:
        flags |= enums.PACKET_ADDRESS_BY_HAND
    return config._replace(
        flags=flags, address4=ends.get(IPV4, bytes(16)), address6=ends.get(IPV6, bytes(16))
    )


def with_settings(config: PacketConfig, asked: PacketSettings) -> PacketConfig:
    """The settings as they are to be; `no_dsr` is left alone, as its number comes with the writing."""
    if asked.addresses is not None:
        config = with_addresses(config, asked.addresses, by_hand=True)
    fields: dict[str, Any] = {}
    if asked.tunnel_port is not None:
        fields["tunnel_port"] = asked.tunnel_port
    if asked.tunnel_mtu is not None:
        fields["tunnel_mtu"] = asked.tunnel_mtu
    flags = config.flags
    for name, flag in SWITCHES.items():
        on = getattr(asked, name)
        if on is not None:
            flags = flags | flag if on else flags & ~flag
    fields["flags"] = flags
    if asked.ports is not None:
        first, last = asked.ports
        fields.update(first_port=first, ports=last - first + 1)
    return config._replace(**fields)


def no_dsr(state: State, config: PacketConfig) -> list[Prefix]:
    """The prefixes of clients whose answers are tunnelled whatever their service says, sorted."""
    from svcctl.state.services import read_sources

    return sorted(read_sources(state).get(config.no_dsr, ())) if config.no_dsr else []


def not_default(state: State) -> PacketSettings | None:
    """The settings that differ from those of a new packet path, and are no node's own; None: there is none."""
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.state.packet_settings import DEFAULTS, read_config

    config = read_config(state)
    clients = tuple(no_dsr(state, config))
    first, count = config.first_port, config.ports
    switched: dict[str, Any] = {name: True for name, flag in SWITCHES.items() if config.flags & flag}
    found = PacketSettings(
        tunnel_port=config.tunnel_port if config.tunnel_port != DEFAULTS.tunnel_port else None,
        tunnel_mtu=config.tunnel_mtu or None,
        **switched,
        ports=(first, first + count - 1) if (first, count) != (DEFAULTS.first_port, DEFAULTS.ports) else None,
        no_dsr=clients or None,
    )
    return None if found.is_empty else found


def refuse_settings(state: State, asked: PacketSettings) -> None:
    """Raise Conflict for an end of tunnels that is another node's address."""
    if not asked.addresses or not state.has_half(catalog.PACKETS):
        return
    from svcctl.model.node import claims, host
    from svcctl.state.nodes import read

    whose = claims(read(state).nodes.values())
    for each in asked.addresses:
        name = whose.get(host(each))
        if name is not None:
            raise Conflict(
                f"load: --node-address {format_address(*each)}: belongs to node {name!r}",
                hint="'svcctl nodes delete' removes that one",
            )


def remarks(state: State, asked: PacketSettings) -> list[str]:
    """What there is to know of settings that can be so, and may not be meant."""
    from svcctl.host.addresses import local_addresses

    found = []
    if asked.addresses:
        there = local_addresses(state.netns)
        found += [
            f"{format_address(*each)} is no address of this network namespace now: no tunnel works until it is"
            for each in asked.addresses
            if each[1] not in there
        ]
    if asked.ports is not None:
        found += port_clashes(state, *asked.ports)
    return found


def port_clashes(state: State, first: int, last: int) -> list[str]:
    """What the range of source ports is in the way of: node ports, and the ports that the kernel gives out."""
    found = []
    low, high = NODE_PORTS
    if first <= high and last >= low:
        found.append(
            f"source ports {first}-{last} are in the range of node ports, {low}-{high}: flows may take a node port"
        )
    local = local_ports(state)
    if local is not None and first <= local[1] and last >= local[0]:
        found.append(
            f"source ports {first}-{last} overlap net.ipv4.ip_local_port_range, {local[0]}-{local[1]}:"
            " a connection of this node may have the same one"
        )
    taken = sorted(port for port in node_ports(state) if first <= port <= last and not low <= port <= high)
    if taken:
        found.append(f"source ports {first}-{last} have node ports in use: {', '.join(map(str, taken[:5]))}")
    return found


def local_ports(state: State) -> tuple[int, int] | None:
    """net.ipv4.ip_local_port_range of the namespace; None if it cannot be read."""
    from svcctl.errors import SvcctlError
    from svcctl.host.capability import sysctl

    try:
        with state.netns.entered():
            text = sysctl("net.ipv4.ip_local_port_range")
    except SvcctlError:
        return None
    words = (text or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def node_ports(state: State) -> set[int]:
    """Node ports of services."""
    from svcctl.maps.service_layouts import SERVICE

    if not state.has_map("services"):
        return set()
    ports = {SERVICE.unpack(data).node_port for _, data in state.map("services").items()}
    return ports - {0}


def check_range_room(state: State, prefixes: Iterable[Prefix]) -> None:
    """Raise Full if a set of prefixes does not fit into `source_ranges` beside what is there."""
    usage, more = state.usage("source_ranges"), len(set(prefixes))
    if usage.used + more > usage.max:
        raise Full(
            f"load: --no-dsr: source_ranges has room for {usage.max} prefixes, {usage.used} are used",
            hint="'svcctl upgrade --max-services N' makes more room",
        )


def write_ranges(writer: Writer, prefixes: Iterable[Prefix]) -> int:
    """Write prefixes as a new set, counted first; returns its number, 0 for none. Inside `changing()`."""
    wanted = sorted(set(prefixes))
    if not wanted:
        return 0
    meta = writer.meta()
    number = max(meta.next_ranges, 1)
    writer.put_meta(meta._replace(next_ranges=number + 2))  # the next one is IPv6's
    usage = writer.usage("source_ranges")
    writer.put_usage("source_ranges", usage._replace(used=usage.used + len(wanted)))
    table = writer.map("source_ranges")
    for key in codec.range_keys(number, wanted):
        table.update(key, U32.pack(1))
    return number


def delete_ranges(writer: Writer, number: int, prefixes: Iterable[Prefix]) -> None:
    """Delete a set that nothing leads to any more, after a wait for running programs. Inside `changing()`."""
    from svcctl.bpf.barrier import rcu_barrier

    rcu_barrier()
    table = writer.map("source_ranges")
    gone = sum(table.delete(key) for key in codec.range_keys(number, prefixes))
    usage = writer.usage("source_ranges")
    writer.put_usage("source_ranges", usage._replace(used=max(usage.used - gone, 0)))


def words(config: PacketConfig, opted_out: Iterable[Prefix] = ()) -> dict[str, str]:
    """The settings as people read them."""
    ends = [
        format_address(family, address)
        for family, address in ((IPV4, config.address4), (IPV6, config.address6))
        if any(address)
    ]
    by_hand = " (by hand)" if config.flags & enums.PACKET_ADDRESS_BY_HAND else ""
    return {
        "node address": (", ".join(ends) + by_hand) if ends else "none",
        "tunnel port": str(config.tunnel_port),
        "tunnel mtu": str(config.tunnel_mtu or "the interface's"),
        "clamp mss": "yes" if config.flags & enums.PACKET_CLAMP else "no",
        "keep flows": "yes" if config.flags & enums.PACKET_KEEP else "no",
        "reset unknown": "yes" if config.flags & enums.PACKET_RESET_UNKNOWN else "no",
        "source ports": f"{config.first_port}-{config.first_port + config.ports - 1}",
        "no dsr": ", ".join(format_prefix(*each) for each in opted_out) or "nobody",
    }


def values(config: PacketConfig, opted_out: Iterable[Prefix]) -> dict[str, Any]:
    """The same for JSON."""
    ends = ((IPV4, config.address4), (IPV6, config.address6))
    return {
        "addresses": [format_address(family, address) for family, address in ends if any(address)],
        "by_hand": bool(config.flags & enums.PACKET_ADDRESS_BY_HAND),
        "port": config.tunnel_port,
        "mtu": config.tunnel_mtu or None,
        "clamp_mss": bool(config.flags & enums.PACKET_CLAMP),
        "keep_flows": bool(config.flags & enums.PACKET_KEEP),
        "reset_unknown": bool(config.flags & enums.PACKET_RESET_UNKNOWN),
        "source_ports": [config.first_port, config.first_port + config.ports - 1],
        "no_dsr": [format_prefix(*each) for each in opted_out],
    }


def changed_words(before: dict[str, str], after: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """What differs: `tunnel port` and `4789 -> 4790`."""
    return tuple(
        (name, f"{before[name]} -> {after[name]}") for name in after if before.get(name) != after[name]
    )
