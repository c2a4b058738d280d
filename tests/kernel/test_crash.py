"""kill -9 at every system call from the lock to the exit of every command that changes state.

After each kill traffic goes by the old or the new rule, nothing is attached that no pin owns, the next writer
says that it repairs and leaves state without a fault, and the same command run again completes what was begun.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import pytest

from tests.lib import (
    cli,
    device_scenarios,
    inspect_state,
    node_scenarios,
    scenarios,
    service_scenarios,
    strace,
)
from tests.lib.forge import forge
from tests.lib.scenarios import Answers, Scenario, Stage
from tests.lib.strace import Point, Trace
from tests.lib.traffic import Traffic
from tests.lib.world import World, scratch

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]
EVERYTHING = os.environ.get("SVCCTL_CRASH") == "all"
CHECK = cli.is_written("svcctl.cli.commands.check")


class Attempt:
    """One scenario, killed at one point after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.stage = scenario.stage
        self.forge = scenario.stage.forge
        self.kills = 0

    def traffic(self, when: str) -> Answers:
        """Ask all questions; each answer must be the old or the new one."""
        one = self.scenario
        got = one.answers()
        mixed = [a for a, old, new in zip(got, one.old, one.new, strict=True) if a not in (old, new)]
        assert not mixed, f"{when}: answers {got}, before {one.old}, after {one.new}"
        if one.whole:
            assert got in (one.old, one.new), f"{when}: answers {got} are neither {one.old} nor {one.new}"
        return got

    def plan(self, runs: int = 2) -> Trace:
        """Trace a plain run, after another one that makes all runs alike."""
        one = self.scenario
        one.set_up()
        assert one.answers() == one.old
        for _ in range(runs):
            found = strace.trace(self.forge, *one.command())
            assert one.answers() == one.new
            one.undo()
            assert one.answers() == one.old
        return found

    def at(self, number: int, point: Point) -> None:
        """Kill the command at one point and look at what is left."""
        one = self.scenario
        where = f"killed at {point.name} {point.number}"
        done = strace.kill_at(self.forge, point, *one.command())
        if done.code == -9:
            self.kills += 1
        else:
            assert point.name in strace.UNSTEADY, f"not {where}: {done.all}"
        inspect_state.assert_owned(one.cgroup)  # a link whose pin it had removed has gone by then
        got = self.traffic(where)
        one.undisturbed(where)
        self.next_writer(where)
        one.undisturbed(f"{where}, repaired")
        if one.loaded == (True, True):
            self.clean(where, one.attached)
            got = self.traffic(f"{where}, repaired")
            if got == one.old and (one.old != one.new or one.free) and number % 7:
                return  # as before it: the next kill runs the same command again
        again = self.forge.run(*one.command())
        assert again.code in one.again, f"{where}, run again: {again.all}"
        assert one.answers() == one.new, f"{where}, run again"
        if one.loaded[1]:
            self.clean(f"{where}, run again", one.attached[1:])
        else:
            assert inspect_state.directories() == [], where
            assert inspect_state.attached_programs() == [], where
        one.undo()
        assert one.answers() == one.old, f"{where}, led back"

    def next_writer(self, where: str) -> None:
        """Another command, which repairs before its own work, and says so."""
        directories = inspect_state.directories()
        published = [name for name in directories if name.endswith("_svcctl")]
        interrupted = bool(published) and inspect_state.generation() & 1
        first, *rest = self.scenario.following
        done = self.forge.run(*first)
        if not published:
            assert done.code == 3, f"{where}, next command: {done.all}"
            return
        assert done.code == 0, f"{where}, next command: {done.all}"
        assert ("repairing after" in done.err) == bool(interrupted), f"{where}, next command: {done.all}"
        for line in rest:
            self.forge.ok(*line)

    def clean(self, where: str, attached: Sequence[int] = (1,)) -> None:
        """Nothing is broken, left over or attached twice."""
        found = inspect_state.problems()
        assert not found, f"{where}: {found}"
        directories = inspect_state.directories()
        assert len(directories) == 1, f"{where}: {directories}"
        programs = inspect_state.attached_programs()
        assert len(programs) in attached, f"{where}: attached {programs}"


ALL: tuple[type[Scenario], ...] = (
    *scenarios.ALL,
    *service_scenarios.ALL,
    *device_scenarios.ALL,
    *node_scenarios.ALL,
)


