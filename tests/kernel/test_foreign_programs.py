"""Other people's sk_lookup programs in the same network namespace, attached before or after svcctl's.

The kernel runs them all, in the order in which they were attached; a socket that one of them chose stays chosen,
and without one any drop drops. svcctl's program leaves a choice that was made before it alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.bpf.link import Link, query_programs
from svcctl.bpf.program import Program
from svcctl.host import process
from svcctl.host.netns import Netns
from svcctl.maps.catalog import SK_LOOKUP
from svcctl.state.place import Place
from svcctl.state.writer import lock_state
from tests.lib.servers import REFUSED, Server, ask
from tests.lib.sk_lookup_programs import attached, foreign, put
from tests.lib.svc import svc
from tests.lib.world import World

BOUND, FREE = "127.0.0.53", "127.0.0.54"


def programs() -> list[int]:
    with Netns.open() as netns:
        return query_programs(netns.fd, SK_LOOKUP)


class Foreign:
    """A foreign program, attached when told."""

    def __init__(self, stack: contextlib.ExitStack, program: Program) -> None:
        self.stack, self.program = stack, program

    def attach(self) -> None:
        self.stack.enter_context(attached(self.program))


@contextlib.contextmanager
def theirs(directory: Path, name: str) -> Iterator[Foreign]:
    """One of the foreign programs; the one that chooses has a listener that answers "theirs"."""
    with foreign(directory) as (built, chosen), Server() as other, contextlib.ExitStack() as stack:
        opened = other.open("theirs", address="127.0.0.99")
        with _taken(other, opened.fd) as fd:
            put(chosen, fd)
        yield Foreign(stack, stack.enter_context(built.program(name)))


@contextlib.contextmanager
def _taken(server: Server, fd: int) -> Iterator[int]:
    pidfd = process.pidfd_open(server.pid)
    mine = process.pidfd_getfd(pidfd, fd)
    try:
        yield mine
    finally:
        os.close(pidfd)
        os.close(mine)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ["pass", "drop", "choose"])
def test_foreign_program(world: World, server: Server, tmp_path: Path, name: str, order: str) -> None:
    own = server.open("own")
    with theirs(tmp_path, name) as other:
        if order == "before":
            other.attach()
        svc("load", "--max-bindings", 1000)
        if order == "after":
            other.attach()
        assert len(programs()) == 2
        svc("bind", "web", "tcp", BOUND, 80)

        # Bound, and nothing live behind it: refused whatever the other says, unless it has a socket for it.
        expected = "theirs" if name == "choose" else REFUSED
        assert ask("tcp", BOUND, 80) == expected
        # Not bound: the other's word alone.
        listening = server.open("host", address=FREE)
        expected = {"pass": "host", "drop": REFUSED, "choose": "theirs"}[name]
        assert ask("tcp", FREE, listening.port) == expected

        svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", own.port)
        expected = "theirs" if (name, order) == ("choose", "before") else "own"
        assert ask("tcp", BOUND, 80) == expected

        # Commands go on as if the other were not there, and leave it alone.
        svc("bind", "web", "tcp", "127.0.5.0/24", 80)
        svc("unbind", "web", "tcp", "127.0.5.0/24", 80)
        svc("unload", "--yes")
        assert programs() == [other.program.info.id]
    assert programs() == []


def test_link_that_somebody_else_updated(loaded: World, tmp_path: Path) -> None:
    """Their program under our link: changes are refused by name, unload still clears it."""
    svc("bind", "web", "tcp", BOUND, 80)
    with foreign(tmp_path) as (built, _), built.program("pass") as program:
        with Link.open_pinned(f"{loaded.state_dir}/link_netns") as link:
            link.update(program)
        ran = svc("bind", "web", "tcp", FREE, 80, code=6)
        assert str(program.info.id) in ran.err
        assert "upgrade" in ran.err
        assert len(svc("bindings", "-o", "json").json["bindings"]) == 1
        with lock_state(Place(), "test") as writer:  # the first after one that died looks, too
            writer.put_meta(writer.meta()._replace(generation=writer.meta().generation + 1))
        ran = svc("bind", "web", "tcp", FREE, 80, code=6)
        assert str(program.info.id) in ran.err
        assert len(svc("bindings", "-o", "json").json["bindings"]) == 1
        svc("unload", "--yes")
    assert not os.path.exists(loaded.state_dir)
    assert programs() == []


def test_nothing_of_ours_stays_attached(world: World) -> None:
    for _ in range(3):
        svc("load", "--max-bindings", 1000)
        assert len(programs()) == 1
        svc("load", "--max-bindings", 1000)
        assert len(programs()) == 1
        svc("unload", "--yes")
        assert programs() == []
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()[:2]),
        ):
            pass
