"""`svcctl backends`: lists the backends of services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.session import State


def _yes(value: bool) -> str:
    return "yes"


COLUMNS = (
    Column("BACKEND", "backend"),
    Column("SERVICE", "service"),
    Column("WEIGHT", "weight", None, ">"),
    Column("STATE", "state"),
    Column("SINCE", "since"),
    Column("LOCAL", "local", _yes),
    Column("PICKS", "picks", None, ">"),
    Column("FAMILY", "family", wide=True),
    Column("ID", "id", None, ">", True),
    Column("UNTIL", "until", wide=True),
)


@noun(
    "backends",
    examples=("svcctl backends", "svcctl backends web", "svcctl backends web -o json"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("service", SERVICE, "Only those of this service.", required=False)
def command(env: Env, service: str | None) -> None:
    """List the backends of services: weight, state and since when, and how often they were chosen.

    A backend that several services have is one row for each; PICKS counts what all of them sent there. UNTIL
    (-o wide) is when a drain ends what is left.
    """
    from svcctl.cli.access import reading
    from svcctl.render.times import utc
    from svcctl.state.service_listing import backend_rows

    def read(state: State) -> list[tuple[Any, ...]]:
        return backend_rows(state, service)

    rows = [
        (*row[:4], utc(row[4]) if row[4] else None, *row[5:-1], utc(row[-1]) if row[-1] else None)
        for row in reading(env, read)
    ]
    env.emit("backends", rows, COLUMNS, empty="no backends")
