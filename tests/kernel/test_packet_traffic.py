"""The packet path with real pods: sockets that know nothing, on both ends of a service."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from socket import AF_INET, AF_INET6

import pytest

from svcctl.maps import enums
from tests.lib.balanced import SMALL, VIP, VIP6, Balanced, inside
from tests.lib.packet_path import PacketPath, packet_path, serviced
from tests.lib.pods import Pod, batch, place, pods, setting
from tests.lib.svc import svc
from tests.lib.world import World

FAMILIES = {"v4": AF_INET, "v6": AF_INET6}
VIPS: dict[int, str] = {AF_INET: VIP, AF_INET6: VIP6}
BULK = 2_000_000
LONG = os.environ.get("SVCCTL_LONG") == "1"
IP_RECVERR, IP_RECVTTL = 11, 12


class Cluster:
    """Three pods with the packet path on their veths, and a state for services."""

    def __init__(self, made: Balanced, here: list[Pod], path: PacketPath) -> None:
        self.made, self.pods, self.path = made, here, path

    def attach(self, flags: int = enums.DEVICE_PEER) -> None:
        """Every pod's veth."""
        for pod in self.pods:
            self.path.attach(pod, flags)

    def service(self, family: int, *backends: str, name: str = "web", **options: object) -> str:
        """A service of both protocols; its address."""
        vip = VIPS[family]
        self.made.add(
            f"{name}{family}", place(vip, 80) + "/tcp", place(vip, 80) + "/udp", backends=backends, **options
        )
        return vip


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    with serviced(world, *SMALL) as made, pods(3) as here, packet_path(made.state_dir) as path:
        yield Cluster(made, here, path)


