"""`svcctl services`: lists services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column
from svcctl.render.times import utc

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.session import State


def _words(values: list[str]) -> str:
    return " ".join(values)


def _active(counts: dict[str, int]) -> str:
    return f"{counts['active']}/{counts['all']}"


def _yes(value: bool) -> str:
    return "yes"


COLUMNS = (
    Column("NAME", "name"),
    Column("FRONTENDS", "frontends", _words),
    Column("BACKENDS", "backends", _active, ">"),
    Column("POLICY", "policy"),
    Column("AFFINITY", "affinity", None, ">"),
    Column("CONNECTIONS", "connections", None, ">"),
    Column("NO_BACKEND", "no_backend", None, ">"),
    Column("ID", "id", None, ">", True),
    Column("ALGORITHM", "algorithm", wide=True),
    Column("NODE_PORT", "node_port", None, ">", True),
    Column("EXTERNAL_MODE", "external_mode", wide=True),
    Column("BLOCK", "block", _yes, wide=True),
    Column("DROP", "drop", _yes, wide=True),
    Column("OWNER", "owner", wide=True),
    Column("SOURCES", "sources", _words, wide=True),
    Column("HEALTH_PORT", "health_port", None, ">", True),
    Column("DROPPED", "dropped", None, ">", True),
    Column("BY_AFFINITY", "by_affinity", None, ">", True),
    Column("REMEMBERED", "remembered", None, ">", True),
    Column("REVERSE_FULL", "reverse_full", None, ">", True),
    Column("CHANGED", "changed", wide=True),
)


@noun(
    "services",
    examples=("svcctl services", "svcctl services web -o wide", "svcctl services -o json"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("name", SERVICE, "Only this service.", required=False)
def command(env: Env, name: str | None) -> None:
    """List services by name, with their policy and how many connections they were asked for.

    BACKENDS is those that may get new connections, and all. AFFINITY is in seconds. CONNECTIONS counts sockets
    that were given a backend, NO_BACKEND those refused because there was none.
    """
    from svcctl.cli.access import reading
    from svcctl.state.service_listing import service_rows

    def read(state: State) -> list[tuple[Any, ...]]:
        return service_rows(state, name)

    rows = [shown(row) for row in reading(env, read)]
    env.emit("services", rows, COLUMNS, empty="no services")


def shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as COLUMNS have it: the time as text."""
    return (*row[:-1], utc(row[-1]))
