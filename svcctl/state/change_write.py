"""Carries out a planned change of services, one or many, under one mark and with one wait.

The order keeps programs that are reading right (ARCHITECTURE.md, 'Services'). Adding: backends, items, the values in
`services`, slots, members, blocks; then lanes and frontends, level by level (`change_frontends.py`). Removing:
frontends, lanes, a wait for running programs, then what nothing leads to any more (`change_remove.py`). Nothing is
inserted after that wait, so no element is reused under a program that still holds it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.maps import catalog
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BACKEND_ID,
    BLOCK,
    CURRENT,
    ITEM_KEY,
    MEMBER_KEY,
    MEMBER_RESTS,
    SERVICE_STATS,
    SLOT,
    SLOT_KEY,
    Block,
    Slot,
)
from svcctl.model.alias import alias_table
from svcctl.state.change_frontends import special_frontends, wild_ports
from svcctl.state.change_plan import deltas
from svcctl.state.change_remove import add_usage, remove_rest
from svcctl.state.drains import note_drains
from svcctl.state.service_config import put_service_config, read_service_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import Changes, NewBlock
    from svcctl.state.services import Stored
    from svcctl.state.tables import Taker
    from svcctl.state.writer import Writer

OTHER_BASE = 1 << 31
"""Items of a service are at 0 or from here on, in turns."""

_NO_STATS = bytes(SERVICE_STATS.size)


def apply_changes(writer: Writer, changes: Changes) -> None:
    """Carry it out. Raises Incompatible where a pinned map is not the one that programs read."""
    writer.check_maps(catalog.SERVICE_READS)
    wanted = [one.want for one in changes.parts if one.want is not None]
    with writer.changing(**changes.reserve):
        add_usage(writer, {name: count for name, count in deltas(changes).items() if count > 0})
        note_drains(writer, wanted)
        _write_backends(writer, changes)
        _write_ranges(writer, changes)
        _write_items(writer, changes)
        _write_services(writer, changes)
        write_blocks(
            writer,
            [(one.want.id, block) for one in changes.parts if one.want is not None for block in one.blocks],
            changes.backends,
        )
        lanes = [lane for one in changes.parts for lane in one.new_lanes]
        put(writer, "service_stats", {U32.pack(lane): _NO_STATS for lane in lanes})
        _count_special(writer, changes, +1)
        for level in sorted({one.level for one in changes.parts}):
            _switch(writer, changes, level)
        writer.map("frontends").delete_many(b"".join(changes.gone_words), len(changes.gone_words))
        _count_special(writer, changes, -1)
        idle = [U32.pack(lane) for one in changes.parts for lane in one.idle]
        put(writer, "current", dict.fromkeys(idle, bytes(CURRENT.size)))
        remove_rest(writer, changes)


def put(writer: Writer, name: str, entries: Mapping[bytes, bytes]) -> None:
    """Write entries of a map; nothing is done when there are none."""
    if entries:
        writer.map(name).update_many(b"".join(entries), b"".join(entries.values()), len(entries))


def _write_backends(writer: Writer, changes: Changes) -> None:
    """Backends that are new, then the index, with references counted up."""
    put(
        writer,
        "backends",
        {
            U32.pack(number): BACKEND.struct.pack(backend.address, backend.port, 0, 0, number, 0, 0)
            for backend, number in changes.new_backends.items()
        },
    )
    put(
        writer,
        "backend_ids",
        {
            codec.backend_key(backend): BACKEND_ID.pack(entry._replace(refs=entry.refs + more))
            for backend, (entry, more) in changes.references.items()
            if more > 0
        },
    )


def _write_ranges(writer: Writer, changes: Changes) -> None:
    entries = {}
    for one in changes.parts:
        if one.want is not None and one.new_ranges:
            entries.update(dict.fromkeys(codec.range_keys(one.ranges, one.want.sources), U32.pack(1)))
    put(writer, "source_ranges", entries)


def other_base(have: Stored | None) -> int:
    """Where a change writes its items: never over those that count."""
    return OTHER_BASE if have is not None and have.base == 0 else 0


def _base(have: Stored | None, anew: bool) -> int:
    return 0 if anew else other_base(have)


def _write_items(writer: Writer, changes: Changes) -> None:
    """Frontends and members, beside those that count."""
    pack = ITEM_KEY.struct.pack
    fronts: dict[bytes, bytes] = {}
    members: dict[bytes, bytes] = {}
    for one in changes.parts:
        want = one.want
        if want is None:
            continue
        base = _base(one.have, one.anew)
        for number, frontend in enumerate(want.frontends, base):
            fronts[pack(want.id, number)] = codec.encode_service_frontend(frontend)
        for number, member in enumerate(want.members, base):
            members[pack(want.id, number)] = codec.encode_member(member, changes.backends[member.backend])
    put(writer, "service_fronts", fronts)
    put(writer, "service_members", members)


def _write_services(writer: Writer, changes: Changes) -> None:
    """What a repair goes by: from here on the change is made, and whoever finds it half carried out completes it.

    Services that gain a frontend come before those that lose it: claimed by two it stays where it is.
    """
    now = time.time_ns()
    values: dict[bytes, bytes] = {}
    names: dict[bytes, bytes] = {}
    for one in sorted(changes.parts, key=lambda part: part.level):
        if one.want is not None:
            values[U32.pack(one.want.id)] = codec.encode_service(
                one.want, one.lanes, _base(one.have, one.anew), now, one.ranges
            )
            if one.has_new_name:
                names[codec.name_key(one.want.name)] = U32.pack(one.want.id)
    gone = [one for one in changes.parts if one.have is not None and one.is_gone]
    put(writer, "services", values)
    numbers = [U32.pack(one.have.service.id) for one in gone if one.have is not None]
    writer.map("services").delete_many(b"".join(numbers), len(numbers))
    put(writer, "service_names", names)
    keys = [codec.name_key(one.have.service.name) for one in gone if one.have is not None]
    keys = [key for key in keys if key not in names]
    writer.map("service_names").delete_many(b"".join(keys), len(keys))


def _switch(writer: Writer, changes: Changes, level: int) -> None:
    """A level's lanes, then its frontends."""
    parts = [one for one in changes.parts if one.level == level]
    put(
        writer,
        "current",
        {U32.pack(lane): CURRENT.struct.pack(*pair) for one in parts for lane, pair in one.current.items()},
    )
    put(writer, "frontends", {key: word for one in parts for key, word in one.words.items()})


