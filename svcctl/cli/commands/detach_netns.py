"""`svcctl detach netns`: takes the dispatcher off the network namespace, keeps the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import verb
from svcctl.render.changes import DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("netns", examples=("svcctl detach netns",), exits=(0, 2, 3, 4, 7, 9))
def command(env: Env) -> None:
    """Detach the dispatcher from the network namespace: its connections go to ordinary listeners again.

    Bindings and registered sockets stay, and take effect with the next 'svcctl attach netns'.
    """
    from svcctl.cli.access import planning
    from svcctl.state.attach import is_attached
    from svcctl.state.reattach import detach_dispatcher

    with planning(env) as (state, writer):
        done = is_attached(state) if writer is None else detach_dispatcher(writer)
        inode = state.netns.inode
    action = DELETED if done else UNCHANGED
    env.emit_changes([Change(action, "attachment", "dispatcher", f"network namespace {inode}")])
