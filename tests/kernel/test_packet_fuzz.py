"""Random packets through the programs of the packet path: whole ones, broken ones, of every kind there is.

What must hold of each: the verdict is one of three; a packet that is let through has the length it had and differs in
nothing but addresses, ports and checksums; checksums that were right are right, by a sum that knows nothing of how the
program changes them; what is refused is counted; what cannot be of a flow is the same to the byte.
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter

import pytest

from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import NODE, PACKET_CONFIG, NodeValue
from tests.lib.balanced import SMALL
from tests.lib.frames import check, mapped
from tests.lib.nodes import node_key
from tests.lib.packet_path import DROP, PASS, REDIRECT, PacketPath, packet_path, serviced
from tests.lib.pods import batch, setting
from tests.lib.world import World

COUNT = 1_000_000 if os.environ.get("SVCCTL_LONG") == "1" else 100_000
SEED = int(os.environ.get("SVCCTL_SEED", "1"))
MACS = bytes.fromhex("020000000002020000000001")
V4, V6 = b"\x08\0", b"\x86\xdd"
PROGRAMS = ("from_workload", "from_workload", "from_workload", "to_workload", "from_outside")


def fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checksum(data: bytes) -> int:
    return ~fold(sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))) & 0xFFFF


class Maker:
    """Frames of a few clients, services and backends, so that flows are met often."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        own = lambda text: mapped(text)[12:] if ":" not in text else mapped(text)  # noqa: E731
        self.clients = {
            4: [own(f"10.244.0.{n}") for n in range(1, 6)],
            6: [own(f"fd00:244::{n}") for n in range(1, 6)],
        }
        self.vips = {
            4: [own(f"10.96.0.{n}") for n in (1, 2, 3, 4, 5)],
            6: [own(f"fd96::{n}") for n in (1, 2, 3, 4, 5)],
        }
        self.ports = (5000, 5001, 5002)

    def frame(self) -> bytes:
        """One frame, sometimes spoilt."""
        rng = self.rng
        family = rng.choice((4, 6))
        source, destination, sport, dport = self.tuple(family)
        protocol = rng.choice((6, 6, 6, 17, 17))
        kind = rng.random()
        if kind < 0.12:
            inner = self.ip(family, *self.tuple(family), protocol)
            frame = self.error(family, source, destination, inner)
        elif kind < 0.16:
            other = rng.choice((1, 2, 47, 50, 58, 132, 255, 0, 43, 44))
            frame = self.head(family, source, destination, other, rng.randbytes(rng.randint(0, 60)))
        else:
            frame = self.ip(family, source, destination, sport, dport, protocol)
        frame = MACS + (V4 if family == 4 else V6) + frame
        if rng.random() < 0.1:
            frame = self.spoil(frame)
        return frame

    def tuple(self, family: int) -> tuple[bytes, bytes, int, int]:
        """From a client to a service, from a backend (a client too) to a client, or anything."""
        rng = self.rng
        client, other = rng.choice(self.clients[family]), rng.choice(self.clients[family])
        vip, port = rng.choice(self.vips[family]), rng.choice(self.ports)
        pick = rng.random()
        if pick < 0.55:
            return client, vip, port, rng.choice((80, 80, 80, 81))
        if pick < 0.85:
            return other, client, 8080, port
        if pick < 0.92:
            return client, other, port, 8080
        return (
            rng.choice((client, vip)),
            rng.choice((vip, rng.randbytes(len(vip)))),
            rng.getrandbits(16),
            port,
        )

    def ip(
        self, family: int, source: bytes, destination: bytes, sport: int, dport: int, protocol: int
    ) -> bytes:
        rng, payload = self.rng, self.rng.randbytes(self.rng.choice((0, 1, 5, 40)))
        if protocol == 6:
            flags = rng.choice((2, 2, 2, 0x12, 0x10, 0x10, 0x18, 0x11, 0x04, 0x14, rng.getrandbits(8)))
            rest = struct.pack(
                "!HHIIBBHHH", sport, dport, rng.choice((100, 500, rng.getrandbits(32))), rng.choice((101, 501)),
                0x50, flags, 1000, 0, 0,
            ) + payload  # fmt: skip
            at = 16
        else:
            rest, at = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload, 6
        pseudo = source + destination + struct.pack("!II", len(rest), protocol)
        value = checksum(pseudo + rest)
        if protocol == 17:
            value = 0 if family == 4 and rng.random() < 0.2 else value or 0xFFFF
        rest = rest[:at] + struct.pack("!H", value) + rest[at + 2 :]
        return self.head(family, source, destination, protocol, rest)

    def head(self, family: int, source: bytes, destination: bytes, protocol: int, rest: bytes) -> bytes:
        rng, ttl = self.rng, self.rng.choice((64, 64, 64, 1, 0, 255))
        if family == 6:
            return struct.pack("!IHBB", 0x60000000, len(rest), protocol, ttl) + source + destination + rest
        options = bytes(4 * rng.choice((0, 0, 0, 1, 10)))
        fragment = rng.choice((0, 0, 0, 0x4000, 0x2000, 0x2010, 0x0020)) if rng.random() < 0.3 else 0
        length = 20 + len(options)
        start = struct.pack(
            "!BBHHHBB", 0x40 | length // 4, 0, length + len(rest), rng.choice((1, 2)), fragment, ttl, protocol
        )
        ends = source + destination + options
        return start + struct.pack("!H", checksum(start + bytes(2) + ends)) + ends + rest

    def error(self, family: int, source: bytes, destination: bytes, inner: bytes) -> bytes:
        rng = self.rng
        inner = inner[: rng.choice((len(inner), 28, 48, 60, rng.randint(0, len(inner))))]
        kind = rng.choice((3, 11, 12, 4, 8) if family == 4 else (1, 2, 3, 4, 128))
        rest = struct.pack("!BBHI", kind, rng.randint(0, 5), 0, 1300) + inner
        pseudo = b"" if family == 4 else source + destination + struct.pack("!II", len(rest), 58)
        rest = rest[:2] + struct.pack("!H", checksum(pseudo + rest)) + rest[4:]
        return self.head(family, source, destination, 1 if family == 4 else 58, rest)

    def spoil(self, frame: bytes) -> bytes:
        rng, data = self.rng, bytearray(frame)
        how = rng.random()
        if how < 0.4:
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(12, len(data))] = rng.getrandbits(8)
        elif how < 0.7:
            del data[rng.randint(14, len(data)) :]
        else:
            data += rng.randbytes(rng.randint(1, 20))
        smallest = {V4: 34, V6: 54}.get(
            bytes(data[12:14]), 14
        )  # the kernel takes no shorter ones for a test run
        return bytes(data) + bytes(max(0, smallest - len(data)))


