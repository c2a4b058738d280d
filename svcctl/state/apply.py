"""Desired state, from what inputs ask for to the pinned maps: one plan, one mark, one wait for running programs.

Everything there is is read first, by columns, and compared; what is as wanted is not written. A command that dies
is completed as after any other (`state/audit/services.py`), service by service, and the same apply again does the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import Full, NotLoaded
from svcctl.maps import catalog
from svcctl.model.apply_plan import UNCHANGED, Have, node_port_addresses, plan_apply
from svcctl.model.constants import UDP
from svcctl.model.desired import KUBERNETES, WARNING, Notice
from svcctl.model.service_endpoint import DOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcctl.model.apply_plan import ApplyPlan
    from svcctl.model.desired import Desired
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import Change, Changes
    from svcctl.state.node_addresses import NetChanges
    from svcctl.state.nodes import NodeChanges
    from svcctl.state.packets import PacketPlan
    from svcctl.state.service_snapshot import Snapshot
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Prepared(NamedTuple):
    """A plan against a state: what is decided, and what that writes.

    `first`: what is removed before the rest, which has no room otherwise. `nets`: where node ports are to be served.
    `flows_left`: an apply died before it had ended UDP flows. `nodes`: what the plan of the nodes, and other `nets`,
    write. `packets`: settings of the packet path.
    """

    plan: ApplyPlan
    services: Changes | None
    nets: NetChanges | None
    flows_left: bool = False
    first: Changes | None = None
    nodes: NodeChanges | None = None
    packets: PacketPlan | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return self.plan.changes or self.nodes is not None or self.packets is not None

    @property
    def parts(self) -> tuple[Change, ...]:
        """What happens to services, one by one."""
        return tuple(part for each in (self.first, self.services) if each is not None for part in each.parts)


def prepare(
    state: State,
    desired: Sequence[Desired],
    *,
    prune: bool = False,
    force: bool = False,
    take_over: bool = False,
) -> Prepared:
    """Read what there is and plan, as `plan_apply` says. Writes nothing.

    Raises NotLoaded where the half is missing that services or bindings need, Conflict, UsageProblem, Full.
    """
    from svcctl.state import apply_nodes
    from svcctl.state.backend_places import placed
    from svcctl.state.bindings import read_labels
    from svcctl.state.flows_left import flows_left
    from svcctl.state.owners import read_owners

    has_services = state.has_half(catalog.BALANCER)
    if not has_services and any(each.services or each.node_port_addresses for each in desired):
        from svcctl.state.services import need_services

        need_services(state)
    bindings, owners = {}, {}
    if any(each.bindings is not None for each in desired):
        if state.has_dispatcher():
            bindings, owners = read_labels(state), read_owners(state)
        elif any(each.bindings for each in desired):
            raise NotLoaded(
                f"{state.path}: the dispatcher was never attached", hint="'svcctl attach netns' does it"
            )
    snapshot = _snapshot(state) if has_services else None
    have = Have({}, (), (), bindings, owners)
    if snapshot is not None:
        services = {name: one.service for name, one in snapshot.services.items()}
        have = Have(services, snapshot.faults, snapshot.shared, bindings, owners)
    nets = _plan_nets(state, desired) if has_services else None
    nodes = apply_nodes.plan_of(state, desired, nets, prune=prune, take_over=take_over)
    packets, remarks = apply_nodes.plan_settings(state, desired)
    if has_services:
        desired = placed(state, desired, nodes.table)
    plan = plan_apply(
        desired,
        have,
        prune=prune,
        force=force,
        take_over=take_over,
        now_ns=time.time_ns(),
        nodes=nodes.plan,
    )
    first, changes = _plan_services(state, plan, snapshot) if snapshot is not None else (None, None)
    plan = plan._replace(
        settings=tuple(apply_nodes.settings(nodes, nets, packets)),
        notices=(*plan.notices, *nodes.notices, *nodes.overlaps(state, _services(plan, have)), *remarks),
    )
    _check_bindings(state, plan, have)
    if has_services:
        plan = plan._replace(notices=(*plan.notices, *_node_port_clashes(state, plan)))
    return Prepared(plan, changes, nets, flows_left(state), first, nodes.changes, packets)


def _node_port_clashes(state: State, plan: ApplyPlan) -> Iterator[Notice]:
    changes = [(step.have, step.want) for step in plan.services if step.action != UNCHANGED]
    if any(want is not None and want.node_port for _, want in changes):
        from svcctl.state.port_clashes import clashes

        for text in clashes(state, changes):
            yield Notice(WARNING, "", text)


def _services(plan: ApplyPlan, have: Have) -> Iterator[Service]:
    """The services that there are to be."""
    yield from (step.want for step in plan.services if step.want is not None)
    named = {step.name for step in plan.services}
    yield from (one for name, one in have.services.items() if name not in named)


def _snapshot(state: State) -> Snapshot:
    from svcctl.state.service_snapshot import Snapshot

    return Snapshot(state)


def _check_bindings(state: State, plan: ApplyPlan, have: Have) -> None:
    """Raise Full where the bindings have no room: those that go may make it, as they are swapped in whole then."""
    from svcctl.state.bindings import kind_of
    from svcctl.state.destinations import full
    from svcctl.state.owners import check_owner_room

    steps = plan.bindings
    for name in ("exact", "bindings"):
        more = sum(kind_of(key) == name for key, _ in steps.plan.added)
        if more:
            fewer = sum(kind_of(key) == name for key, _ in steps.plan.removed)
            used, largest = state.usage(name).used, state.map(name).info.max_entries
            if used + more - fewer > largest:
                raise full(name, used, largest, more - fewer)
    if steps.owners:
        check_owner_room(state, have.owners, steps.owners)


def _plan_services(
    state: State, plan: ApplyPlan, snapshot: Snapshot
) -> tuple[Changes | None, Changes | None]:
    """What is done first, if that makes room that is missing otherwise, and the rest. Raises Full."""
    from svcctl.state.change_frontends import Pair, keys_of
    from svcctl.state.change_plan import plan_changes

    pairs = [
        Pair(snapshot.services.get(step.name), step.want, step.anew)
        for step in plan.services
        if step.action != UNCHANGED
    ]
    names = {step.name for step in plan.services if step.action != UNCHANGED}
    pairs += [Pair(one, None) for one in snapshot.extra if one.service.name in names]
    if not pairs:
        return None, None
    try:
        return None, plan_changes(state, pairs, snapshot)
    except Full:
        # What goes, and leaves no frontend to anybody, is in nobody's way, so it may as well go before.
        wanted = {key for pair in pairs if pair.want is not None for key in keys_of(pair.want)}
        ends: list[Pair] = []
        others: list[Pair] = []
        for pair in pairs:
            gone = pair.have if pair.want is None else None
            is_end = gone is not None and wanted.isdisjoint(keys_of(gone.service))
            (ends if is_end else others).append(pair)
        if not ends or not others:
            raise
        from svcctl.state.change_remove import freed_by

        first = plan_changes(state, ends, snapshot)
        return first, plan_changes(state, others, snapshot, freed_by(state, first))


def _plan_nets(state: State, desired: Sequence[Desired]) -> NetChanges | None:
    """Where node ports are served, by who has a say about that. Who speaks of a cluster has the node's addresses
    looked at in any case."""
    from svcctl.state.node_addresses import plan_nets

    asked = node_port_addresses(desired)
    if asked is None and all(each.kind != KUBERNETES for each in desired):
        return None
    return plan_nets(state, asked)


def carry_out(writer: Writer, prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> None:
    """Write what was prepared, on the same writer. Nothing is written when there is nothing to write."""
    from svcctl.state import apply_nodes
    from svcctl.state.node_addresses import write_nets

    if not prepared.writes:
        return
    with writer.changing():
        # Whether destinations have room is seen here, before anything else is written.
        _write_bindings(writer, prepared.plan, progress)
        if left_backends(prepared):
            from svcctl.state.flows_left import note_flows

            note_flows(writer, True)
        if prepared.nets is not None:
            write_nets(writer, prepared.nets)
        apply_nodes.write(writer, prepared.plan.nodes, prepared.nodes, prepared.packets)
        if prepared.services is not None:
            from svcctl.state.change_write import apply_changes

            changes = prepared.services
            if prepared.first is not None:
                apply_changes(writer, prepared.first)
                changes = _plan_again(writer, changes)
            apply_changes(writer, changes)
            if any(part.anew for part in prepared.parts):
                _mend(writer)


def _plan_again(writer: Writer, changes: Changes) -> Changes:
    """The same change, by the maps as they are now."""
    from svcctl.state.change_frontends import Pair
    from svcctl.state.change_plan import plan_changes

    pairs = [Pair(one.have, one.want, one.anew) for one in changes.parts]
    return plan_changes(writer, pairs, _snapshot(writer))


def _mend(writer: Writer) -> None:
    """What was broken may have left more than what was seen of it."""
    from svcctl.state.audit import audit
    from svcctl.state.recover import mend

    mend(lambda: audit(writer))


def _write_bindings(writer: Writer, plan: ApplyPlan, progress: Callable[[int, int], None] | None) -> None:
    from svcctl.state.bindings import apply_plan, has_room, read_labels
    from svcctl.state.bulk import THRESHOLD, replace_all
    from svcctl.state.owners import forget_owners, note_owners

    steps = plan.bindings
    if steps.plan.is_empty and not steps.owners and not steps.disowned:
        return
    if steps.plan.is_empty:
        note_owners(writer, steps.owners)
    elif steps.plan.changes > THRESHOLD or not has_room(writer, steps.plan):
        want = read_labels(writer)
        want.update((key, label) for key, label in steps.plan.added)
        want.update((key, label) for key, label, _ in steps.plan.replaced)
        for key, _ in steps.plan.removed:
            del want[key]
        replace_all(writer, want, progress, owners=steps.owners)
    else:
        apply_plan(writer, steps.plan, owners=steps.owners)
    forget_owners(writer, steps.disowned)


def left_backends(prepared: Prepared) -> dict[int, set[Backend]]:
    """Service id -> the backends it no longer has, or that are down from now on, of services reached by UDP."""
    found: dict[int, set[Backend]] = {}
    for part in prepared.parts:
        have = part.have.service if part.have else None
        if have is None or not any(each.frontend.protocol == UDP for each in have.frontends):
            continue
        were_down = {member.backend for member in have.members if member.state == DOWN}
        kept = set()
        if part.want and not part.anew:
            kept = {
                member.backend
                for member in part.want.members
                if member.state != DOWN or member.backend in were_down
            }
        gone = {member.backend for member in have.members} - kept
        if gone:
            found[have.id] = gone
    return found
