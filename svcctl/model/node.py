"""Nodes of the cluster: what is said of one, what may not be said, and the plan from those there are to those wanted.

This node, `OwnNode`, is not one of them. The first address of each family is where a node takes tunnelled packets; all
of them are the node's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Conflict
from svcctl.model.bad_value import BadValue
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.label import check_name
from svcctl.model.prefix import MAPPED, Prefix, format_address, format_prefix, mask_address
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MAX_NODE_BYTES = 64
MAX_ZONE_BYTES = 32
NUMBERS = (1 << 20) - 1
"""Numbers of nodes are 1 to this: what an element of node_addresses has room for."""

CREATED, CHANGED, UNCHANGED, DELETED = "created", "changed", "unchanged", "deleted"


class ClusterNode(Record):
    """Another node. `addresses` are (family, 16 bytes), the end of the tunnel first in each family, the others sorted;
    `pod_prefixes` are sorted. `owner` is who asked for it, "" for a hand."""

    name: str
    addresses: tuple[tuple[int, bytes], ...]
    pod_prefixes: tuple[Prefix, ...] = ()
    zone: str = ""
    owner: str = ""

    def end(self, family: int) -> bytes:
        """Where it takes tunnelled packets of a family, 16 bytes; all zeros: nowhere."""
        return next((address for each, address in self.addresses if each == family), bytes(16))

    def prefixes(self) -> list[Prefix]:
        """Everything that is the node's: its addresses as prefixes of full length, and its pods'."""
        return [*map(host, self.addresses), *self.pod_prefixes]


class OwnNode(Record):
    """This node: what others call it ("": nobody said), its zone, whose the input was that spoke of it last; its ends
    of tunnels, one of a family, IPv4's first, and its pods' prefixes, sorted, and whether a hand gave those."""

    name: str = ""
    zone: str = ""
    owner: str = ""
    ends: tuple[tuple[int, bytes], ...] = ()
    pod_prefixes: tuple[Prefix, ...] = ()
    ends_by_hand: bool = False
    pods_by_hand: bool = False


class NodeStep(Record):
    """What happens to a node: `have` is what it is (None: it is created), `want` what it becomes."""

    action: str
    name: str
    have: ClusterNode | None
    want: ClusterNode | None
    note: str = ""


def host(address: tuple[int, bytes]) -> Prefix:
    """The prefix of one address."""
    return Prefix(address[0], address[1], 32 if address[0] == IPV4 else 128)


def node_of(
    name: str,
    addresses: Iterable[tuple[int, bytes]],
    pod_prefixes: Iterable[Prefix] = (),
    zone: str = "",
    owner: str = "",
    *,
    own: bool = False,
) -> ClusterNode:
    """A node in the one form that says all of it; of this one (`own`) addresses need not be said.

    Raises UsageProblem for what cannot be said of one.
    """
    check_node_name(name)
    if zone:
        check_name("zone", zone, MAX_ZONE_BYTES)
    given = list(dict.fromkeys(addresses))
    if not given and not own:
        raise BadValue("node", name, "has no address", hint="--address says where it takes tunnelled packets")
    for family, address in given:
        if is_no_node(family, address):
            raise BadValue("address", format_address(family, address), "no node can be reached there")
    ends = [next(one for one in given if one[0] == family) for family in sorted({one[0] for one in given})]
    others = sorted(one for one in given if one not in ends)
    prefixes = sorted(set(pod_prefixes))
    for each in prefixes:
        if not is_prefix_of_pods(each):
            raise BadValue("pod prefix", format_prefix(*each), "is all there is, or too much of it")
    return ClusterNode(name, (*ends, *others), tuple(prefixes), zone, owner)


def check_node_name(text: str) -> str:
    """Returns `text` if it can name a node: 1 to 64 bytes of printable UTF-8. Raises UsageProblem."""
    return check_name("node name", text, MAX_NODE_BYTES)


def short_name(name: str) -> str:
    """A name that an input gave, in as many bytes as there are: of a longer one the end becomes a digest."""
    data = name.encode()
    if len(data) <= MAX_NODE_BYTES:
        return name
    return data[: MAX_NODE_BYTES - 9].decode("utf-8", "ignore") + f"~{_digest(data):08x}"


def fitting_zone(zone: str) -> str:
    """A zone that an input gave, in as many bytes as there are; none if it cannot be shown."""
    text = zone.encode()[:MAX_ZONE_BYTES].decode("utf-8", "ignore")
    return text if text.isprintable() else ""


def is_prefix_of_pods(prefix: Prefix) -> bool:
    """Whether a node's pods may be said to be there."""
    return bool(prefix.length) and not holds_ipv4(prefix)


