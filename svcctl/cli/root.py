"""The command `svcctl` itself: global options, and the commands of the registry below it."""

from __future__ import annotations

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON, VERSION
from svcctl.cli.registry import COMMANDS

root = LazyGroup(
    "svcctl",
    registry=COMMANDS,
    params=[*COMMON, VERSION],
    help="Steer connections on this host with eBPF. Nouns list, verbs change; nothing has to stay running.",
    epilog="'svcctl COMMAND --help' explains a command, 'svcctl help exit-codes' the exit codes.",
)
