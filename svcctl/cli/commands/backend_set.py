"""`svcctl backend set`: changes weight or state of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import Count
from svcctl.cli.service_params import BACKEND, SERVICE, STATE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.service_endpoint import Backend


@verb(
    "set",
    examples=(
        "svcctl backend set web 10.1.0.3:8080 --weight 5",
        "svcctl backend set web 10.1.0.3:8080 --state down",
    ),
    exits=(0, 2, 3, 4, 5, 7, 8, 9),
)
@argument("service", SERVICE, "Name of the service.")
@argument("backends", BACKEND, "ADDRESS:PORT of its backends.", nargs=-1, required=True)
@option(
    "--weight", type=Count(0, 65535), metavar="N", help="Share of new connections, 65535 at most; 0: none."
)
@option("--state", type=STATE, metavar="STATE", help="active, draining (no new connections) or down.")
def command(
    env: Env, service: str, backends: tuple[Backend, ...], weight: int | None, state: str | None
) -> None:
    """Change what is given of backends of a service."""
    from svcctl.cli.service_commands import change_service
    from svcctl.model.service_edit import set_backends
    from svcctl.model.service_endpoint import STATE_NUMBERS, BackendSpec

    number = None if state is None else STATE_NUMBERS[state]
    specs = [BackendSpec(one, weight, number, None) for one in backends]
    change_service(env, service, "backend set", lambda have, now: set_backends(have, specs, now))
