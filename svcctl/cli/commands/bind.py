"""`svcctl bind`: connections to a prefix and port go to the sockets of a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import LABEL, PORT, PREFIX, PROTOCOL
from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix


@verb(
    "bind",
    examples=(
        "svcctl bind web tcp 192.0.2.0/24 443",
        "svcctl bind dns udp 2001:db8::53 53",
        "svcctl bind blue tcp 192.0.2.0/24 443 --replace",
    ),
    exits=(0, 2, 3, 4, 6, 7, 8, 9),
)
@argument("label", LABEL, "Name of the sockets that get the connections.")
@argument("protocol", PROTOCOL, "tcp or udp.")
@argument("prefix", PREFIX, "Address or prefix of this host.")
@argument("port", PORT, "Port, 0 for all ports.")
@option("--replace", is_flag=True, help="Take the binding over from another label.")
@option("--force", is_flag=True, help="Bind even the port of your own SSH connection.")
def command(
    env: Env, label: str, protocol: int, prefix: Prefix, port: int, replace: bool, force: bool
) -> None:
    """Send connections to PREFIX and PORT to the sockets registered under LABEL.

    A longer prefix wins over a shorter one, and at equal length a concrete port over port 0. A label without a
    live socket refuses: its connections never fall through to other listeners.
    """
    from svcctl.cli.access import planning
    from svcctl.model.binding import Binding, format_binding
    from svcctl.model.prefix import is_zero_host
    from svcctl.state.bindings import apply_plan, plan_bind
    from svcctl.state.shadow import guard_ssh, warn_shadowed

    binding = Binding(label, protocol, prefix.family, prefix.address, prefix.length, port)
    with planning(env) as (state, writer):
        plan = plan_bind(state, binding, replace=replace)
        if not plan.is_empty:
            if not force:
                guard_ssh(binding)
            if is_zero_host(prefix.family, prefix.address, prefix.length):
                every = "0.0.0.0/0" if prefix.family == 4 else "::/0"
                env.warn(f"{prefix} is the zero address itself; every address is {every}")
            warn_shadowed(state, binding, env.warn)
        if writer is not None:
            apply_plan(writer, plan)
    action = CREATED if plan.added else CHANGED if plan.replaced else UNCHANGED
    note = f"was {plan.replaced[0][2]}" if plan.replaced else None
    env.emit_changes([Change(action, "binding", format_binding(binding), note)])
