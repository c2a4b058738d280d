"""sockets, hints, counters: what lies under each destination's id."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.host.sock_diag import dump
from svcctl.maps import layouts
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, U64
from svcctl.model.constants import FAMILY_NAMES, IPV4, IPV6, PROTOCOL_NAMES, TCP, UDP
from svcctl.state import destinations
from svcctl.state.audit.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.destination import Destination
    from svcctl.state.writer import Writer

ANY_STATE = 0xFFFFFFFF


def find(writer: Writer, deep: bool) -> Iterator[Finding]:
    """Findings about sockets, hints and counters."""
    known = destinations.read_all(writer)
    largest = writer.map("destinations").info.max_entries
    reserved = min(max(writer.meta().next_destination, max(known, default=-1) + 1), largest)
    yield from _unnoted(writer, known, reserved)
    if not deep:
        return
    yield from _unfit(writer, known)
    yield from _never_handed_out(writer, reserved, largest)


def _unnoted(writer: Writer, known: dict[int, Destination], reserved: int) -> Iterator[Finding]:
    """sockets: only in slots that their destination notes; hints: within the slots."""
    sockets, hints = writer.map("sockets"), writer.map("hints")
    for number in range(reserved):
        noted = known[number].slots if number in known else 0
        for slot in range(SOCKETS_PER_DESTINATION):
            index = U32.pack(number * SOCKETS_PER_DESTINATION + slot)
            if not noted >> slot & 1 and sockets.lookup(index) is not None:
                yield Finding(
                    "sockets",
                    f"slot {slot} of destination {number} holds a socket nobody registered",
                    partial(destinations.clear_slots, writer, number, 1 << slot),
                )
        hint = hints.lookup(U32.pack(number))
        if hint is not None and U32.unpack(hint)[0] >= SOCKETS_PER_DESTINATION:
            yield Finding(
                "hints",
                f"the hint of destination {number} is slot {U32.unpack(hint)[0]}",
                partial(hints.update, U32.pack(number), U32.pack(0)),
            )


def _unfit(writer: Writer, known: dict[int, Destination]) -> Iterator[Finding]:
    """sockets: of the family and protocol of their destination; the kernel refuses to give others the traffic."""
    held = {
        (number, slot): cookie
        for number, one in known.items()
        for slot, cookie in destinations.cookies(writer, one).items()
    }
    if not held:
        return
    seen = by_cookie(writer)
    for (number, slot), cookie in held.items():
        found = seen.get(cookie)
        one = known[number]
        if found is None or serves(found, one.key.family, one.key.protocol):
            continue  # not listed: closed just now, or of another namespace
        yield Finding(
            "sockets",
            f"slot {slot} of {one} holds an {FAMILY_NAMES[found.family]} {PROTOCOL_NAMES[found.protocol]}"
            f" socket (port {found.port}), which cannot take its traffic",
            partial(_empty_slot, writer, one, slot),
        )


def by_cookie(writer: Writer) -> dict[int, DiagSocket]:
    """The namespace's TCP and UDP sockets; none where the kernel has no sock_diag."""
    found = {}
    for family in (IPV4, IPV6):
        for protocol in (TCP, UDP):
            try:
                found.update(
                    {one.cookie: one for one in dump(family, protocol, ANY_STATE, netns=writer.netns)}
                )
            except OSError:
                continue
    return found


def serves(one: DiagSocket, family: int, protocol: int) -> bool:
    """Whether bpf_sk_assign lets the socket have traffic of a family and protocol."""
    if one.protocol != protocol:
        return False
    return one.family == family or (one.family == IPV6 and not one.v6only)


def _empty_slot(writer: Writer, one: Destination, slot: int) -> None:
    destinations.clear_slots(writer, one.id, 1 << slot)
    now = destinations.find(writer, one.key)
    if now is not None:
        destinations.put(writer, now._replace(slots=now.slots & ~(1 << slot)))


def _never_handed_out(writer: Writer, reserved: int, largest: int) -> Iterator[Finding]:
    """sockets, hints, counters: nothing lies under an id that was never handed out; its first owner would get it."""
    sockets = writer.map("sockets")
    found: dict[int, int] = {}
    end = min(largest * SOCKETS_PER_DESTINATION, sockets.info.max_entries)
    for index in range(reserved * SOCKETS_PER_DESTINATION, end):
        data = sockets.lookup(U32.pack(index))
        if data is not None:
            found[index] = U64.unpack(data)[0]
    for index in found:
        number, slot = divmod(index, SOCKETS_PER_DESTINATION)
        yield Finding(
            "sockets",
            f"slot {slot} of id {number}, which was never handed out, holds a socket",
            partial(destinations.clear_slots, writer, number, 1 << slot),
        )
    hints, stats = writer.map("hints"), writer.map("dispatch_stats")
    _, values, count = hints.read_all()
    for number in range(reserved, min(count, largest)):
        if U32.unpack_from(values, 4 * number)[0]:
            yield Finding(
                "hints",
                f"id {number}, which was never handed out, has a hint",
                partial(hints.update, U32.pack(number), U32.pack(0)),
            )
    _, values, count = stats.read_all()
    size = stats.value_bytes
    for number in range(reserved, min(count, largest)):
        if values[size * number : size * (number + 1)].strip(b"\0"):
            yield Finding(
                "counters",
                f"id {number}, which was never handed out, has counted {_lookups(values, size, number)} lookups",
                partial(stats.update, U32.pack(number), bytes(size)),
            )


def _lookups(values: bytes, size: int, number: int) -> int:
    each = layouts.DISPATCH_STATS.size
    return sum(
        layouts.DISPATCH_STATS.struct.unpack_from(values, at)[0]
        for at in range(size * number, size * (number + 1), each)
    )
