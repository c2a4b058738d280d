"""`svcctl reverse`: which sockets' backends stand for which frontends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.remembered import Stand
    from svcctl.state.session import State


def _cookie(value: int) -> str:
    return f"sk:{value:x}"


COLUMNS = (
    Column("SOCKET", "cookie", _cookie),
    Column("FRONTEND", "frontend"),
    Column("BACKEND", "backend"),
    Column("SERVICE", "service"),
    Column("STATE", "state"),
)


@noun("reverse", examples=("svcctl reverse", "svcctl reverse dns -o json"), exits=(0, 2, 3, 4, 5, 7))
@argument("service", SERVICE, "Only sockets of this service.", required=False)
def command(env: Env, service: str | None) -> None:
    """List for each socket, by its cookie (as in ss -e), the frontend that its backend stands for.

    So a socket sees the service's address where it would see the backend's. A socket has up to four entries,
    and they go when it is closed; which process has it the kernel does not say. STATE: live; stale, the
    service is gone, so the backend stands for nobody. With -o name a line is SOCKET/BACKEND.
    """
    from svcctl.cli.access import reading
    from svcctl.state.remembered import stands

    def read(state: State) -> list[Stand]:
        return stands(state, service)

    rows = reading(env, read)
    env.emit(
        "reverse",
        rows,
        COLUMNS,
        name=lambda row: f"{_cookie(row[0])}/{row[2]}",
        empty="no socket uses a service",
    )
