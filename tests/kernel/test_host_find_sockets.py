"""Finding the socket of a running service by pid, protocol, address and port."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from svcctl.errors import Conflict, NotFound, PermissionProblem, UsageProblem
from svcctl.host.find_sockets import find_sockets
from svcctl.host.netns import Netns
from tests.lib.child import Child, child, needs_root
from tests.lib.world import World, sh, world

if TYPE_CHECKING:
    from svcctl.host.target import FoundSocket

OTHER = f"svcctl-find-{os.getpid()}"
TCP, UDP = 6, 17
SERVER = """
def serve(address, port, kind=socket.SOCK_STREAM, v6only=None, protocol=0, group=False):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, kind, protocol)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if group: one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if v6only is not None: one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    one.bind((address, port))
    if kind == socket.SOCK_STREAM: one.listen()
    keep.append(one)
    return one.fileno()
DGRAM = socket.SOCK_DGRAM
"""


def raw(address: str) -> bytes:
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        one.sh(f"ip netns add {OTHER}; ip -n {OTHER} link set lo up")
        try:
            yield one
        finally:
            one.sh(f"ip netns del {OTHER}")


@pytest.fixture(params=["sock_diag", "scan"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything has to work on a kernel without tcp_diag and udp_diag as well."""
    if request.param == "scan":

        def missing(*_: object, **__: object) -> None:
            raise FileNotFoundError(2, "No such file or directory", "sock_diag")

        monkeypatch.setattr("svcctl.host.sock_diag.listeners", missing)
    return str(request.param)


def find(
    pid: int, protocol: int, address: str, port: int, *, tree: bool = False, wait: float = 0.0
) -> list[FoundSocket]:
    """Look once unless told otherwise; closes what is found."""
    with Netns.open("/proc/thread-self/ns/net") as netns:
        family = 6 if ":" in address else 4
        found = find_sockets(pid, protocol, family, raw(address), port, netns=netns, tree=tree, wait=wait)
    for one in found:
        assert not os.get_inheritable(one.fd)
        os.close(one.fd)
    return found


def served(one: Child, code: str) -> object:
    return one.run(f"out = {code}")


def test_tcp_and_udp(way: str) -> None:
    with child(SERVER) as one:
        tcp = served(one, "serve('127.0.0.1', 80)")
        udp = served(one, "serve('127.0.0.1', 80, DGRAM)")
        other = served(one, "serve('127.0.0.2', 80)")
        for protocol, address, fd in (
            (TCP, "127.0.0.1", tcp),
            (UDP, "127.0.0.1", udp),
            (TCP, "127.0.0.2", other),
        ):
            (found,) = find(one.pid, protocol, address, 80)
            assert (found.pid, found.target_fd) == (one.pid, fd)
            assert found.info.protocol == protocol
            assert found.info.address == raw(address)
            assert found.info.port == 80


def test_it_is_the_same_socket() -> None:
    """A connection to it can be accepted from the copy."""
    with child(SERVER) as one, Netns.open("/proc/thread-self/ns/net") as netns:
        one.run("serve('127.0.0.1', 81)")
        (found,) = find_sockets(one.pid, TCP, 4, raw("127.0.0.1"), 81, netns=netns)
        with socket.socket(fileno=found.fd) as copy, socket.create_connection(("127.0.0.1", 81)):
            copy.accept()[0].close()


def test_exact_before_wildcard_before_dual_stack(way: str) -> None:
    with child(SERVER) as one:
        dual = served(one, "serve('::', 80, v6only=0)")
        assert find(one.pid, TCP, "127.0.0.1", 80)[0].target_fd == dual
        assert find(one.pid, TCP, "0.0.0.0", 80)[0].target_fd == dual
        assert find(one.pid, TCP, "::1", 80)[0].target_fd == dual
        one.run("keep.pop().close()")
        wildcard = served(one, "serve('0.0.0.0', 80, group=True)")
        six = served(one, "serve('::', 80, v6only=1, group=True)")
        exact = served(one, "serve('127.0.0.1', 80, group=True)")
        assert [found.target_fd for found in find(one.pid, TCP, "127.0.0.1", 80)] == [exact]
        assert [found.target_fd for found in find(one.pid, TCP, "127.0.0.2", 80)] == [wildcard]
        assert [found.target_fd for found in find(one.pid, TCP, "0.0.0.0", 80)] == [wildcard]
        assert [found.target_fd for found in find(one.pid, TCP, "::1", 80)] == [six]
        assert [found.target_fd for found in find(one.pid, TCP, "::", 80)] == [six]


