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
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from svcctl.cli.env import Env
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

    T = TypeVar("T")


class Session:
    """What `batch` shares between its lines: the writer, opened by the first line that needs one.

    From then on it holds the lock, until the end or a line that takes the locks by itself (`release`).
    """

    def __init__(self, place: Place, command: str) -> None:
        self.place = place
        self.command = command
        self.opened: Writer | None = None

    @property
    def writer(self) -> Writer:
        """The open writer. Raises what opening it raises."""
        if self.opened is None:
            from svcctl.state.writer import open_writer

            self.opened = open_writer(self.place, self.command)
        return self.opened

    def begin(self, command: str) -> None:
        """Note the line that runs now: `status` shows it beside what it writes."""
        self.command = command
        if self.opened is not None:
            self.opened.command = command

    def release(self) -> None:
        """Let the lock go."""
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()


def place(env: Env) -> Place:
    """Where the command works."""
    return Place(env.netns, env.bpffs, env.lock_timeout, env.notice)


def command_line() -> str:
    """What `status` shows of a writer: the words after `svcctl`."""
    return " ".join(sys.argv[1:])


def _session(env: Env) -> Session | None:
    """The batch that the command is a line of. Raises UsageProblem for a line that goes to other state."""
    session: Session | None = env.session
    if session is not None and (env.netns, env.bpffs) != session.place[:2]:
        raise UsageProblem("--netns and --bpffs are given to the batch, not to one of its lines")
    return session


@contextmanager
def writing(env: Env) -> Iterator[Writer]:
    """The state, locked for a change."""
    session = _session(env)
    if session is not None:
        yield session.writer
        return
    from svcctl.state.writer import open_writer

    with open_writer(place(env), command_line()) as writer:
        yield writer


def reading(env: Env, read: Callable[[State], T]) -> T:
    """Run `read` on a consistent state; says on stderr when writers gave it no chance to be one."""
    session = _session(env)
    if session is not None and session.opened is not None:
        return read(session.opened)
    from svcctl.state.session import read_consistent

    result, consistent = read_consistent(place(env), read)
    if not consistent:
        env.warn("inconsistent: a writer was at work, or died at it, while this was read")
    return result


@contextmanager
def planning(env: Env) -> Iterator[tuple[State, Writer | None]]:
    """The state to plan on, and the writer to carry the plan out with: None with `--dry-run`, which reads only."""
    if env.dry_run:
        session = _session(env)
        if session is not None and session.opened is not None:
            yield session.opened, None
            return
        from svcctl.state.session import open_reader

        with open_reader(place(env)) as reader:
            yield reader, None
        return
    with writing(env) as writer:
        yield writer, writer
