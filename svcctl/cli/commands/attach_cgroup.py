"""`svcctl attach cgroup`: the connect balancer on a cgroup2 subtree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE, Count, Word
from svcctl.cli.service_options import size_options
from svcctl.render.changes import CREATED, DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "cgroup",
    examples=("svcctl attach cgroup", "svcctl attach cgroup /sys/fs/cgroup/system.slice --exclude-udp"),
    exits=(0, 1, 2, 3, 4, 5, 6, 7, 9),
)
@argument("path", FILE, "Directory of the cgroup [the root of the cgroup2 hierarchy].", required=False)
@option(
    "--sockets",
    type=Word("sockets", "all", "host"),
    metavar="all|host",
    help="Serve all sockets of the subtree, or only those of this network namespace [all].",
)
@option("--exclude-udp", "udp", flag_value="no", default=None, help="Leave UDP alone.")
@option("--include-udp", "udp", flag_value="yes", help="Serve UDP too [the default].")
@option(
    "--udp-affinity",
    type=Count(0, 86400),
    metavar="SECONDS",
    help="Keep unconnected UDP of a client on its backend so long, for every service; 0: not; 86400 at most [0].",
)
@size_options
def command(
    env: Env,
    path: str | None,
    sockets: str | None,
    udp: str | None,
    udp_affinity: int | None,
    max_services: int | None,
    max_backends: int | None,
    max_sockets: int | None,
) -> None:
    """Attach the connect balancer to a cgroup: sockets made in it, and below it, reach services.

    The first time, the service maps are made with the sizes given; later 'svcctl upgrade' changes those. Said again
    with other options while it is attached, these are changed and the others stay as they are; after a detach each
    option that is not given is the default again. 'svcctl status' and 'attachments -o wide' show the settings.
    Another svcctl balancer on the cgroup, above or below it is a conflict; programs of others stay.
    """
    from svcctl.cli.access import planning
    from svcctl.state.balancer import BalancerOptions, apply_attach, plan_attach

    options = BalancerOptions(
        path,
        None if sockets is None else sockets == "host",
        None if udp is None else udp == "no",
        udp_affinity,
        max_services,
        max_backends,
        max_sockets,
    )
    with planning(env) as (state, writer):
        plan = plan_attach(state, options)
        if writer is not None:
            apply_attach(writer, plan, options)
    changes = [Change(CREATED, "attachment", name, plan.path) for name in plan.attach]
    changes += [Change(DELETED, "attachment", name, plan.path) for name in plan.drop]
    if plan.config_changes and not plan.make:
        changes.append(Change("changed", "balancer", plan.path, plan.notes or "settings"))
    env.emit_changes(changes or [Change(UNCHANGED, "attachment", "balancer", plan.path)])
