"""What the commands that change the packet path's settings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.packet_settings import PacketSettings


def change_settings(env: Env, asked: PacketSettings, *, exists: bool = True) -> list[Change]:
    """Make the settings what is asked, and the packet path if there is none; what that came to.

    `exists`: there is a state, which there is not where a dry run has not made it.
    """
    from svcctl.cli.access import planning
    from svcctl.maps.catalog import PACKETS
    from svcctl.state.own_node import plan_own, unmarked, write_changes
    from svcctl.state.packets import PacketOptions, apply_packets, plan_packets
    from svcctl.state.tunnel_settings import refuse_settings, remarks

    if not exists:
        return [Change(CREATED, "packets", "packet path")]
    options = PacketOptions(settings=asked)
    about_node = asked.pod_prefixes is not None or asked.node_name is not None
    with planning(env) as (state, writer):
        refuse_settings(state, asked)
        plan = plan_packets(state, options)
        own = plan_own(state, asked) if about_node and state.has_half(PACKETS) else None
        if writer is not None and (plan.changes or (own is not None and own.changes)):
            with writer.changing():
                apply_packets(writer, plan, options)
                if about_node:
                    own = plan_own(writer, asked)  # of a packet path that was just made, too
                    write_changes(writer, own)
        notices = remarks(state, asked)
        if own is not None and own.changes:
            count = unmarked(state, asked.pod_prefixes or ())
            if count:
                notices.append(
                    f"{count} backend{'' if count == 1 else 's'} in these prefixes not known to be on this node:"
                    " 'svcctl backend set SERVICE BACKEND,local' says so"
                )
    for text in notices:
        env.notice(text)
    changed = plan.changes or (own is not None and own.changes)
    action = CREATED if plan.make else CHANGED if changed else UNCHANGED
    notes = "; ".join(text for text in (plan.notes, own.notes if own is not None else "") if text)
    return [Change(action, "packets", "packet path", notes or None, words=_WORDS[action])]


_WORDS = {
    CREATED: ("created", "create"),
    CHANGED: ("changed", "change"),
    UNCHANGED: ("unchanged", "leave"),
}
