"""What the commands that change the packet path's settings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.tunnel_settings import PacketSettings


def change_settings(env: Env, asked: PacketSettings, *, exists: bool = True) -> list[Change]:
    """Make the settings what is asked, and the packet path if there is none; what that came to.

    `exists`: there is a state, which there is not where a dry run has not made it.
    """
    from svcctl.cli.access import planning
    from svcctl.state.packets import PacketOptions, apply_packets, plan_packets
    from svcctl.state.tunnel_settings import refuse_settings, remarks

    if not exists:
        return [Change(CREATED, "packets", "packet path")]
    options = PacketOptions(settings=asked)
    with planning(env) as (state, writer):
        refuse_settings(state, asked)
        plan = plan_packets(state, options)
        if writer is not None and plan.changes:
            with writer.changing():
                apply_packets(writer, plan, options)
        notices = remarks(state, asked)
    for text in notices:
        env.notice(text)
    action = CREATED if plan.make else CHANGED if plan.changes else UNCHANGED
    return [Change(action, "packets", "packet path", plan.notes or None, words=_WORDS[action])]


_WORDS = {
    CREATED: ("created", "create"),
    CHANGED: ("changed", "change"),
    UNCHANGED: ("unchanged", "leave"),
}
