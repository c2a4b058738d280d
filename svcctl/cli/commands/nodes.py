"""`svcctl nodes`: the group of commands on other nodes of the cluster; by itself it lists them."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from svcctl.cli.registry import OUTGOING, Entry

command = LazyGroup(
    "nodes",
    registry={
        "list": Entry("svcctl.cli.commands.nodes_list", "List the other nodes [the default].", OUTGOING),
        "add": Entry("svcctl.cli.commands.nodes_add", "Make another node known, or change it.", OUTGOING),
        "delete": Entry("svcctl.cli.commands.nodes_delete", "Forget other nodes.", OUTGOING),
    },
    params=COMMON,
    help="Other nodes of the cluster, whose backends packets are tunnelled to. Without COMMAND they are listed.",
    default="list",
)
