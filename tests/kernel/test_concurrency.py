"""Many writers and readers at once: the lock, who waits for whom, and what readers may see."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator

import pytest

from svcctl.host import flock
from svcctl.model.binding import Binding, parse_binding
from svcctl.model.plan import plan
from svcctl.state.bindings import apply_plan
from svcctl.state.lock import open_locked
from svcctl.state.place import Place
from svcctl.state.unload import retire_directory
from svcctl.state.writer import open_writer
from tests.lib import inspect_state
from tests.lib.child import Child, child
from tests.lib.forge import Forge, forge
from tests.lib.until import until
from tests.lib.world import World, scratch

WRITERS = 64
READERS = 8
SMALL = ("--max-bindings", "1000", "--max-destinations", "64")

READER = """
import time
from svcctl.state.bindings import read_labels
from svcctl.state.place import Place
from svcctl.state.session import read_consistent

def look(seconds, pair):
    # [snapshots, those marked inconsistent, those with half of a write and no mark]
    end = time.monotonic() + seconds
    found = [0, 0, 0]
    while time.monotonic() < end or not found[0]:
        labels, consistent = read_consistent(Place(), read_labels)
        first, second = (labels.get(key) for key in pair)
        found[0] += 1
        found[1] += not consistent
        found[2] += consistent and first != second
    return found
"""


@pytest.fixture
def svcctl(world: World) -> Iterator[Forge]:
    with forge() as server:
        server.ok("load", *SMALL)
        yield server


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Hold the lock of a directory, as a writer that takes its time."""
    fd = open_locked(path, Place())
    try:
        yield
    finally:
        os.close(fd)


def wait_until_waiting(path: str, count: int) -> None:
    """Until `count` processes other than this one have opened the directory, which they do to lock it."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if _openers(path) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"only {_openers(path)} of {count} processes wait")


def said(pid: int) -> str:
    """What a process has written to its standard error, which is a file, so far."""
    with open(f"/proc/{pid}/fd/2", encoding="utf-8") as file:
        return file.read()


def _openers(path: str) -> int:
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            found += any(os.readlink(entry.path).startswith(path) for entry in entries)
    return found


@pytest.mark.timeout(300)
def test_every_one_of_64_writers_is_served(svcctl: Forge, world: World) -> None:
    count = WRITERS
    with held(world.state_dir):
        started = [
            svcctl.start("--lock-timeout", "120", "bind", f"label{n}", "tcp", f"10.0.{n}.0/24", "80")
            for n in range(count)
        ]
        wait_until_waiting(world.state_dir, count)
        # A wait is worth a line from a quarter of a second on.
        until(lambda: all("waiting for the lock" in said(pid) for pid in started), "64 lines")
    ended = [svcctl.wait(pid) for pid in started]
    assert [one.code for one in ended] == [0] * count, [one.all for one in ended if one.code]
    with open(f"/proc/{os.getpid()}/cmdline") as file:
        command = file.read().split("\0")[0]
    for one in ended:
        assert f"waiting for the lock on {world.state_dir}, held by pid {os.getpid()} (" in one.err
        assert os.path.basename(command) in one.err, one.err
        assert "repairing" not in one.err
    bound = json.loads(svcctl.ok("bindings", "-o", "json").out)["bindings"]
    assert {one["prefix"] for one in bound} == {f"10.0.{n}.0/24" for n in range(count)}
    assert inspect_state.problems() == []


def test_writers_without_a_queue_lose_nothing(svcctl: Forge) -> None:
    """Binds and unbinds of all kinds at once, each waiting for whichever is first."""
    svcctl.ok("bind", "kept", "tcp", "10.9.0.0/16", "0")
    lines: list[tuple[str, ...]] = []
    for n in range(16):
        lines.append(("bind", "one", "tcp", f"10.1.{n}.1", "80"))
        lines.append(("bind", "two", "udp", f"10.2.{n}.0/24", "53"))
    ended = [svcctl.wait(pid) for pid in [svcctl.start(*line) for line in lines]]
    assert [one.code for one in ended] == [0] * len(lines)
    lines = [("unbind", *line[1:]) for line in lines[::2]] + [("upgrade", "--force")]
    ended = [svcctl.wait(pid) for pid in [svcctl.start(*line) for line in lines]]
    assert [one.code for one in ended] == [0] * len(lines), [one.all for one in ended if one.code]
    bound = json.loads(svcctl.ok("bindings", "-o", "json").out)["bindings"]
    assert {one["prefix"] for one in bound} == {"10.9.0.0/16"} | {f"10.2.{n}.0/24" for n in range(16)}
    assert inspect_state.problems() == []


def test_lock_timeout(svcctl: Forge, world: World) -> None:
    with held(world.state_dir):
        began = time.monotonic()
        done = svcctl.run("--lock-timeout", "0.2", "bind", "web", "tcp", "10.0.0.1", "80")
        took = time.monotonic() - began
    assert done.code == 9
    assert f"lock {world.state_dir}: held by pid {os.getpid()} (" in done.err
    assert "for more than 0.2 s" in done.err
    assert "--lock-timeout" in done.err
    assert 0.2 <= took < 60
    assert json.loads(svcctl.ok("bindings", "-o", "json").out)["bindings"] == []


def test_lock_timeout_of_the_root(svcctl: Forge, world: World) -> None:
    with held(world.bpffs):
        for line in (("load",), ("unload", "--yes")):
            done = svcctl.run("--lock-timeout", "0.1", *line)
            assert done.code == 9, done.all
            assert f"lock {world.bpffs}: held by pid {os.getpid()} (" in done.err
        svcctl.ok("bind", "web", "tcp", "10.0.0.1", "80")


def test_readers_need_no_lock(svcctl: Forge, world: World) -> None:
    with held(world.state_dir), held(world.bpffs):
        for line in (("bindings",), ("destinations",), ("attachments",), ("metrics",)):
            svcctl.ok("--lock-timeout", "0", *line)


def test_readers_hold_no_lock(svcctl: Forge, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight readers in a loop, where each look is short: no writer ever finds the lock taken."""
    pair = _pair()
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(child(READER)) for _ in range(READERS)]
        for one in readers:
            one.send(f"out = look(2, {pair!r})")
        writes = _move_to_and_fro(pair, 2, 6)
        seen = [_answer(one) for one in readers]
    waits = _lock_waits()
    with capsys.disabled():
        print(f"\n{writes} writes, lock waits {waits}; snapshots, marked, torn: {_sums(seen)}")
    assert writes > 5
    assert waits == 0
    assert _sums(seen)[2] == 0


