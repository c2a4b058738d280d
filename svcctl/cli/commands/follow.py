"""`svcctl follow`: keeps the state as a Kubernetes cluster has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.apply_commands import decision_options, kubernetes_options
from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE, WORD
from svcctl.errors import Exit, NotFound, UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "follow",
    examples=(
        "svcctl follow --node node-a",
        "svcctl follow -- --kubeconfig /etc/svcctl/kubeconfig",
        "svcctl follow --metrics-file /var/lib/node_exporter/svcctl.prom",
    ),
    exits=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130),
)
@argument(
    "options",
    WORD,
    "Options for kubectl, such as those that lead to a cluster.",
    nargs=-1,
    required=False,
    metavar="[-- KUBECTL_OPTION...]",
)
@option(
    "--kubectl",
    type=FILE,
    metavar="PATH",
    default="kubectl",
    help="The kubectl to run [kubectl, looked for in PATH].",
)
@option(
    "--metrics-file",
    type=FILE,
    metavar="FILE",
    help="Where to write metrics for node_exporter's textfile collector, under kube-proxy's names.",
)
@option(
    "--own-node",
    is_flag=True,
    help="Leave other nodes out: for clusters of thousands, whose nodes report all the time.",
)
@option("--once", is_flag=True, help="End after the first apply.")
@decision_options
@kubernetes_options
def command(
    env: Env,
    options: tuple[str, ...],
    kubectl: str,
    metrics_file: str | None,
    own_node: bool,
    once: bool,
    force: bool,
    take_over: bool,
    **reading: Any,
) -> int:
    """Apply the services, endpoints and nodes of a cluster, and whatever changes in them, until stopped.

    The objects are listed and watched through kubectl, with the rights that it has: list and watch of services,
    endpointslices and nodes are enough. Nothing is applied before all three have been listed. What belongs to
    this owner and is not in the cluster is removed. Changes that come within 200 ms are applied together, at
    most once a second; a change of this node's interfaces or addresses is followed too.

    Whatever fails (the API server, kubectl, an apply) is tried again after growing pauses, and what is pinned
    stays and serves meanwhile. Nothing is kept but the maps: it can be ended, killed and started at any time.

    With --dry-run it prints what it would do, each time that something changes, and writes no metrics either.
    """
    import shutil
    from signal import SIGINT

    from svcctl.cli.access import place
    from svcctl.cli.apply_commands import read_options
    from svcctl.cli.cluster import Cluster
    from svcctl.follow.kubectl import Kubectl
    from svcctl.follow.loop import Follower, Hooks
    from svcctl.follow.resources import RESOURCES, only_node
    from svcctl.host.netns import Netns
    from svcctl.host.route_changes import RouteChanges
    from svcctl.model.sources.kubernetes.nodes import node_name

    if env.session is not None:
        raise UsageProblem("follow: not in a batch: it runs until stopped")
    program = shutil.which(kubectl)
    if program is None:
        raise NotFound(
            f"follow: {kubectl}: not found, or not a program",
            hint="install kubectl (Debian: kubernetes-client), or name it with --kubectl",
        )
    chosen = read_options(reading)._replace(other_nodes=not own_node)
    cluster = Cluster(env, chosen, metrics_file, force=force, take_over=take_over)
    cluster.check()
    with Netns.open(place(env).netns) as netns:
        changes = RouteChanges(netns)
    try:
        hooks = Hooks(cluster.apply, cluster.node_changed, cluster.reason, cluster.publish, env.notice)
        resources = only_node(node_name(chosen.node)) if own_node else RESOURCES
        follower = Follower(Kubectl(program, options), hooks, changes, resources=resources, once=once)
        return Exit.INTERRUPTED if follower.run() == SIGINT else Exit.OK
    finally:
        changes.close()
