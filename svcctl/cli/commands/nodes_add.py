"""`svcctl nodes add`: makes another node of the cluster known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.node_params import NODE, NODE_ADDRESS
from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import PREFIX, WORD

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix


@verb(
    "add",
    examples=(
        "svcctl nodes add worker-2 --address 192.0.2.12 --pod-prefix 10.244.2.0/24",
        "svcctl nodes add worker-3 --address 192.0.2.13 --address 2001:db8::13 --zone eu-1",
    ),
    exits=(0, 2, 3, 4, 6, 7, 8, 9),
)
@argument("name", NODE, "Name of the node.")
@option(
    "--address",
    "addresses",
    type=NODE_ADDRESS,
    multiple=True,
    required=True,
    metavar="ADDRESS",
    help="An address of the node, the first of each family also for tunnelled packets; may be repeated.",
)
@option(
    "--pod-prefix",
    "pod_prefixes",
    type=PREFIX,
    multiple=True,
    metavar="PREFIX",
    help="Addresses of the workloads there; may be repeated.",
)
@option("--zone", type=WORD, metavar="NAME", help="The zone it is in.")
@option("--take-over", is_flag=True, help="Change it though an input made it; it is made by hand then.")
def command(
    env: Env,
    name: str,
    addresses: tuple[tuple[int, bytes], ...],
    pod_prefixes: tuple[Prefix, ...],
    zone: str | None,
    take_over: bool,
) -> None:
    """Make another node of the cluster known; one that is known becomes what is said.

    Packets from outside for backends at its addresses or in its pod prefixes go there through a tunnel (VXLAN), and
    packets that come out of a tunnel are taken from known nodes only. The node must know this one, too, and a tunnel
    of a family needs an address of that family at both ends: 'svcctl load --node-address' says this one's.
    A prefix may have addresses of other nodes, or of backends here, in it: the closest prefix counts, and a backend
    that is known to be on this node stays here. A node that has an owner, as 'svcctl nodes' shows it, is changed with
    --take-over only.
    """
    from svcctl.cli.access import planning
    from svcctl.cli.node_params import change_of
    from svcctl.model.node import by_hand, claims, node_of, refuse_claimed
    from svcctl.state import nodes
    from svcctl.state.node_overlaps import present, texts
    from svcctl.state.own_node import refuse_own_name

    want = node_of(name, addresses, pod_prefixes, zone or "")
    with planning(env) as (state, writer):
        nodes.need_nodes(state)
        have = nodes.read(state)
        others = claims(one for one in have.nodes.values() if one.name != name)
        refuse_claimed(want, others, nodes.own_prefixes(state, have))
        refuse_own_name(state, name)
        step = by_hand(want, have.nodes.get(name), take_over=take_over)
        changes = nodes.plan(state, have, [step])
        if writer is not None and changes is not None:
            with writer.changing():
                nodes.write(writer, changes)
        missing = nodes.missing_ends(state, want)
        overlapping = texts(present(state, changed=want))
    env.emit_changes([change_of(step)])
    for text in missing:
        env.notice(text)
    for subject, text in overlapping:
        env.warn(f"{subject}: {text}")
