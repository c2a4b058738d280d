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
    from svcctl.state.services import Stored


def change_service(
    env: Env, name: str, action: str, edit: Callable[[Service, int], Service | None], *, create: bool = False
) -> tuple[Stored | None, Service | None]:
    """Edit the service `name` (or, with `create`, make it) and print what changes.

    `edit` gets the service as it is and the time in nanoseconds, and returns what it should be, or None to remove
    it. Returns both. Nothing is written when nothing changes.
    """
    from svcctl.model.service import Service
    from svcctl.model.service_plan import diff, is_empty, steps
    from svcctl.state import services
    from svcctl.state.service_change import apply_change, plan_change

    with planning(env) as (state, writer):
        services.need_services(state)
        have = services.find(state, name) if create else services.get(state, name, action)
        now = time.time_ns()
        want = edit(have.service if have else Service(name), now)
        plan = diff(have.service if have else None, want)
        if not is_empty(plan):
            change = plan_change(state, have, want)
            if writer is not None:
                apply_change(writer, change)
    if is_empty(plan):
        env.emit_changes([Change(UNCHANGED, "service", name)])
    else:
        env.emit_changes(
            [
                Change(_ACTIONS[step.action], step.kind, step.name, step.note or None, {"service": name})
                for step in steps(plan, name)
            ]
        )
    return have, want


_ACTIONS = {"added": "created", "changed": "changed", "deleted": "deleted"}
