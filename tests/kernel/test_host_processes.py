"""Processes: pidfds, children, descriptors, namespaces, with real second processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from svcctl.errors import NotFound, PermissionProblem, UsageProblem
from svcctl.host import process
from tests.lib.child import child, needs_root
from tests.lib.world import World, world

GONE = 4194303
DROP = "import os; os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)"


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        yield one


def test_pidfd_getfd() -> None:
    """The copy is of the same open file, and close-on-exec."""
    with child("r, w = os.pipe(); out = r") as one:
        pidfd = process.pidfd_open(one.pid)
        assert not os.get_inheritable(pidfd)
        copy = process.pidfd_getfd(pidfd, one.run("out = r"))
        assert not os.get_inheritable(copy)
        one.run("os.write(w, b'hello')")
        assert os.read(copy, 5) == b"hello"
        os.close(copy)
        with pytest.raises(OSError, match="Bad file descriptor"):
            process.pidfd_getfd(pidfd, 999)
        assert not process.has_exited(pidfd)
        one.end()
        assert process.has_exited(pidfd)
        with pytest.raises(ProcessLookupError):
            process.pidfd_getfd(pidfd, 0)
        os.close(pidfd)


def test_no_such_process() -> None:
    for call in (process.pidfd_open, process.netns_inode, lambda pid: list(process.socket_fds(pid))):
        with pytest.raises(NotFound, match="no such process"):
            call(GONE)
    assert process.children(GONE) == []


def test_thread_is_told() -> None:
    code = "import threading; t = threading.Thread(target=time.sleep, args=(9,), daemon=True); t.start()"
    with child(code) as one:
        thread = one.run("out = t.native_id")
        with pytest.raises(UsageProblem, match="thread"):
            process.pidfd_open(thread)
        one.process.kill()


def test_has_exited_waits_no_longer_than_needed() -> None:
    with child() as one:
        pidfd = process.pidfd_open(one.pid)
        start = time.monotonic()
        assert not process.has_exited(pidfd, 0.05)
        assert time.monotonic() - start >= 0.05
        one.send("os._exit(0)")
        assert process.has_exited(pidfd, 60.0)
        assert time.monotonic() - start < 30
        os.close(pidfd)


def test_netns_inode(w: World) -> None:
    with child() as one:
        assert process.netns_inode(one.pid) == w.netns_inode
        one.run("import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0")
        assert process.netns_inode(one.pid) != w.netns_inode


def test_sockets_only_gaps_and_duplicates() -> None:
    code = (
        "a = socket.socket(); b = socket.socket(socket.AF_UNIX); f = os.open('/dev/null', os.O_RDONLY)\n"
        "import fcntl; d = fcntl.fcntl(a, fcntl.F_DUPFD, 700)\n"
        "inode = lambda fd: os.fstat(fd).st_ino\n"
        "out = [[a.fileno(), inode(a.fileno())], [b.fileno(), inode(b.fileno())], [d, inode(d)]]"
    )
    with child() as one:
        expected = [tuple(pair) for pair in one.run(code)]
        assert sorted(process.socket_fds(one.pid)) == sorted(expected)


def test_children(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import signal\n"
        "r, w = os.pipe()\n"
        "a = os.fork()\n"
        "if a == 0:\n"
        "    b = os.fork()\n"
        "    if b == 0: signal.pause()\n"
        "    os.write(w, b'%d' % b)\n"
        "    signal.pause()\n"
        "import threading\n"
        "def forks():\n"
        "    global c\n"
        "    c = os.fork()\n"
        "    if c == 0: signal.pause()\n"
        "t = threading.Thread(target=forks); t.start(); t.join()\n"
        "out = [a, int(os.read(r, 20)), c]"
    )
    with child() as one:
        a, b, c = one.run(code)
        try:
            for _ in range(2):
                assert sorted(process.children(one.pid)) == sorted([a, c])
                assert sorted(process.children(one.pid, recursive=True)) == sorted([a, b, c])
                found = process.children(one.pid, recursive=True)
                assert found.index(a) < found.index(b)
                # The second time as on a kernel without /proc/PID/task/TID/children.
                monkeypatch.setattr(process, "_children_of", lambda pid: None)
        finally:
            for pid in (a, b, c):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("call", ["list(process.socket_fds({0}))", "process.netns_inode({0})", "getfd({0})"])
def test_rights_are_named(call: str) -> None:
    code = (
        "from svcctl.host import process\n"
        "from svcctl.errors import PermissionProblem\n"
        "def getfd(pid):\n"
        "    fd = process.pidfd_open(pid)\n"
        "    try: return process.pidfd_getfd(fd, 0)\n"
        "    finally: os.close(fd)\n"
        f"{DROP}\n"
        f"try: out = [0, repr({call.format(os.getpid())})]\n"
        "except PermissionProblem as problem: out = [problem.exit_code, problem.hint]"
    )
    with child() as one:
        exit_code, hint = one.run(code)
    assert exit_code == PermissionProblem.exit_code
    assert "CAP_SYS_PTRACE" in hint


def test_command_of_others() -> None:
    with child(prefix=("env", "-i", "A=b")) as one:
        assert " -I -S -c " in process.command(one.pid)
    with child("import ctypes; ctypes.CDLL(None).prctl(15, b'evil\\x1b[31m', 0, 0, 0)") as one:
        one.process.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        assert process.command(one.pid) == "[evil?[31m]"


def test_sockets_of_a_zombie() -> None:
    with child("keep.append(socket.create_server(('127.0.0.1', 0)))") as one:
        one.process.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        assert list(process.socket_fds(one.pid)) == []
        with pytest.raises(NotFound):
            process.netns_inode(one.pid)


def test_own_sockets() -> None:
    with socket.socket() as one:
        assert (one.fileno(), os.fstat(one.fileno()).st_ino) in list(process.socket_fds(os.getpid()))
