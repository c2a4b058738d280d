"""Network namespaces: identity, cookies, entering and leaving."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.errors import NotFound, UsageProblem
from svcctl.host import capability
from svcctl.host.all_netns import Namespaces
from svcctl.host.netns import Netns
from tests.lib.child import child, needs_root
from tests.lib.world import World, world

OTHER = f"svcctl-test-{os.getpid()}"
OWN = "/proc/thread-self/ns/net"


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        one.sh(f"ip netns add {OTHER}")
        try:
            yield one
        finally:
            one.sh(f"ip netns del {OTHER}")


def _cookie_of_thread() -> int:
    with socket.socket() as probe:
        return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, 71, 8), "little")


def test_own(w: World) -> None:
    with Netns.open(OWN) as own:
        assert own.inode == w.netns_inode
        assert own.is_own()
        assert own.cookie() == _cookie_of_thread()
        with own.entered() as inside:
            assert inside is own


def test_default_is_this_process() -> None:
    with Netns.open() as own:
        assert own.inode == os.stat("/proc/self/ns/net").st_ino


def test_another(w: World) -> None:
    with Netns.open(f"/run/netns/{OTHER}") as other:
        assert other.inode != w.netns_inode
        assert not other.is_own()
        home = _cookie_of_thread()
        with other.entered():
            assert w.netns_inode == other.inode
            assert other.is_own()
            there = _cookie_of_thread()
        assert w.netns_inode != other.inode
        assert _cookie_of_thread() == home
        assert other.cookie() == there != home


def test_cookie_by_a_visit_is_the_same(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.18 there is no NS_GET_ID; its answer has to be the cookie."""
    with Netns.open(f"/run/netns/{OTHER}") as other:
        asked = other.cookie()
        monkeypatch.setattr("svcctl.host.netns._NS_GET_ID", 0xB7FF)
        assert other.cookie() == asked
        monkeypatch.setattr("svcctl.host.netns._SO_NETNS_COOKIE", 9999)
        assert other.cookie() is None


@pytest.mark.skipif(capability.kernel_release() < (6, 18), reason="NS_GET_ID is new in 6.18")
def test_cookie_needs_no_visit_on_new_kernels(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with Netns.open(f"/run/netns/{OTHER}") as other:
        monkeypatch.setattr(Netns, "entered", lambda self: pytest.fail("entered"))
        assert other.cookie()


def test_back_home_after_an_error(w: World) -> None:
    home = w.netns_inode
    with Netns.open(f"/run/netns/{OTHER}") as other:
        with pytest.raises(ZeroDivisionError), other.entered():
            _ = 1 / 0
        assert w.netns_inode == home


def test_held_inode_is_not_given_away(w: World) -> None:
    """While the descriptor is open no new namespace gets the number, though its last process has gone."""
    name = f"{OTHER}-short"
    w.sh(f"ip netns add {name}")
    held = Netns.open(f"/run/netns/{name}")
    w.sh(f"ip netns del {name}")
    try:
        for _ in range(20):
            w.sh(f"ip netns add {name}")
            inode = os.stat(f"/run/netns/{name}").st_ino
            w.sh(f"ip netns del {name}")
            assert inode != held.inode
    finally:
        held.close()
        held.close()


def test_what_is_not_a_network_namespace(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "sock"))
    server.close()
    for path in (plain, fifo, tmp_path / "sock", tmp_path, "/proc/self/ns/uts", "\0", "/dev/null"):
        with pytest.raises(UsageProblem, match="network"):
            Netns.open(str(path))
    for path in (tmp_path / "none", plain / "below", "/proc/4194303/ns/net", ""):
        with pytest.raises(NotFound):
            Netns.open(str(path))


def test_rights_are_named() -> None:
    """Neither another process's namespace nor a visit without capabilities."""
    code = (
        "import os, sys\n"
        "from svcctl.host.netns import Netns\n"
        "from svcctl.errors import PermissionProblem\n"
        f"other = Netns.open('/run/netns/{OTHER}')\n"
        "own = Netns.open('/proc/self/ns/net')\n"
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "out = [bool(own.cookie())]\n"
        "def refused(f):\n"
        "    try: f()\n"
        "    except PermissionProblem as problem: return problem.hint\n"
        f"out.append(refused(lambda: Netns.open('/proc/{os.getpid()}/ns/net')))\n"
        "out.append(refused(other.entered().__enter__))\n"
        "other.close(); own.close(); del other, own"
    )
    with child() as one:
        cookie, opening, entering = one.run(code)
    assert cookie or capability.kernel_release() < (5, 14)
    assert "CAP_SYS_PTRACE" in opening
    assert "CAP_SYS_ADMIN" in entering


def test_forgotten_close_is_told() -> None:
    with pytest.warns(ResourceWarning, match="was not closed"):
        Netns.open().__del__()


def test_what_goes_meanwhile_hides_nothing(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ended and a descriptor that was closed since they were listed, before those that are there."""
    listed = os.listdir
    work = (
        "import ctypes, threading\nready = threading.Event()\n"
        "def work():\n    ctypes.CDLL(None).unshare(0x40000000)\n"
        "    scope['found'] = os.stat('/proc/thread-self/ns/net').st_ino\n    ready.set()\n    time.sleep(9999)\n"
        "scope = {}\nthreading.Thread(target=work, daemon=True).start()\nready.wait()\nout = scope['found']"
    )
    with child() as one:
        of_thread = one.run(work)
        # Opened by a name that is removed then: nothing but the descriptor holds it.
        name = f"{OTHER}-held"
        w.sh(f"ip netns add {name}")
        one.run(f"held = os.open('/run/netns/{name}', os.O_RDONLY)")
        of_descriptor = os.stat(f"/run/netns/{name}").st_ino
        w.sh(f"ip netns del {name}")
        gone = {f"/proc/{one.pid}/fd": "999", f"/proc/{one.pid}/task": "4194303"}
        monkeypatch.setattr(os, "listdir", lambda path: [*filter(None, [gone.get(path)]), *listed(path)])
        assert {of_thread, of_descriptor} <= Namespaces(thorough=True).paths.keys()
