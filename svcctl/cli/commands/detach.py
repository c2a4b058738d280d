"""`svcctl detach`: the group of what can be taken off again."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from svcctl.cli.registry import STATE, Entry

command = LazyGroup(
    "detach",
    registry={
        "netns": Entry(
            "svcctl.cli.commands.detach_netns", "The dispatcher, from the network namespace.", STATE
        ),
        "cgroup": Entry("svcctl.cli.commands.detach_cgroup", "The connect balancer, from its cgroup.", STATE),
        "dev": Entry("svcctl.cli.commands.detach_dev", "The packet path, from interfaces.", STATE),
    },
    params=COMMON,
    help="Detach a program and keep the state: bindings, labels and registered sockets stay.",
)
