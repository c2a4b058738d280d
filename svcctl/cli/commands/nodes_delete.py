"""`svcctl nodes delete`: forgets other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.node_params import NODE
from svcctl.cli.options import argument, verb

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("delete", examples=("svcctl nodes delete worker-2",), exits=(0, 2, 3, 4, 5, 7, 9))
@argument("names", NODE, "Names of the nodes.", nargs=-1, required=True)
def command(env: Env, names: tuple[str, ...]) -> None:
    """Forget nodes of the cluster: nothing is tunnelled there any more, and nothing taken from there.

    A backend at their addresses is then reached as any other host is, with this node's address as the client's.
    Connections that go through a tunnel stop; neither end is told. How many there are, and which backends are
    reached by the node, is told here; with --dry-run, too.
    """
    from svcctl.cli.access import planning
    from svcctl.cli.node_params import change_of
    from svcctl.errors import NotFound
    from svcctl.model.node import DELETED, NodeStep
    from svcctl.state import nodes
    from svcctl.state.node_use import uses

    with planning(env) as (state, writer):
        nodes.need_nodes(state)
        have = nodes.read(state)
        for name in names:
            if name not in have.nodes:
                raise NotFound(f"nodes delete: no such node: {name!r}", hint="'svcctl nodes' lists them")
        used = uses(state, have, dict.fromkeys(names))
        steps = [NodeStep(DELETED, name, have.nodes[name], None) for name in dict.fromkeys(names)]
        changes = nodes.plan(state, have, steps)
        if writer is not None and changes is not None:
            with writer.changing():
                nodes.write(writer, changes)
    for name, use in used.items():
        env.notice(f"node {name}: {use}")
    env.emit_changes([change_of(step) for step in steps])
