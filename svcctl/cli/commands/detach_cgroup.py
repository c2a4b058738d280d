"""`svcctl detach cgroup`: takes the connect balancer off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import verb
from svcctl.render.changes import DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("cgroup", examples=("svcctl detach cgroup",), exits=(0, 2, 3, 4, 7, 9))
def command(env: Env) -> None:
    """Detach the connect balancer; services and backends stay.

    New connections to services then leave untranslated. Established ones go on.
    """
    from svcctl.cli.access import planning
    from svcctl.state.balancer import detach, is_attached

    with planning(env) as (state, writer):
        done = is_attached(state) if writer is None else detach(writer)
    env.emit_changes([Change(DELETED if done else UNCHANGED, "attachment", "balancer")])
