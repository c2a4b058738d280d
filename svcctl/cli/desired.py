"""The desired state as a document that `apply` reads back: what `export` prints and `save` keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from svcctl.errors import Incompatible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcctl.model.node import ClusterNode
    from svcctl.model.service import Service
    from svcctl.state.session import State

VERSION = 1
HEAD: dict[str, Any] = {"version": VERSION, "owner": ""}
"""What was made by hand stays so when the document is applied; what is somebody's names its owner."""


class Everything(NamedTuple):
    """All bindings (24-byte key -> label), whose they are if anybody's, and services; the prefixes where node ports are
    served, none for all of the node's addresses; other nodes."""

    bindings: Mapping[bytes, str]
    owners: Mapping[bytes, str]
    services: tuple[Service, ...]
    node_port_addresses: tuple[str, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()


def read_everything(state: State) -> Everything:
    """What there is. Raises Incompatible when a binding has no label: a file would invent it one."""
    from svcctl.maps import catalog

    services: tuple[Service, ...] = ()
    nets: tuple[str, ...] = ()
    if state.has_half(catalog.BALANCER):
        from svcctl.state.node_addresses import net_texts, read_nets
        from svcctl.state.services import read_all

        nets = tuple(net_texts(read_nets(state)))
        services = tuple(one.service for one in read_all(state).values())
    from svcctl.state.owners import read_owners

    owners = read_owners(state) if state.has_dispatcher() else {}
    nodes: tuple[ClusterNode, ...] = ()
    if state.has_half(catalog.PACKETS):
        from svcctl.state.nodes import read

        nodes = tuple(read(state).nodes.values())
    return Everything(_read_bindings(state), owners, services, nets, nodes)


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
    lists: dict[str, Iterable[dict[str, Any]]] = {
        "bindings": _bindings(everything),
        "services": _services(everything),
    }
    if everything.nodes:
        lists["nodes"] = _nodes(everything)
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
    from svcctl.model.sources.native_writing import node_entry

    return [
        node_entry(one.name, one.addresses, one.pod_prefixes, one.zone, one.owner, "")
        for one in everything.nodes
    ]


def _services(everything: Everything) -> list[dict[str, Any]]:
    if not everything.services:
        return []
    from svcctl.model.sources.native_writing import service_entry

    return [service_entry(one, "") for one in everything.services]
