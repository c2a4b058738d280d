"""`svcctl nodes list`: the other nodes of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import noun
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.state.session import State


def _joined(values: list[str]) -> str:
    return ",".join(values)


COLUMNS = (
    Column("NODE", "node"),
    Column("TUNNEL", "tunnel", _joined),
    Column("POD PREFIXES", "pod_prefixes", _joined),
    Column("ZONE", "zone"),
    Column("OWNER", "owner"),
    Column("ADDRESSES", "addresses", _joined, wide=True),
    Column("NODE PORTS", "node_port_addresses", _joined, wide=True),
    Column("NUMBER", "number", None, ">", True),
)


@noun("list", examples=("svcctl nodes list", "svcctl nodes list -o json"), exits=(0, 2, 3, 4, 7))
def command(env: Env) -> None:
    """List the other nodes of the cluster: where each takes tunnelled packets, and its pods' addresses.

    OWNER is who asked for a node in a desired state, and empty for one that was added by hand. NODE PORTS (-o wide)
    are those of its addresses that workloads and this node may use as node ports; NUMBER is how maps name the node.
    """
    from svcctl.cli.access import reading
    from svcctl.state.nodes import need_nodes, rows

    def read(state: State) -> list[tuple[Any, ...]]:
        need_nodes(state)
        return rows(state)

    found = reading(env, read)
    env.emit("nodes", found, COLUMNS, empty="no other nodes")
