"""The packet path in one quick test: it runs inside every kernel of the matrix as well."""

from __future__ import annotations

import socket
import time
from socket import AF_INET, AF_INET6

import pytest

from svcctl.maps import enums
from svcctl.model.service_endpoint import parse_backend
from tests.lib.balanced import SMALL, VIP, VIP6, Balanced
from tests.lib.packet_path import PacketPath, packet_path, serviced
from tests.lib.pods import Pod, batch, place, pods
from tests.lib.servers import SLOWNESS
from tests.lib.svc import svc
from tests.lib.world import World

VIPS: dict[int, str] = {AF_INET: VIP, AF_INET6: VIP6}
OUTSIDE: dict[int, str] = {AF_INET: "10.99.0.1", AF_INET6: "fd00:99::1"}


@pytest.mark.quick
@pytest.mark.covers(
    "answer: helper csum_diff", "answer: helper l4_csum_replace", "answer: helper redirect",
    "answer: helper skb_adjust_room", "answer: helper skb_change_tail", "answer: helper skb_load_bytes",
    "answer: helper skb_pull_data", "answer: helper skb_store_bytes", "answer: tc",
    "from_outside: helper fib_lookup", "from_outside: helper ktime_get_ns",
    "from_outside: helper l4_csum_replace", "from_outside: helper map_delete_elem",
    "from_outside: helper map_lookup_elem", "from_outside: helper map_update_elem",
    "from_outside: helper redirect", "from_outside: helper redirect_neigh",
    "from_outside: helper redirect_peer", "from_outside: helper skb_change_type",
    "from_outside: helper skb_load_bytes", "from_outside: helper skb_pull_data",
    "from_outside: helper skb_store_bytes", "from_outside: helper tail_call", "from_outside: map array",
    "from_outside: map hash", "from_outside: map lru_hash", "from_outside: map percpu_array",
    "from_outside: map prog_array", "from_outside: tc", "from_workload: helper fib_lookup",
    "from_workload: helper ktime_get_ns", "from_workload: helper l4_csum_replace",
    "from_workload: helper map_delete_elem", "from_workload: helper map_lookup_elem",
    "from_workload: helper map_update_elem", "from_workload: helper redirect",
    "from_workload: helper redirect_neigh", "from_workload: helper redirect_peer",
    "from_workload: helper skb_change_type", "from_workload: helper skb_load_bytes",
    "from_workload: helper skb_pull_data", "from_workload: helper skb_store_bytes",
    "from_workload: helper tail_call", "from_workload: map array", "from_workload: map hash",
    "from_workload: map lru_hash", "from_workload: map percpu_array", "from_workload: map prog_array",
    "from_workload: tc", "icmp_from: helper fib_lookup", "icmp_from: helper l4_csum_replace",
    "icmp_from: helper map_lookup_elem", "icmp_from: helper redirect", "icmp_from: helper redirect_neigh",
    "icmp_from: helper redirect_peer", "icmp_from: helper skb_change_type",
    "icmp_from: helper skb_load_bytes", "icmp_from: helper skb_pull_data",
    "icmp_from: helper skb_store_bytes", "icmp_from: map hash", "icmp_from: map lru_hash",
    "icmp_from: map percpu_array", "icmp_from: tc", "icmp_outside: helper fib_lookup",
    "icmp_outside: helper l4_csum_replace", "icmp_outside: helper map_lookup_elem",
    "icmp_outside: helper redirect", "icmp_outside: helper redirect_neigh",
    "icmp_outside: helper redirect_peer", "icmp_outside: helper skb_change_type",
    "icmp_outside: helper skb_load_bytes", "icmp_outside: helper skb_pull_data",
    "icmp_outside: helper skb_store_bytes", "icmp_outside: map hash", "icmp_outside: map lru_hash",
    "icmp_outside: map percpu_array", "icmp_outside: tc", "icmp_to: helper l4_csum_replace",
    "icmp_to: helper map_lookup_elem", "icmp_to: helper skb_load_bytes", "icmp_to: helper skb_pull_data",
    "icmp_to: helper skb_store_bytes", "icmp_to: map lru_hash", "icmp_to: map percpu_array", "icmp_to: tc",
    "open_flow: helper fib_lookup", "open_flow: helper get_prandom_u32", "open_flow: helper ktime_get_ns",
    "open_flow: helper l4_csum_replace", "open_flow: helper map_delete_elem",
    "open_flow: helper map_lookup_elem", "open_flow: helper map_update_elem", "open_flow: helper redirect",
    "open_flow: helper redirect_neigh", "open_flow: helper redirect_peer",
    "open_flow: helper skb_change_type", "open_flow: helper skb_load_bytes",
    "open_flow: helper skb_pull_data", "open_flow: helper skb_store_bytes", "open_flow: helper tail_call",
    "open_flow: map array", "open_flow: map array_of_maps", "open_flow: map hash", "open_flow: map lpm_trie", "open_flow: map lru_hash",
    "open_flow: map percpu_array", "open_flow: map prog_array", "open_flow: tc", "to_outside: tc",
    "to_workload: helper ktime_get_ns", "to_workload: helper l4_csum_replace",
    "to_workload: helper map_delete_elem", "to_workload: helper map_lookup_elem",
    "to_workload: helper map_update_elem", "to_workload: helper skb_load_bytes",
    "to_workload: helper skb_pull_data", "to_workload: helper skb_store_bytes",
    "to_workload: helper tail_call", "to_workload: map array", "to_workload: map lru_hash",
    "from_outside: helper spin_lock", "from_outside: helper spin_unlock", "from_workload: helper spin_lock",
    "from_workload: helper spin_unlock", "open_flow: helper spin_lock", "open_flow: helper spin_unlock",
    "to_workload: helper spin_lock", "to_workload: helper spin_unlock",
    "to_workload: map percpu_array", "to_workload: map prog_array", "to_workload: tc",
)  # fmt: skip
def test_every_program(world: World) -> None:
    """Two pods, and a third that stands for what is outside; each family, TCP and UDP, by every way there is."""
    with serviced(world, *SMALL) as made, pods(3) as here, packet_path(made.state_dir, 1024, 1024) as path:
        client, backend, outside = here
        for pod in (client, backend):
            path.attach(pod)
        path.attach_device(outside.ifindex, "from_outside", "to_outside")
        for family in (AF_INET, AF_INET6):
            batch(f"route add {OUTSIDE[family]} via {outside.own(family)} dev {outside.device}")
            with outside.inside():
                batch(f"addr add {OUTSIDE[family]}/{32 if family == AF_INET else 128} dev lo")
            _talk(made, path, client, backend, family)
            _outside(made, path, client, outside, family)
            _refused(made, path, client, family)
            _errors(path, client, backend, family)
        assert path.drops("no_write") == 0