def is_right(frame: bytes) -> bool:
    try:
        check(frame)
    except (AssertionError, struct.error, IndexError):
        return False
    return True


def may_change(frame: bytes) -> bool:
    """Whether anything of a packet may be changed at all: TCP, UDP, ICMP errors, without IPv6 extension headers."""
    if frame[12:14] == V4:
        return frame[14] >> 4 == 4 and frame[23] in (1, 6, 17)
    return frame[12:14] == V6 and frame[14] >> 4 == 6 and frame[20] in (6, 17, 58)


def allowed(frame: bytes) -> set[int]:
    """Offsets that a translation may touch."""
    if frame[12:14] == V4:
        l4, found = 14 + (frame[14] & 0xF) * 4, {*range(24, 34)}
        protocol = frame[23]
    else:
        l4, found, protocol = 54, {*range(22, 54)}, frame[20]
    if protocol in (1, 58):
        return found | {l4 + 2, l4 + 3} | {*range(l4 + 8, len(frame))}
    return found | {*range(l4, l4 + 4)} | ({l4 + 16, l4 + 17} if protocol == 6 else {l4 + 6, l4 + 7})


def refused(path: PacketPath) -> int:
    return sum(path.drops(reason) for reason in enums.DROP_REASONS)


@pytest.mark.timeout(1800 if COUNT > 100_000 else 300)
def test_random_packets(world: World) -> None:
    rng = random.Random(SEED)
    maker, seen = Maker(rng), Counter[tuple[str, int, bool]]()
    with serviced(world, *SMALL) as made, packet_path(made.state_dir, 4096, 4096) as path:
        for family, host, vip in ((4, "10.244.0.{}", "10.96.0.{}"), (6, "[fd00:244::{}]", "[fd96::{}]")):
            backends = [host.format(n) + ":8080" for n in (1, 2, 3)]
            kinds: tuple[dict[str, object], ...] = (
                {"backends": backends},
                {"backends": backends, "affinity": 60, "block": True},
                {},
                {"drop": True},
            )
            for n, options in enumerate(kinds, 1):
                fronts = [f"{vip.format(n)}:80/{protocol}" for protocol in ("tcp", "udp")]
                made.add(f"s{family}-{n}", *fronts, **options)
        path.configure(flags=enums.PACKET_RESET_UNKNOWN)
        count = 0
        for _ in range(COUNT):
            frame, program = maker.frame(), rng.choice(PROGRAMS)
            verdict, out = path.run(program, frame)
            assert verdict in (PASS, DROP, REDIRECT), (verdict, frame.hex())
            changed = out != frame
            seen[program, verdict, changed] += 1
            if verdict == DROP:
                # Half of a change may be in a packet that could not be changed: nobody gets it.
                now = refused(path)
                assert now > count, frame.hex()
                count = now
            elif verdict == PASS and changed:
                assert may_change(frame), frame.hex()
                assert len(out) == len(frame), frame.hex()
                touched = {at for at in range(len(out)) if out[at] != frame[at]}
                assert touched <= allowed(frame), (frame.hex(), out.hex())
                assert is_right(out) or not is_right(frame), (frame.hex(), out.hex())
            elif verdict == REDIRECT:
                assert program != "to_workload", frame.hex()
                assert is_right(out) or not is_right(frame), (frame.hex(), out.hex())
                count = refused(path)
        assert path.drops("no_write") == 0
    # The table is walked through, not only its easy rows.
    for row in (
        ("from_workload", PASS, True),
        ("from_workload", DROP, False),
        ("from_workload", REDIRECT, True),
        ("from_outside", PASS, True),
        ("from_outside", DROP, False),
        ("from_outside", REDIRECT, True),
        ("to_workload", PASS, True),
    ):
        assert seen[row] > COUNT // 1000, seen


