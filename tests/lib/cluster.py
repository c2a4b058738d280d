"""A cluster on one host: pods with the packet path on their veths, a state for services, and talk through them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from socket import AF_INET, AF_INET6

from svcctl.maps import enums
from tests.lib.balanced import SMALL, VIP, VIP6, Balanced
from tests.lib.packet_path import PacketPath, packet_path, serviced
from tests.lib.pods import Pod, place, pods, take_port
from tests.lib.world import World

FAMILIES = {"v4": AF_INET, "v6": AF_INET6}
VIPS: dict[int, str] = {AF_INET: VIP, AF_INET6: VIP6}
BULK = 2_000_000


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


@contextlib.contextmanager
def cluster(world: World) -> Iterator[Cluster]:
    """Three pods in a world, with nothing attached yet."""
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
        take_port(one)
        one.connect((vip, 80))
        server, peer = listener.accept()
        with server:
            server.settimeout(60)
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
