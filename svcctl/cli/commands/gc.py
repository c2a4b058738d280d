"""`svcctl gc`: removes what killed commands and dead namespaces left, and labels nobody uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import verb
from svcctl.render.changes import DELETED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env

REMOVED = ("removed", "remove")


@verb("gc", examples=("svcctl gc", "svcctl gc --dry-run"), exits=(0, 2, 3, 4, 6, 7, 9))
def command(env: Env) -> None:
    """Remove leftovers: directories of killed commands and of dead network namespaces, unused labels, and what
    is remembered of sockets and clients of services that are gone, of interfaces that are gone, and of clients and
    flows whose time is over. End drains that are over.

    A label is unused when it has neither bindings nor live sockets. Everything in use stays; running it again
    removes nothing more. Without CAP_SYS_ADMIN and CAP_NET_ADMIN drains and what is remembered of sockets are left
    alone, and a notice says so. svcctl-gc.timer runs it each minute, as drains end by it.
    """
    from svcctl.cli.access import command_line, place
    from svcctl.state.gc import collect, planned

    rows = planned(place(env)) if env.dry_run else collect(place(env), command_line())
    if not rows:
        env.notice("nothing to remove")
        if env.output in ("text", "wide"):
            return
    env.emit_changes([Change(DELETED, row.kind, row.name, row.why, words=REMOVED) for row in rows])
