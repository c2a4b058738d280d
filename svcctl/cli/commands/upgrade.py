"""`svcctl upgrade`: swaps the programs in place, resizes maps, carries older layouts over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import option, verb
from svcctl.cli.params import Count
from svcctl.maps.catalog import MAX_BINDINGS, MAX_DESTINATIONS
from svcctl.render.changes import CHANGED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "upgrade",
    examples=("svcctl upgrade", "svcctl upgrade --max-bindings 4000000"),
    exits=(0, 1, 2, 3, 4, 6, 7, 8, 9),
)
@option(
    "--max-bindings",
    type=Count(1, MAX_BINDINGS),
    metavar="N",
    help="New room for host and for prefix bindings.",
)
@option(
    "--max-destinations",
    type=Count(1, MAX_DESTINATIONS),
    metavar="N",
    help="New room for labels by family and protocol.",
)
@option(
    "--force", is_flag=True, help="Swap even a program that is the same, or one that someone else attached."
)
def command(env: Env, max_bindings: int | None, max_destinations: int | None, force: bool) -> None:
    """Swap every program for this svcctl's under its link, atomically: no connection is lost.

    Finishes an upgrade that was interrupted, carries the state of an older svcctl over and makes maps larger or
    smaller, registered sockets included. What is up to date is left alone.
    """
    from svcctl.cli.access import command_line, place
    from svcctl.state.upgrade import UpgradeOptions, upgrade

    done = upgrade(
        place(env), UpgradeOptions(max_bindings, max_destinations, force), command_line(), dry_run=env.dry_run
    )
    if done.downgrade:
        env.warn(f"downgrade from {done.old_version} to {done.new_version}")
    before = f"svcctl {done.old_version} program {done.old_program}"
    after = f"svcctl {done.new_version} program {done.new_program}"
    changes = [
        Change(
            CHANGED if done.changed else UNCHANGED,
            "program",
            "dispatch",
            f"{before} -> {after}" if done.changed else after,
            {
                "old_version": done.old_version,
                "new_version": done.new_version,
                "old_program": done.old_program,
                "new_program": done.new_program,
            },
        )
    ]
    for one in done.resized:
        note = f"{one.old} -> {one.new} entries" + (", layout carried over" if one.migrated else "")
        changes.append(
            Change(CHANGED, "map", one.name, note, {"old": one.old, "new": one.new}, ("resized", "resize"))
        )
    env.emit_changes(changes)
