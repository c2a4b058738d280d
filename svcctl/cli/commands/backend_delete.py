"""`svcctl backend delete`: takes backends away from a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.service_params import BACKEND, SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.services import Stored
    from svcctl.state.session import State


@verb(
    "delete",
    examples=("svcctl backend delete web 10.1.0.3:8080", "svcctl backend delete dns 10.1.0.9:53 --terminate"),
    exits=(0, 2, 3, 4, 5, 7, 9),
)
@argument("service", SERVICE, "Name of the service.")
@argument("backends", BACKEND, "ADDRESS:PORT of its backends.", nargs=-1, required=True)
@option("--terminate", is_flag=True, help="End connected UDP sockets that use them through this service.")
@option("--tcp", is_flag=True, help="With --terminate: TCP connections too.")
def command(env: Env, service: str, backends: tuple[Backend, ...], terminate: bool, tcp: bool) -> None:
    """Take backends away: no new connections; old ones go on unless --terminate ends them.

    A connected UDP socket would otherwise send to the backend for ever. Unconnected ones move on by themselves.
    Ended are sockets in all network namespaces of the host; those connected to a backend's own address are not.
    --terminate needs CAP_NET_ADMIN and CAP_SYS_ADMIN, and takes a backend that was deleted before as long as a
    socket is remembered to use it.
    """
    from svcctl.cli.ending import Ending, check_options, tell_lost_drains
    from svcctl.cli.service_commands import change_service
    from svcctl.model.service_edit import delete_backends

    check_options("backend delete", ends=terminate, tcp=tcp)
    ending = Ending(env, "backend delete", backends, tcp=tcp) if terminate else None

    def after(state: State, have: Stored) -> None:
        if ending is not None:
            ending.carry_out(state, have)
        else:
            tell_lost_drains(env, have, backends)

    change_service(
        env,
        service,
        "backend delete",
        # With --terminate a backend may have gone already: what was left then is ended now.
        lambda old, now: delete_backends(old, backends, missing_ok=terminate),
        before=ending.check if ending is not None else None,
        then=after,
    )
