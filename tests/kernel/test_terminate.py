"""backend delete --terminate, drain --after, and what gc does for services, with real sockets in many namespaces."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from svcctl.errors import SvcctlError
from svcctl.host.sock_destroy import UDP, Diag, Peer
from svcctl.maps.layouts import U64
from svcctl.model.prefix import MAPPED
from svcctl.model.service_endpoint import parse_backend
from svcctl.state import drains, services
from svcctl.state.place import Place
from svcctl.state.remembered import stands
from svcctl.state.service_gc import find
from svcctl.state.session import open_reader
from svcctl.state.terminate import terminate
from svcctl.state.writer import open_writer
from tests.lib.outgoing import OTHER_NETNS, balancer, clear_services, client, udp_receiver
from tests.lib.run import ok, svcctl

ENDED = errno.ENOTCONN
"""What getpeername of an ended UDP socket says."""
V6 = "socket.AF_INET6"


@pytest.fixture(scope="module")
def attached() -> Iterator[str]:
    """The path of a cgroup with the balancer, in a world for all tests of this file."""
    with balancer() as path:
        yield path


@pytest.fixture
def group(attached: str) -> Iterator[str]:
    """That cgroup, with a service on two backends for UDP and TCP; no service is left after the test."""
    ok("service", "add", "dns", "--frontend", "10.96.0.53:53/udp", "--frontend", "10.96.0.53:53/tcp")
    ok("backend", "add", "dns", "127.0.0.2:5300", "127.0.0.3:5300")
    yield attached
    clear_services()


def only(backend: str) -> None:
    """Have new connections of `dns` go to one backend."""
    for one in ("127.0.0.2:5300", "127.0.0.3:5300"):
        ok("backend", "set", "dns", one, "--weight", "1" if one == backend else "0")


def ended(*words: str) -> str:
    """Run a command, return its notice of ended sockets."""
    return next(line for line in ok(*words).err.splitlines() if line.startswith(("ended", "would end")))


DELETE = ("backend", "delete", "dns", "127.0.0.2:5300", "--terminate")


def test_udp_of_every_form_in_every_namespace(group: str) -> None:
    """T8, T10, T11: IPv4 and v4-mapped; own namespace, and one that only a process has."""
    only("127.0.0.2:5300")
    code = f"""
udp('plain', '10.96.0.53', 53)
udp('mapped', '::ffff:10.96.0.53', 53, {V6})
udp('direct', '127.0.0.2', 5300)
udp('other', '127.0.0.3', 5300)
"""
    with client(group, code) as here, client(group, code, prefix=OTHER_NETNS) as there:
        assert here.run("out = peer('plain')") == ["10.96.0.53", 53]
        assert ended(*DELETE) == "ended 4 UDP and 0 TCP sockets"
        for one in (here, there):
            assert one.run("out = [peer('plain'), peer('mapped')]") == [ENDED, ENDED]
            assert one.run("out = peer('direct')") == ["127.0.0.2", 5300]
            assert one.run("out = peer('other')") == ["127.0.0.3", 5300]
        ok("backend", "set", "dns", "127.0.0.3:5300", "--weight", "1")
        here.run("udp('again', '10.96.0.53', 53)")
        assert here.run("out = peer('again')") == ["10.96.0.53", 53]


def test_ipv6(group: str) -> None:
    ok("service", "add", "six", "--frontend", "[fd00::53]:53/udp", "--backend", "[::1]:5300")
    with client(group, f"udp('a', 'fd00::53', 53, {V6}); udp('b', '::1', 5300, {V6})") as one:
        assert one.run("out = peer('a')") == ["fd00::53", 53]
        assert (
            ended("backend", "delete", "six", "[::1]:5300", "--terminate") == "ended 1 UDP and 0 TCP sockets"
        )
        assert one.run("out = [peer('a'), peer('b')]") == [ENDED, ["::1", 5300]]


def test_a_namespace_that_only_a_mount_keeps(group: str, tmp_path: object) -> None:
    """A socket that its process took along when it left."""
    only("127.0.0.2:5300")
    where = f"{tmp_path}/ns"
    with open(where, "w"):
        pass
    code = """
