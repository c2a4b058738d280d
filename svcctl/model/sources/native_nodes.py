"""The nodes of svcctl's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Conflict
from svcctl.model.bad_value import BadValue, show
from svcctl.model.desired import ADDRESSES, POD_PREFIXES, Node
from svcctl.model.label import MAX_OWNER_BYTES, check_name
from svcctl.model.node import check_node_name, claims, node_of, refuse_claimed
from svcctl.model.prefix import parse_address, parse_prefix
from svcctl.model.sources.fields import Fields
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from svcctl.model.node import ClusterNode

KEYS = ("name", "addresses", "pod_prefixes", "zone", "owner", "own", "by_hand")


def read_nodes(fields: Fields, owner: str, found: dict[str, Node], own_name: str = "") -> None:
    """Reads the `nodes` of a document into `found`, by name; `owner` is whose they are, `own_name` which of them this
    node is, if somebody said so. Raises InputProblem."""
    taken = claims(_node(each) for each in found.values())
    for number, entry in enumerate(fields.array("nodes")):
        inside = Fields(fields.document, ("nodes", number), entry)
        inside.allow(KEYS)
        inside.require("name")
        own = inside.switch("own")
        if not own:
            inside.require("addresses")
        name = inside.parsed(check_node_name, inside.text("name"), "name")
        if name in found:
            raise inside.problem(f"there is a node {show(name)} already", "name")
        addresses = [
            inside.parsed(parse_address, text, "addresses", at)
            for at, text in enumerate(inside.texts("addresses"))
        ]
        prefixes = [
            inside.parsed(parse_prefix, text, "pod_prefixes", at)
            for at, text in enumerate(inside.texts("pod_prefixes"))
        ]
        whose = owner
        if "owner" in inside:
            whose = inside.text("owner")
            if whose:
                whose = inside.parsed(lambda text: check_name("owner", text, MAX_OWNER_BYTES), whose, "owner")
        by_hand = tuple(inside.texts("by_hand"))
        for at, word in enumerate(by_hand):
            if word not in (ADDRESSES, POD_PREFIXES):
                cause = f"expected {ADDRESSES} or {POD_PREFIXES}, got {shown(word)}"
                raise inside.problem(cause, "by_hand", at)
        try:
            node = node_of(name, addresses, prefixes, inside.text("zone"), whose, own=own)
            refuse_claimed(node, taken, {})
        except (BadValue, Conflict) as problem:
            raise inside.problem(problem.message) from None
        taken.update(claims([node]))
        found[name] = Node(
            name,
            node.addresses,
            node.pod_prefixes,
            node.zone,
            own=own or (bool(own_name) and name == own_name),
            owner=whose,
            by_hand=by_hand,
        )


def _node(node: Node) -> ClusterNode:
    return node_of(node.name, node.addresses, node.pod_prefixes, own=node.own)
