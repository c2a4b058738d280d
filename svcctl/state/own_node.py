"""This node among the nodes: its name, ends of tunnels and pods' prefixes, as maps have them, and what changes them.

Its ends are in `packet_config`, its pods' prefixes in `node_addresses` with the number 0, and the rest is number 0 of
`nodes`, which no program looks up: nothing is tunnelled to it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from svcctl.errors import Conflict
from svcctl.maps import enums, layouts
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import NODE, NodeValue
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.node import OwnNode, claims, shown
from svcctl.model.prefix import format_prefix
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.packet_settings import PacketSettings
    from svcctl.model.prefix import Prefix
    from svcctl.state.nodes import NodeChanges, Nodes
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

_KEY = U32.pack(0)
_NOTHING = NodeValue(bytes(16), bytes(16), b"", b"", b"", 0)


class OwnChanges(Record):
    """What this node is and what it becomes, with the elements of `node_addresses` that this takes."""

    have: OwnNode
    want: OwnNode
    elements: NodeChanges | None

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return self.have != self.want or self.elements is not None

    @property
    def notes(self) -> str:
        """`pod prefixes none -> 10.244.1.0/24`, empty if nothing changes."""
        return "; ".join(f"{name} {text}" for name, text in differences(self.have, self.want))


def host_name() -> str:
    """The host's name, "" for one that many hosts have."""
    name = os.uname().nodename.lower()
    return "" if name.partition(".")[0] in ("", "localhost", "(none)") else name


def read_own(state: State, pods: Iterable[Prefix]) -> OwnNode:
    """This node; `pods` are its pods' prefixes. There must be a packet path."""
    from svcctl.state.packet_settings import read_config

    config = read_config(state)
    value = read_value(state)
    pairs = ((IPV4, config.address4), (IPV6, config.address6))
    return OwnNode(
        layouts.text(value.name),
        layouts.text(value.zone),
        layouts.text(value.owner),
        tuple((family, address) for family, address in pairs if any(address)),
        tuple(sorted(pods)),
        bool(config.flags & enums.PACKET_ADDRESS_BY_HAND),
        bool(value.flags & enums.NODE_BY_HAND),
    )


def read_value(state: State) -> NodeValue:
    """What `nodes` says of this node."""
    data = state.map("nodes").lookup(_KEY)
    return _NOTHING if data is None else NODE.unpack(data)


def put_value(writer: Writer, value: NodeValue) -> None:
    """Write that. Inside `changing()`."""
    table = writer.map("nodes")
    if any(value.name) or any(value.zone) or any(value.owner) or value.flags:
        table.update(_KEY, NODE.pack(value))
    else:
        table.delete(_KEY)


def write_own(writer: Writer, want: OwnNode) -> None:
    """Write all of this node but its pods' prefixes, which are the plan's of the nodes. Inside `changing()`."""
    from svcctl.state.packet_settings import put_config, read_config
    from svcctl.state.tunnel_settings import with_addresses

    config = read_config(writer)
    wanted = with_addresses(config, want.ends, by_hand=want.ends_by_hand)
    if wanted != config:
        put_config(writer, wanted)
    flags = enums.NODE_BY_HAND if want.pods_by_hand else 0
    value = _NOTHING._replace(
        name=want.name.encode(), zone=want.zone.encode(), owner=want.owner.encode(), flags=flags
    )
    if NODE.pack(value) != NODE.pack(read_value(writer)):
        put_value(writer, value)


def plan_own(state: State, asked: PacketSettings) -> OwnChanges:
    """What a hand's words make of this node's name and pods' prefixes. Raises Conflict for what is another node's."""
    from svcctl.state import nodes

    there = nodes.read(state)
    have = read_own(state, there.own_pods)
    want = have
    if asked.node_name is not None:
        want = want._replace(name=asked.node_name)
        if not asked.node_name:
            want = want._replace(zone="", owner="")
    if asked.pod_prefixes is not None:
        pods = tuple(sorted(set(asked.pod_prefixes)))
        want = want._replace(pod_prefixes=pods, pods_by_hand=bool(pods))
    _refuse(there, want)
    return OwnChanges(have, want, nodes.plan(state, there, (), own_pods=want.pod_prefixes))


def refuse_own_name(state: State, name: str) -> None:
    """Raise Conflict if somebody said that this node is called so."""
    if layouts.text(read_value(state).name) == name:
        raise Conflict(
            f"node {name!r}: this node has the name", hint="'svcctl load --node-name' gives it another one"
        )


def unmarked(state: State, pods: Iterable[Prefix]) -> int:
    """How many backends in this node's pods' prefixes are not known to be on this node."""
    from svcctl.maps import catalog
    from svcctl.model.prefix import covers
    from svcctl.state.services import read_all

    prefixes = list(pods)
    if not prefixes or not state.has_half(catalog.BALANCER):
        return 0
    return len(
        {
            member.backend
            for one in read_all(state).values()
            for member in one.service.members
            if not member.local and any(covers(each, *member.backend[:2]) for each in prefixes)
        }
    )


def _refuse(there: Nodes, want: OwnNode) -> None:
    hint = "'svcctl nodes delete' removes that one"
    if want.name in there.nodes:
        raise Conflict(f"load: --node-name {want.name}: there is another node of that name", hint=hint)
    whose = claims(there.nodes.values())
    for prefix in want.pod_prefixes:
        if prefix in whose:
            raise Conflict(
                f"load: --pod-prefix {shown(prefix)}: belongs to node {whose[prefix]!r}", hint=hint
            )


def write_changes(writer: Writer, changes: OwnChanges) -> None:
    """Carry a plan out. Inside `changing()`."""
    from svcctl.state.nodes import write

    if changes.want != changes.have:
        write_own(writer, changes.want)
    if changes.elements is not None:
        write(writer, changes.elements)


def differences(have: OwnNode, want: OwnNode) -> list[tuple[str, str]]:
    """What of this node changes: `pod prefixes` and `none -> 10.244.1.0/24`; its ends of tunnels are settings."""
    before, after = words(have), words(want)
    return [(name, f"{before[name]} -> {after[name]}") for name in after if before[name] != after[name]]


def words(own: OwnNode) -> dict[str, str]:
    """This node as people read it, but for its ends of tunnels."""
    by_hand = " (by hand)" if own.pods_by_hand else ""
    pods = ", ".join(shown(one) for one in own.pod_prefixes)
    zone = f" in {own.zone}" if own.zone else ""
    return {
        "node name": f"{own.name}{zone}" if own.name else "the host's",
        "pod prefixes": f"{pods}{by_hand}" if pods else "none",
    }


def values(own: OwnNode) -> dict[str, Any]:
    """The same for JSON."""
    found: dict[str, Any] = {"node": own.name or None, "zone": own.zone or None}
    if own.pod_prefixes:
        found["pod_prefixes"] = [format_prefix(*one) for one in own.pod_prefixes]
        found["pod_prefixes_by_hand"] = own.pods_by_hand
    return {key: value for key, value in found.items() if value is not None}
