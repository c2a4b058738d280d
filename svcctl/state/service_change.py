"""Writing services. One function makes any change: from what is stored to what is wanted.

The order keeps programs that are reading right (design of the maps: ARCHITECTURE.md, 'Services'). Adding: index
entries, backends, slots, members, block, the flip of the lane's word, then frontends. Removing: frontends, the
flip, a wait for running programs, then what nothing leads to any more. Nothing is inserted after that wait, so no
element is reused under a program that still holds it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import Conflict, Full
from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BACKEND_ID,
    BLOCK,
    CONFIG,
    CURRENT,
    FRONTEND_KEY,
    ITEM_KEY,
    MEMBER_KEY,
    SLOT,
    SLOT_KEY,
    BackendId,
    BackendValue,
    Block,
    Current,
    ItemKey,
    MemberKey,
    Slot,
    SlotKey,
)
from svcctl.model.alias import alias_table
from svcctl.model.service import blocked_addresses, blocks_of, families, frontend_flags, same_set
from svcctl.model.service_endpoint import format_frontend
from svcctl.state import services
from svcctl.state.destinations import full
from svcctl.state.drains import note_drains

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.model.service import BackendSet, Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.services import Stored
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


OTHER_BASE = 1 << 31
"""Items of a service are at 0 or from here on, in turns."""


class NewBlock(NamedTuple):
    """A block to write: for which lane and set."""

    number: int
    lane: int
    set: BackendSet


class Change(NamedTuple):
    """Everything a change writes, worked out before the first write."""

    have: Stored | None
    want: Service | None
    lanes: dict[int, int]
    new_backends: dict[Backend, int]
    backends: dict[Backend, int]
    blocks: tuple[NewBlock, ...]
    current: dict[int, tuple[int, int]]
    old_blocks: tuple[int, ...]
    words: dict[bytes, bytes]
    gone_words: tuple[bytes, ...]
    reserve: dict[str, int]


def plan_change(state: State, have: Stored | None, want: Service | None) -> Change:
    """Work out a change. Raises Conflict for a frontend of another service, Full before anything is written."""
    meta = state.meta()
    reserve: dict[str, int] = {}
    lanes = dict(have.lanes) if have else {}
    number = have.service.id if have else 0
    if want is not None and not number:
        number = max(meta.next_service, 1)
        reserve["next_service"] = number + 1
    if want is not None:
        want = want._replace(id=number)
    following = max(meta.next_lane, 1)
    for family in families(want) if want else ():
        if family not in lanes:
            if following >= state.map("current").info.max_entries:
                lanes[family] = free_lane(state, set(lanes.values()))
            else:
                lanes[family] = following
                following += 1
                reserve["next_lane"] = following
    words, gone = _frontend_words(state, have, want, lanes)
    backends, new_backends = _backend_ids(state, have, want, meta.next_backend, reserve)
    blocks, current, old = _sets(state, have, want, lanes, meta.next_block, reserve)
    change = Change(have, want, lanes, new_backends, backends, blocks, current, old, words, gone, reserve)
    _check_room(state, change)
    return change


def free_lane(state: State, taken: set[int]) -> int:
    """A lane nobody has, once all have been handed out. Raises Full."""
    used = {lane for one in services.read_all(state).values() for lane in one.lanes.values()} | taken
    largest = state.map("current").info.max_entries
    for lane in range(1, largest):
        if lane not in used:
            return lane
    raise full("current", len(used), largest, 1)


def _frontend_words(
    state: State, have: Stored | None, want: Service | None, lanes: dict[int, int]
) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
    """Words to write and keys to delete in `frontends`."""
    before = words_of(have.service, have.lanes) if have else {}
    after = words_of(want, lanes) if want else {}
    mine = have.service.id if have else 0
    for key in after.keys() - before.keys():
        owner = services.owner_of_frontend(state, key)
        if owner is not None and owner != mine:
            shown = format_frontend(codec.decode_frontend(*FRONTEND_KEY.unpack(key)[:3]))
            assert want is not None
            raise Conflict(
                f"service {want.name}: frontend {shown} belongs to service {services.name_of(state, owner)!r}",
                hint="'svcctl service set' or 'svcctl service delete' on that one frees it",
            )
    changed = {key: word for key, word in after.items() if before.get(key) != word}
    return changed, tuple(before.keys() - after.keys())


def words_of(service: Service, lanes: dict[int, int]) -> dict[bytes, bytes]:
    """All entries of `frontends` that a service has."""
    words = {}
    for one in service.frontends:
        key = codec.frontend_key(one.frontend)
        words[key] = codec.frontend_word(key, lanes[one.frontend.family], frontend_flags(service, one))
    for family, address in blocked_addresses(service):
        key = codec.blocked_key(address)
        words[key] = codec.frontend_word(key, lanes[family], enums.FRONTEND_BLOCK)
    return words


def _backend_ids(
    state: State, have: Stored | None, want: Service | None, following: int, reserve: dict[str, int]
) -> tuple[dict[Backend, int], dict[Backend, int]]:
    """(ids of all backends that either side has, those to make)."""
    known: dict[Backend, int] = {}
    if have:
        known = {
            member.backend: number for member, number in zip(have.service.members, have.backends, strict=True)
        }
    new: dict[Backend, int] = {}
    following = max(following, 1)
    for member in want.members if want else ():
        if member.backend in known:
            continue
        data = state.map("backend_ids").lookup(codec.backend_key(member.backend))
        if data is not None:
            known[member.backend] = BACKEND_ID.unpack(data).id
        else:
            known[member.backend] = new[member.backend] = following
            following += 1
            reserve["next_backend"] = following
    return known, new


def _sets(
    state: State,
    have: Stored | None,
    want: Service | None,
    lanes: dict[int, int],
    following: int,
    reserve: dict[str, int],
) -> tuple[tuple[NewBlock, ...], dict[int, tuple[int, int]], tuple[int, ...]]:
    """Blocks to make, the lanes' new words, blocks that go. A set that did not change keeps its block."""
    before = {lane.family: lane for lane in blocks_of(have.service)} if have else {}
    made: list[NewBlock] = []
    current: dict[int, tuple[int, int]] = {}
    old: list[int] = []
    following = max(following, 1)
    for family, number in have.lanes.items() if have else ():
        cluster, local = services.current_blocks(state, number)
        before_lane = before.get(family)
        want_lane = next((one for one in blocks_of(want) if one.family == family), None) if want else None
        if want_lane is None:
            current[number] = (0, 0)
            old += {cluster, local} - {0}
            continue
        keep_cluster = (
            before_lane is not None and cluster and same_set(before_lane.cluster, want_lane.cluster)
        )
        keep_local = keep_cluster and same_set(before_lane.local if before_lane else None, want_lane.local)
        if keep_local:
            continue
        blocks = []
        if keep_cluster:
            new_cluster = cluster
        else:
            new_cluster, following = following, following + 1
            blocks.append(NewBlock(new_cluster, number, want_lane.cluster))
        new_local = new_cluster
        if want_lane.local is not None and not same_set(want_lane.local, want_lane.cluster):
            new_local, following = following, following + 1
            blocks.append(NewBlock(new_local, number, want_lane.local))
        made += blocks
        current[number] = (new_cluster, new_local)
        old += {cluster, local} - {0, new_cluster, new_local}
    for lane in blocks_of(want) if want else ():
        if have and lane.family in have.lanes:
            continue
        number = lanes[lane.family]
        new_cluster, following = following, following + 1
        made.append(NewBlock(new_cluster, number, lane.cluster))
        new_local = new_cluster
        if lane.local is not None and not same_set(lane.local, lane.cluster):
            new_local, following = following, following + 1
            made.append(NewBlock(new_local, number, lane.local))
        current[number] = (new_cluster, new_local)
    if made:
        reserve["next_block"] = following
    return tuple(made), current, tuple(old)