def test_ipv6_only_does_not_serve_ipv4(way: str) -> None:
    with child(SERVER) as one:
        one.run("serve('::', 80, v6only=1)")
        with pytest.raises(NotFound) as caught:
            find(one.pid, TCP, "127.0.0.1", 80)
        assert caught.value.hint is not None
        assert "[::]:80 (IPv6 only)" in caught.value.hint


def test_v4_mapped_bind(way: str) -> None:
    with child(SERVER) as one:
        fd = served(one, "serve('::ffff:127.0.0.1', 80, v6only=0)")
        assert find(one.pid, TCP, "127.0.0.1", 80)[0].target_fd == fd


def test_wildcard_of_the_other_address_is_not_exact(way: str) -> None:
    with child(SERVER) as one:
        one.run("serve('127.0.0.2', 80)")
        with pytest.raises(NotFound):
            find(one.pid, TCP, "127.0.0.1", 80)
        with pytest.raises(NotFound):
            find(one.pid, TCP, "0.0.0.0", 80)


def test_gaps_path_descriptors_duplicates_and_other_families(way: str) -> None:
    """3,000 descriptors: files, sockets of other families, O_PATH, holes; the listener far behind."""
    code = SERVER + (
        "import fcntl, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))\n"
        "null = os.open('/dev/null', os.O_RDONLY)\n"
        "for n in range(2200): os.dup(null)\n"
        "for n in range(300): os.open('/', os.O_PATH)\n"
        "for n in range(300): keep.append(socket.socket(socket.AF_UNIX))\n"
        "for n in range(300): keep.append(socket.socket())\n"
        "keep.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))\n"
        "keep.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))\n"
        "keep.append(socket.socket(socket.AF_INET, socket.SOCK_RAW, 255))\n"
        "for n in range(300): serve('127.0.0.1', 2000 + n)\n"
        "for n in range(40, 2000, 7): os.close(n) if n != null else None\n"
        "first = serve('127.0.0.1', 80)\n"
        "moved = fcntl.fcntl(first, fcntl.F_DUPFD, 6000)\n"
        "fcntl.fcntl(first, fcntl.F_DUPFD, 7000)\n"
        "keep.pop().detach(); os.close(first)\n"
        # An O_PATH descriptor of the socket has its inode and a lower number, but is of no use.
        "for n in range(3):\n    low = os.open(f'/proc/self/fd/{moved}', os.O_PATH)\n"
        "link = lambda fd: os.readlink(f'/proc/self/fd/{fd}')\n"
        "out = link(low) == link(moved) and low < moved"
    )
    with child() as one:
        assert one.run(code)
        assert len(os.listdir(f"/proc/{one.pid}/fd")) > 3000
        (found,) = find(one.pid, TCP, "127.0.0.1", 80)
        assert found.target_fd in (6000, 7000)


def test_group_members_are_all_returned(way: str) -> None:
    with child(SERVER) as one:
        fds = [served(one, "serve('127.0.0.1', 80, group=True)") for _ in range(5)]
        assert sorted(found.target_fd for found in find(one.pid, TCP, "127.0.0.1", 80)) == fds
        more = [served(one, "serve('127.0.0.1', 80, group=True)") for _ in range(20)]
        assert len(more) == 20
        found = find(one.pid, TCP, "127.0.0.1", 80)
        assert len(found) == len({entry.info.cookie for entry in found}) == 16


