"""`svcctl apply`: makes services and bindings those of a desired state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.apply_commands import decision_options, file_option, input_options
from svcctl.cli.options import option, verb

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.desired import Desired
    from svcctl.state.writer import Writer


@verb(
    "apply",
    examples=(
        "svcctl apply -f services.yaml",
        "kubectl get services,endpointslices,nodes -A -o json | svcctl apply -f - --prune",
        "ipvsadm -S -n | svcctl apply -f - --dry-run",
        "svcctl export | ssh other svcctl apply -f -",
    ),
    exits=(0, 1, 2, 3, 4, 6, 7, 8, 9),
)
@file_option("What is wanted (svcctl(5), Kubernetes objects, ...), - for standard input; may be repeated.")
@option("--prune", is_flag=True, help="Remove what the same owner made and the input no longer has.")
@decision_options
@input_options
def command(
    env: Env, files: tuple[str, ...], prune: bool, force: bool, take_over: bool, **options: Any
) -> None:
    """Make services and bindings what the inputs say: svcctl's own YAML or JSON, Kubernetes Services, EndpointSlices
    and Nodes, ipvsadm -S -n, keepalived.conf, tubectl's bindings, Consul and Nomad, told apart by their content.

    All inputs are read and checked, and the whole plan is made, before anything is written. What is as it should be
    is not touched. What the input lacks stays unless --prune is given, and what others made, or was made by hand,
    stays in any case.
    """
    import gc

    from svcctl.cli.access import planning
    from svcctl.cli.apply_commands import (
        emit_plan,
        end_flows,
        read_desired,
        refuse_doubts,
        refuse_outage,
        say,
    )
    from svcctl.cli.progress import Progress
    from svcctl.state.apply import carry_out, prepare

    progress = Progress(env, "apply")
    progress.step("reading")
    # Many small objects that nothing refers to in a circle: the collector would only walk them.
    gc.disable()
    try:
        desired = read_desired(env, files, options)
        refuse_outage("apply", desired, force=force)
        with planning(env) as (state, writer):
            progress.step("comparing")
            prepared = prepare(state, desired, prune=prune, force=force, take_over=take_over)
            refuse_doubts("apply", prepared.plan.doubts, force=force)
            if writer is not None:
                progress.step("writing")
                carry_out(writer, prepared, progress.count)
                progress.end()
                end_flows(env, writer, prepared)
                _note_health(writer, desired)
        progress.end()
        say(env, prepared.plan.notices)
        emit_plan(env, prepared.plan, dry_run=env.dry_run, unchanged=True, details=bool(env.verbosity))
    finally:
        progress.end()
        gc.enable()


def _note_health(writer: Writer, desired: list[Desired]) -> None:
    """For `svcctl health`: no change of a cluster waits any more; whether the node may be sent traffic, if a source
    speaks of it. Writes only what is new."""
    from svcctl.maps import catalog
    from svcctl.model.desired import KUBERNETES
    from svcctl.state.node_status import note_node

    clusters = [one for one in desired if one.kind == KUBERNETES]
    if not clusters or not writer.has_half(catalog.BALANCER):
        return
    own = [node for one in clusters for node in one.nodes if node.own]
    note_node(writer, eligible=all(node.eligible for node in own) if own else None, pending_ns=0)
