"""ids, destinations, bindings, references, ports, usage: the maps that bind and unbind write, against each other."""

from __future__ import annotations

from functools import partial
from sys import byteorder
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.maps import layouts
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, exact_check
from svcctl.model.binding import HEADER_BITS, KEY, is_exact_key, key_fault, key_fields
from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES
from svcctl.model.destination import Destination
from svcctl.model.label import check_label
from svcctl.model.prefix import mask_address
from svcctl.record import Record
from svcctl.state import destinations
from svcctl.state.audit.finding import Finding
from svcctl.state.bindings import encode_value, map_key, port_index
from svcctl.state.owners import forget_owners, read_owners

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.writer import Writer

NAMED = 20
"""Wrong port counts that are named one by one; after a lost update of the whole map there are 131072."""


class Owners(Record):
    """Destinations by id, (id, raw key) of those whose name is none, and how many entries there are in all."""

    by_id: dict[int, Destination]
    unreadable: list[tuple[int, bytes]]
    entries: int


def find(writer: Writer) -> Iterator[Finding]:
    """Findings about bindings and destinations."""
    found: list[Finding] = []
    owners = _read_destinations(writer, found)
    yield from found
    refs = dict.fromkeys(owners.by_id, 0)
    meant: set[int] = set()
    ports: dict[int, list[int]] = {}
    counts = {"exact": 0, "bindings": 0}
    owned = read_owners(writer)
    for name, key, value in _entries(writer):
        owned.pop(key, None)
        number, second = layouts.BINDING.struct.unpack(value)
        fault = key_fault(key) or (
            "a full-length prefix belongs into 'exact'" if name == "bindings" and is_exact_key(key) else None
        )
        if fault is not None:
            repair = partial(_put_right, writer, name, key, value)
            yield Finding("bindings", f"{name}: key {key.hex()}: {fault}", repair)
            continue
        counts[name] += 1
        meant.add(number)
        cell = ports.setdefault(port_index(key[4], int.from_bytes(key[6:8], byteorder)), [0, 0])
        cell[0 if name == "exact" else 1] += 1
        if second != (exact_check(key[4:]) if name == "exact" else U32.unpack_from(key)[0]):
            yield Finding(
                "bindings",
                f"{name}: {_show(key)}: the value does not belong to the key",
                partial(writer.map(name).update, map_key(key), encode_value(key, number)),
            )
        yield from _owner(key, number, owners, refs)
    yield from _references(writer, owners, refs)
    yield from _unreadable(writer, owners, meant)
    yield from _ports(writer, ports)
    if owned:
        repair = partial(forget_owners, writer, list(owned))
        yield Finding("bindings", f"{len(owned)} owners of bindings that are not there", repair)
    yield from _usage(writer, {**counts, "destinations": owners.entries})


def _entries(writer: Writer) -> Iterator[tuple[str, bytes, bytes]]:
    """(map, key of 24 bytes, value) of every binding, in whatever map it is."""
    full = U32.pack(160)
    for key, value in writer.map("exact").items():
        yield "exact", full + key, value
    for key, value in writer.map("bindings").items():
        yield "bindings", key, value


def _put_right(writer: Writer, name: str, key: bytes, value: bytes) -> None:
    """Mend a key svcctl never writes: kept where it means something, else deleted, for no packet can match it.

    A trie compares no more bits than the prefix has, so writing the masked key replaces the one that is there.
    """
    raw = key[4:] if name == "exact" else key
    bits, protocol, family, port, address = KEY.unpack(key)
    masked = KEY.pack(
        bits, protocol, family, port, mask_address(address, min(max(bits - HEADER_BITS, 0), 128))
    )
    if name == "exact" or key_fault(masked) is not None:
        writer.map(name).delete(raw)
        return
    number = U32.unpack_from(value)[0]
    if not is_exact_key(masked):
        writer.map(name).update(masked, encode_value(masked, number))
        return
    if writer.map("exact").lookup(map_key(masked)) is None:
        writer.map("exact").update(map_key(masked), encode_value(masked, number))
    writer.map(name).delete(raw)


def _owner(key: bytes, number: int, owners: Owners, refs: dict[int, int]) -> Iterator[Finding]:
    owner = owners.by_id.get(number)
    if owner is None:
        yield Finding(
            "bindings",
            f"{_show(key)} goes to destination {number}, which has no label (its traffic is refused)",
            None,
            "'svcctl bind --replace' gives it a label, 'svcctl unbind --force' removes it",
        )
        return
    refs[number] += 1
    if (owner.key.family, owner.key.protocol) != (key[5], key[4]):
        yield Finding(
            "bindings",
            f"{_show(key)} goes to {owner}, of another family or protocol",
            None,
            "'svcctl bind --replace' gives it the right label",
        )


def _show(key: bytes) -> str:
    protocol, prefix, port = key_fields(key)
    return f"{protocol} {prefix} port {port}"


def _references(writer: Writer, owners: Owners, refs: dict[int, int]) -> Iterator[Finding]:
    """references: as many as bindings, for each destination."""
    for number, owner in owners.by_id.items():
        if owner.refs != refs[number]:
            yield Finding(
                "references",
                f"{owner}: {owner.refs} references, {refs[number]} bindings",
                partial(_set_refs, writer, owner, refs[number]),
            )