@pytest.mark.timeout(300)
def test_readers_of_200_000_bindings(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """They do not hold a writer up, and see both halves of each write or neither, or say so."""
    pair = _pair()
    with forge() as server, scratch() as directory:
        server.ok("load", "--max-bindings", "300000")
        with open(f"{directory}/many", "w") as file:
            rows = [
                {
                    "label": f"label{n % 50}",
                    "prefix": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}/32",
                    "port": 80,
                    "protocol": "tcp",
                }
                for n in range(200_000)
            ]
            json.dump({"bindings": rows}, file)
        server.ok("load-bindings", f"{directory}/many")
        alone = _move_to_and_fro(pair, 1)
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(child(READER)) for _ in range(READERS)]
            for one in readers:
                one.send(f"out = look(6, {pair!r})")
            beside = _move_to_and_fro(pair, 6, 6)
            seen = [_answer(one) for one in readers]
        waits = _lock_waits()
    with capsys.disabled():
        print(
            f"\n{alone} writes in 1 s alone, {beside} in 6 s beside {READERS} readers, lock waits {waits};"
            f" snapshots, marked, torn: {_sums(seen)}"
        )
    assert waits == 0
    assert beside > 5
    assert _sums(seen)[0] >= READERS
    assert _sums(seen)[2] == 0


def _pair() -> list[bytes]:
    """Keys of two bindings, of different maps, that are always written together."""
    return [parse_binding("x", "tcp", prefix, "80").key() for prefix in ("10.200.0.1", "10.201.0.0/24")]


def _move_to_and_fro(pair: list[bytes], seconds: float, least: int = 1) -> int:
    """Bind both to one label, then to another, and so on; then remove them. Returns how many times: `least` or more."""
    end = time.monotonic() + seconds
    label, writes = "", 0
    while time.monotonic() < end or writes < least:
        other = "left" if label != "left" else "right"
        with open_writer(Place(), "test") as writer:
            apply_plan(writer, plan(dict.fromkeys(pair, label) if label else {}, dict.fromkeys(pair, other)))
        label = other
        writes += 1
        time.sleep(0.02)  # readers need a moment without a write
    with open_writer(Place(), "test") as writer:
        apply_plan(writer, plan(dict.fromkeys(pair, label), {}))
    return writes


