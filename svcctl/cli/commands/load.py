"""`svcctl load`: makes the state directory and attaches the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import option, verb
from svcctl.cli.packet_params import TIMEOUT
from svcctl.cli.params import Count
from svcctl.maps.catalog import MAX_BINDINGS, MAX_DESTINATIONS
from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "load",
    examples=("svcctl load", "svcctl load --group svcctl --max-bindings 4000000"),
    exits=(0, 1, 2, 4, 6, 7, 9),
)
@option("--group", metavar="NAME", help="Group whose members may read the state [the caller's].")
@option("--no-dispatcher", is_flag=True, help="Make the state directory, attach nothing.")
@option(
    "--max-bindings",
    type=Count(1, MAX_BINDINGS),
    metavar="N",
    help="Room for host and for prefix bindings [1000000].",
)
@option(
    "--max-destinations",
    type=Count(1, MAX_DESTINATIONS),
    metavar="N",
    help="Room for labels by family and protocol [1024].",
)
@option(
    "--mount-bpffs",
    is_flag=True,
    help="Mount a BPF file system even where it will not outlive this mount namespace.",
)
@option(
    "--from-tubular",
    is_flag=True,
    help="Take bindings and sockets over from a loaded tubular, then remove it.",
)
@option(
    "--timeout",
    "timeouts",
    type=TIMEOUT,
    multiple=True,
    metavar="NAME=SECONDS",
    help="How long the packet path remembers an idle flow, as 'attach dev --timeout'; may be said again.",
)
def command(
    env: Env,
    group: str | None,
    no_dispatcher: bool,
    max_bindings: int | None,
    max_destinations: int | None,
    mount_bpffs: bool,
    from_tubular: bool,
    timeouts: tuple[tuple[str, int], ...],
) -> None:
    """Make the state directory of the network namespace and attach the dispatcher to it.

    Traffic is steered from the first 'bind' on. Loading what is loaded is no error; with other options it is a
    conflict, but for --timeout, which changes what it says.
    """
    from svcctl.cli.access import command_line, place
    from svcctl.state.create import LoadOptions, load, planned

    options = LoadOptions(
        group, not no_dispatcher, max_bindings, max_destinations, mount_bpffs, from_tubular, timeouts
    )
    where = place(env)
    done = planned(where, options) if env.dry_run else load(where, options, command_line())
    changes = [Change(CREATED if done.created else UNCHANGED, "state", done.path, words=_WORDS[done.created])]
    if done.created and done.attached:
        changes.append(Change(CREATED, "attachment", "dispatcher", f"network namespace {done.inode}"))
    if done.timeouts:
        changes.append(Change(CHANGED, "packets", "settings", done.timeouts))
    if not done.created:
        env.notice(f"already loaded: {done.path}")
    env.emit_changes(changes + [Change(*row) for row in done.taken])


_WORDS = {True: ("created", "create"), False: ("unchanged", "leave")}
