"""nodes: the other nodes of the cluster, their elements of `node_addresses`, and the settings of tunnels.

The value in `nodes` is the truth about a node's name and its ends of tunnels. Which other addresses and pod prefixes it
has, only the elements say: what is lost of those comes back with the next `nodes add` or `apply`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import NODE, TUNNEL_PORT
from svcctl.model.constants import IPV4
from svcctl.model.label import MAX_OWNER_BYTES, check_name
from svcctl.model.node import MAX_ZONE_BYTES, NUMBERS, check_node_name, holds_ipv4, host, is_no_node
from svcctl.model.prefix import MAPPED, format_address, format_prefix
from svcctl.state import nodes, own_node
from svcctl.state.audit.finding import Finding
from svcctl.state.node_addresses import read_nets, serves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from svcctl.maps.packet_layouts import NodeValue
    from svcctl.state.writer import Writer

_FORGET = "'svcctl nodes delete' forgets one of them"


def find(writer: Writer) -> Iterator[Finding]:
    """Findings about nodes. The service maps must be there; the packet path's need not."""
    values = nodes.read_values(writer) if writer.has_map("nodes") else {}
    table = nodes.read_table(writer)
    nets = read_nets(writer)
    if writer.has_map("nodes"):
        yield from _own(writer)
    yield from _values(writer, values)
    yield from _elements(writer, values, table, nets)
    yield from _ends(writer, values, table, nets)
    if writer.has_half(catalog.PACKETS):
        yield from _settings(writer, table)


def _own(writer: Writer) -> Iterator[Finding]:
    """What is said of this node can be said, and no other node has its name."""
    value = own_node.read_value(writer)
    right = value._replace(
        address4=bytes(16),
        address6=bytes(16),
        name=_sound_text(value.name, check_node_name),
        owner=_sound_text(value.owner, _check_owner),
        zone=_sound_text(value.zone, _check_zone),
        flags=value.flags & enums.NODE_BY_HAND,
        pad=0,
    )
    if NODE.pack(right) != NODE.pack(value):
        yield Finding("nodes", "this node has what cannot be", partial(own_node.put_value, writer, right))


def _sound_text(data: bytes, check: Callable[[str], str]) -> bytes:
    """A text without the zeros behind it; nothing if it cannot be."""
    text = data.rstrip(b"\0")
    return text if not text or _is_text(text, check) else b""


def _check_owner(text: str) -> str:
    return check_name("owner", text, MAX_OWNER_BYTES)


def _check_zone(text: str) -> str:
    return check_name("zone", text, MAX_ZONE_BYTES)


def _values(writer: Writer, values: dict[int, NodeValue]) -> Iterator[Finding]:
    """Each can be named, by a name of its own, and has a number that an element has room for."""
    named: dict[bytes, int] = {}
    for number, value in sorted(values.items()):
        if not 0 < number <= NUMBERS:
            yield Finding(
                "nodes",
                f"there is a node of number {number}, which no address can lead to",
                partial(writer.map("nodes").delete, U32.pack(number)),
            )
            continue
        right = _sound(number, value)
        if right != value:
            differs = ", ".join(
                field for field, have, want in zip(value._fields, value, right, strict=True) if have != want
            )
            yield Finding(
                "nodes",
                f"node {_name(value)} has what cannot be: {differs}",
                partial(writer.map("nodes").update, U32.pack(number), NODE.pack(right)),
            )
        other = named.setdefault(right.name, number)
        if other != number:
            yield Finding("nodes", f"nodes {other} and {number} are both named {_name(right)}", None, _FORGET)
        if not nodes.ends_of(right):
            yield Finding(
                "nodes",
                f"node {_name(right)} has no address",
                None,
                "'svcctl nodes add' gives it one, 'svcctl nodes delete' forgets it",
            )


def _sound(number: int, value: NodeValue) -> NodeValue:
    """The value with what cannot be of it taken away."""
    name = _sound_text(value.name, check_node_name) or b"node-%d" % number
    owner, zone = _sound_text(value.owner, _check_owner), _sound_text(value.zone, _check_zone)
    address4, address6 = value.address4, value.address6
    if any(address4) and (not address4.startswith(MAPPED) or is_no_node(IPV4, address4)):
        address4 = bytes(16)
    if any(address6) and is_no_node(6, address6):
        address6 = bytes(16)
    right = value._replace(
        address4=address4,
        address6=address6,
        name=name,
        owner=owner,
        zone=zone,
        flags=0 if owner else enums.NODE_BY_HAND,
        pad=0,
    )
    return NODE.unpack(NODE.pack(right))


