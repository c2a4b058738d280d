"""How commands get at the state: one place that turns an Env into readers and writers.

Outside `batch` a writer is opened and closed around a change; inside `batch` all lines share the one that the
batch holds.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcctl.state.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from svcctl.cli.env import Env
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

    T = TypeVar("T")


class Session:
    """What `batch` shares between its lines: the open writer, and the line being run."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer


def place(env: Env) -> Place:
    """Where the command works."""
    return Place(env.netns, env.bpffs, env.lock_timeout, env.notice)


def command_line() -> str:
    """What `status` shows of a writer: the words after `svcctl`."""
    return " ".join(sys.argv[1:])


@contextmanager
def writing(env: Env) -> Iterator[Writer]:
    """The state, locked for a change."""
    if env.session is not None:
        yield env.session.writer
        return
    from svcctl.state.writer import open_writer

    with open_writer(place(env), command_line()) as writer:
        yield writer


def reading(env: Env, read: Callable[[State], T]) -> T:
    """Run `read` on a consistent state; says on stderr when writers gave it no chance to be one."""
    if env.session is not None:
        return read(env.session.writer)
    from svcctl.state.session import read_consistent

    result, consistent = read_consistent(place(env), read)
    if not consistent:
        env.warn("inconsistent: a writer was at work, or died at it, while this was read")
    return result


@contextmanager
def planning(env: Env) -> Iterator[tuple[State, Writer | None]]:
    """The state to plan on, and the writer to carry the plan out with: None with `--dry-run`, which reads only."""
    if env.dry_run:
        if env.session is not None:
            yield env.session.writer, None
            return
        from svcctl.state.session import open_reader

        with open_reader(place(env)) as reader:
            yield reader, None
        return
    with writing(env) as writer:
        yield writer, writer
