"""`svcctl destinations`: labels by family and protocol, their sockets and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun
from svcctl.cli.params import LABEL
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.session import State


def _members(members: list[dict[str, Any]]) -> str:
    return (
        " ".join(f"sk:{one['cookie']:x}{'' if one.get('alive', True) else '(dead)'}" for one in members)
        or "-"
    )


COLUMNS = (
    Column("LABEL", "label"),
    Column("FAMILY", "family"),
    Column("PROTOCOL", "protocol"),
    Column("ID", "id", None, ">", True),
    Column("MEMBERS", "members", _members),
    Column("BINDINGS", "bindings", None, ">"),
    Column("LOOKUPS", "lookups", None, ">"),
    Column("NO_SOCKET", "no_socket", None, ">"),
    Column("ERRORS", "errors", None, ">"),
)


@noun(
    "destinations",
    examples=("svcctl destinations", "svcctl destinations web -o json"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("label", LABEL, "Only this label.", required=False)
def command(env: Env, label: str | None) -> None:
    """List what each label has: its sockets (by cookie, as in ss -e), bindings and counters.

    A socket that was shut down, or a UDP socket that was connected after it was registered, is (dead): it has a place
    and takes nothing. One that was closed has left.

    lookups: connections that met a binding of it; no_socket: refused because no registered socket was live;
    errors: registered sockets that could not take a connection.
    """
    from svcctl.cli.access import reading
    from svcctl.state.listing import rows_of_label

    def read(state: State) -> list[tuple[Any, ...]]:
        return rows_of_label(state, label)

    rows = reading(env, read)
    env.emit("destinations", rows, COLUMNS, name=lambda row: f"{row[0]}#{row[2]}:{row[1]}", empty="no labels")