def conversation(client: socket.socket, server: socket.socket, size: int = BULK) -> None:
    """As many bytes each way at once, all of them as they were sent."""
    sent = bytes(range(256)) * (size // 256)

    def send(one: socket.socket) -> None:
        one.sendall(sent)

    senders = [threading.Thread(target=send, args=(one,)) for one in (client, server)]
    for sender in senders:
        sender.start()
    for one in (client, server):
        got = bytearray()
        while len(got) < len(sent):
            data = one.recv(1 << 16)
            assert data, "closed early"
            got += data
        assert got == sent
    for sender in senders:
        sender.join()


def talk(client: Pod, listener: socket.socket, vip: str, family: int, source: str | None = None) -> None:
    """A TCP connection through a service: who sees whom, and bulk both ways."""
    with client.socket("tcp", family) as one:
        one.connect((vip, 80))
        server, peer = listener.accept()
        with server:
            server.settimeout(30)
            assert peer[:2] == (source or client.own(family), one.getsockname()[1])
            assert one.getpeername()[:2] == (vip, 80)
            conversation(one, server)


def ask(client: Pod, listener: socket.socket, vip: str, family: int, source: str | None = None) -> None:
    """Datagrams through a service, small and of several fragments, answered."""
    with client.socket("udp", family) as one:
        for size in (1, 100, 1400):
            one.sendto(bytes(size), (vip, 80))
            data, peer = listener.recvfrom(1 << 16)
            assert len(data) == size
            assert peer[0] == (source or client.own(family))
            listener.sendto(data, peer)
            back, who = one.recvfrom(1 << 16)
            assert (len(back), who[:2]) == (size, (vip, 80))


def both(client: Pod, backend: Pod, vip: str, family: int, source: str | None = None) -> None:
    with backend.listen(8080, "tcp", family) as tcp, backend.listen(8080, "udp", family) as udp:
        talk(client, tcp, vip, family, source)
        ask(client, udp, vip, family, source)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_pod_to_pod(cluster: Cluster, family: int) -> None:
    """TCP and UDP, straight from pod to pod in both directions; with all offloads, and with none."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(family, place(backend.own(family), 8080))
    for on in (True, False):
        for pod in cluster.pods:
            pod.offloads(on)
        both(client, backend, vip, family)
    routes = {value.route >> 28 for value in cluster.path.flows().values()}
    assert routes == {enums.ROUTE_PEER}
    assert all(cluster.path.drops(reason) == 0 for reason in enums.DROP_REASONS)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("attached", ["all", "client", "neighbour"])
def test_through_the_stack(cluster: Cluster, family: int, attached: str) -> None:
    """Where packets cannot be put into the pod itself: routed by the host, with its strictest source check."""
    client, backend, _ = cluster.pods
    for pod in cluster.pods:
        setting(f"net/ipv4/conf/{pod.device}/rp_filter", "1")
    setting("net/ipv4/conf/all/rp_filter", "1")
    cluster.path.attach(client, enums.DEVICE_NEIGHBOUR if attached == "neighbour" else 0)
    if attached != "client":
        cluster.path.attach(backend, enums.DEVICE_NEIGHBOUR if attached == "neighbour" else 0)
    both(client, backend, cluster.service(family, place(backend.own(family), 8080)), family)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_backend_on_the_node(cluster: Cluster, family: int) -> None:
    """A process of the host's own namespace: up the stack, and back through the client's veth."""
    address = "10.10.0.1" if family == AF_INET else "fd00:10::1"
    batch(f"addr add {address}/{32 if family == AF_INET else 128} dev lo")
    cluster.attach()
    vip = cluster.service(family, place(address, 8080))
    with (
        socket.socket(family, socket.SOCK_STREAM) as tcp,
        socket.socket(family, socket.SOCK_DGRAM) as udp,
    ):
        for one in (tcp, udp):
            one.settimeout(30)
            one.bind((address, 8080))
        tcp.listen()
        talk(cluster.pods[0], tcp, vip, family)
        ask(cluster.pods[0], udp, vip, family)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("flags", [enums.DEVICE_PEER, 0], ids=["peer", "back"])
def test_service_self(cluster: Cluster, family: int, flags: int) -> None:
    """A backend that calls its own service reaches itself, and sees the service as who called."""
    pod = cluster.pods[0]
    cluster.attach(flags)
    vip = cluster.service(family, place(pod.own(family), 8080))
    both(pod, pod, vip, family, source=vip)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_nobody_there(cluster: Cluster, family: int) -> None:
    """Refused at once: TCP by RST, UDP by an ICMP error; silence where a rule says so."""
    client = cluster.pods[0]
    cluster.attach()
    vip = cluster.service(family)
    with client.socket("tcp", family) as one, pytest.raises(ConnectionRefusedError):
        one.connect((vip, 80))
    with client.socket("udp", family) as one:
        one.connect((vip, 80))
        one.send(b"?")
        with pytest.raises(ConnectionRefusedError):
            one.recv(16)
    assert cluster.path.drops("no_backend") == 2
    svc("service", "set", f"web{family}", "--drop")
    with client.socket("tcp", family) as one:
        one.settimeout(0.3)
        with pytest.raises(TimeoutError):
            one.connect((vip, 80))
    assert cluster.path.drops("verdict") > 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_backend_that_leaves(cluster: Cluster, family: int) -> None:
    """TCP learns of it by a RST, UDP goes on with another backend; draining ones keep what they have."""
    client, first, second = cluster.pods
    cluster.attach()
    name, backends = f"web{family}", [place(pod.own(family), 8080) for pod in (first, second)]
    vip = cluster.service(family, backends[0])
    with (
        first.listen(8080, "tcp", family) as tcp,
        first.listen(8080, "udp", family) as udp,
        second.listen(8080, "udp", family) as other,
        client.socket("tcp", family) as stream,
        client.socket("udp", family) as datagrams,
    ):
        stream.connect((vip, 80))
        server, _ = tcp.accept()
        server.settimeout(30)
        datagrams.connect((vip, 80))
        datagrams.send(b"1")
        assert udp.recvfrom(16)[0] == b"1"
        svc("backend", "add", name, backends[1])
        svc("backend", "drain", name, backends[0])
        stream.sendall(b"still here")
        assert server.recv(16) == b"still here"
        datagrams.send(b"2")
        assert udp.recvfrom(16)[0] == b"2"
        svc("backend", "delete", name, backends[0])
        datagrams.send(b"3")
        assert other.recvfrom(16)[0] == b"3"
        stream.sendall(b"?")
        with pytest.raises(ConnectionResetError):
            stream.recv(16)
        server.close()
    assert cluster.path.event("reselected") == 1


def test_service_that_goes(cluster: Cluster) -> None:
    """TCP to a pod that lives goes on when the service is deleted."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(backend.address, 8080))
    with backend.listen(8080) as listener, client.socket() as one:
        one.connect((vip, 80))
        server, _ = listener.accept()
        with server:
            server.settimeout(30)
            svc("service", "delete", f"web{AF_INET}")
            conversation(one, server, 100_000)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_connections_that_were_there_go_on(cluster: Cluster, family: int) -> None:
    """To pods, and to the very address of a service; only new connections are the service's."""
    client, neighbour, backend = cluster.pods
    vip = VIPS[family]
    batch(f"addr add {vip}/{32 if family == AF_INET else 128} dev lo")
    with socket.socket(family, socket.SOCK_STREAM) as before, neighbour.listen(7000, "tcp", family) as direct:
        before.bind((vip, 80))
        before.listen()
        before.settimeout(30)
        pairs = []
        for address, port, listener in ((vip, 80, before), (neighbour.own(family), 7000, direct)):
            one = client.socket("tcp", family)
            one.connect((address, port))
            pairs.append((one, listener.accept()[0]))
        cluster.service(family, place(backend.own(family), 8080))
        cluster.attach()
        for one, server in pairs:
            server.settimeout(30)
            conversation(one, server, 100_000)
        with backend.listen(8080, "tcp", family) as listener:
            talk(client, listener, vip, family)
        for one, server in pairs:
            conversation(one, server, 100_000)
            one.close()
            server.close()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_affinity_of_an_address(cluster: Cluster, family: int) -> None:
    """A client's new connections go where its first went; another client's elsewhere, sooner or later."""
    client, first, second = cluster.pods
    cluster.attach()
    backends = [place(pod.own(family), 8080) for pod in (first, second)]
    vip = cluster.service(family, *backends, affinity=600)
    with first.listen(8080, "udp", family) as one, second.listen(8080, "udp", family) as other:
        for listener in (one, other):
            listener.setblocking(False)
        taken: Counter[str] = Counter()
        for _ in range(20):
            with client.socket("udp", family) as sender:
                sender.sendto(b"?", (vip, 80))
        until = time.monotonic() + 60
        while taken.total() < 20 and time.monotonic() < until:
            for name, listener in (("first", one), ("second", other)):
                try:
                    listener.recv(16)
                    taken[name] += 1
                except BlockingIOError:
                    pass
    assert list(taken.values()) == [20]
    assert cluster.made.stats(f"web{family}", 4 if family == AF_INET else 6).affinity == 19


def test_two_services_with_one_backend(cluster: Cluster) -> None:
    """One client port to both: to the backend it would be one connection, so one of them gets another port."""
    client, backend, _ = cluster.pods
    cluster.attach()
    target = place(backend.address, 8080)
    cluster.made.add("one", "10.96.0.21:80/tcp", backends=[target])
    cluster.made.add("two", "10.96.0.22:80/tcp", backends=[target])
    with backend.listen(8080) as listener, client.socket() as first, client.socket() as second:
        for one in (first, second):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((client.address, 45678))
        servers = []
        for one, vip in ((first, "10.96.0.21"), (second, "10.96.0.22")):
            one.connect((vip, 80))
            server, peer = listener.accept()
            server.settimeout(30)
            servers.append((server, peer[1]))
        assert servers[0][1] == 45678
        assert 20000 <= servers[1][1] < 30000
        for (server, _), one in zip(servers, (first, second), strict=True):
            conversation(one, server, 100_000)
            server.close()
    assert cluster.path.event("other_port") == 1


def test_a_port_is_used_again_and_again(cluster: Cluster) -> None:
    """Whoever closes first, and however: the next connection from the same port is a new one."""
    client, first, second = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, *(place(pod.address, 8080) for pod in (first, second)))
    reset = b"\1\0\0\0\0\0\0\0"
    with first.listen(8080) as one, second.listen(8080) as other:
        for listener in (one, other):
            listener.setblocking(False)
        for turn in range(30):
            with client.socket() as stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                stream.bind((client.address, 45679))
                stream.connect((vip, 80))
                server = accept_any(one, other)
                server.sendall(b"hello")
                assert stream.recv(16) == b"hello"
                if turn % 3 == 0:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    stream.close()
                    server.close()
                elif turn % 3 == 1:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    server.close()
                    with pytest.raises(ConnectionResetError):
                        stream.recv(16)
                else:
                    server.close()
                    assert stream.recv(16) == b""
    assert cluster.path.event("recycled") >= 29