@pytest.mark.parametrize("kind", ALL, ids=[one.name for one in ALL])
def test_killed_at_every_system_call(
    kind: type[Scenario], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those at which something can be left behind; with SVCCTL_CRASH=all literally every one.

    A kill at a call that only looks leaves what a kill at the next one that changes something leaves.
    """
    started = time.monotonic()
    with (
        forge(*kind.preload) as server,
        Traffic() as traffic,
        scratch() as directory,
        contextlib.ExitStack() as stack,
    ):
        server.setup, server.env = kind.setup, kind.env
        attempt = Attempt(kind(Stage(server, traffic, directory)))
        stack.callback(attempt.scenario.close)
        found = attempt.plan()
        points = found.points if EVERYTHING else strace.some(found.changing, kind.step)
        for number, point in enumerate(points):
            attempt.at(number, point)
        attempt.scenario.settle()
        if CHECK and kind.loaded[0]:
            server.ok("check")
        server.run("unload", "--yes")
    must = sum(1 for point in points if point.name not in strace.UNSTEADY)
    with capsys.disabled():
        print(
            f"\n{kind.name}: {attempt.kills} kills at {len(points)} of {len(found.points)} system calls,"
            f" {len(found.changing)} of which can leave something behind ({time.monotonic() - started:.0f} s)"
        )
    assert attempt.kills >= must, f"{attempt.kills} kills, {must} points"


@pytest.mark.quick
def test_killed_in_every_kernel(world: World) -> None:
    """`bind`, in the middle of its writes and before the last one."""
    with forge() as server, Traffic() as traffic, scratch() as directory:
        attempt = Attempt(scenarios.BindPrefix(Stage(server, traffic, directory)))
        points = attempt.plan(1).changing
        for number, point in enumerate((points[len(points) // 2], points[-4])):
            attempt.at(number, point)
        server.run("unload", "--yes")


ERRORS = ("EIO", "ENOMEM")
FAILING = (scenarios.Load, scenarios.BindNew, scenarios.LoadBindingsBulk, scenarios.UpgradeResize)


@pytest.mark.parametrize("kind", FAILING, ids=[one.name for one in FAILING])
def test_kernel_errors_at_every_bpf_call(
    kind: type[Scenario], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that fails says so in a line and has repaired the state when it ends.

    Both errors at each call with SVCCTL_CRASH=all, else one of them, the other one the next day.
    A run that is not for everything does every call of `bind`, and a seventh of the others'.
    """
    failed = 0
    with forge() as server, Traffic() as traffic, scratch() as directory:
        server.setup = kind.setup
        attempt = Attempt(kind(Stage(server, traffic, directory)))
        one = attempt.scenario
        points = [point for point in attempt.plan().points if point.name == "bpf"]
        if not EVERYTHING and kind is not scenarios.BindNew:
            points = strace.chosen(points)
        for number, point in enumerate(points):
            for error in ERRORS if EVERYTHING else (ERRORS[(number + strace.turn(2)) % 2],):
                failed += fail(attempt, number, point, error)
        server.run("unload", "--yes")
    with capsys.disabled():
        print(f"\n{one.name}: {failed} failures from errors at {len(points)} bpf calls")
    assert failed


def fail(attempt: Attempt, number: int, point: Point, error: str) -> bool:
    """Whether the command failed because of an error at one of its calls."""
    one = attempt.scenario
    where = f"{error} at {point.name} {point.number}"
    done = strace.fail_at(attempt.forge, point, error, *one.command())
    inspect_state.assert_owned(one.cgroup)
    got = attempt.traffic(where)
    if done.code == 0:
        # libbpf asks for features by trying, and what is only nice to have may fail.
        assert got == one.new, f"{where}: {done.all}"
    else:
        assert done.code in (1, 7), f"{where}: {done.all}"
        assert done.out == "", f"{where}: {done.all}"
        errors = [line for line in done.err.splitlines() if line.startswith("svcctl: error: ")]
        assert len(errors) == 1, f"{where}: {done.all}"
        assert "Traceback" not in done.err, f"{where}: {done.all}"
    if one.loaded[0]:
        assert not inspect_state.generation() & 1, f"{where}: {done.all}"
        attempt.clean(where)
    elif done.code:
        assert inspect_state.directories() == [], f"{where}: {done.all}"
    if done.code == 0 or got != one.old or not number % 7:
        again = attempt.forge.run(*one.command())
        assert again.code in one.again, f"{where}, run again: {again.all}"
        assert "repairing" not in again.err, f"{where}, run again: {again.all}"
        one.undo()
    return done.code != 0
