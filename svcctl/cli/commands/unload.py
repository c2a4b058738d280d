"""`svcctl unload`: detaches everything and removes the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import option, verb
from svcctl.render.changes import DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("unload", examples=("svcctl unload --yes",), exits=(0, 2, 4, 9))
@option("--yes", is_flag=True, help="Do not ask.")
def command(env: Env, yes: bool) -> None:
    """Detach everything and remove the state directory with all bindings and registrations.

    Looks at no map, so it clears broken or incompatible state as well. Established connections go on. Asks on a
    terminal; elsewhere --yes is needed.
    """
    from svcctl.cli.access import place
    from svcctl.state.unload import find_directory, unload

    path = find_directory(place(env))
    if path is None:
        env.notice("not loaded: nothing to remove")
        if not env.dry_run:
            unload(place(env))  # leftovers of killed commands
        env.emit_changes([Change(UNCHANGED, "state", "none")] if env.output != "text" else [])
        return
    env.confirm(f"remove {path} with all bindings and registered sockets", yes=yes)
    if not env.dry_run:
        unload(place(env))
    env.emit_changes([Change(DELETED, "state", path, words=("removed", "remove"))])
