"""`svcctl help [COMMAND...|exit-codes]`: the same text as `--help`, and the table of exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from svcctl.cli.options import argument, noun
from svcctl.cli.params import TOPIC
from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@noun("help", exits=(0, 2), examples=("svcctl help bind", "svcctl help exit-codes"))
@argument("topic", TOPIC, "A command, or exit-codes.", nargs=-1, metavar="[COMMAND|exit-codes]")
def command(env: Env, topic: tuple[str, ...]) -> None:
    """Show the help of svcctl, of a command, or of a topic."""
    if topic == ("exit-codes",):
        _exit_codes(env)
        return
    from svcctl.cli.group import suggestion
    from svcctl.cli.root import root

    found: click.Command = root
    ctx = click.Context(root, info_name="svcctl", obj=env)
    for word in topic:
        below = found.get_command(ctx, word) if isinstance(found, click.Group) else None
        if below is None:
            names = found.list_commands(ctx) if isinstance(found, click.Group) else []
            near = suggestion(word, [*names, "exit-codes"])
            raise UsageProblem(f"help: no such command or topic '{word}'{near}")
        ctx = click.Context(below, parent=ctx, info_name=word)
        found = below
    env.write(found.get_help(ctx) + "\n")


def _exit_codes(env: Env) -> None:
    from svcctl.cli.exits import MEANING
    from svcctl.render.records import Column

    columns = (Column("CODE", "code", align=">"), Column("MEANING", "meaning"))
    env.emit("exit_codes", list(MEANING.items()), columns)
