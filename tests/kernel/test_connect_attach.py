"""Where the balancer may be attached, and beside whom; what stays when commands are said again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.bpf import probe
from svcctl.bpf.link import Link, query_programs
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.host.cgroup import open_cgroup
from svcctl.maps import catalog
from svcctl.state.balancer import SET_RETVAL, SOCK_ADDR
from svcctl.state.programs import object_path
from tests.lib.balanced import SMALL, VIP, Balanced, hierarchy, inside, own_cgroup
from tests.lib.bpf_source import compile_bpf
from tests.lib.elf import programs
from tests.lib.svc import assert_one_error, svc
from tests.lib.world import World
from tests.lib.world import world as new_world

CONNECT4 = 10


def ids(path: str, hook: int = CONNECT4) -> list[int]:
    """Programs on exactly this cgroup."""
    fd = open_cgroup(path)
    try:
        return query_programs(fd, hook)
    finally:
        os.close(fd)


def test_not_a_cgroup2_directory(world: World, tmp_path: Path) -> None:
    svc("load", "--no-dispatcher")
    for path in (tmp_path, "/proc", tmp_path / "none", __file__):
        ran = svc("attach", "cgroup", path, code=None)
        assert_one_error(ran, codes=(2, 5))
        assert str(path) in ran.err
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        old = [line.split()[4] for line in lines if " - cgroup cgroup " in line]
    for path in old[:1]:  # version 1
        assert_one_error(svc("attach", "cgroup", path, code=None), codes=(2,))
    assert not os.path.exists(f"{world.state_dir}/services")


def test_a_second_cgroup_is_refused(balanced: Balanced) -> None:
    with own_cgroup() as other:
        ran = svc("attach", "cgroup", other, code=6)
        assert balanced.cgroup in ran.err
        assert ids(other) == []


@contextlib.contextmanager
def another_state() -> Iterator[World]:
    """A second world within the first, with a state directory of its own, loaded."""
    with new_world() as made:
        svc("load", "--no-dispatcher")
        yield made
        svc("unload", "--yes")


@pytest.mark.parametrize("where", ["on", "above", "below", "beside"])
def test_over_all_state_directories(world: World, where: str) -> None:
    """One balancer on any way from a cgroup to the root: asked of the kernel, whoever made it."""
    with (
        own_cgroup() as parent,
        own_cgroup(parent) as middle,
        own_cgroup(middle) as leaf,
        own_cgroup(parent) as side,
    ):
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", middle, *SMALL)
        with another_state():
            target = {"on": middle, "above": parent, "below": leaf, "beside": side}[where]
            if where == "beside":
                svc("attach", "cgroup", target, *SMALL)
                assert len(ids(target)) == 1
            else:
                ran = svc("attach", "cgroup", target, *SMALL, code=6)
                assert middle in ran.err
                assert len(ids(middle)) == 1
                assert target == middle or ids(target) == []
        svc("detach", "cgroup")
        assert ids(middle) == []
        with another_state():
            svc("attach", "cgroup", leaf, *SMALL)
        svc("unload", "--yes")


def test_by_another_mount_of_the_hierarchy(world: World, tmp_path: Path) -> None:
    """What is above a cgroup is above it by whatever path it is named."""
    with own_cgroup() as parent, own_cgroup(parent) as leaf:
        world.sh(f"mount -t cgroup2 none {tmp_path}")
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", parent, *SMALL)
        with another_state():
            other = f"{tmp_path}/{os.path.relpath(leaf, hierarchy())}"
            ran = svc("attach", "cgroup", other, *SMALL, code=6)
            assert f"is above it, on {parent}" in ran.err
            assert ids(leaf) == []
        svc("unload", "--yes")


def test_said_again(balanced: Balanced) -> None:
    """Neither `attach` nor `load` said again makes a second program, or changes the first."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    before = ids(balanced.cgroup)
    for words in (
        ("attach", "cgroup", balanced.cgroup),
        ("load",),
        ("load", "--no-dispatcher"),
        ("attach", "cgroup", balanced.cgroup),
    ):
        svc(*words, code=None)
        assert ids(balanced.cgroup) == before, words
        assert balanced.ask(VIP, 80) == backend
    assert balanced.stats("web").connections == 4


def test_detach_and_attach(balanced: Balanced) -> None:
    """Services stay; in between, connections are the network's business."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    for _ in range(2):
        svc("detach", "cgroup")
        assert all(not ids(balanced.cgroup, shape.hook) for shape in catalog.CONNECT)
        assert balanced.error(VIP, 80) == errno.ENETUNREACH
        svc("attach", "cgroup", balanced.cgroup)
        assert balanced.ask(VIP, 80) == backend


def test_cgroup_that_was_removed(world: World) -> None:
    """Its links are dead; the balancer can be attached somewhere else, with the services it has."""
    with own_cgroup() as path:
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", path, *SMALL)
        svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", "127.0.1.1:8080")
    with own_cgroup() as other, inside(other), socket.create_server(("127.0.1.1", 8080)):
        ran = svc("attach", "cgroup", other, code=None)
        if ran.code == 6:  # it says what to do
            assert "detach cgroup" in ran.err
            svc("detach", "cgroup")
            svc("attach", "cgroup", other)
        with socket.create_connection((VIP, 80), timeout=60) as one:
            assert one.getpeername() == (VIP, 80)
        svc("unload", "--yes")


def test_the_root_is_found(world: World) -> None:
    """Without a path it is the root of the hierarchy; asked only, this machine's other sockets stay as they are."""
    svc("load", "--no-dispatcher")
    ran = svc("attach", "cgroup", "--dry-run", "-o", "json", code=None)
    assert hierarchy() in ran.out + ran.err


