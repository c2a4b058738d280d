"""`nodes` and the elements of `node_addresses` that lead to them: other nodes of the cluster, and whose pods are where.

A node's entry in `nodes` is written before its addresses and deleted after them, so an address never leads to a node
that is not there. Elements of class OWN are `node_addresses.py`'s, and what else there is of this node `own_node.py`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from svcctl.errors import Full, NotLoaded
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import NODE, NodeValue
from svcctl.maps.service_layouts import NODE_KEY, NodeKey
from svcctl.model.constants import FAMILY_NAMES, IPV4, IPV6
from svcctl.model.node import DELETED, UNCHANGED, ClusterNode, host, number_for
from svcctl.model.prefix import MAPPED, Prefix
from svcctl.record import Record
from svcctl.state.node_addresses import read_nets, serves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from svcctl.model.node import NodeStep
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

_CLASS = 0xFF


class Nodes(NamedTuple):
    """What the maps have. `numbers` and `nodes` are by name; `table` is `node_addresses` as it is."""

    nodes: dict[str, ClusterNode]
    numbers: dict[str, int]
    own_pods: tuple[Prefix, ...]
    table: dict[bytes, int]


class NodeChanges(Record):
    """What is to be written: values by number, elements of `node_addresses`, keys to delete, numbers to delete."""

    values: dict[int, bytes]
    keys: dict[bytes, int]
    gone_keys: tuple[bytes, ...]
    gone: tuple[int, ...]


def need_nodes(state: State) -> None:
    """Raise NotLoaded unless there is a packet path, which is what knows other nodes."""
    if not state.has_half(catalog.PACKETS):
        raise NotLoaded(
            f"{state.path}: there is no packet path, so no map of nodes",
            hint="'svcctl load --node-address' or 'svcctl attach dev' makes it",
        )


def read_table(state: State) -> dict[bytes, int]:
    """`node_addresses`, whole."""
    return {key: U32.unpack(value)[0] for key, value in state.map("node_addresses").items()}


def read_values(state: State) -> dict[int, NodeValue]:
    """The other nodes in `nodes`, by number; number 0 is this node's (`own_node.py`)."""
    values = {U32.unpack(key)[0]: NODE.unpack(value) for key, value in state.map("nodes").items()}
    values.pop(0, None)
    return values


def read(state: State) -> Nodes:
    """Every node, by name. There must be a packet path."""
    table = read_table(state)
    addresses: dict[int, list[tuple[int, bytes]]] = {}
    pods: dict[int, list[Prefix]] = {}
    for key, word in table.items():
        prefix = prefix_of(key)
        number = word >> enums.NODE_SHIFT
        if word & _CLASS == enums.NODE_POD:
            pods.setdefault(number, []).append(prefix)
        elif word & _CLASS == enums.NODE_PEER:
            addresses.setdefault(number, []).append(prefix[:2])
    nodes, numbers = {}, {}
    for number, value in read_values(state).items():
        one = _node(value, addresses.get(number, ()), pods.get(number, ()))
        nodes[one.name], numbers[one.name] = one, number
    return Nodes(dict(sorted(nodes.items())), numbers, tuple(sorted(pods.get(0, ()))), table)


def _node(value: NodeValue, addresses: Iterable[tuple[int, bytes]], pods: Iterable[Prefix]) -> ClusterNode:
    ends = ends_of(value)
    return ClusterNode(
        layouts.text(value.name),
        (*ends, *sorted(each for each in addresses if each not in ends)),
        tuple(sorted(pods)),
        layouts.text(value.zone),
        layouts.text(value.owner),
    )


def ends_of(value: NodeValue) -> list[tuple[int, bytes]]:
    """(family, address) where a node takes tunnelled packets."""
    pairs = ((IPV4, value.address4), (IPV6, value.address6))
    return [(family, address) for family, address in pairs if any(address)]


def own_pods(state: State) -> list[Prefix]:
    """This node's pods' prefixes, sorted."""
    return sorted(prefix_of(key) for key, word in read_table(state).items() if word == enums.NODE_POD)


def names(state: State) -> dict[int, str]:
    """Number -> name of every node; none without a packet path."""
    if not state.has_map("nodes"):
        return {}
    return {number: layouts.text(value.name) for number, value in read_values(state).items()}


def key_of(prefix: Prefix) -> bytes:
    """Key in `node_addresses`."""
    bits = 96 + prefix.length if prefix.family == IPV4 else prefix.length
    return NODE_KEY.pack(NodeKey(bits, prefix.address))


def prefix_of(key: bytes) -> Prefix:
    """The prefix of a key in `node_addresses`."""
    bits, address = NODE_KEY.struct.unpack(key)
    if bits >= 96 and address.startswith(MAPPED):
        return Prefix(IPV4, address, bits - 96)
    return Prefix(IPV6, address, bits)


def value_of(node: ClusterNode) -> bytes:
    """Value in `nodes`."""
    return NODE.pack(
        NodeValue(
            node.end(IPV4),
            node.end(IPV6),
            node.name.encode(),
            node.owner.encode(),
            node.zone.encode(),
            0 if node.owner else enums.NODE_BY_HAND,
        )
    )


