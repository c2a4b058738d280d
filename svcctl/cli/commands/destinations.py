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
    return " ".join(f"sk:{one['cookie']:x}" for one in members) or "-"


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


@noun("destinations", examples=("svcctl destinations", "svcctl destinations web -o json"))
@argument("label", LABEL, "Only this label.", required=False)
def command(env: Env, label: str | None) -> None:
    """List what each label has: its live sockets (by cookie, as in ss -e), bindings and counters.

    lookups: connections that met a binding of it; no_socket: refused because no registered socket was live;
    errors: registered sockets that could not take a connection.
    """
    from svcctl.cli.access import reading
    from svcctl.state.listing import destination_rows

    def read(state: State) -> list[tuple[Any, ...]]:
        return destination_rows(state, label)

    env.emit("destinations", reading(env, read), COLUMNS, name=lambda row: f"{row[0]}#{row[2]}:{row[1]}")
