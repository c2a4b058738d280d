"""UDP through a service: sockets that are connected, or not, or both, and each way of sending and receiving."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct

import pytest

from tests.lib.balanced import REFUSED, VIP, VIP6, Balanced, name
from tests.lib.svc import svc

VIP2 = "10.96.0.11"
IP_RECVERR, MSG_ERRQUEUE = 11, 0x2000
MAPPED = f"::ffff:{VIP}"


def answer(balanced: Balanced, one: socket.socket) -> tuple[str, str, int]:
    """Have the datagram answered; who answered, and under which name that came in."""
    backend = balanced.farm.reply()
    data, source = one.recvfrom(64)
    assert data.decode() == backend
    return backend, *name(source)


@pytest.fixture
def dns(balanced: Balanced) -> list[str]:
    """Five backends behind VIP:53."""
    backends = balanced.farm.many(5, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=backends)
    return backends


def test_one_socket_stays_on_its_backend(balanced: Balanced, dns: list[str]) -> None:
    """1,000 datagrams of one unconnected socket: one backend has got all of them. T7."""
    with balanced.socket("udp") as one:
        for _ in range(1000):
            one.sendto(b"?", (VIP, 53))
        found = balanced.farm.takers("udp", 1000)
        assert list(found.values()) == [1000]
        # One connection, however many datagrams.
        assert balanced.stats("dns").connections == 1
        assert sum(balanced.picks(backend) for backend in dns) == 1
        svc("backend", "add", "dns", balanced.farm.open("127.0.1.9", 8080, "udp"))
        for _ in range(20):
            one.sendto(b"?", (VIP, 53))
        assert balanced.farm.takers("udp", 20) == {next(iter(found)): 20}


def test_it_moves_when_its_backend_goes(balanced: Balanced, dns: list[str]) -> None:
    """With the next datagram, keeping its port; no backend: refused; a new one is found at once. T38."""
    with balanced.socket("udp") as one:
        one.sendto(b"?", (VIP, 53))
        port = one.getsockname()[1]
        first = balanced.farm.taker("udp")
        svc("backend", "delete", "dns", first)
        one.sendto(b"?", (VIP, 53))
        second = balanced.farm.taker("udp")
        assert second != first
        svc("backend", "drain", "dns", *set(dns) - {first})
        with pytest.raises(OSError) as failed:
            one.sendto(b"?", (VIP, 53))
        assert failed.value.errno == REFUSED
        last = balanced.farm.open("127.0.1.77", 8080, "udp")
        svc("backend", "add", "dns", last)
        one.sendto(b"?", (VIP, 53))
        assert answer(balanced, one) == (last, VIP, 53)
        assert one.getsockname()[1] == port


def test_reconnect(balanced: Balanced, dns: list[str]) -> None:
    """connect to the same service again is the same flow; to somebody else, the old name is gone."""
    other = balanced.farm.open("127.0.2.1", 8080, "udp")
    with balanced.client(VIP, 53, "udp") as one:
        one.send(b"?")
        first = balanced.farm.taker("udp")
        for _ in range(10):
            one.connect((VIP, 53))
            one.send(b"?")
            assert balanced.farm.taker("udp") == first
        stats = balanced.stats("dns")
        assert (stats.connections, stats.remembered) == (11, 10)
        one.connect(("127.0.2.1", 8080))
        one.send(b"?")
        assert answer(balanced, one) == (other, "127.0.2.1", 8080)
        assert one.getpeername() == ("127.0.2.1", 8080)


def test_connected_to_a_backend_as_itself(balanced: Balanced) -> None:
    """connect(VIP), then connect to the very backend: it is called by its own name."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend])
    with balanced.client(VIP, 53, "udp") as one:
        one.connect(("127.0.1.1", 8080))
        assert one.getpeername() == ("127.0.1.1", 8080)
        one.send(b"?")
        assert answer(balanced, one) == (backend, "127.0.1.1", 8080)
        assert balanced.stands(one) == []
        one.connect((VIP, 53))
        assert one.getpeername() == (VIP, 53)


