"""Where svcctl works: other network namespaces, dead ones, missing bpffs, other mount namespaces, other users."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lib.pins import dump
from tests.lib.servers import REFUSED, Server, ask
from tests.lib.svc import assert_one_error, installed, process_env, svc, svc_process
from tests.lib.world import World

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
VERBS: tuple[tuple[object, ...], ...] = (
    ("load",),
    ("unload", "--yes"),
    ("bind", "web", "tcp", "127.0.0.1", 80),
    ("unbind", "web", "tcp", "127.0.0.1", 80),
    ("unregister", "web", "ipv4", "tcp"),
)
NOUNS: tuple[tuple[object, ...], ...] = (("bindings",), ("destinations",))


@pytest.fixture
def named(world: World) -> World:
    """A world in which `ip netns add` leaves nothing behind on the host."""
    world.sh("mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns")
    return world


def states(bpffs: str) -> list[str]:
    """What svcctl has in a bpffs. (The kernel puts maps.debug and progs.debug into the first one mounted.)"""
    return [name for name in os.listdir(bpffs) if "svcctl" in name]


def inode(path: str) -> int:
    return os.stat(path).st_ino


# Another network namespace, from outside and from inside


def test_netns_from_outside(named: World) -> None:
    """Everything works on a namespace named by --netns; the caller's own is left alone."""
    named.sh("ip netns add blue && ip -n blue link set lo up")
    path = "/run/netns/blue"
    on = ("--netns", path)
    svc(*on, "load", "--max-bindings", 1000)
    assert states(named.bpffs) == [f"{inode(path)}_svcctl"]
    svc(*on, "bind", "web", "tcp", "127.0.0.53", 80)
    with Server(["ip", "netns", "exec", "blue"]) as server:
        opened = server.open("blue")
        svc(*on, "register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
        client = "import socket; print(socket.create_connection(('127.0.0.53', 80), 60).recv(9).decode())"
        heard = named.sh(f"ip netns exec blue {sys.executable} -I -S -c {shlex.quote(client)}")
        assert heard.strip() == "blue"
        assert ask("tcp", "127.0.0.53", 80) == REFUSED
        assert len(svc(*on, "bindings", "-o", "json").json["bindings"]) == 1
        svc(*on, "unregister", "web", "ipv4", "tcp")
    svc("bindings", code=3)
    svc("--netns", f"/proc/{os.getpid()}/ns/net", "bindings", code=3)
    # The same by the environment, and after the command.
    assert svc_process("bindings", env={"SVCCTL_NETNS": path}).out == svc("bindings", "--netns", path).out
    svc(*on, "unload", "--yes")
    assert states(named.bpffs) == []


def test_two_namespaces_do_not_meet(named: World, server: Server) -> None:
    named.sh("ip netns add blue && ip -n blue link set lo up")
    svc("load", "--max-bindings", 1000)
    svc("--netns", "/run/netns/blue", "load", "--max-bindings", 1000)
    svc("bind", "web", "tcp", "127.0.0.53", 80)
    opened = server.open("own")
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    svc("--netns", "/run/netns/blue", "bind", "web", "tcp", "127.0.0.53", 80)
    ran = svc(
        "--netns", "/run/netns/blue", "register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, code=6
    )  # fmt: skip
    assert str(named.netns_inode) in ran.err
    svc("--netns", "/run/netns/blue", "unload", "--yes")
    assert ask("tcp", "127.0.0.53", 80) == "own"


@pytest.mark.parametrize(
    "path",
    ["/run/netns/none", "/etc/passwd", "/proc/self/ns/mnt", "/dev/null", "/proc/999999999/ns/net", "/"],
)
def test_netns_that_is_none(loaded: World, path: str) -> None:
    before = dump(loaded.state_dir)
    for words in (*NOUNS, *VERBS):
        ran = svc("--netns", path, *words, code=None)
        assert_one_error(ran, codes=(2, 5))
        assert path in ran.err
    assert dump(loaded.state_dir) == before


def test_under_ip_netns_exec(named: World) -> None:
    """It hides /sys: a bpffs mounted there would die with the command. Refused, with the command that works."""
    named.sh("ip netns add blue && ip -n blue link set lo up")
    prefix = ["ip", "netns", "exec", "blue"]
    ran = svc_process("load", prefix=prefix, code=1)
    assert_one_error(ran, codes=(1,))
    assert "svcctl --netns" in ran.err
    ran = svc_process("bindings", prefix=prefix, code=3)
    assert "not a BPF file system" in ran.err
    # A bpffs elsewhere is reached, and the namespace is that of the command.
    named.sh("mkdir -p /run/netns/bpf && mount -t bpf -o mode=0711 bpf /run/netns/bpf")
    more = ("--bpffs", "/run/netns/bpf")
    svc_process(*more, "load", "--max-bindings", 100, prefix=prefix)
    assert states("/run/netns/bpf") == [f"{inode('/run/netns/blue')}_svcctl"]
    svc_process(*more, "bind", "web", "tcp", "127.0.0.1", 80, prefix=prefix)
    svc(*more, "--netns", "/run/netns/blue", "unload", "--yes")


def test_under_unshare_m(world: World, server: Server) -> None:
    """A copy of the mounts sees the same bpffs: load there, use it here."""
    svc_process("load", "--max-bindings", 1000, prefix=["unshare", "-m"])
    svc_process("bind", "web", "tcp", "127.0.0.53", 80, prefix=["unshare", "-m"])
    opened = server.open("it")
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", "127.0.0.53", 80) == "it"
    svc_process("unload", "--yes", prefix=["unshare", "-m"])
    assert states(world.bpffs) == []


# Dead namespaces


def comes_again(wanted: int, seconds: float) -> bool:
    """Make `blue` again and again until it gets an inode; False when it did not within that time.

    The kernel gives the lowest free number, and frees that of a dead namespace some time after its end. So those that
    come out lower are kept until then, and after a higher one it is not free yet, or somebody else's.
    """
    lower: list[int] = []
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            subprocess.run(["ip", "netns", "add", "blue"], check=True)
            found = inode("/run/netns/blue")
            if found == wanted:
                return True
            if found < wanted:
                lower.append(os.open("/run/netns/blue", os.O_RDONLY))
            subprocess.run(["ip", "netns", "del", "blue"], check=True)
            if found > wanted:
                time.sleep(0.02)
        return False
    finally:
        for fd in lower:
            os.close(fd)


def made_again(named: World) -> int:
    """A namespace `blue` with the inode of an earlier one that had state; that inode.

    Anything that makes a namespace on this machine may take the number. Then another one is tried.
    """
    end = time.monotonic() + 180
    while time.monotonic() < end:
        named.sh("ip netns add blue && ip -n blue link set lo up")
        wanted = inode("/run/netns/blue")
        on = ("--netns", "/run/netns/blue")
        svc(*on, "load", "--max-bindings", 1000)
        svc(*on, "bind", "old", "tcp", "127.0.0.53", 80)
        named.sh("ip netns del blue")
        if comes_again(wanted, 15):
            return wanted
    raise AssertionError("no inode ever came again")


@pytest.mark.timeout(300)
def test_namespace_made_again_with_the_same_inode(named: World) -> None:
    """tubular 6.2, 5: `load` said "already loaded", `bind` had no effect, `status` showed the dead one's rules."""
    wanted = made_again(named)
    path = "/run/netns/blue"
    on = ("--netns", path)
    old = f"{named.bpffs}/{wanted}_svcctl"
    before = dump(old)
    for words in (
        ("bind", "new", "tcp", "127.0.0.53", 80),
        ("unbind", "old", "tcp", "127.0.0.53", 80),
        ("bindings",),
        ("destinations",),
        ("unregister", "old", "ipv4", "tcp"),
    ):
        ran = svc(*on, *words, code=3)
        assert_one_error(ran, codes=(3,))
        assert f"earlier network namespace with the same inode {wanted}" in ran.err
        assert "svcctl load" in ran.err
    assert dump(old) == before
    ran = svc(*on, "load", "--max-bindings", 1000)
    assert "is gone" in ran.err
    assert "created" in ran.out
    assert svc(*on, "bindings", "-o", "json").json["bindings"] == []
    svc(*on, "bind", "new", "tcp", "127.0.0.53", 80)
    with Server(["ip", "netns", "exec", "blue"]) as server:
        named.sh("ip -n blue link set lo up")
        opened = server.open("new")
        svc(*on, "register-pid", server.pid, "new", "tcp", "127.0.0.1", opened.port)
        client = "import socket; print(socket.create_connection(('127.0.0.53', 80), 60).recv(9).decode())"
        heard = named.sh(f"ip netns exec blue {sys.executable} -I -S -c {shlex.quote(client)}")
        assert heard.strip() == "new"


def test_dead_namespace_is_not_ours(named: World) -> None:
    """Another namespace's remains do not disturb; `unload` of ours leaves them to gc."""
    named.sh("ip netns add blue")
    svc("--netns", "/run/netns/blue", "load", "--max-bindings", 1000)
    named.sh("ip netns del blue")
    svc("load", "--max-bindings", 1000)
    svc("bind", "web", "tcp", "127.0.0.53", 80)
    assert len(states(named.bpffs)) == 2
    svc("unload", "--yes")
    assert len(states(named.bpffs)) == 1


# bpffs


def test_without_bpffs(world: World) -> None:
    """Nothing is mounted in a mount namespace that is not PID 1's, unless asked for."""
    world.sh("umount /sys/fs/bpf")
    for words in (*NOUNS, *VERBS[1:]):
        ran = svc(*words, code=None)
        assert_one_error(ran, codes=(3,))
        assert "not a BPF file system" in ran.err
        assert "svcctl load" in ran.err
    ran = svc("load", code=1)
    assert_one_error(ran, codes=(1,))
    assert "--mount-bpffs" in ran.err
    assert "bpf /sys/fs/bpf" not in Path("/proc/self/mounts").read_text()
    ran = svc("load", "--mount-bpffs", "--max-bindings", 1000)
    assert "mounted" in ran.err
    assert os.stat("/sys/fs/bpf").st_mode & 0o777 == 0o711
    svc("bind", "web", "tcp", "127.0.0.53", 80)
    assert ask("tcp", "127.0.0.53", 80) == REFUSED


def test_load_mounts_bpffs_where_pid_1_sees_it(world: World) -> None:
    """In a pid namespace of its own the command's mount namespace is that of PID 1."""
    script = (
        f"mount -t proc proc /proc && umount /sys/fs/bpf; {shlex.join(installed())} load --max-bindings 100"
    )
    script += " && stat -c %a:%T /sys/fs/bpf && ls /sys/fs/bpf"
    done = subprocess.run(
        ["unshare", "-m", "--pid", "--fork", "sh", "-ec", script],
        capture_output=True, text=True, env=process_env(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "mounted a BPF file system on /sys/fs/bpf (mode 0711)" in done.stderr
    assert f"{world.netns_inode}_svcctl" in done.stdout
    assert "711:" in done.stdout
    assert states(world.bpffs) == []  # ours is another one


@pytest.mark.parametrize("path", ["/nowhere", "/etc/passwd", "/tmp"])
def test_bpffs_that_is_none(world: World, path: str) -> None:
    for words in (*NOUNS, *VERBS[1:]):
        ran = svc("--bpffs", path, *words, code=3)
        assert_one_error(ran, codes=(3,))
        assert path in ran.err


# Rights


def test_not_root(loaded: World) -> None:
    """Exit 4, what is in the way and what would help; nothing changed."""
    svc("bind", "web", "tcp", "127.0.0.1", 80)
    before = dump(loaded.state_dir)
    for words in (*NOUNS, *VERBS):
        ran = svc_process(*words, prefix=NOBODY, code=4)
        assert_one_error(ran, codes=(4,))
        assert "hint: " in ran.err
        assert "root" in ran.err
    assert dump(loaded.state_dir) == before
    assert svc_process("version", prefix=NOBODY).out


def test_not_root_and_not_loaded(world: World) -> None:
    ran = svc_process("load", prefix=NOBODY, code=4)
    assert_one_error(ran, codes=(4,))
    for words in (*NOUNS, *VERBS[2:]):
        assert_one_error(svc_process(*words, prefix=NOBODY, code=None), codes=(3, 4))
    assert states(world.bpffs) == []


def test_not_root_registers_no_process(loaded: World, server: Server) -> None:
    opened = server.open("it")
    ran = svc_process(
        "register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, "--wait", 0, prefix=NOBODY, code=4
    )
    assert_one_error(ran, codes=(4,))
    assert "CAP_SYS_PTRACE" in ran.err


def test_root_without_capabilities_loads_nothing(world: World) -> None:
    """Owner of bpffs, but bpf(2) is refused: the capabilities are named, nothing is left behind."""
    if Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text().strip() == "0":
        pytest.skip("unprivileged bpf() is allowed here")
    none = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    ran = svc_process("load", "--max-bindings", 100, prefix=none, code=4)
    assert_one_error(ran, codes=(4,))
    assert "CAP_BPF" in ran.err
    assert states(world.bpffs) == []
