"""The end of a change of services: what nothing leads to any more goes, after a wait for running programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import BACKEND_ID, ITEM_KEY, MEMBER_KEY
from svcctl.model.service import blocks_of
from svcctl.state.services import read_block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.state.change_plan import Changes
    from svcctl.state.services import Stored
    from svcctl.state.writer import Writer


def remove_rest(writer: Writer, changes: Changes) -> None:
    """Blocks, items, ranges and backends nothing leads to, and their counts."""
    parts = [one for one in changes.parts if one.have is not None]
    if not parts:
        return
    blocks = [block for one in parts for block in one.old_blocks]
    released = {backend: entry for backend, (entry, more) in changes.references.items() if more < 0}
    if blocks or released:
        from svcctl.bpf.barrier import rcu_barrier

        rcu_barrier()
    fewer = _remove_blocks(writer, changes, blocks)
    fewer["frontends"] = len(changes.gone_words)
    fewer |= _remove_items(writer, changes)
    fewer["backends"] = _release_backends(writer, changes)
    fewer["service_names"] = sum(one.want is None for one in parts)
    fewer["current"] = sum(len(one.idle) for one in parts)
    add_usage(writer, {name: -count for name, count in fewer.items()})


def _delete(writer: Writer, name: str, keys: list[bytes]) -> int:
    return writer.map(name).delete_many(b"".join(keys), len(keys)) if keys else 0


def _remove_blocks(writer: Writer, changes: Changes, blocks: list[int]) -> dict[str, int]:
    records, slots, members = [], [], []
    tables = _tables(writer, changes, blocks)
    for number in blocks:
        there, slot_keys, member_keys = changes.source.content(number)
        if there:
            records.append(U32.pack(number))
        slots += slot_keys
        members += member_keys
    gone = _delete(writer, "blocks", records)
    if tables:
        from svcctl.state.tables import give_back

        give_back(writer, tables)
    for one in changes.parts:
        if one.have is not None and one.old_blocks:
            resting = _resting(one.have)
            members += [
                MEMBER_KEY.struct.pack(block, number) for block in one.old_blocks for number in resting
            ]
    return {
        "blocks": gone,
        "slots": _delete(writer, "slots", slots),
        "members": _delete(writer, "members", list(dict.fromkeys(members))),
    }


def _resting(have: Stored) -> list[int]:
    """Ids of the backends without a slot in some block of a service."""
    sets = [
        each for lane in blocks_of(have.service) for each in (lane.cluster, lane.local) if each is not None
    ]
    found = {backend for each in sets for backend in each.resting}
    return [
        number
        for member, number in zip(have.service.members, have.backends, strict=True)
        if member.backend in found
    ]


def _tables(writer: Writer, changes: Changes, blocks: list[int]) -> list[int]:
    """Numbers of the Maglev tables that the blocks use, each as often as it is used."""
    if all(one.have is None or not one.have.service.algorithm for one in changes.parts):
        return []
    found = [read_block(writer, number) for number in blocks]
    return [record.lut for record in found if record is not None and record.lut]


def _remove_items(writer: Writer, changes: Changes) -> dict[str, int]:
    fronts, members, ranges = [], [], []
    pack = ITEM_KEY.struct.pack
    for one in changes.parts:
        have = one.have
        if have is None:
            continue
        number = have.service.id
        fronts += [pack(number, have.base + n) for n in range(have.counts[0])]
        members += [pack(number, have.base + n) for n in range(have.counts[1])]
        if have.ranges and have.ranges != one.ranges:
            ranges += codec.range_keys(have.ranges, have.service.sources)
    return {
        "service_fronts": _delete(writer, "service_fronts", fronts),
        "service_members": _delete(writer, "service_members", members),
        "source_ranges": _delete(writer, "source_ranges", ranges),
    }


def _release_backends(writer: Writer, changes: Changes) -> int:
    """Count references down; how many backends went because they had no more."""
    kept: dict[bytes, bytes] = {}
    keys, numbers = [], []
    for backend, (entry, more) in changes.references.items():
        if more >= 0:
            continue
        key = codec.backend_key(backend)
        if entry.refs + more > 0:
            kept[key] = BACKEND_ID.pack(entry._replace(refs=entry.refs + more))
        else:
            keys.append(key)
            numbers.append(U32.pack(entry.id))
    if kept:
        writer.map("backend_ids").update_many(b"".join(kept), b"".join(kept.values()), len(kept))
    _delete(writer, "backend_ids", keys)
    return _delete(writer, "backends", numbers)


def add_usage(writer: Writer, deltas: Mapping[str, int]) -> None:
    """Count entries of maps up or down."""
    for name, delta in deltas.items():
        if delta:
            usage = writer.usage(name)
            writer.put_usage(name, usage._replace(used=max(usage.used + delta, 0)))