def own_prefixes(state: State, have: Nodes) -> dict[Prefix, str]:
    """What no other node can have: this node's addresses and its pods' prefixes; and what to say of each."""
    found = dict.fromkeys(have.own_pods, "this node's own pod prefix")
    found.update(dict.fromkeys(namespace_addresses(state), "this node's own address"))
    for each in tunnel_ends(state):
        found[host(each)] = "this node's own end of tunnels"
    return found


def namespace_addresses(state: State) -> tuple[Prefix, ...]:
    """The addresses of the namespace's interfaces, as prefixes of full length."""
    from svcctl.host.addresses import local_addresses

    return tuple(
        host((IPV4 if address.startswith(MAPPED) else IPV6, address))
        for address in local_addresses(state.netns)
    )


def tunnel_ends(state: State) -> list[tuple[int, bytes]]:
    """(family, address) of this node's own ends of tunnels."""
    from svcctl.state.packet_settings import read_config

    config = read_config(state)
    pairs = ((IPV4, config.address4), (IPV6, config.address6))
    return [(family, address) for family, address in pairs if any(address)]


def plan(
    state: State,
    have: Nodes,
    steps: Iterable[NodeStep],
    *,
    own_pods: Iterable[Prefix] | None = None,
    nets: Collection[bytes] | None = None,
) -> NodeChanges | None:
    """What carries out the steps, and makes this node's pods' prefixes `own_pods` (None: as they are).

    `nets` are the keys of the prefixes that node ports are served on (None: as they are). None if there is nothing to
    write. Raises Full.
    """
    numbers = dict(have.numbers)
    nodes = dict(have.nodes)
    values, gone = {}, []
    taken = set(numbers.values())
    for step in steps:
        if step.action == UNCHANGED:
            continue
        if step.action == DELETED or step.want is None:
            gone.append(numbers.pop(step.name))
            del nodes[step.name]
            continue
        number = numbers.get(step.name)
        if number is None:
            number = numbers[step.name] = number_for(step.name, taken)
            taken.add(number)
        nodes[step.name] = step.want
        old = have.nodes.get(step.name)
        if old is None or value_of(old) != value_of(step.want):
            values[number] = value_of(step.want)
    limits = read_nets(state) if nets is None else nets
    pods = have.own_pods if own_pods is None else own_pods
    wanted = {key_of(each): enums.NODE_POD for each in pods}
    for name, node in nodes.items():
        wanted |= elements(node, numbers[name], limits)
    own = {key for key, word in have.table.items() if word & _CLASS == enums.NODE_OWN}
    keys = {key: word for key, word in wanted.items() if key not in own and have.table.get(key) != word}
    lost = tuple(key for key in have.table if key not in wanted and key not in own)
    _check_room(state, len(numbers) + 1, len(have.table) + len(keys.keys() - have.table.keys()))
    if not (values or keys or lost or gone):
        return None
    return NodeChanges(values, keys, lost, tuple(gone))


def elements(node: ClusterNode, number: int, nets: Collection[bytes]) -> dict[bytes, int]:
    """Elements of `node_addresses` that are a node's."""
    base = number << enums.NODE_SHIFT
    found = {key_of(each): base | enums.NODE_POD for each in node.pod_prefixes}
    for family, address in node.addresses:
        flag = enums.NODE_PORTS if serves(address, nets) else 0
        found[key_of(host((family, address)))] = base | enums.NODE_PEER | flag
    return found


def _check_room(state: State, nodes: int, elements_: int) -> None:
    for name, count in (("nodes", nodes), ("node_addresses", elements_)):
        most = state.map(name).info.max_entries
        if count > most:
            raise Full(f"{name} has room for {most} entries, {count} are needed")


def write(writer: Writer, changes: NodeChanges) -> None:
    """Carry a plan out. Inside `changing()`."""
    nodes, table = writer.map("nodes"), writer.map("node_addresses")
    for number, value in changes.values.items():
        nodes.update(U32.pack(number), value)
    for key, word in changes.keys.items():
        table.update(key, U32.pack(word))
    for key in changes.gone_keys:
        table.delete(key)
    for number in changes.gone:
        nodes.delete(U32.pack(number))


def missing_ends(state: State, node: ClusterNode) -> list[str]:
    """Families in which a tunnel to the node has no end here, as lines for people."""
    own = {family for family, _ in tunnel_ends(state)}
    return [
        f"there is no {FAMILY_NAMES[family]} tunnel to {node.name} yet: 'svcctl load --node-address' gives this"
        " node's end"
        for family in sorted({family for family, _ in node.addresses} - own)
    ]


def rows(state: State) -> list[tuple[Any, ...]]:
    """The listing: name, tunnel ends, pod prefixes, zone, owner, all addresses, those of node ports, number."""
    from svcctl.model.prefix import format_address, format_prefix

    have = read(state)
    found = []
    for name, node in have.nodes.items():
        ends = [format_address(family, node.end(family)) for family in (IPV4, IPV6) if any(node.end(family))]
        ports = [
            format_address(*each)
            for each in node.addresses
            if have.table.get(key_of(host(each)), 0) & enums.NODE_PORTS
        ]
        found.append(
            (
                name,
                ends,
                [format_prefix(*each) for each in node.pod_prefixes],
                node.zone or None,
                node.owner or None,
                [format_address(*each) for each in node.addresses],
                ports,
                have.numbers[name],
            )
        )
    return found
