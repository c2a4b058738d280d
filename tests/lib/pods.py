"""Pods: network namespaces, each behind a veth of the host (the world the test is in), as a container runtime makes them.

A pod has an address with a host route to its veth, and a gateway that is the veth's own address. Sockets of a pod are
made by the test's own thread, which visits the namespace for that moment; they stay there.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from socket import AF_INET, AF_INET6

from svcctl.host.netns import Netns
from tests.lib.until import until
from tests.lib.world import CLONE_NEWNET, _check, _libc, _loopback_up, sh

_ports = itertools.cycle(range(13_000, 19_000))


def take_port(one: socket.socket) -> None:
    """Bind to a port that no client had for long.

    One that the kernel gives may be that of an earlier connection, which the backend's address does not tell from
    this one if both come to it by services: then this one is given another port on the way.
    """
    one.bind(("", next(_ports)))


Socket = socket.socket
SIOCGIFFLAGS, SIOCETHTOOL = 0x8913, 0x8946
IFF_RUNNING = 0x40
GATEWAY, GATEWAY6 = "169.254.1.1", "fe80::1"


class Namespace:
    """A network namespace of its own, its loopback up, and sockets in it. Who inherits it says which addresses it has."""

    address = address6 = ""

    def __init__(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            _loopback_up()
            quiet_addresses()
            all_icmp()
            self.netns = Netns.open("/proc/thread-self/ns/net")
            _check(_libc.setns(home, CLONE_NEWNET), "setns")
        finally:
            os.close(home)
        self.path = f"/proc/{os.getpid()}/fd/{self.netns.fd}"

    def inside(self) -> contextlib.AbstractContextManager[object]:
        """The calling thread in it for the length of a block."""
        return self.netns.entered()

    def own(self, family: int) -> str:
        """Its address of a family."""
        return self.address6 if family == AF_INET6 else self.address

    def socket(self, kind: str = "tcp", family: int = AF_INET) -> Socket:
        """A socket in it that waits a minute at most."""
        with self.inside():
            one = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        one.settimeout(60)
        return one

    def listen(self, port: int, kind: str = "tcp", family: int = AF_INET) -> Socket:
        """A bound (TCP: listening) socket on its address."""
        one = self.socket(kind, family)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((self.own(family), port))
        if kind == "tcp":
            one.listen(128)
        return one

    def close(self) -> None:
        """Let the namespace go, and its interfaces with it."""
        self.netns.close()


class Pod(Namespace):
    """One pod: `address` and `address6`, and the veth's end on the host, `device` with index `ifindex`.

    `network` tells the pods of several hosts apart.
    """

    def __init__(self, number: int, network: int = 0, mtu: int = 1500) -> None:
        super().__init__()
        self.number = number
        self.address = f"10.244.{network}.{number}"
        self.address6 = f"fd00:244:{network:x}::{number:x}" if network else f"fd00:244::{number:x}"
        self.device = f"pod{number}"
        batch(
            f"link add {self.device} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {self.path}",
            f"addr add {GATEWAY}/32 dev {self.device}",
            f"link set {self.device} up",
            f"addr add {GATEWAY6}/64 dev {self.device} nodad",
            f"route add {self.address}/32 dev {self.device}",
            f"route add {self.address6}/128 dev {self.device}",
        )
        with self.netns.entered():
            batch(
                f"addr add {self.address}/32 dev eth0",
                f"addr add {self.address6}/128 dev eth0 nodad",
                "link set eth0 up",
                f"route add default via {GATEWAY} dev eth0 onlink",
                f"route add default via {GATEWAY6} dev eth0",
            )
            await_running("eth0")
        await_running(self.device)
        self.ifindex = socket.if_nametoindex(self.device)

    def offloads(self, on: bool) -> None:
        """Switch checksum and segmentation offloads of both ends."""
        switch_offloads(self.device, on)
        with self.inside():
            switch_offloads("eth0", on)


def place(address: str, port: int) -> str:
    """`address:port`, as commands take it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def switch_offloads(device: str, on: bool) -> None:
    """Checksum and segmentation offloads of an interface of the calling thread's namespace."""
    # enum of linux/ethtool.h: segmentation goes before what it rests on, and comes after it.
    rx, tx, tso, gso, gro = 0x15, 0x17, 0x1F, 0x24, 0x2C
    with socket.socket(AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (rx, tx, tso, gso, gro) if on else (gro, gso, tso, tx, rx):
            value = array.array("I", [command, int(on)])
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):  # gone with what it rests on
                fcntl.ioctl(any_socket, SIOCETHTOOL, request + bytes(16))


def batch(*commands: str) -> None:
    """Several ip(8) commands as one process."""
    sh("ip -batch -", input="\n".join(commands) + "\n")


def quiet_addresses() -> None:
    """No duplicate address detection: an address is there at once."""
    for name in ("all", "default"):
        setting(f"net/ipv6/conf/{name}/accept_dad", "0")


def all_icmp() -> None:
    """ICMP errors are not limited: the limits are per peer, before Linux 6.12 some are of the whole machine, too."""
    setting("net/ipv4/icmp_ratemask", "0")
    setting("net/ipv6/icmp/ratemask", "127")  # one type that nobody sends


def await_running(device: str) -> None:
    """Until an interface that was set up carries packets: the kernel drops them until it has noted its carrier."""
    with socket.socket(AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", device.encode(), 0)
        until(
            lambda: (
                struct.unpack_from("16xH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[0] & IFF_RUNNING
            ),
            device,
        )


def setting(name: str, value: str) -> None:
    """Write a sysctl of the calling thread's namespace; /proc/sys shows that of whoever opens it."""
    with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
        file.write(value)


@contextlib.contextmanager
def pods(count: int) -> Iterator[list[Pod]]:
    """As many pods on this host, which forwards between them."""
    setting("net/ipv4/ip_forward", "1")
    setting("net/ipv6/conf/all/forwarding", "1")
    quiet_addresses()
    all_icmp()
    made: list[Pod] = []
    try:
        made.extend(Pod(number) for number in range(1, count + 1))
        yield made
    finally:
        for one in made:
            one.close()
