"""backend delete --terminate, drain --after, and what gc does for services, with real sockets in many namespaces."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

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
from tests.lib.svc import svc_process

ENDED = errno.ENOTCONN
"""What getpeername of an ended UDP socket says."""
V6 = "socket.AF_INET6"
NOT_TCP = "; TCP connections were left alone (--tcp ends them)"


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
        assert ended(*DELETE) == f"ended 4 UDP sockets{NOT_TCP}"
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
            ended("backend", "delete", "six", "[::1]:5300", "--terminate") == f"ended 1 UDP socket{NOT_TCP}"
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
            assert ended(*DELETE) == f"ended 1 UDP socket{NOT_TCP}"
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
            receiver.settimeout(60)
        port = one.run("s.sendto(b'1', ('10.96.0.53', 53)); out = s.getsockname()[1]")
        assert first.recvfrom(10) == (b"1", ("127.0.0.1", port))
        ok("backend", "set", "dns", "127.0.0.3:5300", "--weight", "1")
        assert ended(*DELETE) == f"ended 0 UDP sockets{NOT_TCP}"
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
        assert ended(*DELETE) == f"ended 0 UDP sockets{NOT_TCP}"
        assert here.run("out = [send('plain'), send('mapped')]") == [1, 1]
        # The backend has gone already; saying it again with --tcp ends what was left.
        assert ended(*DELETE, "--tcp", "--dry-run") == "would end 0 UDP sockets and 4 TCP sockets"
        assert here.run("out = [send('plain'), send('mapped')]") == [1, 1]
        assert ended(*DELETE, "--tcp") == "ended 0 UDP sockets and 4 TCP sockets"
        for one in (here, there):
            assert one.run("out = [send('plain'), send('mapped')]") == [errno.ECONNABORTED] * 2
            assert one.run("out = send('direct')") == 1
        assert ended(*DELETE, "--tcp") == "ended 0 UDP sockets and 0 TCP sockets"


def test_an_ended_udp_socket_says_so_once(group: str) -> None:
    """What the man page says: recv fails once, send for want of a destination."""
    only("127.0.0.2:5300")
    with client(group, "udp('u', '10.96.0.53', 53); socks['u'].settimeout(0.2)") as one:
        ended(*DELETE)
        recv = """
def recv():
    try:
        return socks['u'].recv(1)
    except TimeoutError:
        return 'nothing'
    except OSError as error:
        return error.errno