def _set_refs(writer: Writer, owner: Destination, count: int) -> None:
    destinations.release_if_unused(writer, destinations.change_refs(writer, owner, count - owner.refs))


def _read_destinations(writer: Writer, found: list[Finding]) -> Owners:
    """ids: each is one destination's, within the maps, and was handed out."""
    by_id: dict[int, Destination] = {}
    unreadable: list[tuple[int, bytes]] = []
    count = 0
    highest = -1
    largest = writer.map("destinations").info.max_entries
    for raw, value in writer.map("destinations").items():
        count += 1
        one = Destination(destinations.decode_key(raw), *layouts.DESTINATION.unpack(value))
        if _key_fault(raw, one):
            unreadable.append((one.id, raw))
            highest = max(highest, one.id if one.id < largest else -1)
            continue
        if one.id >= largest or one.id in by_id:
            other = f", which is also {by_id[one.id]}'s" if one.id in by_id else f", of at most {largest}"
            found.append(
                Finding(
                    "ids",
                    f"{one} has id {one.id}{other}",
                    None,
                    "unbind its bindings and bind them to another label; register its sockets under that",
                )
            )
            continue
        by_id[one.id] = one
        highest = max(highest, one.id)
        if one.slots >> SOCKETS_PER_DESTINATION:
            found.append(
                Finding(
                    "destinations",
                    f"{one} notes socket slots above {SOCKETS_PER_DESTINATION - 1}",
                    partial(_mask_slots, writer, one),
                )
            )
    following = writer.meta().next_destination
    if highest >= following or following > largest:
        found.append(
            Finding(
                "ids",
                f"the next id is {following}, but {highest} is in use, of {largest}",
                partial(_set_next, writer, highest + 1 if highest >= following else largest),
            )
        )
    return Owners(by_id, unreadable, count)


def _set_next(writer: Writer, following: int) -> None:
    writer.put_meta(writer.meta()._replace(next_destination=following))


def _mask_slots(writer: Writer, one: Destination) -> None:
    now = destinations.find(writer, one.key)
    if now is not None:
        destinations.put(writer, now._replace(slots=now.slots & (1 << SOCKETS_PER_DESTINATION) - 1))


def _key_fault(raw: bytes, one: Destination) -> str | None:
    """What is wrong with the name of a destination: commands could not name it."""
    key = one.key
    if key.family not in FAMILY_NAMES or key.protocol not in PROTOCOL_NAMES:
        return f"family {key.family}, protocol {key.protocol}"
    try:
        check_label(key.label)
        return None if destinations.encode_key(key) == raw else "bytes after the label's end"
    except (UsageProblem, UnicodeError):
        return "no label"


def _unreadable(writer: Writer, owners: Owners, meant: set[int]) -> Iterator[Finding]:
    """destinations: each has a label, family and protocol that a command can name."""
    for number, raw in owners.unreadable:
        message = f"destination {number} has a name that is none: {raw.rstrip(bytes(1)).hex()[:80]}"
        if number in meant and number not in owners.by_id:
            # Its bindings are named by `bindings`; once they are gone, so is this.
            yield Finding(
                "destinations", message, None, "decide about its bindings, then 'svcctl check --repair'"
            )
        else:
            yield Finding("destinations", message, partial(writer.map("destinations").delete, raw))


def _ports(writer: Writer, counted: dict[int, list[int]]) -> Iterator[Finding]:
    """ports: as many bindings of each kind as there are."""
    table = writer.map("ports")
    _, values, count = table.read_all()
    right = bytearray(len(values))
    for index, (exact, trie) in counted.items():
        layouts.PORTS.struct.pack_into(right, layouts.PORTS.size * index, exact, trie)
    if right == values:
        return  # as nearly always: looking at 131,072 entries one by one takes longer than all the rest
    wrong: list[tuple[int, tuple[int, int], tuple[int, int]]] = []
    for index, have in enumerate(layouts.PORTS.struct.iter_unpack(values[: 8 * count])):
        cell = counted.get(index)
        want = (cell[0], cell[1]) if cell else (0, 0)
        if have != want:
            wrong.append((index, have, want))
    for index, have, want in wrong[:NAMED]:
        protocol = "udp" if index >= 65536 else "tcp"
        yield Finding(
            "ports",
            f"{protocol} port {index % 65536}: {have[0]} exact and {have[1]} prefixes noted,"
            f" {want[0]} and {want[1]} counted",
            partial(table.update, U32.pack(index), layouts.PORTS.struct.pack(*want)),
        )
    rest = wrong[NAMED:]
    if rest:
        keys = b"".join(U32.pack(index) for index, _, _ in rest)
        rights = b"".join(layouts.PORTS.struct.pack(*want) for _, _, want in rest)
        yield Finding(
            "ports",
            f"{len(rest)} more ports with wrong counts",
            partial(table.update_many, keys, rights, len(rest)),
        )


def _usage(writer: Writer, counts: dict[str, int]) -> Iterator[Finding]:
    """usage: entries and room of each map as they are."""
    for name, used in counts.items():
        usage = writer.usage(name)
        right = layouts.Usage(used, writer.map(name).info.max_entries)
        if usage != right:
            yield Finding(
                "usage",
                f"{name}: {usage.used} of {usage.max} noted, {right.used} of {right.max} counted",
                partial(writer.put_usage, name, right),
            )
