"""Doctor's lines about tunnels to other nodes, and what the host does to packets of services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.host import sock_diag, vxlan
from svcctl.host.addresses import local_addresses
from svcctl.host.capability import sysctl
from svcctl.host.route import interface_to
from svcctl.maps import catalog, enums
from svcctl.maps.packet_layouts import TUNNEL_VNI
from svcctl.model.constants import FAMILY_NAMES, IPV4, IPV6, UDP
from svcctl.model.prefix import format_address
from svcctl.state.doctor.line import FAIL, OK, WARN, Line

if TYPE_CHECKING:
    from svcctl.state.doctor.probe import Probe
    from svcctl.state.session import Reader

_NAMED = 3
"""So many nodes are named; of the others there is the number."""


def tunnels(probe: Probe, reader: Reader) -> Line:
    """The tunnels' port, the address of this node, and the way to each other one."""
    name = "tunnels"
    if not reader.has_half(catalog.PACKETS):
        return Line(name, OK, "the packet path was never attached")
    from svcctl.state.nodes import read_values, tunnel_ends
    from svcctl.state.packet_settings import read_config

    ends, others = tunnel_ends(reader), read_values(reader)
    if not ends:
        if not others:
            return Line(name, OK, "no other nodes are known")
        text = f"{len(others)} other nodes are known, and no address of this one: nothing is tunnelled"
        return Line(name, WARN, text, "'svcctl load --node-address' gives this node's end")
    port = read_config(reader).tunnel_port
    for look in (_lost_end, _same_network, _shared_port, _socket, _unreachable, _other_family):
        line = look(name, reader, port)
        if line is not None:
            return line
    shown = ", ".join(format_address(*each) for each in ends)
    return Line(name, OK, f"from {shown}, port {port}, to {len(others)} other nodes")


def _lost_end(name: str, reader: Reader, port: int) -> Line | None:
    from svcctl.state.nodes import tunnel_ends

    there = local_addresses(reader.netns)
    lost = [format_address(*each) for each in tunnel_ends(reader) if each[1] not in there]
    if not lost:
        return None
    text = f"{', '.join(lost)} is no address of this network namespace: what is tunnelled here goes astray"
    return Line(name, FAIL, text, "'svcctl load --node-address' names one of the node's addresses")


def _same_network(name: str, reader: Reader, port: int) -> Line | None:
    same = [
        one.name for one in vxlan.vxlan_devices(reader.netns) if (one.port, one.vni) == (port, TUNNEL_VNI)
    ]
    if not same:
        return None
    text = f"{', '.join(same)} is a VXLAN interface with the port {port} and svcctl's network number {TUNNEL_VNI:#x}"
    return Line(name, FAIL, text, "give that one another number, or 'svcctl load --tunnel-port' on all nodes")


def _shared_port(name: str, reader: Reader, port: int) -> Line | None:
    open_ = [one.name for one in vxlan.vxlan_devices(reader.netns) if one.port == port and one.external]
    if not open_:
        return None
    text = f"{', '.join(open_)} is a VXLAN interface with the port {port} that takes every network number"
    return Line(name, WARN, text, "'svcctl load --tunnel-port' on all nodes gives tunnels another port")


def _socket(name: str, reader: Reader, port: int) -> Line | None:
    if any(one.port == port for one in vxlan.vxlan_devices(reader.netns)):
        return None  # the socket is that interface's, in the kernel
    bound = sock_diag.listeners(UDP, port, netns=reader.netns)
    if not bound:
        return None
    text = f"a socket of uid {bound[0].uid} is bound to UDP port {port}: it does not get what is tunnelled"
    return Line(name, WARN, text, "'svcctl load --tunnel-port' on all nodes gives tunnels another port")


def _unreachable(name: str, reader: Reader, port: int) -> Line | None:
    """No route, or one by an interface where nobody takes packets out of tunnels."""
    from svcctl.maps import layouts
    from svcctl.state.devices import read_table
    from svcctl.state.nodes import ends_of, read_values, tunnel_ends

    roles = {ifindex: value.role for ifindex, value in read_table(reader).items()}
    families = {family for family, _ in tunnel_ends(reader)}
    no_route, elsewhere = [], []
    for value in read_values(reader).values():
        for family, address in ends_of(value):
            if family not in families:
                continue
            by = interface_to(family, address[12:] if family == IPV4 else address, netns=reader.netns)
            text = f"{layouts.text(value.name)} ({format_address(family, address)})"
            if not by:
                no_route.append(text)
            elif roles.get(by) != enums.ROLE_HOST:
                elsewhere.append(text)
    if no_route:
        return Line(name, WARN, f"there is no route to {_some(no_route)}", "'ip route get' tells more")
    if elsewhere:
        text = f"{_some(elsewhere)}: reached by an interface that is not attached as the node's own"
        return Line(
            name, WARN, text, "'svcctl attach dev NAME --role host' takes packets out of tunnels there"
        )
    return None


