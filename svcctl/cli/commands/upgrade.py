"""`svcctl upgrade`: swaps the programs in place, resizes maps, carries older layouts over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import option, verb
from svcctl.cli.params import Count
from svcctl.maps.catalog import (
    MAX_BACKENDS,
    MAX_BINDINGS,
    MAX_DESTINATIONS,
    MAX_FLOWS,
    MAX_SERVICES,
    MAX_SOCKETS,
)
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
@option("--max-services", type=Count(1, MAX_SERVICES), metavar="N", help="New room for services.")
@option("--max-backends", type=Count(1, MAX_BACKENDS), metavar="N", help="New room for backends.")
@option(
    "--max-sockets",
    type=Count(1, MAX_SOCKETS),
    metavar="N",
    help="New room for sockets and clients remembered.",
)
@option("--max-flows", type=Count(1, MAX_FLOWS), metavar="N", help="New room for flows of packets.")
@option(
    "--force", is_flag=True, help="Swap even a program that is the same, or one that someone else attached."
)
def command(
    env: Env,
    max_bindings: int | None,
    max_destinations: int | None,
    max_services: int | None,
    max_backends: int | None,
    max_sockets: int | None,
    max_flows: int | None,
    force: bool,
) -> None:
    """Swap every program for this svcctl's under its link, atomically: no connection is lost.

    Finishes an upgrade that was interrupted, carries the state of an older svcctl over and makes maps larger or
    smaller, registered sockets included. What is up to date is left alone.
    """
    from svcctl.cli.access import command_line, place
    from svcctl.state.upgrade import upgrade
    from svcctl.state.upgrade_maps import UpgradeOptions

    options = UpgradeOptions(
        max_bindings, max_destinations, force, max_services, max_backends, max_sockets, max_flows
    )
    done = upgrade(place(env), options, command_line(), dry_run=env.dry_run)
    if done.downgrade:
        env.warn(f"downgrade from {done.old_version} to {done.new_version}")
    changes = []
    for program in done.programs:
        before = f"svcctl {done.old_version} program {program.old}"
        after = f"svcctl {done.new_version} program {program.new}"
        if env.dry_run and done.changed:
            after = f"svcctl {done.new_version}, a new program"  # its id is not known before it is loaded
        changes.append(
            Change(
                CHANGED if done.changed else UNCHANGED,
                "program",
                program.name,
                f"{before} -> {after}" if done.changed else after,
                {
                    "old_version": done.old_version,
                    "new_version": done.new_version,
                    "old_program": program.old,
                    "new_program": program.new,
                },
            )
        )
    if not changes:
        note = f"svcctl {done.old_version} -> {done.new_version}" if done.changed else None
        changes.append(Change(CHANGED if done.changed else UNCHANGED, "state", "programs", note))
    for one in done.resized:
        note = f"{one.old} -> {one.new} entries" + (", layout carried over" if one.migrated else "")
        changes.append(
            Change(CHANGED, "map", one.name, note, {"old": one.old, "new": one.new}, ("resized", "resize"))
        )
    env.emit_changes(changes)
