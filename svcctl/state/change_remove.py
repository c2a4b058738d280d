"""The end of a change of services: what nothing leads to any more goes, after a wait for running programs; and what
room that will leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import BACKEND_ID, ITEM_KEY, MEMBER_KEY
from svcctl.model.service import blocks_of
from svcctl.state.services import read_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import Changes
    from svcctl.state.services import Stored
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Freed(NamedTuple):
    """What a change leaves room for: entries of each counted map, lanes, backends that are gone, and numbers of Maglev
    tables, each as often as a block of it goes."""

    entries: Mapping[str, int]
    lanes: frozenset[int]
    backends: frozenset[Backend]
    tables: tuple[int, ...]


NOTHING = Freed({}, frozenset(), frozenset(), ())


def freed_by(state: State, changes: Changes) -> Freed:
    """What room there will be once the change is carried out."""
    parts = [one for one in changes.parts if one.have is not None]
    blocks = [block for one in parts for block in one.old_blocks]
    records, slots, members = _block_keys(changes, blocks)
    fronts, items, ranges = _item_keys(changes)
    backends = {
        each for each, (entry, more) in changes.references.items() if more < 0 and entry.refs + more <= 0
    }
    entries = {
        "blocks": len(records),
        "slots": len(slots),
        "members": len(members),
        "frontends": len(changes.gone_words),
        "service_fronts": len(fronts),
        "service_members": len(items),
        "source_ranges": len(ranges),
        "backends": len(backends),
        "service_names": sum(one.want is None for one in parts),
        "current": sum(len(one.idle) for one in parts),
    }
    lanes = frozenset(lane for one in parts for lane in one.idle)
    return Freed(entries, lanes, frozenset(backends), tuple(_tables(state, changes, blocks)))


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
    records, slots, members = _block_keys(changes, blocks)
    tables = _tables(writer, changes, blocks)
    gone = _delete(writer, "blocks", records)
    if tables:
        from svcctl.state.tables import give_back

        give_back(writer, tables)
    # Some backends without a slot have no entry in one of the blocks: what is deleted is counted.
    return {
        "blocks": gone,
        "slots": _delete(writer, "slots", slots),
        "members": _delete(writer, "members", list(dict.fromkeys(members + _resting_keys(changes)))),
    }


def _block_keys(changes: Changes, blocks: Iterable[int]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Keys of the blocks' records, of their slots, and of the members that have a slot or are known."""
    records, slots, members = [], [], []
    for number in blocks:
        there, slot_keys, member_keys = changes.source.content(number)
        if there:
            records.append(U32.pack(number))
        slots += slot_keys
        members += member_keys
    return records, slots, members


def _resting_keys(changes: Changes) -> list[bytes]:
    """Keys that members without a slot may have."""
    found = []
    for one in changes.parts:
        if one.have is not None and one.old_blocks:
            resting = _resting(one.have)
            found += [MEMBER_KEY.struct.pack(block, number) for block in one.old_blocks for number in resting]
    return found


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


def _tables(state: State, changes: Changes, blocks: list[int]) -> list[int]:
    """Numbers of the Maglev tables that the blocks use, each as often as it is used."""
    if all(one.have is None or not one.have.service.algorithm for one in changes.parts):
        return []
    found = [read_block(state, number) for number in blocks]
    return [record.lut for record in found if record is not None and record.lut]


def _remove_items(writer: Writer, changes: Changes) -> dict[str, int]:
    fronts, members, ranges = _item_keys(changes)
    return {
        "service_fronts": _delete(writer, "service_fronts", fronts),
        "service_members": _delete(writer, "service_members", members),
        "source_ranges": _delete(writer, "source_ranges", ranges),
    }


def _item_keys(changes: Changes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Keys of the frontends, members and source ranges that no longer count."""
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
    return fronts, members, ranges


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
