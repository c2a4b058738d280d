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
    """Detach everything and remove the state directory with all bindings, registrations and services.

    Looks at no map, so it clears broken or incompatible state as well. Established connections go on, but for those
    that the packet path translates: svcctl-outgoing(8), 'Packets'. Asks on a terminal; elsewhere --yes is needed.
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
    if not yes and not env.dry_run:
        env.confirm(f"remove {path} with {_content(env)}", yes=yes)
    if not env.dry_run:
        unload(place(env))
    env.emit_changes([Change(DELETED, "state", path, words=("removed", "remove"))])


def _content(env: Env) -> str:
    """What goes with it, as far as it can be read: broken state is removed too."""
    from svcctl.bpf.errors import BpfError
    from svcctl.cli.access import place
    from svcctl.errors import SvcctlError
    from svcctl.host.cgroup import path_of
    from svcctl.state.balancer import recorded
    from svcctl.state.picture import read
    from svcctl.state.session import read_consistent

    try:
        (picture, cgroups), _ = read_consistent(
            place(env), lambda state: (read(state, state.netns.inode), recorded(state))
        )
    except (SvcctlError, BpfError, OSError):
        return "all bindings, registered sockets and services"
    parts = []
    if picture.hosts + picture.prefixes or picture.destinations:
        sockets = sum(len(row[4]) for row in picture.destinations)
        parts.append(_number(picture.hosts + picture.prefixes, "binding"))
        parts.append(_number(sockets, "registered socket"))
    if picture.services is not None:
        names = [str(row[0]) for row in picture.services]
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        parts.append(_number(len(names), "service") + (f" ({shown})" if names else ""))
    for number in set(cgroups.values()):
        parts.append(f"the connect balancer on {path_of(number) or f'cgroup {number}'}")
    return ", ".join(parts) or "nothing in it yet"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