def _is_text(data: bytes, check: Callable[[str], str]) -> bool:
    try:
        check(data.decode())
    except (UnicodeError, UsageProblem):
        return False
    return True


def _name(value: NodeValue) -> str:
    return repr(layouts.text(value.name))


def _elements(
    writer: Writer, values: dict[int, NodeValue], table: dict[bytes, int], nets: Collection[bytes]
) -> Iterator[Finding]:
    """Each leads to a node that is there, and says what its class can say."""
    for key, word in sorted(table.items()):
        prefix = nodes.prefix_of(key)
        kind, number = word & 0xFF, word >> enums.NODE_SHIFT
        shown = format_prefix(*prefix)
        fault = ""
        right = word
        if kind == enums.NODE_OWN:
            right = enums.NODE_OWN
            fault = "" if prefix.is_host else "a prefix as this node's own"
        elif kind == enums.NODE_PEER:
            ports = enums.NODE_PORTS if serves(prefix.address, nets) else 0
            right = number << enums.NODE_SHIFT | kind | ports
            fault = "" if prefix.is_host else "a prefix as a node's address"
            if not number:
                fault = "this node's as another's"
        elif kind == enums.NODE_POD:
            right = number << enums.NODE_SHIFT | kind
            fault = "everything" if holds_ipv4(prefix) else ""
        else:
            fault = f"an element of class {kind}"
        if not fault and number and number not in values:
            fault = f"an address of node {number}, which is not there"
        if fault:
            yield Finding(
                "nodes",
                f"node_addresses has {shown}, {fault}",
                partial(writer.map("node_addresses").delete, key),
            )
        elif right != word:
            yield Finding(
                "nodes",
                f"node_addresses says {word:#x} of {shown}, not {right:#x}",
                partial(writer.map("node_addresses").update, key, U32.pack(right)),
            )


def _ends(
    writer: Writer, values: dict[int, NodeValue], table: dict[bytes, int], nets: Collection[bytes]
) -> Iterator[Finding]:
    """Where a node takes tunnelled packets is one of its addresses."""
    claimed: dict[bytes, int] = {}
    for number, value in sorted(values.items()):
        for family, address in nodes.ends_of(_sound(number, value)):
            key = nodes.key_of(host((family, address)))
            shown = f"{format_address(family, address)}, where node {_name(value)} takes packets"
            other = claimed.setdefault(key, number)
            word = table.get(key, 0)
            if other != number:
                yield Finding("nodes", f"{shown}, is node {_name(values[other])}'s too", None, _FORGET)
            elif word & 0xFF == enums.NODE_OWN:
                yield Finding(
                    "nodes",
                    f"{shown}, is this node's own address",
                    None,
                    "'svcctl nodes delete' forgets the node, or take the address off the interface",
                )
            elif word & 0xFF != enums.NODE_PEER or word >> enums.NODE_SHIFT != number:
                ports = enums.NODE_PORTS if serves(address, nets) else 0
                right = number << enums.NODE_SHIFT | enums.NODE_PEER | ports
                yield Finding(
                    "nodes",
                    f"{shown}, does not lead to it",
                    partial(writer.map("node_addresses").update, key, U32.pack(right)),
                )


def _settings(writer: Writer, table: dict[bytes, int]) -> Iterator[Finding]:
    """Tunnels have a port, this node's ends are no other's, and the set of clients without DSR is there."""
    from svcctl.state.packet_settings import put_config, read_config
    from svcctl.state.tunnel_settings import no_dsr

    config = read_config(writer)
    if not config.tunnel_port:
        yield Finding(
            "nodes",
            "tunnels have no port",
            partial(put_config, writer, config._replace(tunnel_port=TUNNEL_PORT)),
        )
    for family, address in nodes.tunnel_ends(writer):
        if table.get(nodes.key_of(host((family, address))), 0) & 0xFF == enums.NODE_PEER:
            yield Finding(
                "nodes",
                f"{format_address(family, address)} is this node's end of tunnels, and another node's address",
                None,
                "'svcctl load --node-address' or 'svcctl nodes delete' ends that",
            )
    if config.no_dsr and not no_dsr(writer, config):
        yield Finding(
            "nodes",
            f"the prefixes of clients without DSR, number {config.no_dsr}, are gone",
            None,
            "'svcctl load --no-dsr' says them anew",
        )