FOREIGN = """
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} runs SEC(".maps");

SEC("cgroup/connect4")
int theirs(struct bpf_sock_addr *ctx)
{
    __u32 zero = 0;
    __u64 *count = bpf_map_lookup_elem(&runs, &zero);

    if (count)
        __sync_fetch_and_add(count, 1);
    return 1;
}

SEC("cgroup/connect4")
int deny(struct bpf_sock_addr *ctx)
{
    return ctx->user_port != 0x901f; /* 8080, network byte order: a backend */
}
"""


class Theirs:
    """Somebody else's program on connect4 and how often it ran."""

    def __init__(self, program: Program, runs: object) -> None:
        self.program, self._runs = program, runs

    @property
    def runs(self) -> int:
        data = self._runs.lookup(bytes(4))  # type: ignore[attr-defined]
        return int.from_bytes(data, "little")


@contextlib.contextmanager
def theirs(directory: Path, which: str = "theirs") -> Iterator[Theirs]:
    with Object.open(compile_bpf(FOREIGN, directory, "foreign")) as built:
        built.load()
        with built.program(which) as program, built.map("runs") as runs:
            yield Theirs(program, runs)


@contextlib.contextmanager
def linked(program: Program, path: str) -> Iterator[None]:
    fd = open_cgroup(path)
    try:
        with Link.create(program, fd, CONNECT4):
            yield
    finally:
        os.close(fd)


@pytest.mark.parametrize("order", ["before", "after"])
def test_foreign_program_stays_and_works(world: World, tmp_path: Path, order: str) -> None:
    """On the same hook of the same cgroup, through attach, attach again, upgrade, detach and unload. T30."""
    with (
        own_cgroup() as path,
        inside(path),
        theirs(tmp_path) as other,
        contextlib.ExitStack() as stack,
        socket.create_server(("127.0.1.1", 8080)),
    ):
        if order == "before":
            stack.enter_context(linked(other.program, path))
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", path, *SMALL)
        if order == "after":
            stack.enter_context(linked(other.program, path))
        svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", "127.0.1.1:8080")
        runs = other.runs
        for words in (("attach", "cgroup", path), ("load",), ("upgrade", "--force")):
            svc(*words, code=None)
            assert other.program.info.id in ids(path)
            assert len(ids(path)) == 2
            with socket.create_connection((VIP, 80), timeout=60) as one:
                assert one.getpeername() == (VIP, 80)
            runs += 1
            assert other.runs == runs
        svc("detach", "cgroup")
        assert ids(path) == [other.program.info.id]
        svc("attach", "cgroup", path)
        svc("unload", "--yes")
        assert ids(path) == [other.program.info.id]
        with socket.socket() as one:
            assert one.connect_ex((VIP, 80)) == errno.ENETUNREACH
        assert other.runs == runs + 1
    assert not os.path.exists(world.state_dir)


def test_foreign_refusal_counts(balanced: Balanced, tmp_path: Path) -> None:
    """A program above that sees the rewritten address, and refuses it, is obeyed."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    with theirs(tmp_path, "deny") as other, linked(other.program, balanced.cgroup):
        assert balanced.error(VIP, 80) == errno.EPERM
    assert balanced.ask(VIP, 80) == backend
    assert balanced.reverse() == {}


def test_foreign_program_below(world: World, tmp_path: Path) -> None:
    """In a cgroup below ours it runs first, and ours after it."""
    with (
        own_cgroup() as path,
        own_cgroup(path) as below,
        theirs(tmp_path) as other,
        linked(other.program, below),
    ):
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", path, *SMALL)
        with inside(below), socket.create_server(("127.0.1.1", 8080)):
            svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", "127.0.1.1:8080")
            with socket.create_connection((VIP, 80), timeout=60) as one:
                assert one.getpeername() == (VIP, 80)
        assert other.runs == 1
        svc("unload", "--yes")


def test_the_helper_is_there(balanced: Balanced) -> None:
    """What is loaded can say EHOSTUNREACH, where the kernel lets it: as the kernel has it, and in the object. T5."""
    built = programs(object_path("connect"))
    for name in catalog.REFUSING_HOOKS:
        assert SET_RETVAL in built[name].helpers
        assert SET_RETVAL not in built[f"{name}_eperm"].helpers
    if not probe.has_helper(SOCK_ADDR, SET_RETVAL, CONNECT4):
        pytest.skip("this kernel has no bpf_set_retval in these hooks")
    if shutil.which("bpftool") is None:
        pytest.skip("needs bpftool")
    for name in catalog.REFUSING_HOOKS:
        done = subprocess.run(
            ["bpftool", "-j", "prog", "dump", "xlated", "pinned", f"{balanced.state_dir}/prog_{name}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "bpf_set_retval" in json.dumps(json.loads(done.stdout)), name
