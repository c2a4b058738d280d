"""`svcctl unbind`: takes a binding away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import LABEL, PORT, PREFIX, PROTOCOL
from svcctl.render.changes import DELETED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix


@verb("unbind", examples=("svcctl unbind web tcp 192.0.2.0/24 443",), exits=(0, 2, 3, 4, 5, 6, 7, 9))
@argument("label", LABEL, "Label that holds the binding.")
@argument("protocol", PROTOCOL, "tcp or udp.")
@argument("prefix", PREFIX, "Address or prefix as it was bound.")
@argument("port", PORT, "Port as it was bound.")
@option("--force", is_flag=True, help="Whatever label holds it, even one that is gone.")
def command(env: Env, label: str, protocol: int, prefix: Prefix, port: int, force: bool) -> None:
    """Remove the binding of exactly PREFIX and PORT from LABEL.

    Less specific bindings take over, or the host's own listeners. Established connections go on.
    """
    from svcctl.cli.access import planning
    from svcctl.model.binding import Binding, format_binding
    from svcctl.state.bindings import apply_plan, plan_unbind

    binding = Binding(label, protocol, prefix.family, prefix.address, prefix.length, port)
    with planning(env) as (state, writer):
        plan = plan_unbind(state, binding, force=force)
        if writer is not None:
            apply_plan(writer, plan)
    env.emit_changes([Change(DELETED, "binding", format_binding(binding))])
