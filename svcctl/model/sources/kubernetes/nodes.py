"""What Node objects say: addresses, prefixes of the pods, zone, and whether a node is about to go (R17, R21, S7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import show
from svcctl.model.desired import Node
from svcctl.model.prefix import Prefix
from svcctl.model.sources.kubernetes.addresses import read_range
from svcctl.model.sources.kubernetes.fields import mapping, objects, text, texts
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.model.sources.kubernetes.addresses import Address, Addresses
    from svcctl.model.sources.kubernetes.intake import Item
    from svcctl.model.sources.kubernetes.notices import Notices

ZONE_LABEL = "topology.kubernetes.io/zone"
REMOVAL_TAINT = "ToBeDeletedByClusterAutoscaler"
INTERNAL, EXTERNAL = "InternalIP", "ExternalIP"


class NodeFacts(Record):
    """A node, and its internal addresses, the primary one of each family first."""

    node: Node
    internal: tuple[Address, ...]


def node_name(name: str) -> str:
    """A name that somebody gave, or the host's, as a Node object has it."""
    return name.strip().lower()


def read_node(item: Item, own_name: str, addresses: Addresses, notices: Notices) -> NodeFacts:
    """What the object says. Raises ObjectProblem for fields of wrong types."""
    at_spec, at_status = item.place.under("spec"), item.place.under("status")
    spec = mapping(item.content, "spec", item.place)
    status = mapping(item.content, "status", item.place)
    labels = mapping(item.metadata, "labels", item.place.under("metadata"))
    found: dict[str, list[Address]] = {INTERNAL: [], EXTERNAL: []}
    for number, one in enumerate(objects(status, "addresses", at_status)):
        path = at_status.under("addresses").under(number)
        kind, value = text(one, "type", path), text(one, "address", path)
        if kind not in found:
            continue
        address = addresses.read(value)
        if address is None:
            notices.warn(item.subject, f"{kind} {show(value)} is no address")
        else:
            found[kind].append(address)
    prefixes = []
    for value in texts(spec, "podCIDRs", at_spec) or [text(spec, "podCIDR", at_spec)]:
        prefix = read_range(value) if value else None
        if prefix is not None:
            prefixes.append(Prefix(*prefix))
        elif value:
            notices.warn(item.subject, f"pod range {show(value)} is no prefix")
    taints = objects(spec, "taints", at_spec)
    leaving = any(taint.get("key") == REMOVAL_TAINT for taint in taints)
    node = Node(
        item.name,
        tuple(dict.fromkeys(found[INTERNAL] + found[EXTERNAL])),
        tuple(prefixes),
        text(labels, ZONE_LABEL, item.place.under("metadata").under("labels")),
        not leaving and item.metadata.get("deletionTimestamp") is None,
        item.name == own_name,
    )
    return NodeFacts(node, tuple(found[INTERNAL]))