def test_by_service_and_directly_in_turns(cluster: Cluster) -> None:
    """One client port to one backend, both ways, closed as fast as can be."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(backend.address, 8080))
    with backend.listen(8080) as listener:
        for turn in range(40):
            with client.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((client.address, 45680))
                one.connect((vip, 80) if turn % 2 else (backend.address, 8080))
                one.sendall(b"?")
                server, _ = listener.accept()
                with server:
                    server.settimeout(30)
                    assert server.recv(8) == b"?"
                    server.sendall(b"!")
                    assert one.recv(8) == b"!"
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def accept_any(*listeners: socket.socket) -> socket.socket:
    """Whichever has a connection."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for one in listeners:
            try:
                server = one.accept()[0]
            except BlockingIOError:
                continue
            server.settimeout(30)
            return server
        time.sleep(0.001)
    raise AssertionError("nobody was connected to")


def test_what_is_not_ours_is_left_alone(cluster: Cluster) -> None:
    """Pods reach each other and the host as if nothing was there, and no flow is remembered."""
    client, other, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(other.address, 8080))
    for family in FAMILIES.values():
        with other.listen(9000, "tcp", family) as tcp, client.socket("tcp", family) as one:
            one.connect((other.own(family), 9000))
            server, peer = tcp.accept()
            assert peer[0] == client.own(family)
            with server:
                server.settimeout(30)
                conversation(one, server, 100_000)
    assert cluster.path.flows() == {}
    with client.socket() as one:
        one.settimeout(1)
        # Another port of the service's address is nobody's: the host has no route to it.
        assert one.connect_ex((vip, 81)) in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EAGAIN)


