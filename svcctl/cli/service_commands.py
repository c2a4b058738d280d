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
    from svcctl.model.service_plan import Step
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
    then: Callable[[State, Stored], None] | None = None,
) -> tuple[Stored | None, Service | None]:
    """Edit the service `name` (or, with `create`, make it) and print what changes.

    `edit` gets the service as it is and the time in nanoseconds, and returns what it should be, or None to remove
    it. Returns both. Nothing is written when nothing changes. `then` is called, still under the lock, with the
    service as it was. Drains of whatever service that are over are ended first.
    """
    from svcctl.model.service import Service
    from svcctl.model.service_plan import diff, is_empty, steps
    from svcctl.state import services
    from svcctl.state.service_change import apply_change, plan_change

    with planning(env) as (state, writer):
        services.need_services(state)
        if writer is not None:
            _end_drains(env, writer)
        have = services.find(state, name) if create else services.get(state, name, action)
        now = time.time_ns()
        want = edit(have.service if have else Service(name), now)
        plan = diff(have.service if have else None, want)
        if not is_empty(plan):
            change = plan_change(state, have, want)
            if writer is not None:
                apply_change(writer, change)
        if then is not None and have is not None:
            then(state, have)
    if is_empty(plan):
        env.emit_changes([Change(UNCHANGED, "service", name, words=_words("unchanged", "leave", "service"))])
    else:
        env.emit_changes([_change(step, name) for step in steps(plan, name)])
    return have, want


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
