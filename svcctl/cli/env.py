"""What a command knows about its surroundings: namespace, bpffs, output format, verbosity, streams.

One `Env` is made per run. Options given before the command and after it are both applied to it, the later
one wins (`-q` and `-v` add up). A command writes to stdout only through `emit*` and `write`, and talks to the
user through `notice` and `verbose`, which go to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TextIO

    from svcctl.render.changes import Change
    from svcctl.render.records import Column

DEFAULT_NETNS = "/proc/self/ns/net"
DEFAULT_BPFFS = "/sys/fs/bpf"
DEFAULT_LOCK_TIMEOUT = 10.0
_CHUNK = 1 << 16


class StreamProblem(Exception):
    """Writing to stdout failed; `__cause__` is the OSError. The boundary in `svcctl.cli.main` handles it."""

    def __init__(self, stream: str, cause: OSError) -> None:
        super().__init__(f"write to {stream}: {cause.strerror}")
        self.errno = cause.errno


class Env:
    """The surroundings of one command.

    `netns` and `bpffs` are paths, `lock_timeout` is in seconds, `output` one of text, wide, json, jsonl,
    yaml, name. `dry_run` is set by verbs only. `action` is the command's name once it runs. `session` is
    free for `batch`, to share what it holds open.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.netns: str = self.environ.get("SVCCTL_NETNS") or DEFAULT_NETNS
        self.bpffs: str = self.environ.get("SVCCTL_BPFFS") or DEFAULT_BPFFS
        self.lock_timeout: float = DEFAULT_LOCK_TIMEOUT
        self.output: str = "text"
        self.headers: bool = True
        self.quiet: int = 0
        self.verbosity: int = 0
        self.dry_run: bool = False
        self.action: str = ""
        self.session: Any = None

    def child(self) -> Env:
        """A copy for one line of `batch`: its options do not reach the next line."""
        copy = Env(self.environ)
        copy.__dict__.update(self.__dict__)
        return copy

    def apply(self, params: dict[str, Any]) -> None:
        """Take the common options out of parsed parameters; absent ones leave what was set before."""
        for name in ("netns", "bpffs", "lock_timeout", "output"):
            value = params.pop(name, None)
            if value is not None:
                setattr(self, name, value)
        self.quiet += params.pop("quiet", 0) or 0
        self.verbosity += params.pop("verbose", 0) or 0
        if params.pop("no_headers", False):
            self.headers = False
        if params.pop("dry_run", False):
            self.dry_run = True

    # Talking to the user

    def notice(self, text: str) -> None:
        """One line to stderr, unless `-q`."""
        if not self.quiet:
            write_stderr(text)

    def warn(self, text: str) -> None:
        """A line to stderr that `-q` keeps and only `-qq` drops."""
        if self.quiet < 2:
            write_stderr(f"svcctl: warning: {text}")

    def verbose(self, text: str, level: int = 1) -> None:
        """One line to stderr with `-v` (`level=2`: `-vv`)."""
        if self.verbosity >= level:
            write_stderr(text)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone. Without a terminal `--yes` is required.

        Raises UsageProblem when nobody can be asked, or when the answer is no.
        """
        if yes or self.dry_run:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageProblem(f"{question}: needs --yes when stdin is not a terminal")
        import click

        try:
            agreed = click.confirm(f"{question}?", err=True)
        except click.Abort as e:
            raise KeyboardInterrupt from e
        if not agreed:
            raise UsageProblem(f"{question}: not confirmed")

    @property
    def color(self) -> bool:
        """Whether stdout may be coloured: FORCE_COLOR, else a terminal that is not dumb and no NO_COLOR."""
        if self.output not in ("text", "wide") or self.environ.get("NO_COLOR"):
            return False
        if self.environ.get("FORCE_COLOR"):
            return True
        return isatty(sys.stdout) and self.environ.get("TERM", "dumb") != "dumb"

    # The answer

    def write(self, text: str) -> None:
        """Text to stdout as it is. What the terminal's encoding lacks is written as an escape.

        Raises StreamProblem when stdout is closed, full or gone.
        """
        if self.quiet >= 2:
            return
        stream = sys.stdout
        try:
            if stream is None:  # started with `>&-`
                raise OSError(9, os.strerror(9))
            raw = getattr(stream, "buffer", None)
            if raw is None:
                stream.write(text)
                return
            stream.flush()
            encoding = "utf-8" if self.output in ("json", "jsonl", "yaml") else stream.encoding or "utf-8"
            raw.write(text.encode(encoding, "backslashreplace"))
        except OSError as e:
            raise StreamProblem("stdout", e) from e

    def write_lines(self, lines: Iterable[str]) -> None:
        """Lines (without line ends) to stdout, in pieces that stay small however many there are."""
        held: list[str] = []
        size = 0
        for line in lines:
            held.append(line)
            size += len(line)
            if size > _CHUNK:
                held.append("")
                self.write("\n".join(held))
                held = []
                size = 0
        if held:
            held.append("")
            self.write("\n".join(held))

    def flush(self) -> None:
        """Push out what is buffered. Raises StreamProblem."""
        if sys.stdout is None:
            return
        try:
            sys.stdout.flush()
        except OSError as e:
            raise StreamProblem("stdout", e) from e

    def emit(
        self,
        noun: str,
        rows: Iterable[Sequence[Any]],
        columns: Sequence[Column],
        *,
        name: Callable[[Sequence[Any]], str] | None = None,
        extra: Mapping[str, Any] | None = None,
        empty: str | None = None,
    ) -> None:
        """Print a listing in the format asked for.

        A row has one value per column, in order; None is an absent value. `name` makes the line of `-o name`
        (default: the first column). `extra` adds keys beside the list in JSON and YAML. `empty` is what people are
        told instead of headers over an empty list of rows.
        """
        if empty is not None and not rows and self.output in ("text", "wide"):
            self.notice(empty)
            return
        from svcctl.render import records

        self.write_lines(
            records.render(self.output, noun, rows, columns, headers=self.headers, name=name, extra=extra)
        )

    def emit_objects(
        self,
        noun: str,
        objects: Sequence[Mapping[str, Any]],
        lines: Callable[[], Iterable[str]],
        *,
        name: str = "name",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Print nested objects (`status`): `lines` makes the text form, called only when it is wanted.

        `name` is the key that `-o name` prints.
        """
        from svcctl.render import records

        self.write_lines(records.render_objects(self.output, noun, objects, lines, name=name, extra=extra))

    def emit_changes(
        self,
        changes: Iterable[Change],
        *,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Print what a verb did (or, with `--dry-run`, would do). `counts` adds a line (a key) of totals."""
        from svcctl.render import changes as render

        self.write_lines(render.render(self.output, changes, dry_run=self.dry_run, counts=counts))


def isatty(stream: TextIO | None) -> bool:
    """Whether a stream, which may be closed or missing, is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def write_stderr(text: str) -> None:
    """One line to stderr. Nothing can be said when that fails, so nothing is."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        abandon(sys.stderr)


def abandon(stream: TextIO | None) -> None:
    """Let what a stream still holds go nowhere: the interpreter would fail over it once more at its end."""
    try:
        if stream is not None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    except (OSError, ValueError):
        pass
