"""`svcctl backend`: the group of commands that change the backends of a service."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from svcctl.cli.registry import OUTGOING, Entry

command = LazyGroup(
    "backend",
    registry={
        "add": Entry("svcctl.cli.commands.backend_add", "Give a service backends.", OUTGOING),
        "set": Entry("svcctl.cli.commands.backend_set", "Change weight or state of backends.", OUTGOING),
        "drain": Entry("svcctl.cli.commands.backend_drain", "No new connections to backends.", OUTGOING),
        "delete": Entry("svcctl.cli.commands.backend_delete", "Take backends away.", OUTGOING),
    },
    params=COMMON,
    help="Change the backends of a service. 'svcctl backends' lists them.",
)
