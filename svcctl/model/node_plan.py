"""The nodes that inputs ask for against those there are: what is made, changed, left alone and removed.

The rules are those of services (`apply_plan.py`). This node is told from the others by the input (`Node.own`): its
addresses are its ends of tunnels, and its pods' prefixes its own. An address that two nodes claim is the one's that was
there, or comes first by name; of Kubernetes, where nobody here can mend it, the other goes without and it is told.
What is listed under this node's own name is no other node: it goes, as after an apply with a wrong --node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Conflict, UsageProblem
from svcctl.model.desired import KUBERNETES, WARNING, Notice
from svcctl.model.node import (
    CHANGED,
    DELETED,
    MAX_ZONE_BYTES,
    UNCHANGED,
    ClusterNode,
    NodeStep,
    claims,
    holds_ipv4,
    host,
    is_no_node,
    node_of,
    refuse_claimed,
    short_name,
    shown,
    step_for,
)
from svcctl.model.prefix import Prefix, format_address, format_prefix
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.desired import Desired, Node


class HaveNodes(Record):
    """What is there: other nodes by name, this node's pods' prefixes and addresses, and what is said of those.

    `ends`: this node's ends of tunnels, which a hand gave if `by_hand`.
    """

    nodes: Mapping[str, ClusterNode]
    own_pods: tuple[Prefix, ...] = ()
    own: tuple[Prefix, ...] = ()
    ends: tuple[tuple[int, bytes], ...] = ()
    by_hand: bool = False


class NodePlan(Record):
    """Steps by name; this node's pods' prefixes and ends of tunnels as they are to be, None: as they are."""

    steps: tuple[NodeStep, ...] = ()
    own_pods: tuple[Prefix, ...] | None = None
    ends: tuple[tuple[int, bytes], ...] | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        changed = any(step.action != UNCHANGED for step in self.steps)
        return changed or self.own_pods is not None or self.ends is not None


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
    own_pods, ends = _own(desired, have)
    own = dict.fromkeys((*have.own, *map(host, ends or have.ends)), "this node's own address")
    pods = have.own_pods if own_pods is None else own_pods
    own.update(dict.fromkeys(pods, "this node's own pod prefix"))
    steps = _others(desired, have, own, prune, take_over, told)
    if own_pods is not None:
        own_pods = _not_claimed(own_pods, ends, have, steps, told)
    return NodePlan(
        tuple(sorted(steps.values(), key=lambda step: step.name)),
        None if own_pods == have.own_pods else own_pods,
        None if ends == have.ends else ends,
    )


def _own(
    desired: Sequence[Desired], have: HaveNodes
) -> tuple[tuple[Prefix, ...] | None, tuple[tuple[int, bytes], ...] | None]:
    """This node's pods' prefixes and ends of tunnels, as far as inputs say them."""
    mine = [node for each in desired for node in each.nodes if node.own]
    if not mine:
        return None, None
    pods = tuple(sorted({each for node in mine for each in node.pod_prefixes if _is_prefix(each)}))
    ends: dict[int, bytes] = {}
    for node in mine:
        for family, address in node.addresses:
            if not is_no_node(family, address):
                ends.setdefault(family, address)
    return pods, None if have.by_hand or not ends else tuple(sorted(ends.items()))


def _not_claimed(
    own_pods: tuple[Prefix, ...],
    ends: tuple[tuple[int, bytes], ...] | None,
    have: HaveNodes,
    steps: Mapping[str, NodeStep],
    told: list[Notice],
) -> tuple[Prefix, ...]:
    """This node's pods' prefixes without those that nodes which stay have; what they have of this node's is told."""
    taken = claims(one for name, one in have.nodes.items() if name not in steps)
    for prefix in (*map(host, ends or ()), *own_pods):
        if prefix in taken:
            text = f"has {shown(prefix)}, which is this node's: 'svcctl nodes delete' ends that"
            told.append(Notice(WARNING, f"node {taken[prefix]}", text))
    return tuple(one for one in own_pods if one not in taken)


def _is_prefix(prefix: Prefix) -> bool:
    return bool(prefix.length) and not holds_ipv4(prefix)


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
    if refused:
        raise Conflict("; ".join(refused[:5]), hint="--take-over makes it the asker's")
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
        fault = _fault(prefix, taken, own) if _is_prefix(prefix) else "it is all there is, or too much of it"
        if fault:
            text = f"goes without pod prefix {format_prefix(*prefix)}: {fault}"
            told.append(Notice(WARNING, f"node {name}", text))
        else:
            pods.append(prefix)
    if not addresses:
        if not node.addresses:
            told.append(Notice(WARNING, f"node {name}", "has no address: nothing is tunnelled there"))
        return None
    zone = node.zone.encode()[:MAX_ZONE_BYTES].decode("utf-8", "ignore")
    return node_of(name, addresses, pods, zone if zone.isprintable() else "", owner)


def _fault(prefix: Prefix, taken: Mapping[Prefix, str], own: Mapping[Prefix, str]) -> str:
    if prefix in own:
        return f"it is {own[prefix]}"
    return f"it is node {taken[prefix]}'s" if prefix in taken else ""
