"""`svcctl attach`: the group of what can be attached. One module a kind."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from svcctl.cli.registry import STATE, Entry

command = LazyGroup(
    "attach",
    registry={
        "netns": Entry(
            "svcctl.cli.commands.attach_netns", "The dispatcher, to the network namespace.", STATE
        ),
        "cgroup": Entry("svcctl.cli.commands.attach_cgroup", "The connect balancer, to a cgroup.", STATE),
        "dev": Entry("svcctl.cli.commands.attach_dev", "The packet path, to interfaces.", STATE),
    },
    params=COMMON,
    help="Attach a program that is not attached. The state must be loaded.",
)
