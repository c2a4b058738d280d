"""`svcctl affinity`: which clients stick to which backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.remembered import Sticky
    from svcctl.state.session import State


def _seconds(value: float) -> str:
    return f"{value:.1f}"


COLUMNS = (
    Column("SERVICE", "service"),
    Column("CLIENT", "client"),
    Column("BACKEND", "backend"),
    Column("AGE", "age", _seconds, ">"),
    Column("REMAINING", "remaining", _seconds, ">"),
    Column("STATE", "state"),
)


@noun("affinity", examples=("svcctl affinity", "svcctl affinity web -o json"), exits=(0, 2, 3, 4, 5, 7))
@argument("service", SERVICE, "Only clients of this service.", required=False)
def command(env: Env, service: str | None) -> None:
    """List which client of a service is kept on which backend, and how long still, in seconds.

    A client is a network namespace by its cookie, or an address. STATE: live; expired, the next connection
    chooses anew; stale, the service is gone or would not choose that backend now.
    """
    from svcctl.cli.access import reading
    from svcctl.state.remembered import sticky

    def read(state: State) -> list[Sticky]:
        return sticky(state, service)

    rows = reading(env, read)
    env.emit(
        "affinity",
        rows,
        COLUMNS,
        name=lambda row: f"{row[0]}/{row[1]}",
        empty="no client is kept on a backend",
    )
