"""`svcctl attach netns`: puts the dispatcher on the network namespace of a loaded state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import option, verb
from svcctl.cli.params import Count
from svcctl.maps.catalog import MAX_BINDINGS, MAX_DESTINATIONS
from svcctl.render.changes import CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "netns",
    examples=("svcctl attach netns", "svcctl --netns /run/netns/blue attach netns"),
    exits=(0, 2, 3, 4, 6, 7, 9),
)
@option(
    "--max-bindings",
    type=Count(1, MAX_BINDINGS),
    metavar="N",
    help="Room for host and for prefix bindings, if there are no maps yet [1000000].",
)
@option(
    "--max-destinations",
    type=Count(1, MAX_DESTINATIONS),
    metavar="N",
    help="Room for labels by family and protocol, if there are no maps yet [1024].",
)
def command(env: Env, max_bindings: int | None, max_destinations: int | None) -> None:
    """Attach the dispatcher to the network namespace; bindings steer from then on.

    After 'load --no-dispatcher' its maps are made now, with the sizes given. Attached already: nothing is done.
    """
    from svcctl.cli.access import planning
    from svcctl.state.reattach import attach_dispatcher, plan_attach

    with planning(env) as (state, writer):
        plan = plan_attach(state, max_bindings, max_destinations)
        if writer is not None:
            attach_dispatcher(writer, plan, max_bindings, max_destinations)
        inode = state.netns.inode
    action = CREATED if any(plan) else UNCHANGED
    env.emit_changes([Change(action, "attachment", "dispatcher", f"network namespace {inode}")])
