"""`svcctl service delete`: removes a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.service_params import SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.services import Stored
    from svcctl.state.session import State


@verb(
    "delete",
    examples=("svcctl service delete web", "svcctl service delete dns --terminate"),
    exits=(0, 2, 3, 4, 5, 7, 9),
)
@argument("name", SERVICE, "Name of the service.")
@option("--terminate", is_flag=True, help="End connected UDP sockets that use its backends through it.")
@option("--tcp", is_flag=True, help="With --terminate: TCP connections too.")
def command(env: Env, name: str, terminate: bool, tcp: bool) -> None:
    """Remove a service with its frontends and memberships.

    New connections to its addresses are nobody's from then on; established ones go on unless --terminate ends them,
    as 'svcctl backend delete' does. Backends that other services have stay. Drains with an end go with the service:
    a notice names each end that nobody will carry out.
    """
    from svcctl.cli.ending import Ending, check_options, tell_lost_drains
    from svcctl.cli.service_commands import change_service

    check_options("service delete", ends=terminate, tcp=tcp)
    ending = Ending(env, "service delete", None, tcp=tcp) if terminate else None

    def after(state: State, have: Stored) -> None:
        if ending is not None:
            ending.carry_out(state, have)
        else:
            tell_lost_drains(env, have, [member.backend for member in have.service.members])

    change_service(
        env,
        name,
        "service delete",
        lambda have, now: None,
        before=ending.check if ending is not None else None,
        then=after,
    )
