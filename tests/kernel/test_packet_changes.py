"""The packet path while things change under it: backends, services, pods, and ports that are used again."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from socket import AF_INET

import pytest

from svcctl.state.packet_settings import TIMEOUTS
from svcctl.state.place import Place
from svcctl.state.writer import lock_state
from tests.lib.balanced import SMALL
from tests.lib.cluster import FAMILIES, VIPS, Cluster, conversation, talk
from tests.lib.pods import Pod, batch, place, pods
from tests.lib.svc import svc
from tests.lib.veths import wait
from tests.lib.world import World

LONG = os.environ.get("SVCCTL_LONG") == "1"


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


def test_short_connections_while_backends_change(world: World) -> None:
    """Each is served whole: backends come, are drained and go once they have nothing left to do. Nothing of any stays."""
    svc("load", "--no-dispatcher")
    with pods(3) as here:
        svc("attach", "dev", "pod*", "--role", "workload", *SMALL, "--max-flows", 20_000)
        _short_connections(*here)
        _nothing_stays()
        assert svc("check").out == "no problems found\n"


def _is_open(backend: str) -> bool:
    """Whether a flow to a backend is not over."""
    rows = svc("conntrack", "--backend", backend, "-o", "json").json["conntrack"]
    return any(row["state"] not in ("closed", "reset", "expired") for row in rows)


def _nothing_stays() -> None:
    """After their time `gc` leaves no flow, and no entry of one in either map."""

    def entries() -> int:
        with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
            return sum(len(list(writer.map(name).items())) for name in ("flows", "halfopen"))

    def gone() -> bool:
        """Some may be idle for less than a millisecond yet."""
        svc("gc")
        return entries() == 0

    assert entries()
    svc("load", "--no-dispatcher", *(f"--timeout={name}=0.001" for name in TIMEOUTS))
    wait(gone)
    assert svc("conntrack", "-o", "json").json["conntrack"] == []


def _short_connections(client: Pod, first: Pod, second: Pod) -> None:
    backends, vip = [place(pod.address, 8080) for pod in (first, second)], VIPS[AF_INET]
    added = [word for one in backends for word in ("--backend", one)]
    svc("service", "add", "web", "--frontend", f"{vip}:80/tcp", *added)
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
        leaves = (first, second)[turn % 2]
        svc("backend", "drain", "web", backends[turn % 2])
        while _is_open(leaves.address):
            time.sleep(0.01)
        svc("backend", "delete", "web", backends[turn % 2])
        svc("backend", "add", "web", backends[turn % 2])
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
    (shown,) = svc("status", "-o", "json").json["status"]
    assert shown["packets"]["events"]["opened"] >= count
    assert set(shown["drops"].values()) == {0}