def _deltas(change: Change) -> dict[str, int]:
    """How many more (or fewer) entries each counted map has at the height of the change."""
    have, want = change.have, change.want
    slots = sum(len(block.set.members) for block in change.blocks)
    return {
        "service_names": 0 if have else 1,
        "current": len(change.lanes) - (len(have.lanes) if have else 0),
        "frontends": len(change.words),
        "service_fronts": len(want.frontends) if want else 0,
        "backends": len(change.new_backends),
        "service_members": len(want.members) if want else 0,
        "blocks": len(change.blocks),
        "slots": slots,
        "members": slots,
    }


LAST_ID = 0xFFFFFFFF
"""Numbers are never given out twice, so at some time there are none left."""


def _check_room(state: State, change: Change) -> None:
    for counter, following in change.reserve.items():
        if following > LAST_ID:
            raise Full(
                f"no free id: every number for a {counter.removeprefix('next_')} has been given out",
                hint="'svcctl unload' and 'svcctl load' begin anew with 1",
            )
    for name, more in _deltas(change).items():
        if more > 0:
            usage = state.usage(name)
            largest = state.map(name).info.max_entries
            if usage.used + more > largest:
                raise full(name, usage.used, largest, more)


def apply_change(writer: Writer, change: Change) -> None:
    """Carry a planned change out. Raises Incompatible where a pinned map is not the one that programs read."""
    writer.check_maps(catalog.SERVICE_READS)
    have, want = change.have, change.want
    with writer.changing(**change.reserve):
        _add_usage(writer, {name: count for name, count in _deltas(change).items() if count > 0})
        if want is not None:
            note_drains(writer, want)
            _write_backends(writer, change)
            _write_index(writer, change)
            for block in change.blocks:
                write_block(writer, want.id, change.backends, block)
        else:
            assert have is not None
            writer.map("services").delete(U32.pack(have.service.id))
            writer.map("service_names").delete(codec.name_key(have.service.name))
            _delete_words(writer, change)
        for lane, (cluster, local) in change.current.items():
            if have is None or lane not in have.lanes.values():
                writer.map("service_stats").update(U32.pack(lane), bytes(64))
            writer.map("current").update(U32.pack(lane), CURRENT.pack(Current(cluster, local)))
        if want is not None:
            _count_special(writer, change, +1)
            for key, word in change.words.items():
                writer.map("frontends").update(key, word)
            _delete_words(writer, change)
        _remove_rest(writer, change)


