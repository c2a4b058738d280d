"""Tunnelled packets by test-run: what is written into them, and what becomes of those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import DEVICE, NODE, PACKET_CONFIG, TUNNEL_PORT, Device, NodeValue
from tests.lib.balanced import SMALL
from tests.lib.frames import IP, TCP, IPv6, addresses, check, ether, flow, mapped, read
from tests.lib.nodes import node_key
from tests.lib.packet_path import DROP, PASS, REDIRECT, PacketPath, packet_path, serviced
from tests.lib.pods import batch, place, setting
from tests.lib.tunnelled import datagram, wrapped
from tests.lib.world import World

CLIENT: dict[int, str] = {4: "192.0.2.2", 6: "2001:db8:2::2"}
OWN: dict[int, str] = {4: "10.10.1.2", 6: "fd00:10:1::2"}
PEER: dict[int, str] = {4: "10.10.2.2", 6: "fd00:10:2::2"}
HERE: dict[int, str] = {4: "10.244.1.1", 6: "fd00:244:1::1"}
THERE: dict[int, str] = {4: "10.244.2.1", 6: "fd00:244:2::1"}
NEAR: dict[int, str] = {4: "203.0.113.10", 6: "2001:db8:113::10"}
"""Of a service whose backend is here, and answers directly."""
FAR: dict[int, str] = {4: "203.0.113.11", 6: "2001:db8:113::11"}
"""Of one whose backend is on the other node."""
OUTER: dict[int, int] = {4: 50, 6: 70}
"""What a tunnel puts before the inner Ethernet header."""
CLAMPED: dict[int, int] = {4: 1410, 6: 1370}
"""What a tunnel through a network of 1500 bytes takes of TCP."""
NODE_NUMBER = 7
LO = 1
FAMILIES = (4, 6)
OPTIONS = (
    [("MSS", 1460)],
    [("NOP", None), ("MSS", 1460)],
    [("NOP", None), ("NOP", None), ("MSS", 1460)],
    [("SAckOK", b""), ("NOP", None), ("MSS", 1460), ("WScale", 7)],
)


@pytest.fixture
def path(world: World) -> Iterator[PacketPath]:
    """This node and another one; all routes lead to the loopback interface."""
    setting("net/ipv4/ip_forward", "1")
    setting("net/ipv6/conf/all/forwarding", "1")
    for names in (CLIENT, PEER):
        batch(f"route add {names[4]}/32 dev lo", f"route add {names[6]}/128 dev lo")
    with serviced(world, *SMALL) as made, packet_path(made.state_dir) as loaded:
        for family in FAMILIES:
            for name, vips, backend, mode in (
                ("near", NEAR, f"{place(HERE[family], 8080)},local", "dsr"),
                ("far", FAR, place(THERE[family], 8080), "tunnel"),
            ):
                fronts = [f"{place(vips[family], 80)}/{kind}" for kind in ("tcp", "udp")]
                made.add(
                    f"{name}{family}", *fronts, backends=[backend], kind="load-balancer", external_mode=mode
                )
            for text, value in (
                (PEER[family], enums.NODE_PEER | NODE_NUMBER << enums.NODE_SHIFT),
                (THERE[family], enums.NODE_POD | NODE_NUMBER << enums.NODE_SHIFT),
                (OWN[family], enums.NODE_OWN),
            ):
                loaded.map("node_addresses").update(node_key(text), U32.pack(value))
        other = NodeValue(mapped(PEER[4]), mapped(PEER[6]), bytes(64), bytes(64), bytes(32), 0)
        loaded.map("nodes").update(U32.pack(NODE_NUMBER), NODE.pack(other))
        configure(loaded)
        yield loaded


def configure(path: PacketPath, flags: int = 0) -> None:
    """This node's ends of tunnels."""
    config = PACKET_CONFIG.unpack(path.map("packet_config").lookup(bytes(4)) or b"")
    config = config._replace(
        address4=mapped(OWN[4]), address6=mapped(OWN[6]), tunnel_port=TUNNEL_PORT, flags=flags
    )
    path.map("packet_config").update(bytes(4), PACKET_CONFIG.pack(config))


def segment(family: int, source: tuple[str, int], destination: tuple[str, int], **fields: object) -> bytes:
    """A TCP frame, with options of TCP."""
    ip = (IP if family == 4 else IPv6)(src=source[0], dst=destination[0])
    return ether(ip, TCP(sport=source[1], dport=destination[1], **fields))


def from_peer(path: PacketPath, family: int, inner: bytes) -> tuple[int, bytes]:
    """A packet, from its IP header on, out of the other node's tunnel."""
    frame = flow("udp", PEER[family], 50000, OWN[family], TUNNEL_PORT, wrapped(inner), chksum=0)
    return path.run("from_outside", frame)


def size_told(frame: bytes) -> int:
    """The MSS that a SYN has."""
    return int(dict(read(frame)[TCP].options)["MSS"])


def test_the_size_is_lowered_wherever_it_is(path: PacketPath) -> None:
    """The option may begin at an odd byte: the checksum is right all the same."""
    configure(path, enums.PACKET_CLAMP)
    for family, (port, options) in product(FAMILIES, enumerate(OPTIONS, 5000)):
        frame = segment(family, (CLIENT[family], port), (FAR[family], 80), flags="S", options=options)
        verdict, out = path.run("from_outside", frame)
        inner = out[OUTER[family] :]
        assert (verdict, addresses(out)) == (REDIRECT, (OWN[family], PEER[family]))
        assert size_told(inner) == CLAMPED[family]
        check(inner)


def test_the_size_of_a_direct_answer_that_the_stack_routes(path: PacketPath) -> None:
    """A process of the node's own, or a bridge's pod: its answer is translated where it leaves, and lowered there."""
    for family, clamp in product(FAMILIES, (False, True)):
        configure(path, enums.PACKET_CLAMP if clamp else 0)
        path.forget()
        client = (CLIENT[family], 5000)
        asked = segment(family, client, (NEAR[family], 80), flags="S")
        verdict, out = from_peer(path, family, asked[14:])
        assert (verdict, addresses(out)) == (PASS, (CLIENT[family], HERE[family]))
        answer = segment(family, (HERE[family], 8080), client, flags="SA", options=OPTIONS[0])
        verdict, out = path.run("to_outside", answer)
        assert (verdict, addresses(out)) == (PASS, (NEAR[family], CLIENT[family]))
        check(out)
        assert size_told(out) == (CLAMPED[family] if clamp else 1460)


def test_an_answer_that_is_too_big_for_the_clients_side(path: PacketPath) -> None:
    """It fitted into the tunnel, and is lost where it leaves: but not without a word."""
    path.map("devices").update(U32.pack(LO), DEVICE.pack(Device(enums.ROLE_HOST, 0, 1300)))
    for before, family in enumerate(FAMILIES):
        client, service = (CLIENT[family], 5000), (FAR[family], 80)
        assert path.run("from_outside", flow("udp", *client, *service, b"?"))[0] == REDIRECT
        for size, verdict, lost in ((1200, REDIRECT, 0), (1300, DROP, 1), (1200, REDIRECT, 1)):
            assert from_peer(path, family, datagram(service, client, bytes(size)))[0] == verdict
            assert path.drops("too_big") == before + lost
