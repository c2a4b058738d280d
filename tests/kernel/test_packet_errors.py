"""ICMP errors about packets of flows, fragments, and answers made here: by test-run, and between pods."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from itertools import product
from socket import AF_INET, AF_INET6

import pytest

from svcctl.maps import enums
from tests.lib.balanced import SMALL, VIP, VIP6
from tests.lib.frames import (
    ICMP,
    IP,
    TCP,
    UDP,
    ICMPv6DestUnreach,
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    IPOption_NOP,
    IPv6,
    Packet,
    Raw,
    check,
    ether,
    read,
)  # fmt: skip
from tests.lib.packet_path import PASS, REDIRECT, PacketPath, packet_path, serviced
from tests.lib.pods import batch, pods
from tests.lib.svc import svc
from tests.lib.world import World

CLIENT, BACKEND, ROUTER = "10.244.0.1", "10.244.0.2", "192.0.2.1"
CLIENT6, BACKEND6, ROUTER6 = "fd00:244::1", "fd00:244::2", "2001:db8::1"
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24


@pytest.fixture
def path(world: World) -> Iterator[PacketPath]:
    with serviced(world, *SMALL) as made, packet_path(made.state_dir) as loaded:
        made.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[f"{BACKEND}:8080"])
        made.add("web6", f"[{VIP6}]:80/tcp", f"[{VIP6}]:80/udp", backends=[f"[{BACKEND6}]:8080"])
        made.add("none", "10.96.0.11:80/tcp", "10.96.0.11:80/udp", "[fd96::1]:80/tcp", "[fd96::1]:80/udp")
        yield loaded


def open_flow(path: PacketPath, kind: type[Packet], family: int) -> None:
    """A flow of the client from port 5000."""
    ip = IP(src=CLIENT, dst=VIP) if family == 4 else IPv6(src=CLIENT6, dst=VIP6)
    frame = ether(ip, kind(sport=5000, dport=80, **({"flags": "S"} if kind is TCP else {})), Raw(b"x" * 40))
    assert path.run("from_workload", frame)[0] == PASS


def quoted(out: bytes) -> tuple[str, int, str, int]:
    """The packet that an error is about, as who gets the error sees it."""
    kind = read(out[:12] + out[12:14] + out[14:])
    error = kind.getlayer(ICMP) or kind.getlayer(2)
    inner = bytes(error.payload)
    inner_ip = IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)
    ports = bytes(inner_ip.payload)
    return (
        inner_ip.src, int.from_bytes(ports[:2], "big"), inner_ip.dst, int.from_bytes(ports[2:4], "big")
    )  # fmt: skip


def test_errors(path: PacketPath) -> None:
    """To the client about what the backend got, and to the backend about its answers, in both families."""
    for number, (kind, short, options) in enumerate(product((TCP, UDP), (False, True), (False, True)), 1):
        path.forget()
        _errors(path, kind, short, options)
        assert path.event("icmp") == 6 * number
    assert path.drops("no_write") == 0


def _errors(path: PacketPath, kind: type[Packet], short: bool, options: bool) -> None:
    extra = [IPOption_NOP()] * 4 if options else []
    for family, client, vip, backend, router in (
        (4, CLIENT, VIP, BACKEND, ROUTER),
        (6, CLIENT6, VIP6, BACKEND6, ROUTER6),
    ):
        open_flow(path, kind, family)

        def inner(source: str, sport: int, destination: str, dport: int, v: int = family) -> Raw:
            ip = (
                IP(src=source, dst=destination, options=extra)
                if v == 4
                else IPv6(src=source, dst=destination)
            )
            whole = bytes(ip / kind(sport=sport, dport=dport) / Raw(b"y" * 30))
            return Raw(whole[: (28 + len(extra) if v == 4 else 48)] if short else whole)

        def error(source: str, destination: str, about: Raw, v: int = family) -> bytes:
            if v == 4:
                return ether(
                    IP(src=source, dst=destination, options=extra),
                    ICMP(type=3, code=4, nexthopmtu=1300),
                    about,
                )
            return ether(IPv6(src=source, dst=destination), ICMPv6PacketTooBig(mtu=1300), about)

        for source, seen_as in ((router, router), (backend, vip)):
            verdict, out = path.run("to_workload", error(source, client, inner(client, 5000, backend, 8080)))
            check(out)
            packet = read(out).getlayer(1)
            assert (verdict, packet.src, packet.dst) == (PASS, seen_as, client)
            assert quoted(out) == (client, 5000, vip, 80)
        # The client complains of an answer.
        verdict, out = path.run("from_workload", error(client, vip, inner(vip, 80, client, 5000)))
        check(out)
        packet = read(out).getlayer(1)
        assert (verdict, packet.src, packet.dst) == (PASS, client, backend)
        assert quoted(out) == (backend, 8080, client, 5000)
        # An error about something else, and one about a packet that was never translated.
        for about in (inner(client, 5001, backend, 8080), inner(client, 5000, vip, 80)):
            frame = error(router, client, about)
            assert path.run("to_workload", frame) == (PASS, frame)


@pytest.mark.parametrize("kind", [TCP, UDP])
def test_what_lies_beyond_the_end_is_no_quote(path: PacketPath, kind: type[Packet]) -> None:
    """A frame may be longer than its packet: a checksum is not looked for in the padding."""
    for family, client, vip, backend in ((4, CLIENT, VIP, BACKEND), (6, CLIENT6, VIP6, BACKEND6)):
        open_flow(path, kind, family)
        ip = IP(src=client, dst=backend) if family == 4 else IPv6(src=client, dst=backend)
        about = Raw(bytes(ip / kind(sport=5000, dport=8080))[: 28 if family == 4 else 48])
        outer = IP(src=ROUTER, dst=client) if family == 4 else IPv6(src=ROUTER6, dst=client)
        error = ICMP(type=3, code=4, nexthopmtu=1300) if family == 4 else ICMPv6PacketTooBig(mtu=1300)
        frame, padding = ether(outer, error, about), bytes(range(1, 15))
        verdict, out = path.run("to_workload", frame)
        check(out)
        assert (verdict, quoted(out)) == (PASS, (client, 5000, vip, 80))
        assert path.run("to_workload", frame + padding) == (PASS, out + padding)


def test_other_icmp_is_not_touched(path: PacketPath) -> None:
    """Echo, redirects, errors about errors, errors cut short."""
    open_flow(path, UDP, 4)
    inner = bytes(IP(src=CLIENT, dst=BACKEND) / UDP(sport=5000, dport=8080) / Raw(b"y"))
    frames = [
        ether(IP(src=CLIENT, dst=VIP), ICMP(type=8), Raw(b"ping")),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=5), Raw(inner)),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=3, code=1), Raw(inner[:20])),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=3, code=1), Raw(inner[:23])),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=3, code=1), Raw(b"\x4f" + inner[1:])),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=3, code=1), Raw(b"\x65" + inner[1:])),
        ether(IP(src=ROUTER, dst=CLIENT), ICMP(type=3, code=1)),
        ether(IPv6(src=ROUTER6, dst=CLIENT6), ICMPv6DestUnreach(code=4)),
    ]
    for frame in frames:
        for program in ("from_workload", "to_workload", "from_outside"):
            assert path.run(program, frame) == (PASS, frame)
    assert path.event("icmp") == 0


def test_echo_to_a_service(path: PacketPath) -> None:
    """No service is of ICMP, so it goes its way; where a service has all of its address, it is refused like any port."""
    svc(
        "service",
        "add",
        "all",
        "--block",
        *(f"--frontend={vip}:80/tcp" for vip in ("10.96.0.12", "[fd96::2]")),
    )
    for family, client, vip in ((4, CLIENT, "10.96.0.12"), (6, CLIENT6, "fd96::2")):
        for size in (0, 56):
            if family == 4:
                request = ether(IP(src=client, dst=vip), ICMP(type=8, id=7, seq=9), Raw(bytes(size)))
                answer = ether(IP(src=vip, dst=client), ICMP(type=0, id=7, seq=9), Raw(bytes(size)))
            else:
                request = ether(IPv6(src=client, dst=vip), ICMPv6EchoRequest(id=7, seq=9), Raw(bytes(size)))
                answer = ether(IPv6(src=vip, dst=client), ICMPv6EchoReply(id=7, seq=9), Raw(bytes(size)))
            verdict, out = path.run("from_workload", request)
            check(out)
            ip = read(out).getlayer(1)
            assert (verdict, ip.src, ip.dst) == (REDIRECT, vip, client)
            error = ip[ICMP] if family == 4 else ip[ICMPv6DestUnreach]
            assert (error.type, error.code) == ((3, 3) if family == 4 else (1, 4))
            header = 20 if family == 4 else 40
            quote = request[14 : 14 + header + 8]
            assert out[14 + header + 8 :][: len(quote)] == quote
            # What is sent to the service is not what comes from it, and is judged where it is sent.
            assert path.run("from_workload", answer) == (PASS, answer)
            assert path.run("to_workload", request) == (PASS, request)
            assert path.run("from_outside", request) == (REDIRECT, out)
    assert path.drops("blocked") == 8
    assert path.event("rejected") == 8


def test_answers(path: PacketPath) -> None:
    """RST with the right numbers whatever the segment was, unreachable with what was sent, checksums included."""
    for family, client, vip in ((4, CLIENT, "10.96.0.11"), (6, CLIENT6, "fd96::1")):
        for options in (False, True):
            for size in (0, 1, 7, 1000):
                extra = [IPOption_NOP()] * 4 if options else []
                ip = (
                    IP(src=client, dst=vip, options=extra, ttl=3)
                    if family == 4
                    else IPv6(src=client, dst=vip)
                )
                segment = TCP(sport=5000, dport=80, seq=4294967290, flags="S", options=[("MSS", 1400)])
                # A frame may be padded: the length is the IP header's.
                frame = ether(ip / segment / Raw(bytes(size))) + bytes(6)
                verdict, out = path.run("from_workload", frame)
                check(out)
                back = read(out)
                tcp = back[TCP]
                assert (verdict, back.getlayer(1).src, back.getlayer(1).dst) == (REDIRECT, vip, client)
                assert (tcp.sport, tcp.dport, tcp.flags, tcp.seq, tcp.window) == (80, 5000, "RA", 0, 0)
                assert tcp.ack == (4294967290 + size + 1) % (1 << 32)
                assert (back.src, back.dst) == ("02:00:00:00:00:02", "02:00:00:00:00:01")
                frame = ether(ip / UDP(sport=5000, dport=80) / Raw(b"z" * size)) + bytes(6)
                verdict, out = path.run("from_workload", frame)
                check(out)
                back = read(out)
                assert (verdict, back.getlayer(1).src, back.getlayer(1).dst) == (REDIRECT, vip, client)
                error = back[ICMP] if family == 4 else back[ICMPv6DestUnreach]
                assert (error.type, error.code) == ((3, 3) if family == 4 else (1, 4))
                assert quoted(out) == (client, 5000, vip, 80)
    assert path.flows() == {}


@pytest.mark.parametrize("family", [AF_INET, AF_INET6], ids=["v4", "v6"])
@pytest.mark.parametrize("flags", [enums.DEVICE_NEIGHBOUR, 0], ids=["neighbour", "stack"])
def test_a_narrow_way(world: World, family: int, flags: int) -> None:
    """Path MTU discovery through a service: the backend's link is narrower, and its client learns of it.

    By the first packet that is too long, even if shorter ones have just gone past the stack.
    """
    option = (socket.IPPROTO_IP, IP_MTU) if family == AF_INET else (socket.IPPROTO_IPV6, IPV6_MTU)
    with serviced(world, *SMALL) as made, pods(2) as (client, backend), packet_path(made.state_dir) as loaded:
        for pod in (client, backend):
            loaded.attach(pod, flags, mtu=1300 if pod is backend else 1500)
        batch(f"link set {backend.device} mtu 1300")
        vip = VIP if family == AF_INET else VIP6
        host = f"[{backend.own(family)}]" if family == AF_INET6 else backend.own(family)
        made.add(
            "web", f"[{vip}]:80/udp" if family == AF_INET6 else f"{vip}:80/udp", backends=[f"{host}:8080"]
        )
        with backend.listen(8080, "udp", family) as server, client.socket("udp", family) as one:
            if family == AF_INET:
                one.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            else:
                one.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)
            one.connect((vip, 80))
            # Until the interface's neighbour is known packets wait for it, and so does what follows from them.
            one.send(b"?")
            assert server.recv(8) == b"?"
            until = time.monotonic() + 60
            one.send(bytes(1400))
            while one.getsockopt(*option) != 1300 and time.monotonic() < until:
                time.sleep(0.01)
            assert one.getsockopt(*option) == 1300
            one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            one.send(bytes(1200))
            assert len(server.recv(2000)) == 1200
        assert loaded.event("icmp") >= 1


@pytest.mark.parametrize("flags", [enums.DEVICE_PEER, 0], ids=["peer", "stack"])
def test_fragments(world: World, flags: int) -> None:
    """Datagrams of many fragments, there and back; connections beside them undisturbed."""
    with serviced(world, *SMALL) as made, pods(2) as (client, backend), packet_path(made.state_dir) as loaded:
        for pod in (client, backend):
            loaded.attach(pod, flags=flags)
        made.add("web", f"{VIP}:80/udp", backends=[f"{backend.address}:8080"])
        with backend.listen(8080, "udp") as server, client.socket("udp") as one:
            one.connect((VIP, 80))
            for size in (1472, 1473, 9000, 65000, 1):
                data = bytes(range(256)) * 254
                one.send(data[:size])
                got, peer = server.recvfrom(1 << 16)
                assert got == data[:size]
                server.sendto(got, peer)
                assert one.recv(1 << 16) == data[:size]
        assert loaded.event("fragments") >= 100
        assert loaded.event("opened") == 1


def test_fragments_out_of_order(path: PacketPath) -> None:
    """What comes before the first one, or long after it, is not known, and left alone; TCP's as well as UDP's."""
    open_flow(path, UDP, 4)
    whole = bytes(UDP(sport=5000, dport=80, chksum=0x1234, len=3008) / Raw(bytes(3000)))

    def piece(number: int, ident: int, last: bool = False) -> bytes:
        part = whole[number * 1000 : (number + 1) * 1000]
        return ether(
            IP(src=CLIENT, dst=VIP, id=ident, frag=number * 125, flags=0 if last else "MF", proto=17),
            Raw(part),
        )

    late = piece(1, 7)
    assert path.run("from_workload", late) == (PASS, late)
    for number, last in ((0, False), (1, False), (2, False), (3, True), (1, False)):
        verdict, out = path.run("from_workload", piece(number, 7, last))
        check(out)
        packet = read(out)[IP]
        assert (verdict, packet.dst, packet.frag, packet.id) == (PASS, BACKEND, number * 125, 7)
    other = piece(1, 8)
    assert path.run("from_workload", other) == (PASS, other)
    assert path.event("fragments") == 4