def test_group_over_forked_children(way: str) -> None:
    """A master with a member of its own, three workers with one each; all have inherited one listener."""
    code = SERVER + (
        "import signal\n"
        "serve('127.0.0.1', 80, DGRAM, group=True); serve('127.0.0.1', 90)\n"
        "r, w = os.pipe(); out = []\n"
        "for n in range(3):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        serve('127.0.0.1', 80, DGRAM, group=True); os.write(w, b'.'); signal.pause()\n"
        "    out.append(pid)\n"
        "n = 0\n"
        "while n < 3: n += len(os.read(r, 1))\n"
    )
    with child() as one:
        workers = one.run(code)
        try:
            found = find(one.pid, UDP, "127.0.0.1", 80, tree=True)
            assert [entry.pid for entry in found] == [one.pid, *workers]
            assert len({entry.info.cookie for entry in found}) == 4
            assert [entry.pid for entry in find(one.pid, UDP, "127.0.0.1", 80)] == [one.pid]
            (shared,) = find(one.pid, TCP, "127.0.0.1", 90, tree=True)
            assert shared.pid == one.pid
            (inherited,) = find(workers[1], TCP, "127.0.0.1", 90)
            assert inherited.info.cookie == shared.info.cookie
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)


def test_descendant_has_it(way: str) -> None:
    """As with `sh -c 'server; true'`: the hint says to look further down."""
    code = SERVER + (
        "import signal\nr, w = os.pipe()\nout = os.fork()\n"
        "if out == 0:\n    serve('127.0.0.1', 80); os.write(w, b'.'); signal.pause()\n"
        "os.read(r, 1)\n"
    )
    with child() as one:
        worker = one.run(code)
        try:
            with pytest.raises(NotFound) as caught:
                find(one.pid, TCP, "127.0.0.1", 80)
            assert f"its descendant {worker} has it: use --tree" in str(caught.value.hint)
            assert find(one.pid, TCP, "127.0.0.1", 80, tree=True)[0].pid == worker
        finally:
            os.kill(worker, signal.SIGKILL)


def test_descendant_in_another_namespace_is_left_out(way: str) -> None:
    code = SERVER + (
        "import signal, ctypes\nr, w = os.pipe()\nout = os.fork()\n"
        "if out == 0:\n"
        "    ctypes.CDLL(None).unshare(0x40000000)\n"
        "    serve('0.0.0.0', 80); os.write(w, b'.'); signal.pause()\n"
        "os.read(r, 1)\n"
    )
    with child() as one:
        worker = one.run(code)
        try:
            with pytest.raises(NotFound):
                find(one.pid, TCP, "127.0.0.1", 80, tree=True)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_socket_of_another_namespace_is_not_taken(way: str) -> None:
    """The process is where it should be, but brought its socket from elsewhere."""
    code = SERVER + (
        "import ctypes\nhome = os.open('/proc/self/ns/net', os.O_RDONLY)\n"
        "ctypes.CDLL(None).unshare(0x40000000)\n"
        "serve('0.0.0.0', 80)\n"
        "assert ctypes.CDLL(None).setns(home, 0) == 0"
    )
    with child(code) as one, pytest.raises(NotFound):
        find(one.pid, TCP, "127.0.0.1", 80)


def test_several_that_are_no_group(way: str) -> None:
    """Bound to different devices, so both may have the port; there is no telling which is meant."""
    code = SERVER + (
        "def on(device):\n"
        "    one = socket.socket(); one.setsockopt(socket.SOL_SOCKET, 25, device)\n"
        "    one.bind(('0.0.0.0', 80)); one.listen(); keep.append(one)\n"
        "on(b'lo'); on(b'dummy9')"
    )
    sh("ip link add dummy9 type veth peer name dummy8")
    try:
        with (
            child(code) as one,
            pytest.raises(Conflict, match="2 sockets, not one SO_REUSEPORT group") as caught,
        ):
            find(one.pid, TCP, "127.0.0.1", 80)
    finally:
        sh("ip link del dummy9")
    assert str(one.pid) in caught.value.message


