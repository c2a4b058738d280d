"""What the commands that change a service share: read, edit, plan, write, say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.cli.access import planning
from svcctl.render.changes import UNCHANGED, Change

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.cli.env import Env
    from svcctl.model.service import Service
    from svcctl.model.service_plan import ServicePlan, Step
    from svcctl.state.services import Stored
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


def change_service(
    env: Env,
    name: str,
    action: str,
    edit: Callable[[Service, int], Service | None],
    *,
    create: bool = False,
    first: Callable[[State, Service | None], None] | None = None,
    before: Callable[[State, Stored], None] | None = None,
    then: Callable[[State, Stored], None] | None = None,
) -> tuple[Stored | None, Service | None]:
    """Edit the service `name` (or, with `create`, make it) and print what changes.

    `edit` gets the service as it is and the time in nanoseconds, and returns what it should be, or None to remove
    it. Returns both. Nothing is written when nothing changes. `first` is called before that, with what there is;
    `before` and `then` are called under the lock with the service as it was, before the first write and after the
    last. Drains of whatever service that are over are ended first.
    """
    from svcctl.model.service import Service
    from svcctl.model.service_plan import diff, is_empty, steps
    from svcctl.state import services
    from svcctl.state.service_change import apply_change, plan_change

    notes: list[str] = []
    with planning(env) as (state, writer):
        services.need_services(state)
        if writer is not None:
            _end_drains(env, writer)
        have = services.find(state, name) if create else services.get(state, name, action)
        if before is not None and have is not None:
            before(state, have)
        if first is not None:
            first(state, have.service if have else None)
        now = time.time_ns()
        want = edit(have.service if have else Service(name), now)
        plan = diff(have.service if have else None, want)
        if not is_empty(plan):
            change = plan_change(state, have, want)
            notes = chained(state, name, plan)
            if want is not None and want.node_port:
                from svcctl.state.port_clashes import clashes

                notes += clashes(state, [(have.service if have else None, want)])
            if writer is not None:
                apply_change(writer, change)
        if then is not None and have is not None:
            then(state, have)
    if is_empty(plan):
        env.emit_changes([Change(UNCHANGED, "service", name, words=_words("unchanged", "leave", "service"))])
    else:
        env.emit_changes([_change(step, name) for step in steps(plan, name)])
    for text in notes:
        env.notice(text)
    return have, want


def chained(state: State, name: str, plan: ServicePlan) -> list[str]:
    """Where a new backend is a frontend, or a new frontend a backend: nothing is translated twice."""
    from svcctl.maps import service_codec as codec
    from svcctl.model.constants import TCP, UDP
    from svcctl.model.service_endpoint import Backend, Frontend, format_backend, format_frontend
    from svcctl.state.services import name_of, owner_of_frontend

    notes = []
    for member in plan.members_added:
        for protocol in (TCP, UDP):
            owner = owner_of_frontend(state, codec.frontend_key(Frontend(*member.backend, protocol)))
            if owner:
                notes.append(
                    f"backend {format_backend(member.backend)} is a frontend of {name_of(state, owner)!r}:"
                    " connections go to the address itself, nothing is translated twice"
                )
                break
    for each in plan.frontends_added:
        family, address, port, _ = each.frontend
        if state.map("backend_ids").lookup(codec.backend_key(Backend(family, address, port))) is not None:
            notes.append(
                f"frontend {format_frontend(each.frontend)} is a backend as well:"
                " what services send there goes to the address itself, nothing is translated twice"
            )
    return notes


def say_fault(env: Env, fault: str | None) -> None:
    """A notice beside a listing of what connections meet: nobody meets it."""
    if fault is not None:
        env.notice(fault)


def _end_drains(env: Env, writer: Writer) -> None:
    """End what is left on backends whose drain is over. It must not keep the command from its own work."""
    from svcctl.errors import SvcctlError
    from svcctl.model.service_endpoint import format_backend
    from svcctl.state.drains import end_overdue

    try:
        for service, backend in end_overdue(writer):
            env.notice(f"drain over: {service} {format_backend(backend)} is down")
    except (SvcctlError, OSError) as error:
        env.warn(f"end drains that are over: {error}")


_ACTIONS = {"added": ("created", "add"), "changed": ("changed", "change"), "deleted": ("deleted", "delete")}


def _change(step: Step, service: str) -> Change:
    """One step of a service's plan as a record: `added backend 10.1.0.1:80`."""
    action, todo = _ACTIONS[step.action]
    words = _words(step.action, todo, step.kind)
    return Change(action, step.kind, step.name, step.note or None, {"service": service}, words)


def _words(done: str, todo: str, kind: str) -> tuple[str, str]:
    return f"{done} {kind}", f"{todo} {kind}"
