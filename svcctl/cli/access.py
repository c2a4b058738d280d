"""How commands get at the state: one place that turns an Env into readers and writers.

Outside `batch` a writer is opened and closed around a change; inside `batch` all lines share the one that the
batch holds.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.state.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from svcctl.cli.env import Env
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

    T = TypeVar("T")


NOT_IN_BATCH = frozenset(("batch", "check", "gc", "load", "top", "unload", "upgrade"))
"""Commands that take the lock in their own way, make and remove what the batch holds open, or watch for a while."""


class Session:
    """What `batch` shares between its lines: the open writer (None with `--dry-run`), and the line being run."""

    def __init__(self, env: Env, writer: Writer | None, *, reads_stdin: bool = False) -> None:
        self.writer = writer
        self.reads_stdin = reads_stdin
        self._where = env.netns, env.bpffs

    def begin(self, words: Sequence[str]) -> None:
        """The next line: `status` shows its words, not those of the batch."""
        if self.writer is not None:
            self.writer.command = " ".join(words)

    def admit(self, name: str, env: Env) -> None:
        """Raise UsageProblem for a command that cannot be a line of a batch, or one for another state."""
        if name in NOT_IN_BATCH:
            raise UsageProblem(
                f"{name}: not in a batch, which holds the state open", hint=f"run 'svcctl {name}' by itself"
            )
        if (env.netns, env.bpffs) != self._where:
            raise UsageProblem(
                f"{name}: --netns and --bpffs: a batch works on one state",
                hint="give them before 'batch', for all lines",
            )


def held(env: Env) -> Writer | None:
    """The writer that a batch holds open, None outside and with `batch --dry-run`."""
    session: Session | None = env.session
    return None if session is None else session.writer


def place(env: Env) -> Place:
    """Where the command works."""
    return Place(env.netns, env.bpffs, env.lock_timeout, env.notice)


def command_line() -> str:
    """What `status` shows of a writer: the words after `svcctl`."""
    return " ".join(sys.argv[1:])


@contextmanager
def writing(env: Env) -> Iterator[Writer]:
    """The state, locked for a change."""
    shared = held(env)
    if shared is not None:
        yield shared
        return
    from svcctl.state.writer import open_writer

    with open_writer(place(env), command_line()) as writer:
        yield writer


def reading(env: Env, read: Callable[[State], T]) -> T:
    """Run `read` on a consistent state; says on stderr when writers gave it no chance to be one."""
    return reading_told(env, read)[0]


def reading_told(env: Env, read: Callable[[State], T]) -> tuple[T, bool]:
    """As `reading`, and whether it was consistent."""
    shared = held(env)
    if shared is not None:
        return read(shared), True
    from svcctl.state.session import INCONSISTENT, read_consistent

    result, consistent = read_consistent(place(env), read)
    if not consistent:
        env.warn(INCONSISTENT)
    return result, consistent


def reading_surely(env: Env, read: Callable[[State], T]) -> T:
    """As `reading`, but when writers gave it no chance the lock is taken: for what must not be half a change."""
    shared = held(env)
    if shared is not None:
        return read(shared)
    from svcctl.state.session import read_consistent

    result, consistent = read_consistent(place(env), read)
    if consistent or env.dry_run:
        return result
    with writing(env) as writer:
        return read(writer)


@contextmanager
def planning(env: Env) -> Iterator[tuple[State, Writer | None]]:
    """The state to plan on, and the writer to carry the plan out with: None with `--dry-run`, which reads only."""
    if env.dry_run:
        shared = held(env)
        if shared is not None:
            yield shared, None
            return
        from svcctl.state.session import INCONSISTENT, open_reader

        with open_reader(place(env)) as reader:
            before = reader.generation()
            yield reader, None
            if before & 1 or reader.generation() != before:
                env.warn(INCONSISTENT)
        return
    with writing(env) as writer:
        yield writer, writer