def test_what_the_balancer_resolved_is_left_alone(cluster: Cluster) -> None:
    """A pod in the connect balancer's cgroup calls backends by their own address; one beside it the service's."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(backend.address, 8080))
    with backend.listen(8080) as listener:
        with inside(cluster.made.cgroup), client.socket() as one:
            one.connect((vip, 80))
            listener.accept()[0].close()
            assert one.recv(8) == b""
        assert cluster.path.flows() == {}
        talk(client, listener, vip, AF_INET)
        assert len(cluster.path.flows()) == 2


def test_time_to_live(cluster: Cluster) -> None:
    """One less where a packet is put into a pod; none left: the host says so, about the packet the client sent."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(backend.address, 8080))
    with backend.listen(8080, "udp") as server, client.socket("udp") as one:
        server.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        one.connect((vip, 80))
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
        one.send(b"?")
        _, ancillary, _, _ = server.recvmsg(16, 64)
        assert int.from_bytes(ancillary[0][2], sys.byteorder) == 8
        one.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        one.send(b"?")
        with pytest.raises(OSError, match="No route to host"):
            one.recv(16)
        told, _, _, about = one.recvmsg(64, 512, socket.MSG_ERRQUEUE)
        assert (told, about) == (b"?", (vip, 80))


def test_a_pod_that_comes_back(cluster: Cluster) -> None:
    """Another veth with the address of the one before: what is remembered of routes is soon asked for again."""
    client, backend, _ = cluster.pods
    cluster.attach()
    vip = cluster.service(AF_INET, place(backend.address, 8080))
    with backend.listen(8080, "udp") as server, client.socket("udp") as one:
        one.connect((vip, 80))
        one.send(b"1")
        assert server.recv(8) == b"1"
        batch(f"link del {backend.device}")
        again = Pod(backend.number)
        cluster.pods.append(again)
        cluster.path.attach(again)
        with again.listen(8080, "udp") as other:
            other.settimeout(0.1)
            until = time.monotonic() + 60
            while time.monotonic() < until:
                one.send(b"2")
                try:
                    assert other.recvfrom(8)[0] == b"2"
                    break
                except TimeoutError:
                    continue
            else:
                raise AssertionError("never came")


def test_short_connections_while_backends_change(cluster: Cluster) -> None:
    """Each is served whole: backends come, are drained and go once they have nothing left to do."""
    client, first, second = cluster.pods
    cluster.attach()
    backends = [place(pod.address, 8080) for pod in (first, second)]
    vip = cluster.service(AF_INET, *backends)
    count, failed = 100_000 if LONG else 1_500, list[str]()
    stop, enough = threading.Event(), threading.Event()
    listeners = [pod.listen(8080) for pod in (first, second)]

    def serve(listener: socket.socket) -> None:
        listener.settimeout(0.1)
        while not stop.is_set():
            try:
                one, _ = listener.accept()
            except TimeoutError:
                continue
            with one:
                one.settimeout(30)
                one.sendall(one.recv(64) * 40)

    def call(times: int) -> None:
        try:
            with client.inside():
                for number in itertools.count():
                    if number >= times and enough.is_set():
                        return
                    with socket.create_connection((vip, 80), timeout=30) as one:
                        sent = f"{number:08d}".encode()
                        one.sendall(sent)
                        got = b""
                        while data := one.recv(4096):
                            got += data
                        if got != sent * 40:
                            failed.append(f"{number}: {len(got)} bytes")
        except OSError as problem:
            failed.append(repr(problem))

    servers = [threading.Thread(target=serve, args=(one,)) for one in listeners]
    callers = [threading.Thread(target=call, args=(count // 2,)) for _ in range(2)]
    for thread in (*servers, *callers):
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in callers):
        name, one = f"web{AF_INET}", turn % 2
        svc("backend", "drain", name, backends[one])
        while cluster.path.open_to(cluster.pods[1 + one].address):
            time.sleep(0.01)
        svc("backend", "delete", name, backends[one])
        svc("backend", "add", name, backends[one])
        turn += 1
        if turn == 4:
            enough.set()
    for thread in callers:
        thread.join()
    stop.set()
    for thread in servers:
        thread.join()
    for listener in listeners:
        listener.close()
    assert failed == []
    assert cluster.path.event("opened") >= count
    assert all(cluster.path.drops(reason) == 0 for reason in enums.DROP_REASONS)
