"""Desired state, from what inputs ask for to the pinned maps: one plan, one mark, one wait for running programs.

Everything there is is read first, by columns, and compared; what is as wanted is not written. A command that dies
is completed as after any other (`state/audit/services.py`), service by service, and the same apply again does the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import NotLoaded, UsageProblem
from svcctl.maps import catalog
from svcctl.model.apply_plan import UNCHANGED, Have, plan_apply
from svcctl.model.constants import UDP
from svcctl.model.desired import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from svcctl.model.apply_plan import ApplyPlan
    from svcctl.model.desired import Desired
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import Changes
    from svcctl.state.node_addresses import NetChanges
    from svcctl.state.service_snapshot import Snapshot
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Prepared(NamedTuple):
    """A plan against a state: what is decided, and what that writes.

    `nets`: where node ports are to be served. `flows_left`: an apply died before it had ended UDP flows.
    """

    plan: ApplyPlan
    services: Changes | None
    nets: NetChanges | None
    flows_left: bool = False

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return self.plan.changes


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
    plan = plan_apply(desired, have, prune=prune, force=force, take_over=take_over, now_ns=time.time_ns())
    changes = _plan_services(state, plan, snapshot) if snapshot is not None else None
    nets = _plan_nets(state, desired) if has_services else None
    if nets is not None:
        plan = plan._replace(settings=(("node-port-addresses", nets.text),))
    return Prepared(plan, changes, nets, flows_left(state))


def _snapshot(state: State) -> Snapshot:
    from svcctl.state.service_snapshot import Snapshot

    return Snapshot(state)


def _plan_services(state: State, plan: ApplyPlan, snapshot: Snapshot) -> Changes | None:
    from svcctl.state.change_frontends import Pair
    from svcctl.state.change_plan import plan_changes

    pairs = [
        Pair(snapshot.services.get(step.name), step.want, step.anew)
        for step in plan.services
        if step.action != UNCHANGED
    ]
    names = {step.name for step in plan.services if step.action != UNCHANGED}
    pairs += [Pair(one, None) for one in snapshot.extra if one.service.name in names]
    return plan_changes(state, pairs, snapshot) if pairs else None


def _plan_nets(state: State, desired: Sequence[Desired]) -> NetChanges | None:
    """Where node ports are served, by who has a say about that. Who speaks of a cluster has the node's addresses
    looked at in any case."""
    from svcctl.state.node_addresses import plan_nets

    asked = {each.node_port_addresses for each in desired if each.node_port_addresses is not None}
    if len(asked) > 1:
        raise UsageProblem("the inputs do not agree on where node ports are served")
    if not asked and all(each.kind != KUBERNETES for each in desired):
        return None
    return plan_nets(state, asked.pop() if asked else None)


def carry_out(writer: Writer, prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> None:
    """Write what was prepared, on the same writer. Nothing is written when there is nothing to write."""
    from svcctl.state.node_addresses import write_nets

    if not prepared.writes:
        return
    with writer.changing():
        if left_backends(prepared):
            from svcctl.state.flows_left import note_flows

            note_flows(writer, True)
        if prepared.nets is not None:
            write_nets(writer, prepared.nets)
        if prepared.services is not None:
            from svcctl.state.change_write import apply_changes

            apply_changes(writer, prepared.services)
            if any(part.anew for part in prepared.services.parts):
                _mend(writer)
        _write_bindings(writer, prepared.plan, progress)


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
    """Service id -> the backends it no longer has, of services that are reached by UDP."""
    found: dict[int, set[Backend]] = {}
    for part in prepared.services.parts if prepared.services is not None else ():
        have = part.have.service if part.have else None
        if have is None or not any(each.frontend.protocol == UDP for each in have.frontends):
            continue
        kept = {member.backend for member in part.want.members} if part.want and not part.anew else set()
        gone = {member.backend for member in have.members} - kept
        if gone:
            found[have.id] = gone
    return found