class BlockContent(NamedTuple):
    """What a block is made of; `members` are ids in the order of their slots, `resting` those without one."""

    slots: list[Slot]
    members: list[int]
    resting: list[int]
    record: Block

    def values(self) -> dict[int, int]:
        """Id -> value of each entry of `members`."""
        slots = {backend: number for number, backend in enumerate(self.members)}
        return slots | dict.fromkeys(self.resting, MEMBER_RESTS)


def block_content(service: int, backends: Mapping[Backend, int], block: NewBlock) -> BlockContent:
    """The content of a block; `backends` gives ids."""
    ids = [backends[backend] for backend, _ in block.set.members]
    resting = [backends[backend] for backend in block.set.resting]
    slots = [
        Slot(ids[own], ids[alias], threshold, block.number)
        for own, alias, threshold in alias_table([weight for _, weight in block.set.members])
    ]
    record = Block(
        block=block.number,
        service=service,
        lane=block.lane,
        slots=len(slots),
        affinity_seconds=block.set.affinity_seconds,
        verdict=block.set.verdict,
        ranges=block.ranges,
        lut=0,
        lut_size=block.set.table_size if ids else 0,
        members=len(ids) + len(resting),
    )
    return BlockContent(slots, ids, resting, record)


def write_blocks(
    writer: Writer, blocks: Iterable[tuple[int, NewBlock]], backends: Mapping[Backend, int]
) -> None:
    """Slots, members, then the records that make them blocks; (service, block) each. Nothing leads here yet."""
    slots: dict[bytes, bytes] = {}
    members: dict[bytes, bytes] = {}
    records: dict[bytes, bytes] = {}
    taker: Taker | None = None
    for service, block in blocks:
        content = block_content(service, backends, block)
        record = content.record
        if record.lut_size:
            if taker is None:
                from svcctl.state.tables import Taker

                taker = Taker(writer)
            record = record._replace(lut=taker.take(block, backends))
        for number, slot in enumerate(content.slots):
            slots[SLOT_KEY.struct.pack(block.number, number)] = SLOT.pack(slot)
        for backend, value in content.values().items():
            members[MEMBER_KEY.struct.pack(block.number, backend)] = U32.pack(value)
        records[U32.pack(block.number)] = BLOCK.pack(record)
    put(writer, "slots", slots)
    put(writer, "members", members)
    put(writer, "blocks", records)


def _count_special(writer: Writer, changes: Changes, by: int) -> None:
    """Frontends that make programs look further: up before they are there, down after they are gone."""
    sums = [0, 0, 0]
    ports: list[int] = []
    for one in changes.parts:
        before = special_frontends(one.have.service) if one.have else (0, 0, 0)
        after = special_frontends(one.want) if one.want else (0, 0, 0)
        sums = [total + new - old for total, new, old in zip(sums, after, before, strict=True)]
        ports += wild_ports(one.want) if one.want else ()
    sums = [max(total, 0) if by > 0 else min(total, 0) for total in sums]
    if not any(sums) and (by < 0 or not ports):
        return
    now = read_service_config(writer)
    if sums[0] > 0 and not now.node_ports:
        from svcctl.state.node_addresses import refresh

        refresh(writer)
    node_ports, blocked, tables = (
        max(have + total, 0)
        for have, total in zip((now.node_ports, now.blocked, now.tables), sums, strict=True)
    )
    want = now._replace(node_ports=node_ports, blocked=blocked, tables=tables)
    if by > 0 and ports:
        # Never narrower while there are any: others' ports would have to be read for that.
        first = min(ports) if not now.first_node_port else min(now.first_node_port, *ports)
        want = want._replace(first_node_port=first, last_node_port=max(now.last_node_port, *ports))
    elif not node_ports and by < 0:
        want = want._replace(first_node_port=0, last_node_port=0)
    if want != now:
        put_service_config(writer, want)
