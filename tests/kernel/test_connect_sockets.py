"""Other sockets and other ways to connect: which are served, and which are left exactly as they were."""

from __future__ import annotations

import errno
import select
import socket
import struct

import pytest

from tests.lib.balanced import REFUSED, VIP, VIP6, Balanced, cookie, name, needs_cookie
from tests.lib.svc import svc
from tests.lib.traffic import _RESET as RESET

IPPROTO_MPTCP, IPPROTO_UDPLITE = 262, 136
MSG_FASTOPEN = 0x20000000
MAPPED = f"::ffff:{VIP}"
TCP_FASTOPEN_CONNECT = 30


@pytest.fixture
def web(balanced: Balanced) -> str:
    """One backend behind VIP:80, TCP and UDP."""
    backend = balanced.farm.open("127.0.1.1", 8080, "tcp udp")
    balanced.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[backend])
    return backend


def test_non_blocking(balanced: Balanced, web: str) -> None:
    with balanced.socket() as one:
        one.setblocking(False)
        assert one.connect_ex((VIP, 80)) == errno.EINPROGRESS
        assert select.select([], [one], [], 60)[1]
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert one.getpeername() == (VIP, 80)
        # Asked again, an established socket says so, and no hook runs.
        one.connect_ex((VIP, 80))
        assert one.connect_ex((VIP, 80)) == errno.EISCONN
        assert balanced.stats("web").connections == 1
        assert balanced.farm.taker() == web
    assert balanced.reverse() == {}


def test_non_blocking_without_a_backend(balanced: Balanced, web: str) -> None:
    """Refused in the call itself, not later through SO_ERROR."""
    svc("backend", "drain", "web", web)
    with balanced.socket() as one:
        one.setblocking(False)
        assert one.connect_ex((VIP, 80)) == REFUSED
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_retry_on_one_socket(balanced: Balanced, web: str) -> None:
    """A refused connect leaves the caller's address as it was; tried again, another backend is found. T3."""
    other = balanced.farm.open("127.0.1.2", 8080)
    balanced.farm.close(web)
    where = (VIP, 80)
    with balanced.socket() as one:
        one.settimeout(None)
        assert one.connect_ex(where) == errno.ECONNREFUSED
        svc("backend", "add", "web", other)
        svc("backend", "delete", "web", web)
        one.connect(where)
        assert one.getpeername() == where
        assert balanced.farm.taker() == other
    assert balanced.reverse() == {}


def test_direct_after_a_refused_connect(balanced: Balanced, web: str) -> None:
    """The attempt through the service left a note; the connection to the backend itself is not called so."""
    balanced.farm.close(web)
    with balanced.socket() as one:
        one.settimeout(None)
        assert one.connect_ex((VIP, 80)) == errno.ECONNREFUSED
        balanced.farm.open("127.0.1.1", 8080)
        one.connect(("127.0.1.1", 8080))
        assert one.getpeername() == ("127.0.1.1", 8080)


@pytest.mark.parametrize("option", ["sendto", "connect"])
def test_fast_open(balanced: Balanced, web: str, option: str) -> None:
    balanced.world.sh("sysctl -qw net.ipv4.tcp_fastopen=3")
    listener = balanced.farm.sockets[f"tcp {web}"]
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    for attempt in range(3):
        with balanced.socket() as one:
            if option == "sendto":
                one.settimeout(None)
                assert one.sendto(b"hello", MSG_FASTOPEN, (VIP, 80)) == 5
            else:
                one.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
                one.connect((VIP, 80))
                one.send(b"hello")
            assert select.select([listener], [], [], 60)[0]
            accepted = listener.accept()[0]
            with accepted:
                accepted.settimeout(60)
                assert accepted.recv(5) == b"hello"
                assert one.getpeername() == (VIP, 80)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert balanced.stats("web").connections == attempt + 1
    assert balanced.reverse() == {}


def test_accept_is_left_alone(balanced: Balanced, web: str) -> None:
    """accept with an address runs the hook of getpeername on the accepted socket, which knows no service."""
    with balanced.client(VIP, 80) as one:
        accepted, source = balanced.farm.accept(web)
        with accepted:
            assert source == accepted.getpeername() == one.getsockname()
            # Also when the server is a client of the same service from that very address.
            with balanced.client(VIP, 80) as again:
                other, source = balanced.farm.accept(web)
                assert source == again.getsockname()
                other.close()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    balanced.farm.takers()


def test_reuseport_group_behind_a_service(balanced: Balanced) -> None:
    """The kernel spreads over the group that a backend's address has; the service sees one backend."""
    group = []
    for _ in range(3):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.1.1", 8080))
        one.listen(64)
        one.setblocking(False)
        group.append(one)
    balanced.add("web", f"{VIP}:80/tcp", backends=["127.0.1.1:8080"])
    clients = [balanced.client(VIP, 80) for _ in range(60)]
    counts = [0] * len(group)
    while sum(counts) < 60 and (ready := select.select(group, [], [], 60)[0]):
        for one in ready:
            one.accept()[0].close()
            counts[group.index(one)] += 1
    for each in clients + group:
        each.close()
    assert sum(counts) == 60
    assert all(counts)
    assert balanced.stats("web").connections == 60


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_zero_address(balanced: Balanced, kind: str) -> None:
    """connect to 0.0.0.0 and :: means loopback, as the kernel has it: a loopback frontend is found so."""
    needs_cookie(balanced)
    four, six = balanced.farm.open("127.0.1.1", 8080, kind), balanced.farm.open("::1", 8080, kind)
    balanced.add("lo", f"127.0.0.1:80/{kind}", f"[::1]:80/{kind}", backends=[four, six])
    assert balanced.ask("0.0.0.0", 80, kind) == four
    assert balanced.ask("::ffff:0.0.0.0", 80, kind, socket.AF_INET6) == four
    assert balanced.ask("::", 80, kind) == six
    # What is no service goes where it always went.
    here = balanced.farm.open("127.0.0.1", 8081, kind)
    assert balanced.ask("0.0.0.0", 8081, kind) == here
    with balanced.socket(kind, socket.AF_INET6) as one:
        # A socket bound to a mapped address: the kernel takes :: for 127.0.0.1 then.
        one.bind(("::ffff:127.0.0.1", 0))
        one.connect(("::", 80))
        assert name(one.getpeername()) == ("::ffff:127.0.0.1", 80)
        if kind == "udp":
            one.send(b"?")
        assert balanced.farm.taker(kind) == four


