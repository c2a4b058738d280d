"""Groups of commands that import a command's module only when that command runs.

Help, completion of names and suggestions for mistyped ones come from the registry alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from svcctl.cli.options import Helpful

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from click.shell_completion import CompletionItem

    from svcctl.cli.registry import Entry


_UNKNOWN = "svcctl.unknown command"


class LazyGroup(Helpful, click.Group):
    """A group whose commands are named by `registry` and imported one at a time."""

    def __init__(
        self,
        name: str,
        *,
        registry: Mapping[str, Entry],
        params: Sequence[click.Parameter] = (),
        help: str = "",
        epilog: str | None = None,
        default: str | None = None,
    ) -> None:
        """`default` names the subcommand that runs when none is given."""
        from svcctl.cli.options import HELP

        super().__init__(
            name,
            params=[*params, HELP],
            help=help,
            epilog=epilog,
            add_help_option=False,
            no_args_is_help=False,
            invoke_without_command=default is not None,
            callback=self._run_default if default is not None else None,
            subcommand_metavar="COMMAND ..." if default is None else "[COMMAND ...]",
            options_metavar="[OPTION]...",
        )
        self.registry = registry
        self.default = default

    def _run_default(self, **params: Any) -> Any:
        """click calls this before a subcommand, too."""
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is not None or self.default is None:
            return None
        command = self.get_command(ctx, self.default)
        assert command is not None
        with command.make_context(self.default, [], parent=ctx) as inside:
            return command.invoke(inside)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the registry."""
        return list(self.registry)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported now; None when there is none of that name."""
        entry = self.registry.get(cmd_name)
        if entry is None:
            return None
        from importlib import import_module

        command: click.Command = import_module(entry.module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name comes with a suggestion, in every version of click."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if ctx.resilient_parsing:
            ctx.meta[_UNKNOWN] = True
            return None, None, args[1:]
        if name.startswith("-"):  # after `--`
            raise click.UsageError(f"no such command '{name}'", ctx)
        raise click.UsageError(f"no such command '{name}'{suggestion(name, self.registry)}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Apply the options given before the command, then run it."""
        params = dict(ctx.params)
        ctx.obj.apply(params)
        return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands with their line of help, and options; imports none of them."""
        from click.shell_completion import CompletionItem

        if ctx.meta.get(_UNKNOWN):  # a command that does not exist has no arguments
            return []
        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.registry.items()
            if name.startswith(incomplete)
        ]
        found.extend(click.Command.shell_complete(self, ctx, incomplete))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under the titles of their sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.registry.items():
            sections.setdefault(entry.section, []).append((name, entry.help))
        longest = max(map(len, self.registry), default=0)
        for title, rows in sections.items():
            with formatter.section(title):
                # One width for all sections: names pad their own column.
                formatter.write_dl([(name.ljust(longest), text) for name, text in rows])


def walk(
    group: LazyGroup, prefix: str = "", *, missing: list[str] | None = None
) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group with its full name (`attach netns`), groups included; imports them all.

    A module that is not there is an ImportError, or an entry of `missing` when that is given.
    """
    context = click.Context(group)
    for name, entry in group.registry.items():
        try:
            command = group.get_command(context, name)
        except ModuleNotFoundError as e:
            if missing is None or e.name != entry.module:
                raise
            missing.append(prefix + name)
            continue
        if command is not None:
            yield prefix + name, command
            if isinstance(command, LazyGroup):
                yield from walk(command, f"{prefix}{name} ", missing=missing)


def suggestion(wrong: str, names: Mapping[str, object] | Sequence[str]) -> str:
    """`, did you mean 'bindings'?`, or nothing when no name is near."""
    from difflib import get_close_matches

    near = get_close_matches(wrong, list(names), n=1)
    return f", did you mean '{near[0]}'?" if near else ""