OWN = {4: "192.0.2.11", 6: "2001:db8::11"}
PEER = {4: "192.0.2.12", 6: "2001:db8::12"}
OUTER = {4: 50, 6: 70}


def wrapped(rng: random.Random, frame: bytes) -> bytes:
    """A frame's packet in a tunnel's, from the peer to this node; at times something is wrong with that."""
    family = rng.choice((4, 6)) if rng.random() < 0.05 else 4 if frame[12:14] == V4 else 6
    ends = [mapped(one[family])[12 if family == 4 else 0 :] for one in (PEER, OWN)]
    if rng.random() < 0.05:
        ends[rng.randint(0, 1)] = rng.randbytes(len(ends[0]))
    vni = 0xCA11C0 if rng.random() < 0.97 else rng.getrandbits(24)
    inner = (
        struct.pack("!II12xH", 0x08000000, vni << 8, 0x0800 if frame[12:14] == V4 else 0x86DD) + frame[14:]
    )
    udp = struct.pack("!HHHH", rng.getrandbits(16), 4789, 8 + len(inner), int(rng.random() < 0.02)) + inner
    tos = rng.choice((0, 1, 2, 3, 0x68))
    if family == 6:
        outer = struct.pack("!IHBB", 6 << 28 | tos << 20, len(udp), 17, 64) + ends[0] + ends[1]
    else:
        start = struct.pack("!BBHHHBB", 0x45, tos, 20 + len(udp), 1, 0x4000, 64, 17)
        outer = start + struct.pack("!H", checksum(start + bytes(2) + ends[0] + ends[1])) + ends[0] + ends[1]
    made = MACS + (V4 if family == 4 else V6) + outer + udp
    return made[: rng.randint(54, len(made))] if rng.random() < 0.03 else made


def content(frame: bytes) -> bytes:
    """The frame in a tunnel of ours, or the frame itself."""
    family = 4 if frame[12:14] == V4 else 6
    start = 14 + OUTER[family]
    protocol, port = (frame[23], 34) if family == 4 else (frame[20], 54)
    if protocol != 17 or frame[port + 2 : port + 4] != struct.pack("!H", 4789) or len(frame) < start + 20:
        return frame
    return frame[:12] + frame[start - 2 :]


