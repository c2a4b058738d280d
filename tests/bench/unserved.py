"""What the packet path costs packets that are no service's: its programs by test-run, beside an empty one."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from svcctl.bpf.lib import check, require
from svcctl.bpf.program import Program
from svcctl.maps.catalog import PACKET
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from tests.bench.figures import Report

REPEAT, ROUNDS = 20_000, 15
GOAL = 3.5
"""Times an empty program."""
ROLES = {"from_workload": "from a pod", "to_workload": "to a pod"}
_UNSPEC = -1
CONTEXT = struct.Struct("=40xI")
"""The beginning of struct __sk_buff, up to `ifindex`."""


def measure_unserved(
    report: Report, when: str, device: str, *, goal: bool, roles: dict[str, str] = ROLES
) -> None:
    """Add the figures; the calling thread is in a namespace whose interface `device` is attached.

    `roles`: names of programs, and what comes to them, in words.
    """
    report.section(
        f"packet others, {when}", f"packets of no service, by test-run (the least of {ROUNDS} rounds)"
    )
    context = CONTEXT.pack(socket.if_nametoindex(device))
    with open_reader(Place()) as reader:
        pins = {shape.name: reader.pin(shape.pin) for shape in PACKET if shape.name in roles}
    for name, pin in pins.items():
        with empty_program() as empty, Program.open_pinned(pin) as program:
            for kind, frame in _frames().items():
                rounds = [
                    [one.test_run(context, frame, repeat=REPEAT).duration_ns for one in (empty, program)]
                    for _ in range(ROUNDS)
                ]
                without, taken = (min(each) for each in zip(*rounds, strict=True))
                report.add(
                    Figure(
                        f"{roles[name]}, {kind}: times an empty program",
                        taken / without,
                        "",
                        f"{taken} ns",
                        f"empty program {without} ns",
                        goal=GOAL if goal else None,
                    )
                )


def empty_program() -> Program:
    """A program that says TC_ACT_UNSPEC, as ours does of what is not its own."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, _UNSPEC, 0x95, 0, 0, 0)
    return Program.from_fd(
        check(require("bpf_prog_load")(3, b"empty", b"GPL", code, 2, None), "load", "empty")
    )


def _frames() -> dict[str, bytes]:
    """Whole frames of what passes most: data of a connection, its first packet, a datagram; both families."""
    v4 = socket.inet_aton("10.244.0.1"), socket.inet_aton("192.0.2.7")
    v6 = socket.inet_pton(socket.AF_INET6, "fd00:244::1"), socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    tcp = "!HHIIBBHHH"
    return {
        "TCP": _v4(6, *v4, struct.pack(tcp, 40000, 443, 1, 1, 0x50, 0x10, 512, 0, 0)),
        "TCP SYN": _v4(6, *v4, struct.pack(tcp, 40000, 443, 1, 0, 0x50, 0x02, 512, 0, 0)),
        "UDP": _v4(17, *v4, struct.pack("!HHHH", 40000, 443, 8, 0)),
        "TCP over IPv6": _v6(6, *v6, struct.pack(tcp, 40000, 443, 1, 1, 0x50, 0x10, 512, 0, 0)),
    }


def _v4(protocol: int, source: bytes, destination: bytes, payload: bytes) -> bytes:
    payload += bytes(64)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0)
    return bytes(12) + b"\x08\x00" + header + source + destination + payload


def _v6(protocol: int, source: bytes, destination: bytes, payload: bytes) -> bytes:
    payload += bytes(64)
    header = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64)
    return bytes(12) + b"\x86\xdd" + header + source + destination + payload
