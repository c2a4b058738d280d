"""`svcctl backend drain`: no new connections to backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import SECONDS
from svcctl.cli.service_params import BACKEND, SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.service_endpoint import Backend


@verb(
    "drain",
    examples=("svcctl backend drain web 10.1.0.3:8080", "svcctl backend drain web 10.1.0.3:8080 --after 300"),
    exits=(0, 2, 3, 4, 5, 7, 8, 9),
)
@argument("service", SERVICE, "Name of the service.")
@argument("backends", BACKEND, "ADDRESS:PORT of its backends.", nargs=-1, required=True)
@option(
    "--after",
    type=SECONDS,
    metavar="SECONDS",
    help="End what is left after so long: the next command on services does, or 'svcctl gc'.",
)
def command(env: Env, service: str, backends: tuple[Backend, ...], after: float | None) -> None:
    """Send no new connections to backends; old ones live. Affinity to them ends with their next connection.

    With --after, UDP sockets and TCP connections that are left when the time is over are ended, and the backends
    are down from then on: the next command that changes services does it, or 'svcctl gc', which svcctl-gc.timer
    runs each minute. The last command counts: another --after moves the end, none takes it back.
    """
    from svcctl.cli.service_commands import change_service
    from svcctl.model.service_edit import drain_backends

    after_ns = None if after is None else int(after * 1e9)
    change_service(
        env, service, "backend drain", lambda have, now: drain_backends(have, backends, now, after_ns)
    )
