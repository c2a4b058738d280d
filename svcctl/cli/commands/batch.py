"""`svcctl batch`: one command a line, in one process, under one lock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE
from svcctl.errors import Exit, SvcctlError, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from svcctl.cli.access import Session
    from svcctl.cli.env import Env

FOREGROUND = frozenset({"follow", "health", "top"})
"""Commands that stay, as `metrics` with an address does: a batch is a series of steps."""
LOCKS_ITSELF = frozenset({"load", "unload", "upgrade", "gc", "check"})
"""Commands that take the locks in an order of their own: the batch lets its own go first."""
_WITH_VALUE = ("-o", "--output", "--netns", "--bpffs", "--lock-timeout", "--timeout")


class LineProblem(SvcctlError):
    """What went wrong in a line, under the line's own code and exit code."""

    def __init__(self, where: str, message: str, hint: str | None, code: str, exit_code: int) -> None:
        super().__init__(f"{where}: {message}", hint=hint)
        self.code = code
        self.exit_code = exit_code


@verb(
    "batch",
    examples=("svcctl batch commands.txt", "printf 'bind web tcp 192.0.2.1 %s\\n' 80 443 | svcctl batch"),
    exits=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
)
@argument("file", FILE, "File of commands, - for standard input [-].", required=False)
@option(
    "--keep-going", is_flag=True, help="Go on after a line that fails; the first failure's exit code is kept."
)
def command(env: Env, file: str | None, keep_going: bool) -> int:
    """Run the commands of FILE, one a line, as after the word svcctl, in one process under one lock.

    Words are split as a shell does: quotes, backslashes, and # for comments; nothing is expanded. Each line is a
    command of its own: what was done before one that fails stays. The first failure ends the batch, and names
    its line. Commands that stay in the foreground (metrics with an address) are refused.
    """
    from svcctl.cli.access import Session, place

    if env.session is not None:
        raise UsageProblem("a batch in a batch")
    source = "-" if file is None else file
    session = None if env.dry_run else Session(place(env), "batch")
    first = int(Exit.OK)
    stream = _open(source)
    try:
        for number, line in enumerate(_lines(stream, source), 1):
            code = _run_line(env, session, f"batch: {_name(source)}:{number}", line, keep_going)
            first = first or code
    finally:
        if session is not None:
            session.release()
        if source != "-":
            stream.close()
    return first


def _name(source: str) -> str:
    return "stdin" if source == "-" else source


def _open(source: str) -> BinaryIO:
    if source == "-":
        if sys.stdin is None:
            raise UsageProblem("batch: standard input is closed")
        if sys.stdin.isatty():
            raise UsageProblem("batch: standard input is a terminal", hint="name a file, or pipe one in")
        return sys.stdin.buffer
    try:
        return open(source, "rb")
    except OSError as error:
        raise UsageProblem(f"batch: read {source}: {error.strerror}") from error


def _lines(stream: BinaryIO, source: str) -> Iterator[bytes]:
    """The lines as they come: a pipe may feed one after the other."""
    while True:
        try:
            line = stream.readline()
        except OSError as error:
            raise UsageProblem(f"batch: read {_name(source)}: {error.strerror}") from error
        if not line:
            return
        yield line


def _split(line: bytes) -> list[str]:
    """The words of a line, none of an empty one. Raises UsageProblem."""
    from shlex import split

    try:
        words = split(line.decode(), comments=True)
    except UnicodeDecodeError:
        raise UsageProblem("not UTF-8") from None
    except ValueError as error:
        text = str(error)
        raise UsageProblem(text[:1].lower() + text[1:]) from None
    # Pasted from a shell.
    return words[1:] if words[:1] == ["svcctl"] else words


def _run_line(env: Env, session: Session | None, where: str, line: bytes, keep_going: bool) -> int:
    """Run one line; its exit code, when it failed and the batch goes on. Raises what ended it otherwise."""
    from svcctl.cli import problems
    from svcctl.cli.env import StreamProblem
    from svcctl.cli.main import run

    child = env.child()
    words: list[str] = []
    argv = sys.argv
    try:
        words = _split(line)
        if not words:
            return Exit.OK
        child.session = _prepare(session, words)
        sys.argv = [argv[0], *words]  # what `load` and its like note down as their command
        code = run(words, child)
        if not code:
            return Exit.OK
        problem = LineProblem(where, f"{' '.join(words)}: ended with {code}", None, "failure", code)
    except (StreamProblem, KeyboardInterrupt):
        raise
    except Exception as error:
        if _is_exit(error):
            return Exit.OK  # --help, --version
        told = problems.describe(error)
        if told.exit_code == Exit.BUG:
            env.warn(f"{where}: {' '.join(words)}")
            raise
        problem = LineProblem(where, told.message, told.hint, told.code, told.exit_code)
        problem.__cause__ = error
    finally:
        sys.argv = argv
    env.flush()
    if not keep_going:
        raise problem
    return problems.report(problem, words, child)


def _is_exit(error: Exception) -> bool:
    import click

    return isinstance(error, click.exceptions.Exit)


def _prepare(session: Session | None, words: Sequence[str]) -> Session | None:
    """Refuse what has no place in a batch; the session for the line, None when it takes the locks by itself."""
    name, *rest = _plain_words(words) or [""]
    if name in FOREGROUND or (name == "metrics" and rest):
        raise UsageProblem(f"{name}: stays in the foreground: not in a batch")
    if name == "batch":
        raise UsageProblem("a batch in a batch")
    if session is None:
        return None
    if name in LOCKS_ITSELF:
        session.release()
        return None
    session.begin(" ".join(words))
    return session


def _plain_words(words: Sequence[str]) -> list[str]:
    """The words of a line that are neither options nor the values of those that come before a command."""
    found = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _WITH_VALUE:
            skip = True
        elif not word.startswith("-"):
            found.append(word)
    return found