import ctypes
libc = ctypes.CDLL(None)
home = os.open('/proc/self/ns/net', os.O_RDONLY)
libc.unshare(0x40000000)
os.system('ip link set lo up')
udp('a', '10.96.0.53', 53)
"""
    with client(group, code) as one:
        try:
            subprocess.run(["mount", "--bind", f"/proc/{one.pid}/ns/net", where], check=True)
            one.run("out = libc.setns(home, 0x40000000)")
            assert ended(*DELETE) == "ended 1 UDP and 0 TCP sockets"
            assert one.run("out = peer('a')") == ENDED
        finally:
            subprocess.run(["umount", where], check=False)


def test_unconnected_sockets_keep_their_port_and_move_on(group: str) -> None:
    only("127.0.0.2:5300")
    code = "s = socks['u'] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))"
    with (
        udp_receiver("127.0.0.2", 5300) as first,
        udp_receiver("127.0.0.3", 5300) as second,
        client(group, code) as one,
    ):
        for receiver in (first, second):
            receiver.settimeout(5)
        port = one.run("s.sendto(b'1', ('10.96.0.53', 53)); out = s.getsockname()[1]")
        assert first.recvfrom(10) == (b"1", ("127.0.0.1", port))
        ok("backend", "set", "dns", "127.0.0.3:5300", "--weight", "1")
        assert ended(*DELETE) == "ended 0 UDP and 0 TCP sockets"
        assert one.run("s.sendto(b'2', ('10.96.0.53', 53)); out = s.getsockname()[1]") == port
        assert second.recvfrom(10) == (b"2", ("127.0.0.1", port))


def test_tcp_only_when_asked(group: str) -> None:
    only("127.0.0.2:5300")
    code = f"""