@pytest.mark.timeout(1800 if COUNT > 100_000 else 300)
def test_random_packets_of_tunnels(world: World) -> None:
    """What comes through a tunnel, what goes into one, what is answered through one, and what leaves by itself."""
    rng = random.Random(SEED)
    maker, seen = Maker(rng), Counter[tuple[str, int, str]]()
    for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        setting(f"net/{name}", "1")
    batch(f"route add {PEER[4]}/32 dev lo", f"route add {PEER[6]}/128 dev lo")
    with serviced(world, *SMALL) as made, packet_path(made.state_dir, 4096, 4096) as path:
        for family, host, vip in ((4, "10.244.0.{}", "10.96.0.{}"), (6, "[fd00:244::{}]", "[fd96::{}]")):
            own, there = f"{host.format(1)}:8080,local", f"{host.format(2)}:8080"
            kinds: tuple[dict[str, object], ...] = (
                {"backends": [own]},
                {"backends": [own, there]},
                {"backends": [there], "external_mode": "dsr"},
                {"backends": [own, there], "algorithm": "maglev", "table_size": 251},
                {},
            )
            for n, options in enumerate(kinds, 1):
                fronts = [f"{vip.format(n)}:80/{protocol}" for protocol in ("tcp", "udp")]
                made.add(f"s{family}-{n}", *fronts, kind="load-balancer", **options)
            number = 7 << enums.NODE_SHIFT
            for text, value in (
                (PEER[family], enums.NODE_PEER | number),
                (host.format(2).strip("[]"), enums.NODE_POD | number),
                (OWN[family], enums.NODE_OWN),
            ):
                path.map("node_addresses").update(node_key(text), U32.pack(value))
        ends = mapped(PEER[4]), mapped(PEER[6])
        path.map("nodes").update(U32.pack(7), NODE.pack(NodeValue(*ends, bytes(64), bytes(64), bytes(32), 0)))
        config = PACKET_CONFIG.unpack(path.map("packet_config").lookup(bytes(4)) or b"")
        config = config._replace(
            address4=mapped(OWN[4]), address6=mapped(OWN[6]), tunnel_port=4789, flags=enums.PACKET_CLAMP
        )
        path.map("packet_config").update(bytes(4), PACKET_CONFIG.pack(config))
        count = 0
        for _ in range(COUNT // 2):
            frame, program = (
                maker.frame(),
                rng.choice(("from_outside", "from_outside", "from_workload", "to_outside")),
            )
            before = frame
            if tunnelled := program == "from_outside" and rng.random() < 0.6:
                before = wrapped(rng, frame)
            verdict, out = path.run(program, before)
            assert verdict in (PASS, DROP, REDIRECT), (verdict, before.hex())
            after = content(out)
            kind = "same" if out == before else "tunnel" if after != out else "plain"
            seen[f"{program}{' tunnelled' * tunnelled}", verdict, kind] += 1
            now = refused(path)
            if verdict == DROP:
                assert now > count, before.hex()
            else:
                assert kind == "same" or is_right(after) or not is_right(content(before)), (
                    before.hex(),
                    out.hex(),
                )
            if kind == "tunnel":
                # Only into the one to the peer, and never what is in a tunnel already.
                family = 4 if out[12:14] == V4 else 6
                at = 26 if family == 4 else 22
                size = 4 if family == 4 else 16
                assert out[at : at + size] == mapped(OWN[family])[-size:]
                assert out[at + size : at + 2 * size] == mapped(PEER[family])[-size:]
                assert family == 6 or checksum(out[14:34]) == 0
                assert content(after) == after
                assert verdict == REDIRECT
            count = now
        assert path.drops("no_write") == 0
    for row in (
        ("from_outside", PASS, "same"),
        ("from_outside", PASS, "plain"),
        ("from_outside", REDIRECT, "tunnel"),
        ("from_outside tunnelled", PASS, "same"),
        ("from_outside tunnelled", PASS, "plain"),
        ("from_outside tunnelled", DROP, "plain"),
        ("from_outside tunnelled", REDIRECT, "tunnel"),
        ("from_workload", REDIRECT, "tunnel"),
        ("to_outside", PASS, "plain"),
        ("to_outside", REDIRECT, "tunnel"),
    ):
        assert seen[row] > COUNT // 20_000, (row, seen)
