"""`svcctl frontends`: lists the addresses of services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.session import State


def _words(values: list[str]) -> str:
    return ",".join(values)


COLUMNS = (
    Column("FRONTEND", "frontend"),
    Column("KIND", "kind"),
    Column("SERVICE", "service"),
    Column("BACKENDS", "backends", None, ">"),
    Column("RESULT", "result"),
    Column("FLAGS", "flags", _words),
)


@noun(
    "frontends",
    examples=("svcctl frontends", "svcctl frontends web", "svcctl frontends -o name"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("service", SERVICE, "Only those of this service.", required=False)
def command(env: Env, service: str | None) -> None:
    """List the addresses of services, how many backends answer there and what a new connection meets.

    RESULT: serves; refuses, without a backend; drops, because a rule says that nobody is served; filters, the
    packet path serves those whom source ranges admit, and sockets are not served. FLAGS: local, only backends of
    this node; host, only for sockets of the node's own namespace; filtered, it has source ranges; outside-local,
    clients outside get only backends of this node; dsr, backends on other nodes answer those by themselves; block,
    other ports of the address are refused. Where the balancer is not attached nobody is served, and a notice says
    so.
    """
    from svcctl.cli.access import reading
    from svcctl.cli.service_commands import say_fault
    from svcctl.state.condition import fault as fault_of
    from svcctl.state.service_listing import frontend_rows

    def read(state: State) -> tuple[list[tuple[Any, ...]], str | None]:
        return frontend_rows(state, service), fault_of(state)

    rows, fault = reading(env, read)
    say_fault(env, fault)
    env.emit("frontends", rows, COLUMNS, empty="no frontends")