serve('127.0.0.2', 5300)
tcp('plain', '10.96.0.53', 53)
tcp('mapped', '::ffff:10.96.0.53', 53, {V6})
tcp('direct', '127.0.0.2', 5300)
"""
    with client(group, code) as here, client(group, code, prefix=OTHER_NETNS) as there:
        assert ended(*DELETE) == "ended 0 UDP and 0 TCP sockets"
        assert here.run("out = [send('plain'), send('mapped')]") == [1, 1]
        # The backend has gone already; saying it again with --tcp ends what was left.
        assert ended(*DELETE, "--tcp", "--dry-run") == "would end 0 UDP and 4 TCP sockets"
        assert here.run("out = [send('plain'), send('mapped')]") == [1, 1]
        assert ended(*DELETE, "--tcp") == "ended 0 UDP and 4 TCP sockets"
        for one in (here, there):
            assert one.run("out = [send('plain'), send('mapped')]") == [errno.ECONNABORTED] * 2
            assert one.run("out = send('direct')") == 1
        assert ended(*DELETE, "--tcp") == "ended 0 UDP and 0 TCP sockets"


def test_tcp_needs_terminate(group: str) -> None:
    assert svcctl("backend", "delete", "dns", "127.0.0.2:5300", "--tcp").code == 2


def test_another_service_on_the_same_backend_is_left_alone(group: str) -> None:
    ok("service", "add", "alias", "--frontend", "10.96.0.54:53/udp", "--backend", "127.0.0.2:5300")
    only("127.0.0.2:5300")
    with client(group, "udp('dns', '10.96.0.53', 53); udp('alias', '10.96.0.54', 53)") as one:
        assert ended(*DELETE) == "ended 1 UDP and 0 TCP sockets"
        assert one.run("out = [peer('dns'), peer('alias')]") == [ENDED, ["10.96.0.54", 53]]


def test_a_socket_that_moved_on_is_left_alone(group: str) -> None:
    only("127.0.0.2:5300")
    with client(group, "udp('a', '10.96.0.53', 53)") as one:
        only("127.0.0.3:5300")
        one.run("socks['a'].connect(('10.96.0.53', 53))")
        # UDP keeps its backend while that may be chosen; its weight is 0, so it may not.
        assert ended(*DELETE) == "ended 0 UDP and 0 TCP sockets"
        assert one.run("out = peer('a')") == ["10.96.0.53", 53]


def test_drain_with_an_end(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only("127.0.0.2:5300")
    code = "serve('127.0.0.2', 5300); udp('u', '10.96.0.53', 53); tcp('t', '10.96.0.53', 53)"
    with client(group, code) as one:
        ok("backend", "drain", "dns", "127.0.0.2:5300", "--after", "100")
        with open_reader(Place()) as reader:
            first = drains.next_end(reader)
        assert 0 < first - time.time_ns() < 100e9
        ok("backend", "drain", "dns", "127.0.0.3:5300", "--after", "1000")
        assert one.run("out = [peer('u'), send('t')]") == [["10.96.0.53", 53], 1]
        assert state_of("127.0.0.2:5300") == "draining"
        now = time.time_ns
        monkeypatch.setattr("time.time_ns", lambda: now() + 101 * 10**9)
        # Readers change nothing, nor does a dry run.
        assert state_of("127.0.0.2:5300") == "draining"
        rows = ok("gc", "--dry-run", "-o", "json").json["changes"]
        assert [row["name"] for row in rows] == ["drain of dns 127.0.0.2:5300"]
        done = ok("service", "add", "new", "--frontend", "10.96.0.99:1/udp")
        assert "drain over: dns 127.0.0.2:5300 is down" in done.err
        assert one.run("out = [peer('u'), send('t')]") == [ENDED, errno.ECONNABORTED]
        assert state_of("127.0.0.2:5300") == "down"
        assert state_of("127.0.0.3:5300") == "draining"
        with open_reader(Place()) as reader:
            assert drains.next_end(reader) - time.time_ns() > 800e9
        assert "drain over" not in ok("service", "delete", "new").err


def test_gc_ends_drains(group: str) -> None:
    only("127.0.0.2:5300")
    with client(group, "udp('u', '10.96.0.53', 53)") as one:
        ok("backend", "drain", "dns", "127.0.0.2:5300", "--after", "0")
        rows = ok("gc", "-o", "json").json["changes"]
        assert [row["name"] for row in rows] == ["drain of dns 127.0.0.2:5300", "1 reverse entry"]
        assert one.run("out = peer('u')") == ENDED
        with open_reader(Place()) as reader:
            assert drains.next_end(reader) == 0
        assert "nothing to remove" in ok("gc").err


def state_of(backend: str) -> str:
    rows = ok("backends", "dns", "-o", "json").json["backends"]
    return str(next(row["state"] for row in rows if row["backend"] == backend))


def put_dead(cookies: list[int]) -> None:
    """Reverse entries of sockets that never were."""
    with open_writer(Place(), "test") as writer:
        sample = next(iter(writer.map("reverse").items()))[1]
        for cookie in cookies:
            writer.map("reverse").update(U64.pack(cookie), sample)


def cookies() -> list[int]:
    with open_reader(Place()) as reader:
        return sorted({one.cookie for one in stands(reader)})


def test_gc_forgets_sockets_that_are_gone_and_no_other(group: str) -> None:
    dead = [(1 << 60) + n for n in range(500)]
    code = f"""