def test_datagrams_to_a_backend_as_itself(balanced: Balanced) -> None:
    """The last one used counts, also when that is the backend's own address."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend])
    with balanced.socket("udp") as one:
        for address, port in ((VIP, 53), ("127.0.1.1", 8080), (VIP, 53)):
            one.sendto(b"?", (address, port))
            assert answer(balanced, one) == (backend, address, port)


def test_sendto_on_a_connected_socket(balanced: Balanced, dns: list[str]) -> None:
    """Only the peer's answers come in, so a datagram to the same frontend goes to the peer."""
    with balanced.client(VIP, 53, "udp") as one:
        one.send(b"?")
        first = answer(balanced, one)[0]
        for _ in range(20):
            one.sendto(b"?", (VIP, 53))
            assert answer(balanced, one) == (first, VIP, 53)
        assert balanced.stats("dns").connections == 1
        # Even when it gets no new connections any more, and when the service is gone.
        svc("backend", "drain", "dns", first)
        one.sendto(b"?", (VIP, 53))
        assert answer(balanced, one) == (first, VIP, 53)
        svc("service", "delete", "dns")
        one.sendto(b"?", (VIP, 53))
        assert balanced.farm.taker("udp") == first


def test_sendto_elsewhere_on_a_connected_socket(balanced: Balanced, dns: list[str]) -> None:
    """The connection keeps its name, whatever else the socket sends."""
    other = balanced.farm.open("127.0.2.1", 8080, "udp")
    balanced.add("other", f"{VIP2}:53/udp", backends=[other])
    with balanced.client(VIP, 53, "udp") as one:
        one.send(b"?")
        first = balanced.farm.taker("udp")
        address, _, port = first.partition(":")
        for where in ((VIP2, 53), ("127.0.2.1", 8080), (address, int(port))):
            one.sendto(b"?", where)
            balanced.farm.taker("udp")
            assert one.getpeername() == (VIP, 53)
        one.send(b"?")
        assert answer(balanced, one) == (first, VIP, 53)


def test_two_services_with_one_backend(balanced: Balanced) -> None:
    """One socket, two frontends, one backend: the one used last is named; the peer's name is the connection's."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("one", f"{VIP}:53/udp", backends=[backend])
    balanced.add("two", f"{VIP2}:53/udp", backends=[backend])
    with balanced.socket("udp") as one:
        for address in (VIP, VIP2, VIP2, VIP, VIP2, VIP):
            one.sendto(b"?", (address, 53))
            assert answer(balanced, one) == (backend, address, 53)
    with balanced.client(VIP, 53, "udp") as one:
        one.sendto(b"?", (VIP2, 53))
        assert answer(balanced, one) == (backend, VIP2, 53)
        assert one.getpeername() == (VIP, 53)
        one.sendto(b"?", (VIP, 53))
        assert one.getpeername() == (VIP, 53)
    with balanced.client(VIP, 53, "udp") as one:
        one.connect((VIP2, 53))
        assert one.getpeername() == (VIP2, 53)
        one.send(b"?")
        assert answer(balanced, one) == (backend, VIP2, 53)


def test_two_services_sharing_backends_stay_apart(balanced: Balanced) -> None:
    """Each of a socket's frontends keeps its own backend, however they take turns."""
    backends = balanced.farm.many(3, "udp")
    fronts = [VIP, VIP2, "10.96.0.12", "10.96.0.13"]
    for number, address in enumerate(fronts):
        balanced.add(f"s{number}", f"{address}:53/udp", backends=backends)
    for _ in range(20):
        with balanced.socket("udp") as one:
            first: dict[str, str] = {}
            for turn in range(4):
                for address in fronts if turn % 2 else reversed(fronts):
                    one.sendto(b"?", (address, 53))
                    backend, *source = answer(balanced, one)
                    assert source == [address, 53]
                    assert first.setdefault(address, backend) == backend
            assert len(balanced.stands(one)) == 4


