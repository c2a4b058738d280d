"""kill -9 at the system calls of attach, detach, gc and check --repair: what is left, `check --repair` puts right."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from svcctl.maps import layouts
from svcctl.model.destination import Destination, DestinationKey
from svcctl.state import destinations
from svcctl.state.bindings import read_labels
from tests.lib import inspect_state, strace
from tests.lib.forge import Forge, forge
from tests.lib.sockets import writer
from tests.lib.world import World

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]
EVERYTHING = os.environ.get("SVCCTL_CRASH") == "all"
MOST = 24
SMALL = ("--max-bindings", "100", "--max-destinations", "16")


def unloaded_dispatcher(server: Forge) -> None:
    server.ok("load", "--no-dispatcher")


def bound(server: Forge) -> None:
    server.ok("load", *SMALL)
    server.ok("bind", "web", "tcp", "127.0.0.1", "80")


def detached(server: Forge) -> None:
    bound(server)
    server.ok("detach", "netns")


def with_garbage(server: Forge) -> None:
    bound(server)
    os.mkdir(f"{inspect_state.BPFFS}/svcctl_tmp_1_1", 0o700)
    with writer() as state:
        key = DestinationKey("unused", 4, 17)
        state.put_meta(state.meta()._replace(next_destination=2))
        destinations.put(state, Destination(key, 1, 0, 0, 0))
        state.put_usage("destinations", state.usage("destinations")._replace(used=2))


def broken(server: Forge) -> None:
    """Something for many rows at once."""
    bound(server)
    with writer() as state:
        path = state.path
        one = destinations.find(state, DestinationKey("web", 4, 6))
        assert one is not None
        destinations.put(state, one._replace(refs=9))
        state.put_usage("exact", layouts.Usage(7, 7))
        state.put_meta(state.meta()._replace(next_writer=77))
    for name in ("exact", "ports", "usage"):
        os.unlink(f"{path}/{name}")
    os.chmod(f"{path}/meta", 0o666)
    os.chmod(path, 0o770)


CASES: dict[str, tuple[Callable[[Forge], None], tuple[str, ...], bool]] = {
    "first attach": (unloaded_dispatcher, ("attach", "netns", *SMALL), True),
    "attach": (detached, ("attach", "netns"), True),
    "detach": (bound, ("detach", "netns"), False),
    "gc": (with_garbage, ("gc",), True),
    "repair": (broken, ("check", "--repair"), True),
}
"""Set-up, command, whether the dispatcher is attached after it."""


@pytest.mark.parametrize("name", CASES)
def test_killed(world: World, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up, command, attached = CASES[name]
    with forge() as server:
        set_up(server)
        found = strace.trace(server, *command)
        points = found.points
        if not EVERYTHING:
            points = strace.some(found.changing, len(found.changing) // MOST + 1)
        kills = 0
        for point in points:
            server.ok("unload", "--yes")
            set_up(server)
            done = strace.kill_at(server, point, *command)
            where = f"{name} killed at {point.name} {point.number}"
            if done.code == -9:
                kills += 1
            else:
                assert point.name in strace.UNSTEADY, f"not {where}: {done.all}"
            inspect_state.assert_owned()
            repaired = server.run("check", "--repair")
            assert repaired.code == 0, f"{where}: {repaired.all}"
            again = server.run(*command)
            assert again.code == 0, f"{where}, run again: {again.all}"
            assert server.ok("check").out == "no problems found\n", where
            assert len(inspect_state.attached_programs()) == attached, where
            assert len(inspect_state.directories()) == 1, where
            if set_up is not unloaded_dispatcher:
                with writer() as state:
                    assert list(read_labels(state).values()) == ["web"], where
        server.ok("unload", "--yes")
    with capsys.disabled():
        print(f"\n{name}: {kills} kills at {len(points)} of {len(found.points)} system calls")
    assert kills >= sum(1 for point in points if point.name not in strace.UNSTEADY)
