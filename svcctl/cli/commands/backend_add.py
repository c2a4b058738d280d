"""`svcctl backend add`: gives a service backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, verb
from svcctl.cli.service_params import BACKEND_SPEC, SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import BackendSpec
    from svcctl.state.session import State


@verb(
    "add",
    examples=("svcctl backend add web 10.1.0.3:8080 10.1.0.4:8080,weight=2",),
    exits=(0, 2, 3, 4, 5, 7, 8, 9),
)
@argument("service", SERVICE, "Name of the service.")
@argument("backends", BACKEND_SPEC, "ADDRESS:PORT[,weight=N][,state=S][,local].", nargs=-1, required=True)
def command(env: Env, service: str, backends: tuple[BackendSpec, ...]) -> None:
    """Give a service backends; one that it has with other values is changed.

    New connections may go there at once. The whole set is switched at one stroke. Where it is not said by local or
    local=no, a backend is on this node if its address is the node's or in its pods' prefixes, or if it is no known
    node's own and the route to it leads to an interface that is attached as a workload's.
    """
    from svcctl.cli.service_commands import change_service
    from svcctl.model.service_edit import add_backends
    from svcctl.state.backend_places import with_places

    specs = list(backends)

    def place(state: State, have: Service | None) -> None:
        specs[:] = with_places(state, backends)

    change_service(env, service, "backend add", lambda have, now: add_backends(have, specs, now), first=place)