def test_process_in_another_namespace(w: World) -> None:
    code = SERVER + "serve('127.0.0.1', 80)"
    prefix = ("ip", "netns", "exec", OTHER)
    with child(code, prefix=prefix) as one, Netns.open(f"/run/netns/{OTHER}") as other:
        with pytest.raises(Conflict) as caught:
            find(one.pid, TCP, "127.0.0.1", 80)
        assert str(other.inode) in caught.value.message
        assert str(w.netns_inode) in caught.value.message
        assert f"/proc/{one.pid}/ns/net" in str(caught.value.hint)
        # From outside, with its namespace named, it is found.
        (found,) = find_sockets(one.pid, TCP, 4, raw("127.0.0.1"), 80, netns=other, wait=0)
        assert found.info.netns_inode == other.inode
        os.close(found.fd)


@pytest.mark.parametrize(
    ("code", "protocol", "told"),
    [
        ("serve('127.0.0.1', 80, protocol=262)", TCP, "at this port is an MPTCP socket"),
        ("serve('127.0.0.1', 80, DGRAM, protocol=136)", UDP, "at this port is a UDP-Lite socket"),
        (
            "serve('127.0.0.1', 80, DGRAM); keep[-1].connect(('127.0.0.1', 9))",
            UDP,
            "a UDP socket that is connected",
        ),
        ("serve('127.0.0.1', 80); keep[-1].shutdown(2)", TCP, "a TCP socket that is not listening"),
        ("serve('127.0.0.1', 80, DGRAM)", TCP, "is udp 127.0.0.1:80"),
        ("serve('127.0.0.1', 8080); serve('::', 443)", TCP, "the process has tcp 127.0.0.1:8080, [::]:443"),
        ("pass", TCP, "the process takes connections on no tcp socket"),
        ("[serve('127.0.0.1', 2000 + n) for n in range(20)]", TCP, "and 12 more"),
    ],
)
def test_hint_says_what_there_is(way: str, code: str, protocol: int, told: str) -> None:
    with child(SERVER) as one:
        try:
            one.run(code)
        except AssertionError:
            pytest.skip("this kernel has no such protocol")
        with pytest.raises(NotFound, match="no such socket") as caught:
            find(one.pid, protocol, "127.0.0.1", 80)
    assert told in str(caught.value.hint)


def test_waits_until_it_listens(way: str) -> None:
    with child(SERVER) as one:
        start = time.monotonic()
        one.send("time.sleep(0.3); serve('127.0.0.1', 80)")
        assert len(find(one.pid, TCP, "127.0.0.1", 80, wait=60.0)) == 1
        assert 0.3 <= time.monotonic() - start < 30


def test_gives_up_in_time(way: str) -> None:
    with child() as one:
        start = time.monotonic()
        with pytest.raises(NotFound, match=r"tcp 127\.0\.0\.1:80: no such socket"):
            find(one.pid, TCP, "127.0.0.1", 80, wait=0.3)
        assert 0.25 < time.monotonic() - start < 30


def test_ends_early_when_the_process_exits(way: str) -> None:
    with child() as one:
        one.send("time.sleep(0.1); os._exit(1)")
        start = time.monotonic()
        with pytest.raises(NotFound, match="has exited"):
            find(one.pid, TCP, "127.0.0.1", 80, wait=120.0)
        assert time.monotonic() - start < 60


def test_bad_arguments() -> None:
    with pytest.raises(UsageProblem, match="this command itself"):
        find(os.getpid(), TCP, "127.0.0.1", 80)
    with pytest.raises(NotFound, match="no such process"):
        find(4194303, TCP, "127.0.0.1", 80)
    for port in (0, 65536):
        with child() as one, pytest.raises(UsageProblem, match="port"):
            find(one.pid, TCP, "127.0.0.1", port)


