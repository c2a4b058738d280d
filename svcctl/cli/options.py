"""How a command is declared: decorators `noun` and `verb`, `argument`, `option`, and the options all have.

The common options are parsed before the command and after it; `svcctl.cli.env.Env.apply` takes them out of the
parameters, so a command's function gets `env` and its own parameters only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from svcctl.cli.params import BPFFS, NETNS, OUTPUT, SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Protocol

    from svcctl.cli.params import Type

    class Decorator(Protocol):
        """Gives back the function it was put on."""

        def __call__(self, function: Function, /) -> Function:
            """The same function."""

    Function = Callable[..., int | None]


class Argument(click.Argument):
    """A positional argument with a line of help (click before 8.5 has none for arguments)."""

    def __init__(self, *decls: str, about: str = "", **attributes: Any) -> None:
        super().__init__(decls, **attributes)
        self.about = about


class Option(click.Option):
    """An option that belongs to one command (not one of the common ones)."""


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.obj.write(ctx.get_help() + "\n")
        ctx.exit()


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from svcctl import __version__

        ctx.obj.write(f"svcctl {__version__}\n")
        ctx.exit()


HELP = click.Option(
    ("-h", "--help"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_help,
    help="Show this help.",
)
VERSION = click.Option(
    ("--version",),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
COMMON: tuple[click.Option, ...] = (
    click.Option(
        ("--netns",),
        type=NETNS,
        metavar="PATH",
        help="Network namespace to work on [SVCCTL_NETNS; /proc/self/ns/net].",
    ),
    click.Option(
        ("--bpffs",), type=BPFFS, metavar="PATH", help="Where bpffs is mounted [SVCCTL_BPFFS; /sys/fs/bpf]."
    ),
    click.Option(
        ("--lock-timeout",), type=SECONDS, metavar="SECONDS", help="How long to wait for another writer [10]."
    ),
    click.Option(
        ("-o", "--output"),
        type=OUTPUT,
        metavar="FORMAT",
        help="text, wide, json, jsonl, yaml or name [text].",
    ),
    click.Option(("--no-headers",), is_flag=True, help="Leave the header line out of text."),
    click.Option(
        ("-q", "--quiet"), count=True, help="No notices; -qq: no warnings and no answer either, errors only."
    ),
    click.Option(("-v", "--verbose"), count=True, help="Say what is decided; -vv: the kernel's logs too."),
)
DRY_RUN = Option(("--dry-run",), is_flag=True, help="Print the plan, change nothing.")


class Helpful(click.Command):
    """Help in svcctl's form: usage, text, arguments, options, commands, global options, examples, exit codes."""

    examples: Sequence[str] = ()
    exits: Sequence[int] = ()

    def make_parser(self, ctx: click.Context) -> Any:
        """click's parser, told that `-o` is an option by itself.

        It looks for a long option first, and from 8.4 on imports difflib to say what is near when there is
        none, only to find the short one after that: 2 ms for each `-o json`.
        """
        parser = super().make_parser(ctx)
        long, short = getattr(parser, "_long_opt", None), getattr(parser, "_short_opt", None)
        if long is not None and short is not None:
            long.update(short)
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; an error of its parser learns which command it belongs to."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as e:
            if e.ctx is None:
                e.ctx = ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, own options, commands (groups), then the options every command has."""
        params = self.get_params(ctx)
        arguments = [
            (p.make_metavar(*_context_if_wanted(ctx)), p.about)
            for p in params
            if isinstance(p, Argument) and p.about
        ]
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in params:
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (common if param in COMMON or param is HELP or param is VERSION else own).append(record)
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if common:
            with formatter.section("Global options"):
                formatter.write_dl(common)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples to paste, the exit codes this command can end with, the closing line."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))
        if self.exits:
            from svcctl.cli.exits import MEANING

            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), MEANING[code]) for code in self.exits])
        super().format_epilog(ctx, formatter)


class Command(Helpful):
    """One command: applies the common options to the Env, then calls its function with it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run; what the function returns (None or an int) is the exit code."""
        params = dict(ctx.params)
        ctx.obj.apply(params)
        ctx.obj.action = ctx.command_path.partition(" ")[2]
        if ctx.obj.session is not None:
            ctx.obj.session.admit(ctx.obj.action, ctx.obj)
        assert self.callback is not None
        return self.callback(ctx.obj, **params)


def noun(
    name: str, *, examples: Sequence[str] = (), exits: Sequence[int] = (0, 2, 3, 4)
) -> Callable[[Function], Command]:
    """Declare a command that reads. Its function gets `env` and the parameters; its docstring is the help."""
    return _declare(name, (), examples, exits)


def verb(
    name: str, *, examples: Sequence[str] = (), exits: Sequence[int] = (0, 2, 3, 4, 9)
) -> Callable[[Function], Command]:
    """Declare a command that writes: a noun with `--dry-run` (which arrives as `env.dry_run`)."""
    return _declare(name, (DRY_RUN,), examples, exits)


def argument(name: str, type: Type, about: str = "", **attributes: Any) -> Decorator:
    """A positional argument, above the function; several of them in reading order."""
    return _add(Argument(name, type=type, about=about, **attributes))


def option(*decls: str, **attributes: Any) -> Decorator:
    """An option of this command: names, then click's attributes (`type`, `help`, `multiple`, ...)."""
    return _add(Option(decls, **attributes))


def _add(param: click.Parameter) -> Decorator:
    def decorate(function: Function) -> Function:
        params = function.__dict__.setdefault("svcctl_params", [])
        params.insert(0, param)  # decorators run bottom up
        return function

    return decorate


def _declare(
    name: str, extra: Sequence[click.Option], examples: Sequence[str], exits: Sequence[int]
) -> Callable[[Function], Command]:
    def decorate(function: Function) -> Command:
        own = function.__dict__.pop("svcctl_params", [])
        command = Command(
            name,
            callback=function,
            params=[*own, *extra, *COMMON, HELP],
            help=_dedent(function.__doc__ or ""),
            add_help_option=False,
            options_metavar="[OPTION]...",
        )
        command.examples = examples
        command.exits = exits
        return command

    return decorate


def _dedent(text: str) -> str:
    """Docstring without its indentation (inspect.cleandoc in three lines, paragraphs kept)."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _context_if_wanted(ctx: click.Context) -> Iterator[click.Context]:
    """make_metavar() takes the context from click 8.2 on and takes nothing before."""
    if hasattr(click, "NoSuchCommand") or "ctx" in click.Parameter.make_metavar.__code__.co_varnames:
        yield ctx
