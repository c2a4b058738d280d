"""`svcctl service set`: changes a service's policy or frontends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import PREFIX, Count
from svcctl.cli.service_options import table_options
from svcctl.cli.service_params import ALGORITHM, FRONTEND, KIND, MODE, POLICY, SERVICE, SOURCE

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Frontend


@verb(
    "set",
    examples=(
        "svcctl service set web --affinity 600",
        "svcctl service set web --frontend 10.96.0.12:80/tcp",
        "svcctl service set web --source 198.51.100.0/24 --no-source 192.0.2.0/24",
    ),
    exits=(0, 2, 3, 4, 5, 6, 7, 8, 9),
)
@argument("name", SERVICE, "Name of the service.")
@option(
    "--frontend",
    "frontends",
    type=FRONTEND,
    multiple=True,
    metavar="FRONTEND",
    help="Add this frontend; may be repeated.",
)
@option(
    "--no-frontend",
    "gone",
    type=FRONTEND,
    multiple=True,
    metavar="FRONTEND",
    help="Take this frontend away; may be repeated.",
)
@option("--algorithm", type=ALGORITHM, metavar="random|maglev", help="How a backend is chosen.")
@table_options
@option("--kind", type=KIND, metavar="KIND", help="Kind of the frontends that --frontend names [cluster].")
@option(
    "--affinity",
    type=Count(0, (1 << 24) - 1),
    metavar="SECONDS",
    help="Keep a client on its backend so long; 0: do not; 16777215 at most.",
)
@option(
    "--internal-policy", "internal", type=POLICY, metavar="cluster|local", help="Backends for clients inside."
)
@option(
    "--external-policy",
    "external",
    type=POLICY,
    metavar="cluster|local",
    help="Backends for clients outside.",
)
@option(
    "--external-mode",
    "mode",
    type=MODE,
    metavar="tunnel|dsr",
    help="How backends on other nodes answer clients outside: back through the tunnel, or directly.",
)
@option(
    "--source",
    "sources",
    type=PREFIX,
    multiple=True,
    metavar="PREFIX",
    help="Admit these clients to the load-balancer frontends, too; may be repeated.",
)
@option(
    "--no-source",
    "sources_gone",
    type=SOURCE,
    multiple=True,
    metavar="PREFIX",
    help="Take this source range away; may be repeated. Without any left everybody is admitted.",
)
@option(
    "--node-port",
    type=Count(0, 65535),
    metavar="PORT",
    help="Serve this port of the node's own addresses; 0: none.",
)
@option("--block/--no-block", default=None, help="Refuse the other ports of the service's addresses, or not.")
@option(
    "--drop/--no-drop", default=None, help="Count connections without a backend as dropped by rule, or not."
)
def command(
    env: Env,
    name: str,
    frontends: tuple[Frontend, ...],
    gone: tuple[Frontend, ...],
    kind: str | None,
    algorithm: str | None,
    stable: bool | None,
    table_size: int | None,
    affinity: int | None,
    internal: str | None,
    external: str | None,
    mode: str | None,
    sources: tuple[Prefix, ...],
    sources_gone: tuple[Prefix, ...],
    node_port: int | None,
    block: bool | None,
    drop: bool | None,
) -> None:
    """Change what is given of a service, and leave the rest as it is. --frontend with another --kind changes that of a
    frontend there is.

    The change reaches new connections at once, all of it or nothing; established ones are not touched.
    """
    from svcctl.cli.service_commands import change_service
    from svcctl.errors import UsageProblem
    from svcctl.model.service import ServiceFrontend
    from svcctl.model.service_edit import (
        add_frontends,
        add_sources,
        algorithm_number,
        delete_frontends,
        delete_sources,
        set_options,
    )
    from svcctl.model.service_endpoint import KIND_NUMBERS, format_frontend

    if kind is not None and not frontends:
        raise UsageProblem(f"service set {name}: --kind goes with --frontend, whose kind it is")
    given = (algorithm, stable, table_size, affinity, internal, external, mode, node_port, block, drop)
    lists = (frontends, gone, sources, sources_gone)
    if not any(lists) and all(one is None for one in given):
        raise UsageProblem(
            f"service set {name}: nothing to set", hint="'svcctl service set --help' lists what can be"
        )
    for one in frontends:
        if one in gone:
            text = format_frontend(one)
            raise UsageProblem(f"service set {name}: both --frontend and --no-frontend {text}")
    for prefix in sources:
        if prefix in sources_gone:
            raise UsageProblem(f"service set {name}: both --source and --no-source {prefix}")
    number = KIND_NUMBERS[kind or "cluster"]

    def edit(have: Service, now: int) -> Service:
        # Ranges that go do so while there is a frontend that may have them, new ones come when there is one.
        want = set_options(
            delete_sources(have, sources_gone) if sources_gone else have,
            affinity_seconds=affinity,
            algorithm=algorithm_number(have.algorithm, algorithm, stable),
            table_size=0 if algorithm == "random" and table_size is None else table_size,
            internal_local=None if internal is None else internal == "local",
            external_local=None if external is None else external == "local",
            dsr=None if mode is None else mode == "dsr",
            node_port=node_port,
            block=block,
            drop=drop,
        )
        if frontends:
            want = add_frontends(want, [ServiceFrontend(one, number) for one in frontends])
        if sources:
            want = add_sources(want, sources)
        return delete_frontends(want, gone) if gone else want

    change_service(env, name, "service set", edit)
