"""Mounting bpffs, telling it apart, renaming in it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.errors import NotFound
from svcctl.host import bpffs
from tests.lib.child import ROOT, child, needs_root
from tests.lib.world import World, world


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        yield one


def test_is_bpffs(w: World, tmp_path: Path) -> None:
    os.mkdir(f"{w.bpffs}/below")
    try:
        assert bpffs.is_bpffs(w.bpffs)
        assert bpffs.is_bpffs(f"{w.bpffs}/below")
    finally:
        os.rmdir(f"{w.bpffs}/below")
    assert not bpffs.is_bpffs(str(tmp_path))
    assert not bpffs.is_bpffs(str(tmp_path / "none"))
    assert not bpffs.is_bpffs("/proc/self/status/below")


@pytest.mark.parametrize("mode", [0o711, 0o755, 0o700])
def test_mount(w: World, tmp_path: Path, mode: int) -> None:
    bpffs.mount(str(tmp_path), mode)
    try:
        assert bpffs.is_bpffs(str(tmp_path))
        assert stat.S_IMODE(tmp_path.stat().st_mode) == mode | stat.S_ISVTX  # bpffs is always sticky
        with open("/proc/thread-self/mountinfo", encoding="utf-8") as lines:
            (options,) = [line.split()[5] for line in lines if line.split()[4] == str(tmp_path)]
        assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
    finally:
        w.sh(f"umount {tmp_path}")


def test_mount_nowhere(w: World, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such directory"):
        bpffs.mount(str(tmp_path / "none"))


def test_mount_without_rights(w: World, tmp_path: Path) -> None:
    code = (
        "from svcctl.host import bpffs\n"
        "from svcctl.errors import PermissionProblem\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "try: bpffs.mount('/tmp')\n"
        "except PermissionProblem as problem: out = problem.hint"
    )
    with child() as one:
        assert "CAP_SYS_ADMIN" in one.run(code)


def test_rename(w: World) -> None:
    one, two, three = (f"{w.bpffs}/{name}" for name in ("one", "two", "three"))
    os.mkdir(one)
    os.mkdir(f"{one}/inside")
    os.mkdir(two)
    with pytest.raises(FileExistsError) as caught:
        bpffs.rename_noreplace(one, two)
    assert (caught.value.filename, caught.value.filename2) == (one, two)
    bpffs.rename_noreplace(one, three)
    assert os.path.isdir(f"{three}/inside")
    assert not os.path.exists(one)
    with pytest.raises(FileNotFoundError):
        bpffs.rename_noreplace(one, three + "x")
    os.rmdir(f"{three}/inside")
    os.rmdir(three)
    os.rmdir(two)


def test_mount_namespace(w: World) -> None:
    """A world has a mount namespace of its own; here PID 1's may be readable or not."""
    assert not bpffs.in_pid1_mount_namespace()
    ids = bpffs._mount_ids("/proc/thread-self/mountinfo")
    assert ids
    assert ids.isdisjoint(bpffs._mount_ids("/proc/1/mountinfo"))


def test_mount_namespace_of_pid_1(w: World) -> None:
    """A new pid namespace with its own /proc: its first process is in the mount namespace of its PID 1."""
    code = "import sys, os; sys.path.insert(0, sys.argv[1]); from svcctl.host import bpffs; print(bpffs.{0})"
    for call, answer in (
        ("in_pid1_mount_namespace()", "True"),
        ("_mount_ids('/proc/1/mountinfo') == bpffs._mount_ids('/proc/thread-self/mountinfo')", "True"),
    ):
        command = f'unshare --pid --fork --mount-proc {sys.executable} -c "{code.format(call)}" {ROOT}'
        assert w.sh(command).strip() == answer
