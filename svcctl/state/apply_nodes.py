"""What apply plans and writes of nodes, of this one and of the others, and of the packet path's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog
from svcctl.model.desired import NATIVE, NOTE, WARNING, Notice
from svcctl.model.node import OwnNode
from svcctl.model.node_plan import HaveNodes, NodePlan, plan_nodes
from svcctl.model.prefix import format_address
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from svcctl.model.desired import Desired
    from svcctl.model.node import ClusterNode
    from svcctl.model.service import Service
    from svcctl.state.node_addresses import NetChanges
    from svcctl.state.nodes import NodeChanges, Nodes
    from svcctl.state.packets import PacketPlan
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Planned(Record):
    """What is decided, and what that writes; `own` is this node as it is, `table` are the elements of `node_addresses`
    as they are to be, and `nodes` the others, if an input says something of nodes."""

    plan: NodePlan
    changes: NodeChanges | None
    own: OwnNode
    table: dict[bytes, int]
    notices: tuple[Notice, ...] = ()
    nodes: Mapping[str, ClusterNode] = {}

    def overlaps(self, state: State, services: Iterable[Service]) -> tuple[Notice, ...]:
        """Warnings of prefixes that have something of another node's in them; `services` as they are to be."""
        if not self.nodes:
            return ()
        from svcctl.state.node_overlaps import find, notices

        return notices(find(state, self.nodes.values(), self.plan.own or self.own, services))


NO_NODES = Notice(
    NOTE,
    "nodes",
    "not kept, as there is no packet path: 'svcctl load --node-address' or 'svcctl attach dev' makes it",
)


def plan_of(
    state: State,
    desired: Sequence[Desired],
    nets: NetChanges | None,
    *,
    prune: bool = False,
    take_over: bool = False,
) -> Planned:
    """Plan the nodes that inputs ask for. Raises Conflict, UsageProblem, Full, NotLoaded."""
    from svcctl.state import nodes

    says = any(each.nodes or each.says_nodes for each in desired)
    if not state.has_half(catalog.PACKETS):
        # What is for this very node, and is not kept, would be missing in the next `save` as well.
        if any(node.own for each in desired if each.kind == NATIVE for node in each.nodes):
            nodes.need_nodes(state)
        lost = any(not node.own for each in desired for node in each.nodes)
        table = nodes.read_table(state) if state.has_half(catalog.BALANCER) else {}
        return Planned(NodePlan(), None, OwnNode(), table, (NO_NODES,) if lost else ())
    there = nodes.read(state)
    if not says and not any(each.node_port_addresses is not None for each in desired):
        return Planned(NodePlan(), None, OwnNode(), there.table)
    have = _have(state, there)
    notices: list[Notice] = []
    plan = plan_nodes(desired, have, prune=prune, take_over=take_over, notices=notices)
    changes = _changes(state, there, plan, nets)
    table = dict(there.table)
    if changes is not None:
        table.update(changes.keys)
        for key in changes.gone_keys:
            del table[key]
    known = dict(have.nodes)
    for step in plan.steps:
        if step.want is None:
            del known[step.name]
        else:
            known[step.name] = step.want
    return Planned(plan, changes, have.own, table, tuple(notices), known)


def _have(state: State, there: Nodes) -> HaveNodes:
    from svcctl.state.nodes import namespace_addresses
    from svcctl.state.own_node import host_name, read_own

    own = read_own(state, there.own_pods)
    return HaveNodes(there.nodes, own, namespace_addresses(state), own.name or host_name())


def _changes(state: State, there: Nodes, plan: NodePlan, nets: NetChanges | None) -> NodeChanges | None:
    from svcctl.state.node_addresses import read_nets
    from svcctl.state.nodes import plan as plan_changes

    limits = read_nets(state)
    if nets is not None:
        limits = (limits | nets.more) - nets.fewer
    own_pods = None if plan.own is None else plan.own.pod_prefixes
    return plan_changes(state, there, plan.steps, own_pods=own_pods, nets=limits)


def plan_settings(state: State, desired: Sequence[Desired]) -> tuple[PacketPlan | None, tuple[Notice, ...]]:
    """What the settings that inputs ask for change, and what there is to know. Raises Full, UsageProblem, NotLoaded."""
    asked = [each.settings for each in desired if each.settings is not None and not each.settings.is_empty]
    if not asked:
        return None, ()
    from svcctl.state.nodes import need_nodes
    from svcctl.state.packets import PacketOptions, plan_packets
    from svcctl.state.tunnel_settings import remarks

    need_nodes(state)
    (settings,) = asked
    plan = plan_packets(state, PacketOptions(settings=settings))
    changes = plan.config_changes or plan.no_dsr is not None
    notices = tuple(Notice(WARNING, "", text) for text in remarks(state, settings))
    return plan if changes else None, notices


def settings(
    planned: Planned, nets: NetChanges | None, packets: PacketPlan | None
) -> Iterator[tuple[str, str]]:
    """(name, remark) of the settings that change."""
    if nets is not None:
        yield "node-port-addresses", nets.text
    have, want = planned.own, planned.plan.own
    if want is not None:
        from svcctl.state.own_node import differences

        if (have.ends, have.ends_by_hand) != (want.ends, want.ends_by_hand):
            by_hand = " (by hand)" if want.ends_by_hand else ""
            yield "node-address", ", ".join(format_address(*each) for each in want.ends) + by_hand
        for name, text in differences(have, want):
            yield name.replace(" ", "-"), text
    for name, text in packets.differences if packets is not None else ():
        yield name.replace(" ", "-"), text


def write(writer: Writer, plan: NodePlan, changes: NodeChanges | None, packets: PacketPlan | None) -> None:
    """Settings, this node and the others. Inside `changing()`, before the services, whose backends they find."""
    if packets is not None:
        from svcctl.state.packets import put_settings

        put_settings(writer, packets)
    if plan.own is not None:
        from svcctl.state.own_node import write_own

        write_own(writer, plan.own)
    if changes is not None:
        from svcctl.state.nodes import write as write_nodes

        write_nodes(writer, changes)