def _answer(one: Child) -> list[int]:
    assert one.process.stdout is not None
    line = one.process.stdout.readline()
    found: list[int] = json.loads(line)
    return found


def _sums(seen: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*seen, strict=True)]


def _lock_waits() -> int:
    with open_writer(Place(), "test") as writer:
        return writer.meta().lock_waits


def test_waited_across_unload_and_load(svcctl: Forge, world: World) -> None:
    """The lock that is had at last is that of a directory which is gone: the command starts over."""
    svcctl.ok("bind", "old", "tcp", "10.0.0.1", "80")
    fd = open_locked(world.state_dir, Place())
    try:
        pid = svcctl.start("bind", "new", "tcp", "10.0.0.2", "80")
        wait_until_waiting(world.state_dir, 1)
        retire_directory(Place(), world.state_dir)
        svcctl.ok("load", *SMALL)
    finally:
        os.close(fd)
    done = svcctl.wait(pid)
    assert done.code == 0, done.all
    bound = json.loads(svcctl.ok("bindings", "-o", "json").out)["bindings"]
    assert [one["label"] for one in bound] == ["new"]
    assert inspect_state.problems() == []


def test_waited_across_unload(svcctl: Forge, world: World) -> None:
    fd = open_locked(world.state_dir, Place())
    try:
        pid = svcctl.start("bind", "new", "tcp", "10.0.0.2", "80")
        wait_until_waiting(world.state_dir, 1)
        retire_directory(Place(), world.state_dir)
    finally:
        os.close(fd)
    assert svcctl.wait(pid).code == 3
    assert inspect_state.directories() == []


def test_two_loads(world: World) -> None:
    with forge() as svcctl:
        for _ in range(5):
            pids = [svcctl.start("load", *SMALL) for _ in range(2)]
            ended = sorted((svcctl.wait(pid) for pid in pids), key=lambda one: one.out)
            assert [one.code for one in ended] == [0, 0], ended
            assert sorted("already loaded" in one.err for one in ended) == [False, True], ended
            assert len(inspect_state.directories()) == 1
            assert inspect_state.problems() == []
            pids = [svcctl.start("unload", "--yes") for _ in range(2)]
            ended = [svcctl.wait(pid) for pid in pids]
            assert [one.code for one in ended] == [0, 0], ended
            assert inspect_state.directories() == []
            assert inspect_state.attached_programs() == []


def test_inherited_lock_is_no_lock_lost(svcctl: Forge, world: World) -> None:
    """A holder that dies lets go at once: nothing has to be cleaned up after a lock."""
    with child("from svcctl.state.lock import open_locked\nfrom svcctl.state.place import Place") as holder:
        holder.run(f"keep.append(open_locked({world.state_dir!r}, Place()))")
        assert not _can_lock(world.state_dir)
        pid = svcctl.start("bind", "web", "tcp", "10.0.0.1", "80")
        wait_until_waiting(world.state_dir, 2)
        holder.process.kill()
        holder.process.wait()
        assert svcctl.wait(pid).code == 0


def _can_lock(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return flock.try_lock(fd, exclusive=True)
    finally:
        os.close(fd)


def test_bindings_are_not_mixed_with_those_of_another_directory(svcctl: Forge, world: World) -> None:
    """A reader that has opened some pins of a directory and some of its successor's is not called consistent."""
    from svcctl.state.session import Reader, read_consistent

    svcctl.ok("bind", "old", "tcp", "10.0.0.1", "80")
    looks = 0

    def look(reader: Reader) -> set[bytes]:
        nonlocal looks
        looks += 1
        if looks == 1:
            svcctl.ok("unload", "--yes")
            svcctl.ok("load", *SMALL)
            svcctl.ok("bind", "new", "tcp", "10.0.0.2", "80")
        return {key for key, _ in reader.map("exact").items()}

    found, consistent = read_consistent(Place(), look)
    new = Binding("new", 6, 4, bytes(10) + b"\xff\xff\x0a\0\0\x02", 32, 80)
    assert (found, consistent, looks) == ({new.key()[4:]}, True, 2)
