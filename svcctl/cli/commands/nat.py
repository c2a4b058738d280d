"""`svcctl nat`: which backends each frontend leads to, as the kernel has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun
from svcctl.cli.service_params import SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.nat import Route
    from svcctl.state.session import State


def _backends(shares: list[dict[str, Any]]) -> str:
    return " ".join(f"{one['backend']}={one['share'] * 100:.4g}%" for one in shares)


COLUMNS = (
    Column("FRONTEND", "frontend"),
    Column("SERVICE", "service"),
    Column("SET", "set"),
    Column("RESULT", "result"),
    Column("BACKENDS", "backends", _backends),
    Column("AFFINITY", "affinity", None, ">", True),
    Column("LANE", "lane", None, ">", True),
    Column("BLOCK", "block", None, ">", True),
    Column("SLOTS", "slots", None, ">", True),
)


@noun("nat", examples=("svcctl nat", "svcctl nat web", "svcctl nat -o json"), exits=(0, 2, 3, 4, 5, 7))
@argument("service", SERVICE, "Only frontends that lead to this service.", required=False)
def command(env: Env, service: str | None) -> None:
    """Show where the kernel's maps lead from each frontend: the backends a new connection may get, with the
    exact share of each.

    This is read from the maps that the programs read, not from what commands noted. RESULT: serves; refuses or
    drops, without a backend or by rule; filters, packets of those whom source ranges admit are served, and sockets are
    not; blocks, other ports of a service's address; broken, it leads nowhere, which 'svcctl check' explains. Where the
    balancer is not attached nobody obeys them, and a notice says so.
    """
    from svcctl.cli.access import reading
    from svcctl.cli.service_commands import say_fault
    from svcctl.state.condition import fault as fault_of
    from svcctl.state.nat import routes
    from svcctl.state.services import get

    def read(state: State) -> tuple[list[Route], str | None]:
        found = [one for one in routes(state) if service is None or one.service == service]
        if service is not None and not found:
            get(state, service, "nat")
        return found, fault_of(state)

    found, fault = reading(env, read)
    say_fault(env, fault)
    rows = [row_of(one) for one in found]
    env.emit("nat", rows, COLUMNS, empty="no frontends")


def row_of(one: Route) -> tuple[Any, ...]:
    """The row of COLUMNS."""
    block = one.block
    return (
        one.name,
        one.service,
        one.set,
        one.result,
        [{"backend": share.name, "share": float(share.share)} for share in one.shares],
        block.affinity_seconds or None if block is not None else None,
        one.lane,
        block.block if block is not None else None,
        block.slots if block is not None else None,
    )