def test_more_frontends_than_a_socket_remembers(balanced: Balanced) -> None:
    """The oldest is forgotten; what was used last is always named right."""
    backends = balanced.farm.many(6, "udp")
    for number, backend in enumerate(backends):
        balanced.add(f"s{number}", f"10.96.1.{number}:53/udp", backends=[backend])
    for connected in (False, True):
        with balanced.socket("udp") as one:
            if connected:
                one.connect(("10.96.1.0", 53))
            for number, backend in enumerate(backends * 3):
                address = f"10.96.1.{number % 6}"
                one.sendto(b"?", (address, 53))
                if not connected:
                    assert answer(balanced, one) == (backend, address, 53)
                else:
                    assert balanced.farm.taker("udp") == backend
                    assert one.getpeername() == ("10.96.1.0", 53)
            assert len(balanced.stands(one)) == 4
    assert balanced.reverse() == {}


@pytest.mark.parametrize("family", ["v4", "v6", "mapped"])
def test_control_data_without_an_address(balanced: Balanced, family: str) -> None:
    """sendmsg on a connected socket with IP_TOS and no address runs the hook on nothing, or on the peer."""
    four, six = balanced.farm.open("127.0.1.1", 8080, "udp"), balanced.farm.open("::1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", f"[{VIP6}]:53/udp", backends=[four, six])
    # The peer of a mapped socket, a backend, is the frontend of another service: not to be looked up again.
    trap = balanced.farm.open("127.0.1.2", 8080, "udp")
    balanced.add("trap", f"{four}/udp", f"{six}/udp", backends=[trap])
    # And whatever zero leads to is not meant either.
    svc("service", "set", "trap", "--node-port", 30053)
    address = {"v4": VIP, "v6": VIP6, "mapped": MAPPED}[family]
    kind = socket.AF_INET if family == "v4" else socket.AF_INET6
    control = {
        "v4": (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", 16)),
        "v6": (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, struct.pack("i", 16)),
        "mapped": (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", 16)),
    }[family]
    with balanced.client(address, 53, "udp", kind) as one:
        one.sendmsg([b"?"], [control])
        assert answer(balanced, one) == (six if family == "v6" else four, address, 53)
        assert one.getpeername()[:2] == (address, 53)


@pytest.mark.parametrize("family", ["v4", "v6", "mapped"])
def test_peek_and_recvmmsg(balanced: Balanced, family: str) -> None:
    """A look ahead and many at once give the frontend too."""
    four, six = balanced.farm.open("127.0.1.1", 8080, "udp"), balanced.farm.open("::1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", f"[{VIP6}]:53/udp", backends=[four, six])
    address = {"v4": VIP, "v6": VIP6, "mapped": MAPPED}[family]
    with balanced.socket("udp", socket.AF_INET if family == "v4" else socket.AF_INET6) as one:
        one.sendto(b"?", (address, 53))
        balanced.farm.reply(times=4)
        assert name(one.recvfrom(64, socket.MSG_PEEK)[1]) == (address, 53)
        assert name(one.recvfrom(64, socket.MSG_PEEK)[1]) == (address, 53)
        assert name(one.recvmsg(64)[3]) == (address, 53)
        assert _recvmmsg(one, 3) == [(address, 53)] * 3


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32), ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]  # fmt: skip


class _Message(ctypes.Structure):
    _fields_ = [("header", _Header), ("received", ctypes.c_uint)]


def _recvmmsg(one: socket.socket, count: int) -> list[tuple[str, int]]:
    libc = ctypes.CDLL(None, use_errno=True)
    names = [ctypes.create_string_buffer(28) for _ in range(count)]
    data = [ctypes.create_string_buffer(64) for _ in range(count)]
    vectors = [_Vector(ctypes.addressof(each), 64) for each in data]
    messages = (_Message * count)()
    for message, where, vector in zip(messages, names, vectors, strict=True):
        message.header.name, message.header.name_length = ctypes.addressof(where), 28
        message.header.vectors, message.header.vector_count = ctypes.pointer(vector), 1
    assert libc.recvmmsg(one.fileno(), messages, count, 0, None) == count, os.strerror(ctypes.get_errno())
    found = []
    for raw in (each.raw for each in names):
        port = int.from_bytes(raw[2:4], "big")
        if one.family == socket.AF_INET:
            found.append((socket.inet_ntop(socket.AF_INET, raw[4:8]), port))
        else:
            found.append((socket.inet_ntop(socket.AF_INET6, raw[8:24]), port))
    return found