def _service(made: Balanced, name: str, vip: str, *backends: str, **options: object) -> None:
    made.add(name, f"{place(vip, 80)}/tcp", f"{place(vip, 80)}/udp", backends=backends, **options)


def _socket(pod: Pod, kind: str, family: int) -> socket.socket:
    one = pod.socket(kind, family)
    one.settimeout(60 * SLOWNESS)
    return one


def _exchange(
    client: Pod, listeners: tuple[socket.socket, socket.socket], vip: str, family: int, source: str
) -> None:
    """One TCP connection and two datagrams each way."""
    tcp, udp = listeners
    for one in listeners:
        one.settimeout(60 * SLOWNESS)
    with _socket(client, "tcp", family) as stream:
        stream.connect((vip, 80))
        server, peer = tcp.accept()
        with server:
            server.settimeout(60 * SLOWNESS)
            assert peer[0] == source
            stream.sendall(b"a" * 5000)
            got = b""
            while len(got) < 5000:
                got += server.recv(5000)
            server.sendall(b"b")
            assert stream.recv(8) == b"b"
    with _socket(client, "udp", family) as datagrams:
        datagrams.connect((vip, 80))
        for size in (1, 3000):  # the second in fragments
            datagrams.send(bytes(size))
            data, peer = udp.recvfrom(4000)
            assert (len(data), peer[0]) == (size, source)
            udp.sendto(data, peer)
            assert len(datagrams.recv(4000)) == size
            if family == AF_INET6:
                break  # nobody translates fragments of IPv6


def _talk(made: Balanced, path: PacketPath, client: Pod, backend: Pod, family: int) -> None:
    """Pod to pod with affinity, a pod to itself, and a connection that outlives its backend."""
    name, vip, target = f"web{family}", VIPS[family], place(backend.own(family), 8080)
    _service(made, name, vip, target, affinity=60)
    with backend.listen(8080, "tcp", family) as tcp, backend.listen(8080, "udp", family) as udp:
        for _ in range(2):
            _exchange(client, (tcp, udp), vip, family, client.own(family))
        _exchange(backend, (tcp, udp), vip, family, vip)
        assert {value.route >> 28 for value in path.flows().values()} <= {enums.ROUTE_PEER, 0}
        with _socket(client, "tcp", family) as stream:
            stream.connect((vip, 80))
            server, _ = tcp.accept()
            svc("backend", "delete", name, target)
            stream.sendall(b"?")
            with pytest.raises(ConnectionResetError):
                stream.recv(8)
            server.close()


def _outside(made: Balanced, path: PacketPath, client: Pod, outside: Pod, family: int) -> None:
    """A backend of which only the answers come by: they go from the interface straight to the client."""
    vip = "10.96.1.1" if family == AF_INET else "fd96:1::1"
    _service(made, f"out{family}", vip, place(OUTSIDE[family], 8080), algorithm="maglev", table_size=251)
    with outside.inside():
        tcp, udp = (socket.socket(family, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
    with tcp, udp:
        for one in (tcp, udp):
            one.bind((OUTSIDE[family], 8080))
        tcp.listen()
        _exchange(client, (tcp, udp), vip, family, client.own(family))
    there = parse_backend(place(OUTSIDE[family], 8080)).address
    routes = {value.route >> 28 for key, value in path.flows().items() if key.source == there}
    assert routes == {enums.ROUTE_PEER}


def _refused(made: Balanced, path: PacketPath, client: Pod, family: int) -> None:
    vip = "10.96.2.1" if family == AF_INET else "fd96:2::1"
    _service(made, f"none{family}", vip)
    with _socket(client, "tcp", family) as one, pytest.raises(ConnectionRefusedError):
        one.connect((vip, 80))
    with _socket(client, "udp", family) as one:
        one.connect((vip, 80))
        one.send(b"?")
        with pytest.raises(ConnectionRefusedError):
            one.recv(8)


def _errors(path: PacketPath, client: Pod, backend: Pod, family: int) -> None:
    """A backend that listens to nothing says so by ICMP, to who called the service."""
    name, vip = f"web{family}", VIPS[family]
    svc("backend", "add", name, place(backend.own(family), 8081))
    before = path.event("icmp")
    with _socket(client, "udp", family) as one:
        one.connect((vip, 80))
        until = time.monotonic() + 60 * SLOWNESS
        while time.monotonic() < until:
            try:
                one.send(b"?")
                one.settimeout(0.5)
                one.recv(8)
            except ConnectionRefusedError:
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("never told")
    assert path.event("icmp") > before
