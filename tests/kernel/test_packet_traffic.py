"""The packet path with real pods: sockets that know nothing, on both ends of a service."""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack
from socket import AF_INET

import pytest

from svcctl.maps import enums
from tests.lib.balanced import inside
from tests.lib.cluster import FAMILIES, Cluster, ask, both, conversation, talk
from tests.lib.frames import ICMP, IP, Raw
from tests.lib.pods import GATEWAY, Pod, batch, place, setting
from tests.lib.svc import svc
from tests.lib.tunnelled import datagram, listen_to_errors, told

IP_RECVERR, IP_RECVTTL = 11, 12


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
def test_server_of_all_addresses_on_the_node(cluster: Cluster, family: int) -> None:
    """Its datagrams come from where the route to the pod says: they are the flow's once that is the backend's address."""
    client = cluster.pods[0]
    address, length = ("10.10.0.1", 32) if family == AF_INET else ("fd00:10::1", 128)
    # Another one that the host could take, on the very interface.
    other = GATEWAY if family == AF_INET else "fd00:244::ffff"
    batch(f"addr add {address}/{length} dev lo")
    if family != AF_INET:
        batch(f"addr add {other}/128 dev {client.device} nodad")
    cluster.attach()
    vip = cluster.service(family, place(address, 8080))
    with socket.socket(family, socket.SOCK_DGRAM) as server, client.socket("udp", family) as one:
        server.settimeout(30)
        server.bind(("", 8080))
        one.sendto(b"?", (vip, 80))
        data, peer = server.recvfrom(8)
        server.sendto(data, peer)
        assert one.recvfrom(8)[1][:2] == (other, 8080)  # as it was sent: nobody asked there
        batch(f"route replace {client.own(family)}/{length} dev {client.device} src {address}")
        ask(client, server, vip, family)


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
        with ExitStack() as senders:  # all open at once: a source port that comes again is no new connection
            for _ in range(20):
                senders.enter_context(client.socket("udp", family)).sendto(b"?", (vip, 80))
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


CHECK = pytest.mark.parametrize("check", [1, 2, 0], ids=["strict", "loose", "unchecked"])


def checked(cluster: Cluster, check: int) -> str:
    """Sources checked by the host, the packet path, and a service of the last pod: its address."""
    for pod in cluster.pods:
        setting(f"net/ipv4/conf/{pod.device}/rp_filter", str(check))
    setting("net/ipv4/conf/all/rp_filter", "0")
    cluster.attach()
    return cluster.service(AF_INET, place(cluster.pods[-1].address, 8080))


def send_raw(pod: Pod, packet: bytes, destination: str) -> None:
    """A packet with its IPv4 header, whoever that says it is from."""
    with pod.inside(), socket.socket(AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.sendto(packet, (destination, 0))


@CHECK
def test_who_says_to_be_another(cluster: Cluster, check: int) -> None:
    """The host's check of sources is not got round by a service, nor by a flow that is there: what it would drop is
    dropped, what it lets by arrives; who speaks for itself goes straight on meanwhile."""
    client, forger, backend = cluster.pods
    vip = checked(cluster, check)

    def forge(source: tuple[str, int], destination: tuple[str, int], payload: bytes) -> None:
        send_raw(forger, datagram(source, destination, payload), destination[0])

    with backend.listen(8080, "udp") as server, client.socket("udp") as one:
        one.bind((client.address, 45690))
        one.connect((vip, 80))
        # A flow that the forger begins, one that the client has begun, and answers of neither's backend.
        forge((client.address, 45691), (vip, 80), b"begun")
        if check != 1:
            assert server.recvfrom(16) == (b"begun", (client.address, 45691))
        for turn in (b"1", b"2"):
            one.send(turn)
            assert server.recvfrom(16) == (turn, (client.address, 45690))
            server.sendto(turn, (client.address, 45690))
            assert one.recv(16) == turn
            forge((client.address, 45690), (vip, 80), b"forged")
            forge((backend.address, 8080), (client.address, 45690), b"answer")
            if check != 1:
                assert server.recvfrom(16) == (b"forged", (client.address, 45690))
                assert one.recv(16) == b"answer"
        one.send(b"last")
        assert server.recvfrom(16) == (b"last", (client.address, 45690))
        server.sendto(b"last", (client.address, 45690))
        assert one.recv(16) == b"last"
        for quiet in (one, server):
            quiet.setblocking(False)
            with pytest.raises(BlockingIOError):
                quiet.recv(16)
    routes = [
        value
        for key, value in cluster.path.flows().items()
        if 45690 in (key.source_port, key.destination_port)
    ]
    assert [value.route >> 28 for value in routes] == [enums.ROUTE_PEER] * 2
    assert {value.device for value in routes} == {client.ifindex, backend.ifindex}


@CHECK
def test_whose_errors_are_another_pods(cluster: Cluster, check: int) -> None:
    """An ICMP error from a source that is not its sender's is the host's to judge, like any other packet."""
    client, forger, backend = cluster.pods
    vip = checked(cluster, check)

    def forge(source: str, destination: str, about: bytes) -> None:
        error = bytes(IP(src=source, dst=destination) / ICMP(type=3, code=1) / Raw(about))
        send_raw(forger, error, destination)

    with (
        backend.listen(8080, "udp") as server,
        backend.listen(9000, "udp") as beside,
        client.listen(9000, "udp") as other,
        client.socket("udp") as one,
        forger.socket("udp") as last,
    ):
        one.bind((client.address, 45690))
        listen_to_errors(one)
        listen_to_errors(server)
        one.sendto(b"1", (vip, 80))
        assert server.recvfrom(16) == (b"1", (client.address, 45690))
        server.sendto(b"2", (client.address, 45690))
        assert one.recv(16) == b"2"
        # About what the client has sent, as if of the backend; and about the answer, as if of the client.
        forge(backend.address, client.address, datagram((client.address, 45690), (backend.address, 8080)))
        forge(client.address, vip, datagram((vip, 80), (client.address, 45690)))
        for to in (other, beside):
            last.sendto(b"the last", to.getsockname()[:2])
            assert to.recv(16) == b"the last"
        for who, peer in ((one, (vip, 80)), (server, (client.address, 45690))):
            error = told(who)
            if check == 1:
                assert error is None
            else:
                assert error is not None
                assert (error.type, error.code, error.destination) == (3, 1, peer)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_workloads_of_a_bridge(cluster: Cluster, family: int) -> None:
    """Their addresses are reached by the bridge and not by their own interface: so the host's stack has their packets."""
    client, backend, _ = cluster.pods
    gateway, length = ("10.77.0.1", 24) if family == AF_INET else ("fd00:77::1", 64)
    own = "10.77.0.2" if family == AF_INET else "fd00:77::2"
    batch(
        "link add br0 type bridge", "link set br0 up",
        f"addr add {gateway}/{length} dev br0" + (" nodad" if family != AF_INET else ""),
        f"link set {client.device} master br0",
    )  # fmt: skip
    with client.inside():
        batch(
            f"addr add {own}/{length} dev eth0" + (" nodad" if family != AF_INET else ""),
            f"route replace default via {gateway} dev eth0",
        )
    cluster.attach()
    vip = cluster.service(family, place(backend.own(family), 8080))
    with backend.listen(8080, "tcp", family) as server, client.socket("tcp", family) as one:
        one.bind((own, 0))
        one.connect((vip, 80))
        accepted, peer = server.accept()
        with accepted:
            accepted.settimeout(30)
            assert peer[0] == own
            conversation(one, accepted, 100_000)


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