def test_receiving_without_a_name(balanced: Balanced, dns: list[str]) -> None:
    with balanced.socket("udp") as one:
        one.sendto(b"?", (VIP, 53))
        backend = balanced.farm.reply(times=2)
        assert one.recv(64).decode() == backend
        assert one.recvfrom(64) == (backend.encode(), (VIP, 53))


def test_errors_show_the_backend(balanced: Balanced) -> None:
    """Documented: no hook runs for MSG_ERRQUEUE, so the address in it is the backend's."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend])
    balanced.farm.close(backend)
    with balanced.socket("udp") as one:
        one.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        one.sendto(b"?", (VIP, 53))
        _, _, _, source = one.recvmsg(64, 256, MSG_ERRQUEUE)
        assert source == ("127.0.1.1", 8080)


def test_dissolved_connection(balanced: Balanced, dns: list[str]) -> None:
    """connect(AF_UNSPEC), then datagrams, then another connection; nothing is left in the end."""
    with balanced.client(VIP, 53, "udp") as one:
        dissolve(one)
        with pytest.raises(OSError) as failed:
            one.getpeername()
        assert failed.value.errno == errno.ENOTCONN
        one.sendto(b"?", (VIP, 53))
        assert answer(balanced, one)[1:] == (VIP, 53)
        address, _, port = dns[0].partition(":")
        one.sendto(b"?", (address, int(port)))
        assert answer(balanced, one) == (dns[0], address, int(port))
        one.connect((VIP, 53))
        assert one.getpeername() == (VIP, 53)
    assert balanced.reverse() == {}


def dissolve(one: socket.socket) -> None:
    """connect(2) with AF_UNSPEC, which Python's connect cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.connect(one.fileno(), bytes(16), 16) == 0, os.strerror(ctypes.get_errno())


def test_a_failed_connect_leaves_the_connection_named(balanced: Balanced, dns: list[str]) -> None:
    """A connect that the kernel refuses leaves the old peer in place, and its name."""
    balanced.add("far", f"{VIP2}:53/udp", backends=["198.51.100.1:53"])
    with balanced.client(VIP, 53, "udp") as one:
        assert one.connect_ex((VIP2, 53)) == errno.ENETUNREACH
        peer = one.getpeername()
        one.send(b"?")
        backend = balanced.farm.reply()
        address, _, port = backend.partition(":")
        # The connection's entry speaks of the attempt; of the peer's name, nothing false is said.
        assert peer in ((VIP, 53), (address, int(port)))


def test_reuseport_sockets_are_told_apart(balanced: Balanced) -> None:
    """Two sockets on one local port, with different services: each has its own names."""
    a, b = balanced.farm.many(2, "udp")
    balanced.add("one", f"{VIP}:53/udp", backends=[a])
    balanced.add("two", f"{VIP2}:53/udp", backends=[b])
    with balanced.socket("udp") as first, balanced.socket("udp") as second:
        for one, address in ((first, VIP), (second, VIP2)):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("127.0.0.1", 40000))
            one.connect((address, 53))
        for one, address, backend in ((first, VIP, a), (second, VIP2, b)):
            one.send(b"?")
            assert answer(balanced, one) == (backend, address, 53)
            assert one.getpeername() == (address, 53)


def test_a_server_behind_a_service_is_not_confused(balanced: Balanced, dns: list[str]) -> None:
    """A backend that receives, and is itself a client of the service, sees who sent by his own name."""
    with balanced.client(VIP, 53, "udp") as one:
        one.send(b"?")
        readable = {balanced.farm.sockets[f"udp {each}"]: each for each in dns}
        (backend,) = [readable[each] for each in select.select(readable, [], [], 60)[0]]
        server = balanced.farm.sockets[f"udp {backend}"]
        data, source = server.recvfrom(64)
        assert (data, source) == (b"?", one.getsockname())
        server.sendto(b"?", (VIP, 53))
        balanced.farm.takers("udp")
        server.sendto(b"!", source)
        assert one.recvfrom(64) == (b"!", (VIP, 53))