serve('127.0.0.2', 5300)
serve('127.0.0.3', 5300)
out = [udp('a', '10.96.0.53', 53), udp('b', '::ffff:10.96.0.53', 53, {V6}), tcp('c', '10.96.0.53', 53)]
s = socks['d'] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b'x', ('10.96.0.53', 53))
out.append(cookie('d'))
"""
    with client(group) as here, client(group, prefix=OTHER_NETNS) as there:
        alive = here.run(code) + there.run(code)
        put_dead(dead)
        planned = ok("gc", "--dry-run", "-o", "json").json["changes"]
        assert [row["name"] for row in planned] == ["500 reverse entries"]
        assert len(cookies()) == len(alive) + 500
        assert ok("gc", "-o", "json").json["changes"][0]["name"] == "500 reverse entries"
        assert cookies() == sorted(alive)
        assert "nothing to remove" in ok("gc").err
        assert here.run("out = peer('a')") == ["10.96.0.53", 53]


def test_gc_forgets_mptcp(group: str) -> None:
    """Its sockets never come by sock_release under the cookie that connect saw."""
    code = "serve('127.0.0.2', 5300); serve('127.0.0.3', 5300)"
    with client(group, code) as one:
        try:
            one.run("s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); out = None")
        except AssertionError:
            pytest.skip("no MPTCP in this kernel")
        one.run("s.connect(('10.96.0.53', 53))")
        one.run("import select; ready = select.select(list(socks.values()), [], [], 5)[0]")
        one.run("ready[0].accept()[0].close(); time.sleep(0.1); s.close()")
        if not cookies():
            pytest.skip("the kernel released it")
        deadline = time.monotonic() + 60
        while cookies() and time.monotonic() < deadline:
            ok("gc")
            time.sleep(0.1)
        assert cookies() == []


def test_gc_forgets_clients_whose_time_is_over(group: str) -> None:
    ok("service", "set", "dns", "--affinity", "1")
    ok("service", "add", "long", "--frontend", "10.96.0.55:53/udp", "--backend", "127.0.0.2:5300")
    ok("service", "set", "long", "--affinity", "1000")
    with client(group, "udp('a', '10.96.0.53', 53); udp('b', '10.96.0.55', 53)"):
        assert len(affinity()) == 2
        time.sleep(1.1)
        ok("gc")
        assert [row["service"] for row in affinity()] == ["long"]
        ok("service", "delete", "long")
        assert [row["state"] for row in affinity()] == ["stale"]
        ok("gc")
        assert affinity() == []


def affinity() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = ok("affinity", "-o", "json").json["affinity"]
    return rows


def test_gc_is_not_sure_when_it_sees_too_little(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(group, "udp('a', '10.96.0.53', 53)"):
        put_dead([1 << 60])
        monkeypatch.setattr("svcctl.host.all_netns._INITIAL_PID_NAMESPACE", 1)
        with open_reader(Place()) as reader:
            garbage = find(reader)
        assert garbage.is_empty
        assert garbage.unsure
        assert "left alone" in ok("gc").err
        assert 1 << 60 in cookies()


def test_a_kernel_that_cannot_end_sockets(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Diag) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    only("127.0.0.2:5300")
    with client(group, "udp('a', '10.96.0.53', 53)"):
        with open_reader(Place()) as reader:
            number = services.get(reader, "dns", "test").service.id
            found = [one.cookie for one in stands(reader)]
        assert found
        monkeypatch.setattr(Diag, "_answers", refuse)
        monkeypatch.setattr(Diag, "connected_to", lambda *_: [Peer(4, UDP, 1, found[0], bytes(48))])
        with open_reader(Place()) as reader, pytest.raises(SvcctlError, match="SOCK_DESTROY"):
            terminate(reader, number, [parse_backend("127.0.0.2:5300")], tcp=False)


def test_socket_families_are_told_apart(group: str) -> None:
    """The filter's AF_INET matches v4-mapped peers, and an IPv6 filter no IPv4 ones."""
    address = MAPPED + socket.inet_aton("127.0.0.9")
    with contextlib.ExitStack() as stack, Diag() as diag:
        plain = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        mapped = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        native = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        plain.connect(("127.0.0.9", 9))
        mapped.connect(("::ffff:127.0.0.9", 9))
        native.connect(("::1", 9))
        assert [one.family for one in diag.connected_to(UDP, address, 9)] == [4, 6]
        assert diag.connected_to(UDP, address, 10) == []
        (one,) = diag.connected_to(UDP, socket.inet_pton(socket.AF_INET6, "::1"), 9)
        assert diag.destroy(one)
        assert not diag.destroy(one)
        with pytest.raises(OSError, match="not connected"):
            native.getpeername()
        plain.getpeername()
        mapped.getpeername()
