"""The desired state as a document that `apply` reads back: what `export` prints and `save` keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from svcctl.errors import Incompatible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcctl.model.node import ClusterNode, OwnNode
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.model.service import Service
    from svcctl.state.session import State

VERSION = 1
HEAD: dict[str, Any] = {"version": VERSION, "owner": ""}
"""What was made by hand stays so when the document is applied; what is somebody's names its owner."""


class Everything(NamedTuple):
    """All bindings (24-byte key -> label), whose they are if anybody's, and services; the prefixes where node ports are
    served, none for all of the node's addresses; other nodes, this one, and the packet path's settings that are not
    the default ones. `restore`: for this node, when it boots, and for no other."""

    bindings: Mapping[bytes, str]
    owners: Mapping[bytes, str]
    services: tuple[Service, ...]
    node_port_addresses: tuple[str, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    own: OwnNode | None = None
    settings: PacketSettings | None = None
    restore: bool = False


def read_for_restore(state: State) -> Everything:
    """As `read_everything`, for this node when it boots."""
    return read_everything(state, restore=True)


def read_everything(state: State, *, restore: bool = False) -> Everything:
    """What there is. Raises Incompatible when a binding has no label: a file would invent it one."""
    from svcctl.maps import catalog

    services: tuple[Service, ...] = ()
    nets: tuple[str, ...] = ()
    if state.has_half(catalog.BALANCER):
        from svcctl.state.node_addresses import net_texts, read_nets
        from svcctl.state.services import read_all

        nets = tuple(net_texts(read_nets(state)))
        from svcctl.state.backend_places import said_places

        services = said_places(state, [one.service for one in read_all(state).values()], restore=restore)
    from svcctl.state.owners import read_owners

    owners = read_owners(state) if state.has_dispatcher() else {}
    bindings = _read_bindings(state)
    if not state.has_half(catalog.PACKETS):
        return Everything(bindings, owners, services, nets)
    from svcctl.state.nodes import read
    from svcctl.state.own_node import read_own
    from svcctl.state.tunnel_settings import not_default

    there = read(state)
    own = read_own(state, there.own_pods)
    nodes = tuple(there.nodes.values())
    return Everything(bindings, owners, services, nets, nodes, own, not_default(state), restore)


def _read_bindings(state: State) -> Mapping[bytes, str]:
    from svcctl.model.binding import key_fields
    from svcctl.state import destinations
    from svcctl.state.bindings import read_labels

    labels = read_labels(state)
    odd = [key for key, label in labels.items() if label.startswith("?")]
    if odd:
        known = {one.key.label for one in destinations.read_all(state).values()}
        for key in odd:
            if labels[key] not in known:
                protocol, prefix, port = key_fields(key)
                raise Incompatible(
                    f"binding {protocol}:[{prefix}]:{port}: its destination {labels[key][1:]} does not exist",
                    hint="'svcctl check' lists what is broken, --repair mends it",
                )
    return labels


def document(output: str, everything: Everything) -> Iterable[str]:
    """Lines of the document, json or yaml, in one order: equal states give equal files."""
    head = dict(HEAD)
    if everything.node_port_addresses:
        head["node_port_addresses"] = list(everything.node_port_addresses)
    if everything.settings is not None:
        from svcctl.model.sources.native_settings import settings_entry

        head["settings"] = settings_entry(everything.settings)
    lists: dict[str, Iterable[dict[str, Any]]] = {
        "bindings": _bindings(everything),
        "services": _services(everything),
    }
    nodes = _nodes(everything)
    if nodes:
        lists["nodes"] = nodes
    if output == "yaml":
        from svcctl.render import yaml

        return yaml.whole({**head, **{name: list(values) for name, values in lists.items()}})
    from svcctl.render import json

    return json.lists(head, lists)


def _bindings(everything: Everything) -> Iterator[dict[str, Any]]:
    from svcctl.model.binding import key_fields
    from svcctl.model.listing import listing_rows

    owners = {
        key_fields(key): owner for key, owner in everything.owners.items() if key in everything.bindings
    }
    for protocol, prefix, port, label in listing_rows(everything.bindings):
        entry = {"label": label, "protocol": protocol, "prefix": prefix, "port": port}
        owner = owners.get((protocol, prefix, port)) if owners else None
        yield {**entry, "owner": owner} if owner else entry


def _nodes(everything: Everything) -> list[dict[str, Any]]:
    """The others and this one, by name. Of that the ends of tunnels are its addresses; without any it is left out, as
    it could be no other's node, unless the file is for this one."""
    if not everything.nodes and everything.own is None:
        return []
    from svcctl.model.sources.native_writing import node_entry

    found = [
        node_entry(one.name, one.addresses, one.pod_prefixes, one.zone, one.owner, "")
        for one in everything.nodes
    ]
    own, restore = everything.own, everything.restore
    if own is not None and (own.ends or (restore and (own.name or own.pod_prefixes))):
        given = (("addresses", own.ends_by_hand), ("pod_prefixes", own.pods_by_hand))
        found.append(
            node_entry(
                _own_name(own.name, {one.name for one in everything.nodes}),
                own.ends,
                own.pod_prefixes,
                own.zone,
                own.owner,
                "",
                own=restore,
                by_hand=[what for what, by_hand in given if by_hand],
            )
        )
    return sorted(found, key=lambda entry: str(entry["name"]))


def _own_name(said: str, taken: set[str]) -> str:
    """This node's name: what was said, or the host's, unless another node has it."""
    from svcctl.state.own_node import host_name

    names = (said, host_name(), *(f"this-node-{number}" for number in range(len(taken) + 1)))
    return next(name for name in names if name and name not in taken)


def _services(everything: Everything) -> list[dict[str, Any]]:
    if not everything.services:
        return []
    from svcctl.model.sources.native_writing import service_entry

    return [service_entry(one, "") for one in everything.services]
