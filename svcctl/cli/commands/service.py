"""`svcctl service`: the group of commands that change services."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from svcctl.cli.registry import OUTGOING, Entry

command = LazyGroup(
    "service",
    registry={
        "add": Entry("svcctl.cli.commands.service_add", "Make a service.", OUTGOING),
        "set": Entry("svcctl.cli.commands.service_set", "Change a service's policy or frontends.", OUTGOING),
        "delete": Entry("svcctl.cli.commands.service_delete", "Remove a service.", OUTGOING),
    },
    params=COMMON,
    help="Change services. 'svcctl services' lists them, 'svcctl backend' changes their backends.",
)