def _other_base(have: Stored | None) -> int:
    """Where a change writes its items: never over those that count."""
    return OTHER_BASE if have is not None and have.base == 0 else 0


def _write_index(writer: Writer, change: Change) -> None:
    """What writers and listings read, and what a repair goes by.

    Items are written beside the old ones; the value that says where they are replaces the old one at a stroke.
    From then on the change is made, and whoever finds it half carried out completes it.
    """
    have, want = change.have, change.want
    assert want is not None
    base = _other_base(have)
    keys = [ITEM_KEY.pack(ItemKey(want.id, base + n)) for n in range(len(want.frontends))]
    values = [codec.encode_service_frontend(one) for one in want.frontends]
    writer.map("service_fronts").update_many(b"".join(keys), b"".join(values), len(keys))
    keys = [ITEM_KEY.pack(ItemKey(want.id, base + n)) for n in range(len(want.members))]
    values = [codec.encode_member(member, change.backends[member.backend]) for member in want.members]
    writer.map("service_members").update_many(b"".join(keys), b"".join(values), len(keys))
    lanes = {family: change.lanes[family] for family in families(want)}
    value = codec.encode_service(want, lanes, base, time.time_ns())
    writer.map("services").update(U32.pack(want.id), value)
    if have is None:
        writer.map("service_names").update(codec.name_key(want.name), U32.pack(want.id))


def _write_backends(writer: Writer, change: Change) -> None:
    """Backends that are new, and references of those this service did not have before, counted up."""
    want = change.want
    assert want is not None
    before = {member.backend for member in change.have.service.members} if change.have else set()
    for member in want.members:
        if member.backend in before:
            continue
        number = change.backends[member.backend]
        ids = writer.map("backend_ids")
        key = codec.backend_key(member.backend)
        if member.backend in change.new_backends:
            writer.map("backends").update(
                U32.pack(number),
                BACKEND.pack(BackendValue(member.backend.address, member.backend.port, 0, 0, number, 0, 0)),
            )
            ids.update(key, BACKEND_ID.pack(BackendId(number, 1, b"", b"")))
        else:
            data = ids.lookup(key)
            if data is not None:
                value = BACKEND_ID.unpack(data)
                ids.update(key, BACKEND_ID.pack(value._replace(refs=value.refs + 1)))


def block_content(
    service: int, backends: Mapping[Backend, int], block: NewBlock
) -> tuple[list[Slot], list[int], Block]:
    """(slots, member ids in the order of their slots, record) of a block; `backends` gives ids."""
    ids = [backends[backend] for backend, _ in block.set.members]
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
        ranges=0,
        lut=0,
        flags=0,
        members=len(ids),
    )
    return slots, ids, record


def write_block(writer: Writer, service: int, backends: Mapping[Backend, int], block: NewBlock) -> None:
    """Slots, members, then the record that makes them a block. Nothing leads here yet."""
    slots, ids, record = block_content(service, backends, block)
    if ids:
        slot_keys = b"".join(SLOT_KEY.pack(SlotKey(block.number, n)) for n in range(len(slots)))
        writer.map("slots").update_many(slot_keys, b"".join(map(SLOT.pack, slots)), len(slots))
        member_keys = b"".join(MEMBER_KEY.pack(MemberKey(block.number, number)) for number in ids)
        writer.map("members").update_many(member_keys, b"".join(map(U32.pack, range(len(ids)))), len(ids))
    writer.map("blocks").update(U32.pack(block.number), BLOCK.pack(record))


def _delete_words(writer: Writer, change: Change) -> None:
    frontends = writer.map("frontends")
    for key in change.gone_words:
        frontends.delete(key)
    _count_special(writer, change, -1)