def test_own_descriptors_are_not_the_services(way: str) -> None:
    """svcctl started by the service itself is one of its descendants, and may have inherited the socket."""
    code = (
        "import os, sys, socket\n"
        "from svcctl.host.find_sockets import find_sockets\n"
        "from svcctl.host.netns import Netns\n"
        "from svcctl.errors import NotFound\n"
        "parent = os.getpid(); r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    mine = socket.create_server(('127.0.0.1', 80))\n"
        "    with Netns.open('/proc/thread-self/ns/net') as netns:\n"
        "        address = bytes(10) + b'\\xff\\xff\\x7f\\0\\0\\1'\n"
        "        try: find_sockets(parent, 6, 4, address, 80, netns=netns, tree=True, wait=0)\n"
        "        except NotFound: os.write(w, b'not found')\n"
        "    os._exit(0)\n"
        "os.close(w); out = os.read(r, 100).decode()"
    )
    with child() as one:
        assert one.run(code) == "not found"


def test_status_flags_stay(way: str) -> None:
    with child(SERVER + "import fcntl") as one:
        for flags in ("0", "os.O_NONBLOCK"):
            one.run(f"serve('127.0.0.1', 80); fcntl.fcntl(keep[-1], fcntl.F_SETFL, {flags})")
            before = served(one, "fcntl.fcntl(keep[-1], fcntl.F_GETFL)")
            find(one.pid, TCP, "127.0.0.1", 80)
            assert served(one, "fcntl.fcntl(keep[-1], fcntl.F_GETFL)") == before
            one.run("keep.pop().close()")


def test_rights_are_named(way: str) -> None:
    """Root without CAP_SYS_PTRACE against a root that has everything."""
    code = (
        "import ctypes, struct\n"
        "from svcctl.host.find_sockets import find_sockets\n"
        "from svcctl.host.netns import Netns\n"
        "from svcctl.errors import PermissionProblem\n"
        "header = struct.pack('=II', 0x20080522, 0); data = ctypes.create_string_buffer(24)\n"
        "libc = ctypes.CDLL(None); assert libc.capget(header, data) == 0\n"
        "words = list(struct.unpack('=6I', data.raw)); bit = ~(1 << 19)\n"
        "words[0] &= bit; words[1] &= bit\n"
        "assert libc.capset(header, struct.pack('=6I', *words)) == 0\n"
        "with Netns.open('/proc/thread-self/ns/net') as netns:\n"
        "    try: find_sockets({0}, 6, 4, bytes(10) + b'\\xff\\xff\\x7f\\0\\0\\1', 80, netns=netns)\n"
        "    except PermissionProblem as problem: out = [problem.message, problem.hint]"
    )
    with child(SERVER + "serve('127.0.0.1', 80)") as target, child() as one:
        message, hint = one.run(code.format(target.pid))
    assert str(target.pid) in message
    assert "CAP_SYS_PTRACE" in hint


def test_refusal_of_the_kernel_at_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A security module may let the links be read and refuse the descriptor."""

    def refuse(pidfd: int, fd: int) -> int:
        raise PermissionProblem("take descriptor of process: refused", hint="CAP_SYS_PTRACE")

    monkeypatch.setattr("svcctl.host.process.pidfd_getfd", refuse)
    with child(SERVER + "serve('127.0.0.1', 80)") as one, pytest.raises(PermissionProblem):
        find(one.pid, TCP, "127.0.0.1", 80)


def test_service_that_opens_and_closes_all_the_time(way: str) -> None:
    """The listener is found whatever else appears and goes between the look-ups."""
    code = SERVER + "serve('127.0.0.1', 80)"
    churn = (
        "end = time.monotonic() + 1.0\n"
        "while time.monotonic() < end:\n"
        "    server = socket.create_server(('127.0.0.1', 0))\n"
        "    some = [socket.socket(), server, socket.socket(socket.AF_UNIX)]\n"
        "    [one.close() for one in some]\n"
    )
    with child(code) as one:
        thread = threading.Thread(target=one.run, args=(churn,))
        thread.start()
        try:
            for _ in range(50):
                (found,) = find(one.pid, TCP, "127.0.0.1", 80)
                assert found.info.port == 80
        finally:
            thread.join()