def test_ipv6_only_socket(balanced: Balanced, web: str) -> None:
    """The kernel's own error for a mapped address stays."""
    with balanced.socket("tcp", socket.AF_INET6) as one:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        assert one.connect_ex((MAPPED, 80)) == errno.ENETUNREACH
        assert one.connect_ex((MAPPED, 79)) == errno.ENETUNREACH
    assert balanced.reverse() == {}


def test_bound_socket(balanced: Balanced, web: str) -> None:
    """A client's own address and port stay its own."""
    with balanced.socket() as one:
        one.bind(("127.0.0.7", 40123))
        one.connect((VIP, 80))
        accepted, source = balanced.farm.accept(web)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        accepted.close()
        assert source == one.getsockname() == ("127.0.0.7", 40123)


def test_udp_lite_is_left_alone(balanced: Balanced, web: str) -> None:
    """A protocol of its own: neither its connect nor its sendto is served, or refused by a block."""
    try:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, IPPROTO_UDPLITE)
    except OSError as problem:
        pytest.skip(f"no UDP-Lite: {problem}")
    with one:
        svc("service", "set", "web", "--block")
        assert one.connect_ex((VIP, 80)) == errno.ENETUNREACH
        assert one.connect_ex((VIP, 81)) == errno.ENETUNREACH
        with pytest.raises(OSError) as failed:
            one.sendto(b"?", (VIP, 80))
        assert failed.value.errno == errno.ENETUNREACH
    assert balanced.stats("web").connections == balanced.drops("BLOCKED") == 0


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_ping_socket_is_left_alone(balanced: Balanced, family: int) -> None:
    """Its connect runs the hook from Linux 6.1 on, with the protocol of ICMP and no port."""
    balanced.world.sh("sysctl -qw net.ipv4.ping_group_range='0 2147483647'")
    balanced.world.sh(f"ip address add {VIP}/32 dev lo; ip address add {VIP6}/128 dev lo nodad")
    balanced.add("web", f"{VIP}:80/tcp", f"[{VIP6}]:80/tcp", block=True)
    address = VIP if family == socket.AF_INET else VIP6
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    echo, answer = (8, 0) if family == socket.AF_INET else (128, 129)
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as one:
        one.settimeout(60)
        one.connect((address, 80))
        one.send(struct.pack("!BBHHH", echo, 0, 0, 0, 1) + b"ping")
        assert one.recv(64)[0] == answer
        assert one.getpeername()[0] == address
    assert balanced.drops("BLOCKED") == balanced.drops("NO_BACKEND") == 0


def test_raw_socket_is_left_alone(balanced: Balanced, web: str) -> None:
    svc("service", "set", "web", "--block")
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 253) as one:
        assert one.connect_ex((VIP, 80)) == errno.ENETUNREACH
        one.connect(("127.0.1.1", 8080))
        assert one.getpeername()[0] == "127.0.1.1"
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as one:
        with pytest.raises(OSError) as failed:
            one.sendto(bytes(16), (VIP, 80))
        assert failed.value.errno == errno.ENETUNREACH
    assert balanced.stats("web").connections == balanced.drops("BLOCKED") == 0


def test_unix_sockets_are_left_alone(balanced: Balanced, web: str) -> None:
    a, b = socket.socketpair()
    a.send(b"?")
    assert b.recv(1) == b"?"
    a.close()
    b.close()


def test_mptcp(balanced: Balanced, web: str) -> None:
    """Documented: it reaches the service, its peer's name may be the backend's, its entry is for `gc` to clear."""
    balanced.world.sh("sysctl -qw net.mptcp.enabled=1 || true")
    try:
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    except OSError as problem:
        pytest.skip(f"no MPTCP: {problem}")
    with one:
        one.connect((VIP, 80))
        assert balanced.farm.taker() == web
        assert len(balanced.reverse()) <= 1
    assert balanced.stats("web").connections == 1
    assert len(balanced.reverse()) <= 1


def test_address_as_frontend_of_mapped_text(balanced: Balanced, web: str) -> None:
    """An IPv6 socket that asks for ::ffff:VIP and an IPv4 socket that asks for VIP share all there is."""
    with balanced.client(VIP, 80) as four, balanced.client(MAPPED, 80, family=socket.AF_INET6) as six:
        assert balanced.stands(four) == balanced.stands(six) == [(web, f"{VIP}:80")]
        assert cookie(four) != cookie(six)
        assert name(six.getpeername()) == (MAPPED, 80)
    balanced.farm.takers()


def test_dup_and_fork(balanced: Balanced, web: str) -> None:
    """The entry goes with the last descriptor of a socket."""
    one = balanced.client(VIP, 80)
    twin = one.dup()
    one.close()
    assert twin.getpeername() == (VIP, 80)
    assert len(balanced.reverse()) == 1
    twin.close()
    assert balanced.reverse() == {}
    balanced.farm.takers()