def _count_special(writer: Writer, change: Change, by: int) -> None:
    """Frontends that make programs look further: up before they are there, down after they are gone."""
    before = special_frontends(change.have.service) if change.have else (0, 0)
    after = special_frontends(change.want) if change.want else (0, 0)
    node_ports, blocked = after[0] - before[0], after[1] - before[1]
    node_ports, blocked = (
        (max(node_ports, 0), max(blocked, 0)) if by > 0 else (min(node_ports, 0), min(blocked, 0))
    )
    if not node_ports and not blocked:
        return
    config = writer.map("config")
    now = CONFIG.unpack(config.lookup(bytes(4)) or bytes(CONFIG.size))
    if node_ports > 0 and not now.node_ports:
        from svcctl.state.node_addresses import refresh

        refresh(writer)
    config.update(
        bytes(4),
        CONFIG.pack(
            now._replace(
                node_ports=max(now.node_ports + node_ports, 0), blocked=max(now.blocked + blocked, 0)
            )
        ),
    )


def special_frontends(service: Service) -> tuple[int, int]:
    """(frontends with the zero address, blocked addresses)"""
    from svcctl.model.service_endpoint import is_zero

    zero = sum(1 for one in service.frontends if is_zero(one.frontend.family, one.frontend.address))
    return zero, len(blocked_addresses(service))


def _remove_rest(writer: Writer, change: Change) -> None:
    """After a wait for running programs: blocks, items and backends nothing leads to, and their counts."""
    have, want = change.have, change.want
    if have is None:
        return
    kept = {member.backend for member in want.members} if want else set()
    gone = [
        (member.backend, number)
        for member, number in zip(have.service.members, have.backends, strict=True)
        if member.backend not in kept
    ]
    if change.old_blocks or gone:
        from svcctl.bpf.barrier import rcu_barrier

        rcu_barrier()
    fewer = {"frontends": -len(change.gone_words) - _overwritten(change)}
    for block in change.old_blocks:
        removed = _delete_block(writer, block)
        for name, count in removed.items():
            fewer[name] = fewer.get(name, 0) - count
    for name, count in (
        ("service_fronts", len(have.service.frontends)),
        ("service_members", len(have.service.members)),
    ):
        keys = [ITEM_KEY.pack(ItemKey(have.service.id, have.base + n)) for n in range(count)]
        fewer[name] = -writer.map(name).delete_many(b"".join(keys), count)
    fewer["backends"] = -sum(_release_backend(writer, backend, number) for backend, number in gone)
    if want is None:
        fewer["service_names"] = -1
    fewer["current"] = -len([family for family in have.lanes if want is None or family not in families(want)])
    _add_usage(writer, fewer)


def _overwritten(change: Change) -> int:
    """Words that replaced an entry of this service: counted up as new, so to be taken back."""
    if change.have is None:
        return 0
    before = words_of(change.have.service, change.have.lanes)
    return sum(1 for key in change.words if key in before)


def _delete_block(writer: Writer, number: int) -> dict[str, int]:
    """Take a block away that nothing leads to. Returns how many entries of which map went."""
    block = services.read_block(writer, number)
    if block is None:
        return {}
    slots = writer.map("slots")
    keys = [SLOT_KEY.pack(SlotKey(number, n)) for n in range(block.slots)]
    ids = []
    for key in keys:
        data = slots.lookup(key)
        if data is not None:
            ids.append(SLOT.unpack(data).backend)
    writer.map("blocks").delete(U32.pack(number))
    gone_slots = slots.delete_many(b"".join(keys), len(keys)) if keys else 0
    member_keys = [MEMBER_KEY.pack(MemberKey(number, one)) for one in dict.fromkeys(ids)]
    gone_members = (
        writer.map("members").delete_many(b"".join(member_keys), len(member_keys)) if member_keys else 0
    )
    return {"blocks": 1, "slots": gone_slots, "members": gone_members}


def _release_backend(writer: Writer, backend: Backend, number: int) -> int:
    """Count a reference down; 1 if the backend went with it."""
    ids = writer.map("backend_ids")
    key = codec.backend_key(backend)
    data = ids.lookup(key)
    if data is None:
        return 0
    value = BACKEND_ID.unpack(data)
    if value.refs > 1:
        ids.update(key, BACKEND_ID.pack(value._replace(refs=value.refs - 1)))
        return 0
    ids.delete(key)
    writer.map("backends").delete(U32.pack(number))
    return 1


def _add_usage(writer: Writer, deltas: dict[str, int]) -> None:
    for name, delta in deltas.items():
        if delta:
            usage = writer.usage(name)
            writer.put_usage(name, usage._replace(used=max(usage.used + delta, 0)))
