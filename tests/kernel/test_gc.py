"""gc: leftovers of killed loads, dead namespaces, unused labels; what is in use stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from svcctl.bpf.link import Link
from svcctl.host.flock import lock
from svcctl.maps import enums
from svcctl.state.place import directory_name
from tests.lib.child import child
from tests.lib.run import ok, svcctl
from tests.lib.sockets import register, tcp, writer
from tests.lib.svc import process_env
from tests.lib.until import PATIENCE, until
from tests.lib.world import World


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100")
    return world


def dead_state(world: World) -> str:
    """A state directory whose namespace lived only as long as the command that loaded it."""
    before = set(os.listdir(world.bpffs))
    load = f"ip link set lo up; {sys.executable} -m svcctl load --max-bindings 10"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", load],
        capture_output=True,
        text=True,
        env=process_env(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (name,) = set(os.listdir(world.bpffs)) - before
    wait_for_end(f"{world.bpffs}/{name}")
    return f"{world.bpffs}/{name}"


def wait_for_end(path: str) -> None:
    """Until the kernel has cleaned up after the namespace of a state directory: its link has no target then."""
    with Link.open_pinned(f"{path}/link_netns") as link:
        until(lambda: not link.info.netns_inode, path)


def leftover(world: World, name: str = "svcctl_tmp_1_1") -> str:
    """A temporary directory with a program attached: what a load killed before its rename leaves."""
    path = f"{world.bpffs}/{name}"
    os.mkdir(path, 0o700)
    return path


def test_nothing_to_do(loaded: World) -> None:
    before = sorted(os.listdir(loaded.bpffs))
    with writer() as state:
        generation = state.meta().generation
    done = ok("gc")
    assert done.out == ""
    assert done.err == "nothing to remove\n"
    assert ok("gc", "-o", "json").json == {"schema": 1, "changes": []}
    assert sorted(os.listdir(loaded.bpffs)) == before
    with writer() as state:
        assert state.meta().generation == generation


def test_leftovers_of_killed_loads(world: World) -> None:
    path = leftover(world)
    assert ok("gc", "--dry-run").out == f"would remove {path} (left over from a load that was interrupted)\n"
    assert os.path.isdir(path)
    done = ok("gc")
    assert done.out == f"removed {path} (left over from a load that was interrupted)\n"
    assert done.err == ""  # said once
    assert not os.path.exists(path)
    path = leftover(world)
    assert f"removed {path}, left over" in ok("load", "--max-bindings", "100").err
    assert not os.path.exists(path)


def test_a_load_at_work_is_left_alone(world: World) -> None:
    path = leftover(world)
    fd = os.open(path, os.O_RDONLY)
    try:
        lock(fd, True, 1)
        ok("gc")
        assert os.path.isdir(path)
    finally:
        os.close(fd)
    ok("gc")
    assert not os.path.exists(path)


def test_dead_namespaces(loaded: World) -> None:
    path = dead_state(loaded)
    assert ok("gc", "--dry-run").out == f"would remove {path} (its network namespace is gone)\n"
    assert os.path.isdir(path)
    assert ok("gc").out == f"removed {path} (its network namespace is gone)\n"
    assert not os.path.exists(path)
    assert os.path.isdir(loaded.state_dir)
    assert ok("gc").out == ""


def test_a_dead_directory_with_our_inode(loaded: World) -> None:
    ok("detach", "netns")
    with writer() as state:
        state.put_meta(state.meta()._replace(netns_cookie=(1 << 64) - 1))
    ok("gc")
    assert not os.path.exists(loaded.state_dir)


def test_a_dead_directory_with_the_inode_of_a_mounted_namespace(loaded: World, tmp_path: Path) -> None:
    """The kernel uses numbers again at once: here for one that only a mount keeps, in another mount namespace."""
    ok("detach", "netns")
    kept = tmp_path / "kept"
    kept.touch()
    code = (
        f"import subprocess\nsubprocess.run(['unshare', '--net={kept}', 'true'], check=True)\n"
        f"out = os.stat({str(kept)!r}).st_ino"
    )
    with child(prefix=("unshare", "-m")) as one:
        inode = one.run(code)
        assert inode != kept.stat().st_ino
        path = f"{loaded.bpffs}/{directory_name(inode)}"
        os.rename(loaded.state_dir, path)
        assert ok("gc").out == f"removed {path} (its network namespace is gone)\n"


def test_a_link_detached_by_hand_is_not_a_dead_namespace(loaded: World) -> None:
    with Link.open_pinned(f"{loaded.state_dir}/link_netns") as link:
        link.detach()
    assert ok("gc").out == ""
    assert os.path.isdir(loaded.state_dir)
    assert "attachments" in svcctl("check").out
    with writer() as state:
        state.put_meta(state.meta()._replace(netns_cookie=(1 << 64) - 1))
    ok("gc")
    assert not os.path.exists(loaded.state_dir)


def test_other_namespaces_that_live_are_left_alone(loaded: World) -> None:
    with subprocess.Popen(
        ["unshare", "-n", "sh", "-c", f"{sys.executable} -m svcctl load --max-bindings 10 >&2; echo; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=process_env(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        inode = os.stat(f"/proc/{process.pid}/ns/net").st_ino
        path = f"{loaded.bpffs}/{directory_name(inode)}"
        assert os.path.isdir(path)
        ok("gc")
        assert os.path.isdir(path)
        process.communicate(b"\n", timeout=PATIENCE)
    wait_for_end(path)
    ok("gc")
    assert not os.path.exists(path)


def test_unused_destinations(loaded: World) -> None:
    ok("bind", "bound", "tcp", "127.0.0.1", "80")
    ok("bind", "registered", "tcp", "127.0.0.1", "81")
    ok("bind", "unused", "tcp", "127.0.0.1", "82")
    with tcp() as one, tcp() as two:
        register("registered", 4, 6, one)
        register("unused", 4, 6, two)
        ok("unbind", "registered", "tcp", "127.0.0.1", "81")
        ok("unbind", "unused", "tcp", "127.0.0.1", "82")
        assert ok("gc").out == ""
        two.close()
        expected = "unused#tcp:ipv4 (no bindings, no live sockets)\n"
        assert ok("gc", "--dry-run").out == f"would remove {expected}"
        assert ok("gc").out == f"removed {expected}"
        assert ok("gc").out == ""
        labels = {row["label"] for row in ok("destinations", "-o", "json").json["destinations"]}
        assert labels == {"bound", "registered"}
        ok("check")


def test_pins_of_an_upgrade_that_died(loaded: World) -> None:
    os.link(f"{loaded.state_dir}/exact", f"{loaded.state_dir}/next_exact")
    assert "next_exact (left over from an upgrade)" in ok("gc").out
    assert not os.path.exists(f"{loaded.state_dir}/next_exact")
    ok("check")


def test_a_swap_under_way_is_finished_not_dropped(loaded: World) -> None:
    """Behind its mark a swap goes forward; gc, a writer like any other, finishes it first."""
    with writer() as state:
        meta = state.meta()
        state.put_meta(
            meta._replace(
                generation=meta.generation | 1, swap_phase=enums.SWAP_FORWARD, mark_command=b"upgrade"
            )
        )
        os.link(f"{loaded.state_dir}/exact", f"{loaded.state_dir}/next_exact")
    done = ok("gc")
    assert "repairing after 'upgrade'" in done.err
    assert not os.path.exists(f"{loaded.state_dir}/next_exact")
    ok("check")


def test_not_loaded(world: World) -> None:
    assert ok("gc").out == ""
    assert svcctl("gc", "--bpffs", "/tmp").code == 3


def test_locks(loaded: World) -> None:
    root = os.open(loaded.bpffs, os.O_RDONLY)
    try:
        lock(root, True, 1)
        assert svcctl("gc", "--lock-timeout", "0").code == 9
    finally:
        os.close(root)
    with writer():
        assert svcctl("gc", "--lock-timeout", "0").code == 9
