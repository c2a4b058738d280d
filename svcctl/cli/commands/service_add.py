"""`svcctl service add`: makes a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import PREFIX, Count
from svcctl.cli.service_options import table_options
from svcctl.cli.service_params import ALGORITHM, BACKEND_SPEC, FRONTEND, KIND, MODE, POLICY, SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import BackendSpec, Frontend
    from svcctl.state.session import State


@verb(
    "add",
    examples=(
        "svcctl service add web --frontend 10.96.0.10:80/tcp --backend 10.1.0.1:8080 --backend 10.1.0.2:8080,weight=3",
        "svcctl service add dns --frontend 10.96.0.53:53/udp --frontend 10.96.0.53:53/tcp --backend 10.1.0.9:53",
        "svcctl service add sticky --frontend 10.96.0.11:80/tcp --affinity 10800 --block",
    ),
    exits=(0, 2, 3, 4, 6, 8, 9),
)
@argument("name", SERVICE, "Name of the service.")
@option(
    "--frontend",
    "frontends",
    type=FRONTEND,
    multiple=True,
    metavar="FRONTEND",
    help="Address clients use; may be repeated, the same one counts once.",
)
@option(
    "--backend",
    "backends",
    type=BACKEND_SPEC,
    multiple=True,
    metavar="BACKEND",
    help="ADDRESS:PORT[,weight=N][,state=S][,local]; may be repeated, with other values for the same one: an error.",
)
@option(
    "--affinity",
    type=Count(0, (1 << 24) - 1),
    default=0,
    metavar="SECONDS",
    help="Keep a client on its backend so long after its last connection; 0: do not; 16777215 at most [0].",
)
@option(
    "--algorithm",
    type=ALGORITHM,
    default="random",
    metavar="random|maglev",
    help="How a backend is chosen: by chance, or from a table that other nodes make alike [random].",
)
@table_options
@option(
    "--kind",
    type=KIND,
    default="cluster",
    metavar="KIND",
    help="cluster, external or load-balancer [cluster].",
)
@option(
    "--internal-policy",
    "internal",
    type=POLICY,
    default="cluster",
    metavar="cluster|local",
    help="Backends for clients inside [cluster].",
)
@option(
    "--external-policy",
    "external",
    type=POLICY,
    default="cluster",
    metavar="cluster|local",
    help="Backends for clients outside [cluster].",
)
@option(
    "--external-mode",
    "mode",
    type=MODE,
    default="tunnel",
    metavar="tunnel|dsr",
    help="How backends on other nodes answer clients outside: back through the tunnel, or directly [tunnel].",
)
@option(
    "--source",
    "sources",
    type=PREFIX,
    multiple=True,
    metavar="PREFIX",
    help="Clients a load-balancer frontend admits; may be repeated. Sockets cannot obey it and are refused.",
)
@option(
    "--node-port",
    type=Count(0, 65535),
    default=0,
    metavar="PORT",
    help="Serve this port of the node's own addresses too.",
)
@option("--block", is_flag=True, help="Refuse the other ports of the service's addresses.")
@option("--drop", is_flag=True, help="Count connections without a backend as dropped by rule.")
def command(
    env: Env,
    name: str,
    frontends: tuple[Frontend, ...],
    backends: tuple[BackendSpec, ...],
    affinity: int,
    algorithm: str,
    stable: bool | None,
    table_size: int | None,
    kind: str,
    internal: str,
    external: str,
    mode: str,
    sources: tuple[Prefix, ...],
    node_port: int,
    block: bool,
    drop: bool,
) -> None:
    """Make a service: connections of this host's sockets to a FRONTEND go to one of the BACKENDs.

    Frontends of both families and protocols may be mixed; each uses the backends of its family, and one without
    any refuses. A service that exists already, just so, is left alone; one that differs is a conflict.
    """
    from svcctl.cli.service_commands import change_service
    from svcctl.errors import UsageProblem
    from svcctl.model.service import RANDOM, Service, ServiceFrontend
    from svcctl.model.service_edit import add_backends, add_service, algorithm_number
    from svcctl.model.service_endpoint import KIND_NUMBERS
    from svcctl.state.backend_places import with_places

    if not frontends:
        raise UsageProblem(f"service add {name}: needs a --frontend")
    number = KIND_NUMBERS[kind]
    specs = list(backends)

    def place(state: State, have: Service | None) -> None:
        known = {one.backend: bool(one.local) for one in have.members} if have is not None else {}
        specs[:] = with_places(state, backends, known)

    def edit(have: Service, now: int) -> Service:
        want = Service(
            name=name,
            affinity_seconds=affinity,
            algorithm=algorithm_number(RANDOM, algorithm, stable) or RANDOM,
            table_size=table_size or 0,
            internal_local=internal == "local",
            external_local=external == "local",
            dsr=mode == "dsr",
            block=block,
            drop=drop,
            sources=tuple(sources),
            frontends=tuple(ServiceFrontend(one, number) for one in dict.fromkeys(frontends)),
        )
        # The node port last: `add_service` gives it its frontends.
        want = add_backends(want, specs, now)._replace(node_port=node_port)
        return add_service(have if have.id else None, want)

    change_service(env, name, "service add", edit, create=True, first=place)
