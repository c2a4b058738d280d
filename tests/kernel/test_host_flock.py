"""flock with a time limit, and the holder's name, with real second processes on a bpffs directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from svcctl.host import flock
from tests.lib.child import ROOT, child, needs_root
from tests.lib.until import until
from tests.lib.world import World, world

TAKE = "import fcntl; fd = os.open({path!r}, os.O_RDONLY); fcntl.flock(fd, fcntl.LOCK_{kind})"


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        yield one


@pytest.fixture
def directory(w: World) -> Iterator[int]:
    path = f"{w.bpffs}/locked"
    os.mkdir(path)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)
    os.rmdir(path)


def _locks() -> str:
    with open("/proc/locks", encoding="ascii") as file:
        return file.read()


def _gone(pid: int) -> None:
    """Wait until the process has no descriptors any more."""

    def without() -> bool:
        try:
            return not os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return True

    until(without, f"the end of {pid}")


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def test_shared_and_exclusive(directory: int) -> None:
    second = os.open(_path(directory), os.O_RDONLY)
    try:
        assert flock.try_lock(directory, exclusive=False)
        assert flock.try_lock(second, exclusive=False)
        assert not flock.try_lock(second, exclusive=True)
    finally:
        os.close(second)
    assert flock.try_lock(directory, exclusive=True)
    second = os.open(_path(directory), os.O_RDONLY)
    try:
        assert not flock.try_lock(second, exclusive=False)
        assert [holder.pid for holder in flock.holders(second)] == [os.getpid()]
    finally:
        os.close(second)


def test_path_descriptor_is_an_error(directory: int) -> None:
    fd = os.open(_path(directory), os.O_PATH)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            flock.try_lock(fd, exclusive=True)
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", ["EX", "SH"])
def test_holder_is_named(directory: int, kind: str) -> None:
    with child(TAKE.format(path=_path(directory), kind=kind)) as holder:
        assert not flock.try_lock(directory, exclusive=True)
        (found,) = flock.holders(directory)
        assert found.pid == holder.pid
        assert found.alive
        assert "python" in found.command
    assert flock.holders(directory) == []


def test_all_readers_are_named_and_waiters_are_not(directory: int) -> None:
    take = TAKE.format(path=_path(directory), kind="SH")
    with child(take) as one, child(take) as two, child("import fcntl") as waiter:
        waiter.send(TAKE.format(path=_path(directory), kind="EX"))
        until(
            lambda: any("->" in line and f" {waiter.pid} " in line for line in _locks().splitlines()),
            "the third process does not wait",
        )
        assert sorted(holder.pid for holder in flock.holders(directory)) == sorted([one.pid, two.pid])
        one.end()
        two.end()


def test_heir_of_a_taker_that_has_gone(directory: int) -> None:
    """The taker forks and exits: /proc/locks still has its number."""
    code = (
        TAKE.format(path=_path(directory), kind="EX")
        + "\nimport signal\nout = os.fork()\nif out == 0:\n    while True: signal.pause()"
    )
    with child() as taker:
        heir = taker.run(code)
        try:
            assert taker.pid in [holder.pid for holder in flock.holders(directory)]
            taker.end()
            assert f" {taker.pid} " in _locks()
            (found,) = flock.holders(directory)
            assert found.pid == heir
            assert found.alive
            assert "python" in found.command
        finally:
            os.kill(heir, signal.SIGKILL)
    _gone(heir)
    assert flock.holders(directory) == []


def test_holder_outside_of_the_pid_namespace_is_not_known(directory: int) -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from svcctl.host import flock;"
        f"fd = os.open({_path(directory)!r}, os.O_RDONLY);"
        "print(flock.try_lock(fd, True), flock.holders(fd)); os.close(fd)"
    )
    with child(TAKE.format(path=_path(directory), kind="EX")):
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, ROOT],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["False", "[]"]


def test_lock_waits_and_tells(directory: int) -> None:
    told: list[list[flock.Holder]] = []
    with child(TAKE.format(path=_path(directory), kind="EX")) as holder:

        def tell(holders: list[flock.Holder]) -> None:
            told.append(holders)
            holder.send("os.close(fd)")

        start = time.monotonic()
        flock.lock(directory, True, 60.0, tell, notice_after_s=0.1)
        assert 0.1 <= time.monotonic() - start < 30
    assert [[one.pid for one in holders] for holders in told] == [[holder.pid]]


def test_short_wait_is_not_told(directory: int) -> None:
    told: list[list[flock.Holder]] = []
    with child(TAKE.format(path=_path(directory), kind="EX")) as holder:
        holder.send("time.sleep(0.05); os.close(fd)")
        flock.lock(directory, True, 120.0, told.append, notice_after_s=60.0)
    assert told == []


def test_timeout(directory: int) -> None:
    with child(TAKE.format(path=_path(directory), kind="SH")):
        flock.lock(directory, False, 0)
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            flock.lock(directory, True, 0.2)
        assert 0.15 < time.monotonic() - start < 30
        with pytest.raises(TimeoutError):
            flock.lock(directory, True, 0, lambda _: pytest.fail("no wait, no notice"))