def is_no_node(family: int, address: bytes) -> bool:
    """Whether no other node can have the address, or none can be told by it: zero, loopback, multicast, link-local."""
    if family == IPV4:
        return address[12] in (0, 127) or address[12] >= 224
    link_local = address[0] == 0xFE and address[1] & 0xC0 == 0x80
    return address[:15] == bytes(15) or address[0] == 0xFF or link_local or address.startswith(MAPPED)


def holds_ipv4(prefix: Prefix) -> bool:
    """Whether it is an IPv6 prefix that has ::ffff:0:0/96 in it: maps would find IPv4 addresses in it."""
    if prefix.family == IPV4 or prefix.length > 96:
        return False
    return mask_address(MAPPED + bytes(4), prefix.length) == prefix.address


def number_for(name: str, taken: Collection[int]) -> int:
    """A number for a new node: from its name, so that one that comes back gets the number that its flows remember,
    and another one does not."""
    number = _digest(name.encode()) % NUMBERS
    while number + 1 in taken:
        number = (number + 1) % NUMBERS
    return number + 1


def _digest(data: bytes) -> int:
    """FNV-1a of 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def claims(nodes: Iterable[ClusterNode]) -> dict[Prefix, str]:
    """Whose each address and pod prefix is."""
    return {each: node.name for node in nodes for each in node.prefixes()}


def refuse_claimed(node: ClusterNode, others: Mapping[Prefix, str], own: Mapping[Prefix, str]) -> None:
    """Raise Conflict if something of the node is another's already, or this node's. `own` says why it is its own."""
    for each in node.prefixes():
        if each in own:
            raise Conflict(
                f"node {node.name!r}: {shown(each)} is {own[each]}",
                hint="this node is not to be added: 'svcctl load --node-address' says where it takes tunnelled packets",
            )
        other = others.get(each, node.name)
        if other != node.name:
            raise Conflict(
                f"node {node.name!r}: {shown(each)} belongs to node {other!r}",
                hint="'svcctl nodes delete' removes that one, 'svcctl nodes add' changes it",
            )


def step_for(want: ClusterNode, have: ClusterNode | None, note: str = "") -> NodeStep:
    """What makes a node what is wanted. Whose it is is no difference."""
    if have is None:
        return NodeStep(CREATED, want.name, None, want, note)
    if have._replace(owner="") == want._replace(owner=""):
        return NodeStep(UNCHANGED, want.name, have, have)
    return NodeStep(CHANGED, want.name, have, want, note)


def by_hand(want: ClusterNode, have: ClusterNode | None, *, take_over: bool) -> NodeStep:
    """What a hand makes of a node: one that an input made is changed only if it is taken over. Raises Conflict."""
    step = step_for(want, have)
    if have is None or not have.owner:
        return step
    if take_over:
        return NodeStep(CHANGED, want.name, have, want, f"was {have.owner}'s")
    if step.action != UNCHANGED:
        raise Conflict(
            f"nodes add: node {want.name!r} belongs to {have.owner}",
            hint="--take-over changes it, and it is made by hand then",
        )
    return step


def difference(have: ClusterNode, want: ClusterNode) -> list[str]:
    """What of a node changes, a line each: `address +192.0.2.3`."""
    lines = []
    for what, old, new in (
        ("address", list(map(host, have.addresses)), list(map(host, want.addresses))),
        ("pod prefix", list(have.pod_prefixes), list(want.pod_prefixes)),
    ):
        lines += [f"{what} -{shown(one)}" for one in old if one not in new]
        lines += [f"{what} +{shown(one)}" for one in new if one not in old]
    for family in (IPV4, IPV6):
        before, after = have.end(family), want.end(family)
        if before != after and any(before) and any(after):
            lines.append(f"tunnel {format_address(family, before)} -> {format_address(family, after)}")
    if have.zone != want.zone:
        lines.append(f"zone {have.zone or 'none'} -> {want.zone or 'none'}")
    return lines


def shown(prefix: Prefix) -> str:
    """A prefix, or the address if it is one of full length."""
    return format_address(prefix.family, prefix.address) if prefix.is_host else format_prefix(*prefix)