def _other_family(name: str, reader: Reader, port: int) -> Line | None:
    """A node that has an end of tunnels of a family in which this node has none."""
    from svcctl.maps import layouts
    from svcctl.state.nodes import ends_of, read_values, tunnel_ends

    own = {family for family, _ in tunnel_ends(reader)}
    for family in {IPV4, IPV6} - own:
        there = [
            layouts.text(value.name)
            for value in read_values(reader).values()
            if any(each == family for each, _ in ends_of(value))
        ]
        if there:
            text = f"{_some(there)}: no {FAMILY_NAMES[family]} tunnel, as this node has no end of that family"
            return Line(name, WARN, text, "'svcctl load --node-address' gives it one of each family")
    return None


def pod_prefixes(probe: Probe, reader: Reader) -> Line:
    """Whether the nodes' prefixes are apart from each other and from what is on this node."""
    name = "pod prefixes"
    if not reader.has_half(catalog.PACKETS):
        return Line(name, OK, "the packet path was never attached")
    from svcctl.state.node_overlaps import present, texts

    found = texts(present(reader))
    if not found:
        return Line(name, OK, "each node's are its own")
    text = "; ".join(f"{subject}: {text}" for subject, text in found)
    return Line(name, WARN, text, "'svcctl nodes add' gives a node narrower ones")


def _some(texts: list[str]) -> str:
    texts = sorted(texts)
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def forwarding(probe: Probe, reader: Reader) -> Line:
    """What of the host's settings keeps packets of services from going on where the stack has to route them."""
    name = "forwarding"
    if not reader.has_half(catalog.PACKETS):
        return Line(name, OK, "the packet path was never attached")
    from svcctl.state.devices import read_table

    roles = {ifindex: value.role for ifindex, value in read_table(reader).items()}
    if enums.ROLE_HOST not in roles.values():
        return Line(name, OK, "no interface to the outside is attached")
    with reader.netns.entered():
        off = [
            setting
            for setting in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
            if sysctl(setting) == "0" and (setting.startswith("net.ipv4") or _has_ipv6(reader))
        ]
        strict = [
            one.name
            for one in probe.devices()
            if one.ifindex in roles and roles[one.ifindex] == enums.ROLE_WORKLOAD and _is_strict(one.name)
        ]
    if off:
        text = f"{' and '.join(off)} is 0: what the packet path does not hand on by itself ends here"
        return Line(name, WARN, text, f"sysctl -w {off[0]}=1")
    if strict:
        text = (
            f"rp_filter is 1 (strict) on {_some(strict)}: answers that the stack has to route there are dropped,"
            " as they come from a service's address"
        )
        return Line(name, WARN, text, f"sysctl -w net.ipv4.conf.{strict[0].replace('.', '/')}.rp_filter=2")
    return Line(name, OK, "on")


def _has_ipv6(reader: Reader) -> bool:
    from svcctl.state.nodes import tunnel_ends

    return any(family == IPV6 for family, _ in tunnel_ends(reader))


def _is_strict(interface: str) -> bool:
    """The larger of the two values counts."""
    settings = (f"net.ipv4.conf.{name}.rp_filter" for name in ("all", interface.replace(".", "/")))
    return max((int(value) for value in map(sysctl, settings) if value is not None), default=0) == 1


def source_ports(probe: Probe, reader: Reader) -> Line:
    """Whether the source ports of the packet path are its own."""
    name = "source ports"
    if not reader.has_half(catalog.PACKETS):
        return Line(name, OK, "the packet path was never attached")
    from svcctl.state.packet_settings import read_config
    from svcctl.state.tunnel_settings import port_clashes

    config = read_config(reader)
    first, last = config.first_port, config.first_port + config.ports - 1
    found = port_clashes(reader, first, last)
    if found:
        return Line(name, WARN, "; ".join(found), "'svcctl load --snat-ports' gives it others")
    return Line(name, OK, f"{first}-{last}")
