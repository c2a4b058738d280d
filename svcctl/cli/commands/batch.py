"""`svcctl batch`: one command a line, in one process and under one lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE
from svcctl.errors import Exit

if TYPE_CHECKING:
    from svcctl.cli.access import Session
    from svcctl.cli.env import Env


@verb(
    "batch",
    examples=("svcctl batch commands.txt", "svcctl batch --keep-going -"),
    exits=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
)
@argument("file", FILE, "File of commands; - or nothing for standard input.", required=False, default="-")
@option("--keep-going", is_flag=True, help="Go on after a line that failed; end with the code of the first.")
def command(env: Env, file: str, keep_going: bool) -> int:
    """Run the commands of FILE, one a line without 'svcctl' in front, while other writers wait.

    Words are quoted as in a shell, # begins a comment. Each line is a change of its own, the first that fails ends
    the batch. Refused are load, unload, upgrade, check, gc, batch itself, and what stays in the foreground, such as
    metrics with an ADDRESS. With --dry-run each line is planned on the state as it is, not as the lines before it
    would leave it.
    """
    from svcctl.cli.access import Session, writing
    from svcctl.cli.input import read_input

    # All of it is read before the lock is taken: a slow pipe keeps nobody waiting.
    data = read_input(file, env)
    if env.dry_run:
        return _run(env, Session(env, None, reads_stdin=file == "-"), data, keep_going)
    with writing(env) as writer:
        return _run(env, Session(env, writer, reads_stdin=file == "-"), data, keep_going)


def _run(env: Env, session: Session, data: bytes, keep_going: bool) -> int:
    """Run the lines; the code of the first that failed, or 0."""
    from svcctl.cli.words import numbered_lines

    first, failed = Exit.OK, 0
    for number, text in numbered_lines(data):
        code = _run_line(env, session, number, text)
        if code:
            first, failed = first or code, failed + 1
            if not keep_going:
                break
    if failed and keep_going:
        env.warn(f"batch: {failed} line{'s' if failed > 1 else ''} failed")
    return first


def _run_line(env: Env, session: Session, number: int, text: str) -> int:
    """Run one line, tell what went wrong with it, and return its exit code."""
    from svcctl.cli import problems
    from svcctl.cli.env import StreamProblem
    from svcctl.cli.main import run
    from svcctl.cli.words import split_line

    own = env.child()
    own.session = session
    words: list[str] = []
    try:
        words = split_line(text)
        if not words:
            return Exit.OK
        env.verbose(f"line {number}: {' '.join(words)}")
        session.begin(words)
        if env.output == "yaml":
            env.write("---\n")
        code = run(words, own)
        own.flush()  # each answer when it is there, and before what stderr says next
    except StreamProblem:  # nobody hears the answers: no line is of use any more
        raise
    except Exception as error:
        return problems.report(error, words, own, line=number)
    if code:
        env.warn(f"line {number}: {words[0]} ended with {code}")
    return code
