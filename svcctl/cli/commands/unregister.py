"""`svcctl unregister`: takes the sockets of a label away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, verb
from svcctl.cli.params import FAMILY, LABEL, PROTOCOL
from svcctl.render.changes import DELETED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("unregister", examples=("svcctl unregister web ipv4 tcp",), exits=(0, 2, 3, 4, 5, 7, 9))
@argument("label", LABEL, "Label of the sockets.")
@argument("family", FAMILY, "ipv4 or ipv6.")
@argument("protocol", PROTOCOL, "tcp or udp.")
def command(env: Env, label: str, family: str, protocol: int) -> None:
    """Remove all sockets of LABEL for a family and protocol.

    Its bindings stay, and refuse from now on. Established connections go on. The other family of a dual-stack
    socket keeps it.
    """
    from svcctl.cli.access import planning
    from svcctl.model.binding import parse_family
    from svcctl.model.destination import DestinationKey
    from svcctl.state.sockets import plan_unregister, unregister

    key = DestinationKey(label, parse_family(family), protocol)
    with planning(env) as (state, writer):
        found, live = plan_unregister(state, key)
        if writer is not None:
            unregister(writer, found)
    cookies = " ".join(f"sk:{cookie:x}" for cookie in live.values()) or "no live socket"
    env.emit_changes([Change(DELETED, "socket", f"{key} {cookies}", None, {"cookies": list(live.values())})])