out = [recv(), recv(), send('u')]
"""
        assert one.run(recv) == [errno.ECONNABORTED, "nothing", errno.EDESTADDRREQ]


def test_a_backend_nobody_has_is_not_found(group: str) -> None:
    """But one that was deleted before is, as long as a socket is remembered to use it."""
    only("127.0.0.2:5300")
    other = ("backend", "delete", "dns", "127.0.0.9:1", "--terminate")
    ran = svcctl(*other[:3], "127.0.0.3:5300", *other[3:])
    assert ran.code == 5
    assert "127.0.0.9:1: no backend of this service, and no socket was given to it" in ran.err
    assert state_of("127.0.0.3:5300") == "active"
    with client(group, "udp('u', '10.96.0.53', 53)"):
        ok(*DELETE[:-1])
        assert ended(*DELETE) == f"ended 1 UDP socket{NOT_TCP}"
    assert svcctl(*DELETE).code == 5


def test_service_delete_ends_sockets_too(group: str) -> None:
    """Those of backends that it has no more included."""
    only("127.0.0.2:5300")
    code = "serve('127.0.0.3', 5300); udp('u', '10.96.0.53', 53)"
    with client(group, code) as one:
        ok(*DELETE[:-1])
        ok("backend", "set", "dns", "127.0.0.3:5300", "--weight", "1")
        one.run("tcp('t', '10.96.0.53', 53); udp('direct', '127.0.0.3', 5300)")
        words = ("service", "delete", "dns", "--terminate", "--tcp")
        assert ended(*words, "--dry-run") == "would end 1 UDP socket and 1 TCP socket"
        assert ended(*words) == "ended 1 UDP socket and 1 TCP socket"
        assert one.run("out = [peer('u'), send('t')]") == [ENDED, errno.ECONNABORTED]
        assert one.run("out = peer('direct')") == ["127.0.0.3", 5300]
    assert ok("services").out == ""


def test_rights_are_looked_at_first(group: str) -> None:
    for words in (DELETE, ("service", "delete", "dns", "--terminate")):
        for lost in ("net_admin", "sys_admin"):
            ran = svc_process(*words, prefix=("setpriv", "--bounding-set", f"-{lost}"), code=4)
            assert f"needs CAP_{lost.upper()}" in ran.err
            assert len(ok("backends", "dns", "-o", "name").out.splitlines()) == 2


def test_gc_without_the_rights_does_the_rest(group: str) -> None:
    only("127.0.0.2:5300")
    with client(group, "udp('u', '10.96.0.53', 53)") as one:
        ok("backend", "drain", "dns", "127.0.0.2:5300", "--after", "0")
        ran = svc_process("gc", prefix=("setpriv", "--bounding-set", "-sys_admin"))
        assert "left alone: drains that are over" in ran.err
        assert one.run("out = peer('u')") == ["10.96.0.53", 53]
        assert "drain of dns 127.0.0.2:5300" in ok("gc").out
        assert one.run("out = peer('u')") == ENDED


def test_what_found_no_room_is_warned_of(attached: str) -> None:
    ok("service", "add", "big", "--frontend", "10.96.0.60:53/udp", "--backend", "127.0.0.2:5300")
    try:
        with client(attached, "for n in range(1010): udp(n, '10.96.0.60', 53)"):
            ran = ok("service", "delete", "big", "--terminate")
            assert "ended 1000 UDP sockets" in ran.err
            assert "10 connections of big found no room to be remembered (--max-sockets)" in ran.err
    finally:
        clear_services()


def backends(service: str) -> list[dict[str, Any]]:
    """The rows of `backends`."""
    found: list[dict[str, Any]] = ok("backends", service, "-o", "json").json["backends"]
    return found


def test_the_last_drain_counts(group: str) -> None:
    """A later end, an earlier one, none; and one that goes with the backend or the service is told."""
    words = ("backend", "drain", "dns", "127.0.0.2:5300")

    def until() -> str | None:
        (row,) = (row for row in backends("dns") if row["backend"] == "127.0.0.2:5300")
        end: str | None = row.get("until")
        return end

    first = ok(*words, "--after", "100").out
    assert f"state active -> draining, what is left ends at {until()}" in first
    early = until()
    second = ok(*words, "--after", "1000").out
    late = until()
    assert f"(what is left ends at {late})" in second
    assert early is not None
    assert late is not None
    assert early < late
    ok(*words, "--after", "50")
    assert (until() or "") < late
    assert "goes on, no longer ends at" in ok(*words).out
    assert until() is None
    assert ok(*words).out.startswith("unchanged")
    ok(*words, "--after", "1000")
    assert f"was to end at {until()}" in ok("backend", "delete", "dns", "127.0.0.2:5300").err
    ok("backend", "drain", "dns", "127.0.0.3:5300", "--after", "1000")
    assert "drain of dns 127.0.0.3:5300 was to end at" in ok("service", "delete", "dns").err


def test_tcp_needs_terminate(group: str) -> None:
    assert svcctl("backend", "delete", "dns", "127.0.0.2:5300", "--tcp").code == 2


def test_another_service_on_the_same_backend_is_left_alone(group: str) -> None:
    ok("service", "add", "alias", "--frontend", "10.96.0.54:53/udp", "--backend", "127.0.0.2:5300")
    only("127.0.0.2:5300")
    with client(group, "udp('dns', '10.96.0.53', 53); udp('alias', '10.96.0.54', 53)") as one:
        assert ended(*DELETE) == f"ended 1 UDP socket{NOT_TCP}"
        assert one.run("out = [peer('dns'), peer('alias')]") == [ENDED, ["10.96.0.54", 53]]


def test_a_socket_that_moved_on_is_left_alone(group: str) -> None:
    only("127.0.0.2:5300")
    with client(group, "udp('a', '10.96.0.53', 53)") as one:
        only("127.0.0.3:5300")
        one.run("socks['a'].connect(('10.96.0.53', 53))")
        # UDP keeps its backend while that may be chosen; its weight is 0, so it may not.
        assert ended(*DELETE) == f"ended 0 UDP sockets{NOT_TCP}"
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
        one.run("import select; ready = select.select(list(socks.values()), [], [], 60)[0]")
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
