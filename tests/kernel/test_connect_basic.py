"""Outgoing connections through a service: every kind of socket and address, and each way of being refused."""

from __future__ import annotations

import errno
import os
import socket
import time

import pytest

from svcctl.model.constants import IPV6
from tests.lib.balanced import REFUSED, VIP, VIP6, Balanced, name, needs_cookie
from tests.lib.servers import SLOWNESS
from tests.lib.svc import svc

MAPPED = f"::ffff:{VIP}"
# Address family of the socket, the address it asks for, the frontend, a backend address.
WAYS = {
    "v4": (socket.AF_INET, VIP, f"{VIP}:80", "127.0.1.1"),
    "v6": (socket.AF_INET6, VIP6, f"[{VIP6}]:80", "::1"),
    "mapped": (socket.AF_INET6, MAPPED, f"{VIP}:80", "127.0.1.1"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[socket.AddressFamily, str, str, str]:
    return WAYS[request.param]


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_connected(balanced: Balanced, way: tuple[socket.AddressFamily, str, str, str], kind: str) -> None:
    """The backend is met, the peer's name is the frontend, the socket's entry goes with it."""
    family, address, frontend, backend_address = way
    backend = balanced.farm.open(backend_address, 8080, kind)
    balanced.add("web", f"{frontend}/{kind}", backends=[backend])
    with balanced.client(address, 80, kind, family) as one:
        assert name(one.getpeername()) == (address, 80)
        if kind == "udp":
            one.send(b"?")
            assert balanced.farm.reply() == backend
            data, source = one.recvfrom(64)
            assert (data.decode(), name(source)) == (backend, (address, 80))
        else:
            assert balanced.farm.taker() == backend
        assert balanced.stands(one) == [(backend, frontend)]
    assert balanced.reverse() == {}
    stats = balanced.stats("web", IPV6 if family == socket.AF_INET6 and address != MAPPED else 4)
    assert (stats.connections, stats.no_backend, stats.dropped, stats.reverse_full) == (1, 0, 0, 0)
    assert balanced.picks(backend) == 1


def test_datagrams(balanced: Balanced, way: tuple[socket.AddressFamily, str, str, str]) -> None:
    """sendto without a connection; the answer's source is the frontend. T1."""
    family, address, frontend, backend_address = way
    backend = balanced.farm.open(backend_address, 8080, "udp")
    balanced.add("dns", f"{frontend}/udp", backends=[backend])
    with balanced.socket("udp", family) as one:
        for _ in range(3):
            one.sendto(b"?", (address, 80))
            assert balanced.farm.reply() == backend
            data, source = one.recvfrom(64)
            assert (data.decode(), name(source)) == (backend, (address, 80))
        with pytest.raises(OSError) as failed:
            one.getpeername()
        assert failed.value.errno == errno.ENOTCONN
        assert balanced.stands(one) == [(backend, frontend)]
    assert balanced.reverse() == {}


def test_ipv4_address_on_an_ipv6_socket(balanced: Balanced) -> None:
    """A struct sockaddr_in given to an AF_INET6 UDP socket goes through the hooks of IPv4."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend])
    with balanced.socket("udp", socket.AF_INET6) as one:
        _sendto_in(one, VIP, 53)
        assert balanced.farm.reply() == backend
        assert name(one.recvfrom(64)[1]) == (f"::ffff:{VIP}", 53)


def _sendto_in(one: socket.socket, address: str, port: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    where = (
        socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") + socket.inet_aton(address) + bytes(8)
    )
    assert libc.sendto(one.fileno(), b"?", 1, 0, where, len(where)) == 1, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_no_service_no_change(balanced: Balanced, kind: str) -> None:
    """What is no service is never changed, refused or remembered: other ports, protocols and families."""
    here = balanced.farm.open("127.0.1.1", 8080, kind)
    balanced.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", f"[::ffff:0:{VIP}]:81/tcp", backends=[here])
    with balanced.client("127.0.1.1", 8080, kind) as one:
        assert one.getpeername() == ("127.0.1.1", 8080)
        if kind == "udp":
            one.send(b"?")
        assert balanced.farm.taker(kind) == here
        assert balanced.reverse() == {}
    for address in (f"{VIP[:-1]}1", "10.0.0.0"):
        assert balanced.error(address, 80, kind) == errno.ENETUNREACH
    assert balanced.error(VIP, 79, kind) == errno.ENETUNREACH
    assert balanced.error(VIP6, 80, kind) == errno.ENETUNREACH
    assert balanced.error("127.0.1.1", 80, "tcp") == errno.ECONNREFUSED
    assert balanced.stats("web").connections == 0


def test_tcp_and_udp_on_one_address_and_port(balanced: Balanced) -> None:
    """Two services, no cross talk, and the end of one leaves the other. T15."""
    a = balanced.farm.open("127.0.1.1", 5300, "tcp udp")
    b = balanced.farm.open("127.0.1.2", 5300, "tcp udp")
    balanced.add("tcp", f"{VIP}:53/tcp", backends=[a])
    balanced.add("udp", f"{VIP}:53/udp", backends=[b])
    for _ in range(5):
        assert balanced.ask(VIP, 53, "tcp") == a
        assert balanced.ask(VIP, 53, "udp") == b
    svc("service", "delete", "tcp")
    assert balanced.error(VIP, 53, "tcp") == errno.ENETUNREACH
    assert balanced.ask(VIP, 53, "udp") == b


def test_two_frontends_of_one_service(balanced: Balanced) -> None:
    """Each client is told the frontend it asked for; both lead to the same backends, also of two families."""
    four, six = balanced.farm.open("127.0.1.1", 8080, "tcp udp"), balanced.farm.open("::1", 8080, "tcp udp")
    fronts = [f"{VIP}:80", "10.96.0.11:8000", f"[{VIP6}]:80"]
    balanced.add("web", *(f"{one}/{kind}" for one in fronts for kind in ("tcp", "udp")), backends=[four, six])
    for address, port, backend in ((VIP, 80, four), ("10.96.0.11", 8000, four), (VIP6, 80, six)):
        for kind in ("tcp", "udp"):
            with balanced.client(address, port, kind) as one:
                assert name(one.getpeername()) == (address, port)
            balanced.farm.takers()
            assert balanced.ask(address, port, kind) == backend
    assert (balanced.stats("web").connections, balanced.stats("web", IPV6).connections) == (8, 4)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_family_without_backends(balanced: Balanced, kind: str) -> None:
    """A frontend uses the backends of its family only: one without any refuses."""
    backend = balanced.farm.open("127.0.1.1", 8080, kind)
    balanced.add("web", f"{VIP}:80/{kind}", f"[{VIP6}]:80/{kind}", backends=[backend])
    assert balanced.ask(VIP, 80, kind) == backend
    assert balanced.error(VIP6, 80, kind) == REFUSED


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_no_backend(balanced: Balanced, way: tuple[socket.AddressFamily, str, str, str], kind: str) -> None:
    """Exactly EHOSTUNREACH, at once, counted, and nothing is remembered. T4."""
    family, address, frontend, backend_address = way
    balanced.add("web", f"{frontend}/{kind}")
    lane = IPV6 if frontend.startswith("[") else 4
    with balanced.socket(kind, family) as one:
        one.settimeout(None)
        took = []
        for _ in range(50):
            before = time.perf_counter()
            assert one.connect_ex((address, 80)) == REFUSED
            took.append(time.perf_counter() - before)
        assert min(took) < 0.001 * SLOWNESS
        if kind == "udp":
            with pytest.raises(OSError) as failed:
                one.sendto(b"?", (address, 80))
            assert failed.value.errno == REFUSED
        assert balanced.stats("web", lane).no_backend == balanced.drops("NO_BACKEND") == 50 + (kind == "udp")
        assert balanced.reverse() == {}
        # A socket that was refused is as good as new.
        backend = balanced.farm.open(backend_address, 8080, kind)
        svc("backend", "add", "web", backend)
        one.connect((address, 80))
        assert name(one.getpeername()) == (address, 80)
    assert balanced.stats("web", lane).dropped == balanced.drops("VERDICT") == 0


@pytest.mark.parametrize("state", ["draining", "down", "weight"])
def test_no_usable_backend(balanced: Balanced, state: str) -> None:
    """Members that are not active, or have no weight, are as good as none. T23."""
    backends = balanced.farm.many(2)
    balanced.add("web", f"{VIP}:80/tcp", backends=backends)
    svc("backend", "set", "web", *backends, *(("--weight", 0) if state == "weight" else ("--state", state)))
    assert balanced.error(VIP, 80) == REFUSED
    svc(
        "backend",
        "set",
        "web",
        backends[1],
        *(("--weight", 1) if state == "weight" else ("--state", "active")),
    )
    assert set(balanced.ask_often(10, VIP, 80)) == {backends[1]}


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_drop_verdict(balanced: Balanced, kind: str) -> None:
    """A rule that nobody is served refuses as well, under a counter of its own."""
    balanced.add("web", f"{VIP}:80/{kind}", drop=True)
    assert balanced.error(VIP, 80, kind) == REFUSED
    stats = balanced.stats("web")
    assert (stats.dropped, stats.no_backend, stats.connections) == (1, 0, 0)
    assert (balanced.drops("VERDICT"), balanced.drops("NO_BACKEND")) == (1, 0)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_block(balanced: Balanced, way: tuple[socket.AddressFamily, str, str, str], kind: str) -> None:
    """Other ports and protocols of a blocked address are refused instead of leaking to the network."""
    family, address, frontend, backend_address = way
    backend = balanced.farm.open(backend_address, 8080, kind)
    balanced.add("web", f"{frontend}/{kind}", backends=[backend], block=True)
    assert balanced.ask(address, 80, kind, family) == backend
    for other in ("tcp", "udp"):
        assert balanced.error(address, 81, other, family) == REFUSED
    assert balanced.drops("BLOCKED") == 2
    with balanced.socket("udp", family) as one:
        with pytest.raises(OSError) as failed:
            one.sendto(b"?", (address, 5353))
        assert failed.value.errno == REFUSED
    # Its other addresses, and those of nobody, are left alone.
    assert balanced.error("10.96.0.99", 81, kind) == errno.ENETUNREACH
    svc("service", "set", "web", "--no-block")
    assert balanced.error(address, 81, kind, family) == errno.ENETUNREACH
    assert balanced.ask(address, 80, kind, family) == backend
    assert balanced.drops("BLOCKED") == 3


def test_blocked_address_of_two_services(balanced: Balanced) -> None:
    """The frontends of another service on a blocked address are served."""
    a, b = balanced.farm.many(2)
    balanced.add("one", f"{VIP}:80/tcp", backends=[a], block=True)
    balanced.add("two", f"{VIP}:81/tcp", backends=[b])
    assert (balanced.ask(VIP, 80), balanced.ask(VIP, 81)) == (a, b)
    assert balanced.error(VIP, 82) == REFUSED
    svc("service", "delete", "one")
    assert balanced.error(VIP, 82) == errno.ENETUNREACH
    assert balanced.ask(VIP, 81) == b


def test_source_ranges_are_never_served_unfiltered(balanced: Balanced) -> None:
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend], kind="load-balancer", source="10.0.0.0/8")
    assert balanced.error(VIP, 80) == REFUSED
    assert (balanced.stats("web").dropped, balanced.drops("FILTERED")) == (1, 1)
    text = svc("explain", f"{VIP}:80/tcp").out
    assert "sources     admitted are 10.0.0.0/8\n" in text
    assert "are refused: it has source ranges, which sockets cannot obey" in text
    assert "not chosen" not in text


def test_internal_policy_local(balanced: Balanced) -> None:
    """Clients of this host get the node's own backends; none here, though elsewhere: dropped. T33."""
    here, there = balanced.farm.many(2)
    balanced.add("web", f"{VIP}:80/tcp", backends=[f"{here},local", there], internal_policy="local")
    assert set(balanced.ask_often(12, VIP, 80)) == {here}
    svc("backend", "delete", "web", here)
    assert balanced.error(VIP, 80) == REFUSED
    assert balanced.stats("web").dropped == 1
    svc("service", "set", "web", "--internal-policy", "cluster")
    assert balanced.ask(VIP, 80) == there


def test_external_policy_is_not_for_sockets_of_this_host(balanced: Balanced) -> None:
    here, there = balanced.farm.many(2)
    balanced.add(
        "web", f"{VIP}:80/tcp", backends=[f"{here},local", there], external_policy="local", kind="external"
    )
    assert set(balanced.ask_often(40, VIP, 80)) == {here, there}


def test_hairpin(balanced: Balanced) -> None:
    """A backend that is a client of its own service sees its own address. T35."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    with balanced.socket() as one:
        one.bind(("127.0.1.1", 0))
        one.connect((VIP, 80))
        accepted, source = balanced.farm.accept(backend)
        accepted.close()
        assert source == one.getsockname()
        assert one.getpeername() == (VIP, 80)


def test_service_whose_backend_is_a_frontend(balanced: Balanced) -> None:
    """One look-up: a backend's address is not looked up again."""
    needs_cookie(balanced)
    a, b = balanced.farm.many(2)
    balanced.add("inner", f"{a}/tcp", backends=[b])
    balanced.add("outer", f"{VIP}:80/tcp", backends=[a])
    assert balanced.ask(VIP, 80) == a
    assert balanced.ask("127.0.1.1", 8080) == b


def test_same_address_as_frontend_and_backend(balanced: Balanced) -> None:
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("self", f"{backend}/udp", backends=[backend])
    with balanced.client("127.0.1.1", 8080, "udp") as one:
        one.send(b"?")
        assert balanced.farm.reply() == backend
        assert one.recvfrom(64)[1] == one.getpeername() == ("127.0.1.1", 8080)


def test_an_address_that_two_services_block(balanced: Balanced) -> None:
    """The other ports of an address are refused for one service: another is told whose it is."""
    balanced.add("one", "10.96.40.1:80/tcp", block=True)
    for words in (
        ("add", "two", "--frontend", "10.96.40.1:81/tcp"),
        ("add", "two", "--frontend", "10.96.40.1:82/udp"),
    ):
        ran = svc("service", *words, "--block", code=6)
        assert "address 10.96.40.1 (other ports) belongs to service 'one'" in ran.err
