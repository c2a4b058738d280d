"""The nodes that inputs ask for against those there are: what is made, changed, left alone and removed.

The rules are those of services (`apply_plan.py`). This node is told from the others by the input (`Node.own`), or, in
a file for all nodes, by its addresses, or else by its name: its addresses are its ends of tunnels, and its pods'
prefixes its own, unless a hand gave it others. An address that two nodes claim is the one's that was
there, or comes first by name; of Kubernetes, where nobody here can mend it, the other goes without and it is told.
What is listed under this node's own name is no other node: it goes, as after an apply with a wrong --node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Conflict, UsageProblem
from svcctl.model.desired import ADDRESSES, KUBERNETES, POD_PREFIXES, WARNING, Notice
from svcctl.model.node import (
    CHANGED,
    DELETED,
    UNCHANGED,
    ClusterNode,
    NodeStep,
    OwnNode,
    claims,
    fitting_zone,
    host,
    is_no_node,
    is_prefix_of_pods,
    node_of,
    refuse_claimed,
    short_name,
    shown,
    step_for,
)
from svcctl.model.prefix import format_address, format_prefix
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.desired import Desired, Node
    from svcctl.model.prefix import Prefix


class HaveNodes(Record):
    """What is there: other nodes by name, and this node. `addresses` are those of its interfaces; `name`: what inputs
    may call it, "" if that is not known."""

    nodes: Mapping[str, ClusterNode]
    own: OwnNode = OwnNode()
    addresses: tuple[Prefix, ...] = ()
    name: str = ""


class NodePlan(Record):
    """Steps by name; this node as it is to be, None: as it is."""

    steps: tuple[NodeStep, ...] = ()
    own: OwnNode | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return self.own is not None or any(step.action != UNCHANGED for step in self.steps)


def refuse_others(taken: Sequence[str]) -> None:
    """Raise Conflict for what belongs to others, if anything does."""
    if not taken:
        return
    shown = "; ".join(taken[:5]) + (f"; and {len(taken) - 5} more" if len(taken) > 5 else "")
    raise Conflict(shown, hint="--take-over takes what belongs to others")


def plan_nodes(
    desired: Sequence[Desired],
    have: HaveNodes,
    *,
    prune: bool = False,
    take_over: bool = False,
    notices: list[Notice] | None = None,
) -> NodePlan:
    """What makes the nodes what is asked for, with `take_over` whosever they are. Raises Conflict, UsageProblem."""
    told: list[Notice] = [] if notices is None else notices
    desired = _told_apart(desired, have)
    mine = [(each, node) for each in desired for node in each.nodes if node.own]
    own = _own(mine, have.own)
    refused = dict.fromkeys((*have.addresses, *map(host, own.ends)), "this node's own address")
    refused.update(dict.fromkeys(own.pod_prefixes, "this node's own pod prefix"))
    steps = _others(desired, have, refused, prune, take_over, told)
    if mine:
        own = _not_claimed(own, have, steps, told)
    return NodePlan(
        tuple(sorted(steps.values(), key=lambda step: step.name)), None if own == have.own else own
    )


def _told_apart(desired: Sequence[Desired], have: HaveNodes) -> list[Desired]:
    """With this node marked in files for all nodes: Node objects say by their names which one it is."""
    if any(node.own for each in desired for node in each.nodes):
        return list(desired)
    files = [node for each in desired if each.kind != KUBERNETES for node in each.nodes]
    here = {*have.addresses, *map(host, have.own.ends)}
    found = [node for node in files if not here.isdisjoint(map(host, node.addresses))]
    named = [node for node in files if have.name and short_name(node.name) == have.name]
    both = [node for node in found if node in named]
    own = next(iter(both or found or named), None)
    if own is None:
        return list(desired)
    return [
        each._replace(nodes=tuple(one._replace(own=True) if one is own else one for one in each.nodes))
        for each in desired
    ]


def _own(mine: Sequence[tuple[Desired, Node]], have: OwnNode) -> OwnNode:
    """This node, as far as inputs say it: what a hand gave stays, unless they say that a hand gave it."""
    if not mine:
        return have
    nodes = [node for _, node in mine]
    said = {what for node in nodes for what in node.by_hand}
    source, first = mine[0]
    own = have._replace(
        name=short_name(first.name),
        zone=fitting_zone(first.zone),
        owner=source.owner if first.owner is None else first.owner,
    )
    ends: dict[int, bytes] = {}
    for node in nodes:
        for family, address in node.addresses:
            if not is_no_node(family, address):
                ends.setdefault(family, address)
    if ends and (ADDRESSES in said or not have.ends_by_hand):
        own = own._replace(ends=tuple(sorted(ends.items())), ends_by_hand=ADDRESSES in said)
    if POD_PREFIXES in said or not have.pods_by_hand:
        pods = tuple(
            sorted({each for node in nodes for each in node.pod_prefixes if is_prefix_of_pods(each)})
        )
        own = own._replace(pod_prefixes=pods, pods_by_hand=bool(pods) and POD_PREFIXES in said)
    return own


def _not_claimed(own: OwnNode, have: HaveNodes, steps: Mapping[str, NodeStep], told: list[Notice]) -> OwnNode:
    """This node without the pods' prefixes that nodes which stay have; what they have of this node's is told."""
    taken = claims(one for name, one in have.nodes.items() if name not in steps)
    for prefix in (*map(host, own.ends), *own.pod_prefixes):
        if prefix in taken:
            text = f"has {shown(prefix)}, which is this node's: 'svcctl nodes delete' ends that"
            told.append(Notice(WARNING, f"node {taken[prefix]}", text))
    return own._replace(pod_prefixes=tuple(one for one in own.pod_prefixes if one not in taken))


def _others(
    desired: Sequence[Desired],
    have: HaveNodes,
    own: Mapping[Prefix, str],
    prune: bool,
    take_over: bool,
    told: list[Notice],
) -> dict[str, NodeStep]:
    asked: dict[str, tuple[Desired, Node]] = {}
    for each in desired:
        for node in each.nodes:
            if node.own:
                continue
            name = short_name(node.name)
            if name in asked:
                raise UsageProblem(f"node {name!r} is asked for twice")
            asked[name] = (each, node)
    owners = {each.owner for each in desired if each.owner and each.says_nodes} if prune else set()
    steps = {
        name: NodeStep(DELETED, name, one, None)
        for name, one in have.nodes.items()
        if name not in asked and one.owner and one.owner in owners
    }
    mine = {short_name(node.name) for each in desired for node in each.nodes if node.own}
    for name in sorted((mine & have.nodes.keys()) - asked.keys()):
        steps[name] = NodeStep(DELETED, name, have.nodes[name], None, "it is this node")
    taken = claims(one for name, one in have.nodes.items() if name not in asked and name not in steps)
    refused: list[str] = []
    for name, (source, node) in sorted(asked.items()):
        old = have.nodes.get(name)
        owner = source.owner if node.owner is None else node.owner
        if source.kind == KUBERNETES:
            want = _fitting(name, node, owner, {**taken, **own}, own, told)
            if want is None:
                if old is not None and old.owner == owner:
                    steps[name] = NodeStep(DELETED, name, old, None, "it has no address of its own")
                continue
        else:
            want = node_of(name, node.addresses, node.pod_prefixes, node.zone, owner)
            refuse_claimed(want, taken, own)
        taken.update(claims([want]))
        step = step_for(want, old)
        if old is not None and old.owner != owner:
            if take_over and step.action == UNCHANGED:
                step = NodeStep(CHANGED, name, old, want)
            if step.action != UNCHANGED:
                if old.owner and not take_over:
                    refused.append(f"node {name!r} belongs to {old.owner}")
                step = step._replace(note=f"was {old.owner}'s" if old.owner else "was made by hand")
        steps[name] = step
    refuse_others(refused)
    return steps


def _fitting(
    name: str,
    node: Node,
    owner: str,
    taken: Mapping[Prefix, str],
    own: Mapping[Prefix, str],
    told: list[Notice],
) -> ClusterNode | None:
    """A node without what it cannot have; None if no address is left."""
    addresses, pods = [], []
    for each in node.addresses:
        fault = _fault(host(each), taken, own)
        if is_no_node(*each):
            fault = "no node can be reached there"
        if fault:
            text = f"goes without {format_address(*each)}: {fault}"
            told.append(Notice(WARNING, f"node {name}", text))
        else:
            addresses.append(each)
    for prefix in node.pod_prefixes:
        fault = (
            _fault(prefix, taken, own)
            if is_prefix_of_pods(prefix)
            else "it is all there is, or too much of it"
        )
        if fault:
            text = f"goes without pod prefix {format_prefix(*prefix)}: {fault}"
            told.append(Notice(WARNING, f"node {name}", text))
        else:
            pods.append(prefix)
    if not addresses:
        if not node.addresses:
            told.append(Notice(WARNING, f"node {name}", "has no address: nothing is tunnelled there"))
        return None
    return node_of(name, addresses, pods, fitting_zone(node.zone), owner)


def _fault(prefix: Prefix, taken: Mapping[Prefix, str], own: Mapping[Prefix, str]) -> str:
    if prefix in own:
        return f"it is {own[prefix]}"
    return f"it is node {taken[prefix]}'s" if prefix in taken else ""
