"""`svcctl detach dev`: takes the packet path off interfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.packet_params import INTERFACE
from svcctl.render.changes import DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "dev",
    examples=("svcctl detach dev eth0", "svcctl detach dev 'veth*'", "svcctl detach dev --all"),
    exits=(0, 2, 3, 4, 7, 9),
)
@argument("names", INTERFACE, "Interfaces, or shell patterns of their names in quotes.", nargs=-1)
@option("--all", "everything", is_flag=True, help="Every interface, and every rule.")
def command(env: Env, names: tuple[str, ...], everything: bool) -> None:
    """Detach the packet path from interfaces; services and remembered flows stay.

    A pattern that is a rule ends as one. What is not attached is left alone, a name that no interface has
    included. Translated connections that pass the interfaces break, unless nothing is sent until they are
    attached again.
    """
    from svcctl.cli.access import planning
    from svcctl.state.devices import apply_detach, plan_detach

    with planning(env) as (state, writer):
        plan = plan_detach(state, names, everything=everything)
        if writer is not None:
            apply_detach(writer, plan)
    for text in plan.notices:
        env.notice(text)
    changes = [Change(DELETED, "rule", pattern) for pattern in plan.rules]
    changes += [Change(DELETED, "attachment", name) for _, name in plan.detach]
    left = [name for name in names if name not in plan.rules and name not in dict(plan.detach).values()]
    if not changes:
        changes = [Change(UNCHANGED, "attachment", name) for name in left or ("packets",)]
    env.emit_changes(changes)
