"""services, lanes: each service with its name, its items and the blocks that its lanes lead to.

The value in `services` is the truth, and what follows from it is made again: a command that died before it wrote
that value has changed nothing, one that died later is completed. Findings come in the order in which they may be
mended: what is to be reached first, then what leads there, then, after a wait for running programs, what nothing
leads to any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import CURRENT, ITEM_KEY, SERVICE, Current, ItemKey
from svcctl.model.constants import FAMILY_NAMES, IPV4
from svcctl.model.service import blocks_of, families, same_set
from svcctl.state.audit import service_counts, service_rest, tables
from svcctl.state.audit.finding import Finding
from svcctl.state.audit.service_view import Known, View, name_fault
from svcctl.state.audit.tables import table_fault
from svcctl.state.change_plan import NewBlock, free_lane, ranges_of
from svcctl.state.change_source import Live
from svcctl.state.change_write import block_content, write_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.maps.service_layouts import ServiceValue
    from svcctl.model.service import BackendSet, Lane
    from svcctl.state.writer import Writer


def find(writer: Writer, deep: bool) -> Iterator[Finding]:
    """Findings about the service maps, which must be there."""
    view = View(writer)
    yield from _values(view)
    yield from service_counts.ids(view, deep)
    yield from service_rest.lost_backends(view)
    yield from _lanes(view)
    yield from service_counts.balancer(view, too_low=True)
    yield from service_rest.frontends(view)
    yield from _unowned_lanes(view)
    yield from service_counts.balancer(view, too_low=False)
    yield from service_rest.stray_blocks(view)
    yield from service_rest.stray_ranges(view)
    yield from tables.find(view)
    yield from service_rest.references(view)
    yield from _stray_items(view)
    yield from service_counts.usage(view)
    if deep:
        yield from service_counts.reverse_counts(view)
        yield from service_counts.counters(view)


def _values(view: View) -> Iterator[Finding]:
    """services: each has a name of its own that leads to it, and everything its value speaks of."""
    names = view.writer.map("service_names")
    wanted: dict[bytes, int] = {}
    for number, value in sorted(view.values.items()):
        one = view.known[number]
        if value.id != number:
            repair = partial(_put, view, number, value._replace(id=number))
            yield Finding("services", f"service {number}: its value says that it is {value.id}", repair)
        if name_fault(value):
            repair = partial(_put, view, number, value._replace(name=b"service-%d" % number, id=number))
            yield Finding(
                "services", f"service {number} has a name that is none: {value.name[:40]!r}", repair
            )
            continue
        if one.fault:
            yield Finding(
                "services",
                f"{one} {one.fault}",
                None,
                "'svcctl service set' and 'svcctl backend add' put back what is missing, or 'svcctl service delete'",
            )
        key = codec.name_key(one.service.name)
        other = wanted.setdefault(key, number)
        if other != number:
            yield Finding(
                "services",
                f"services {other} and {number} are both named {one.service.name!r}",
                None,
                f"'svcctl service delete {one.service.name}' deletes one,"
                " then 'svcctl check --repair' gives the other the name",
            )
    for key, number in wanted.items():
        have = view.names.get(key)
        if have == number or (have is not None and _is_named(view, key, have)):
            continue
        yield Finding(
            "services",
            f"{view.known[number]}: its name leads to {have if have is not None else 'nothing'}",
            partial(names.update, key, U32.pack(number)),
        )
    for key, number in view.names.items():
        if key not in wanted:
            shown = key.rstrip(b"\0").decode("utf-8", "backslashreplace")
            yield Finding(
                "services",
                f"the name {shown!r} leads to {number}, which is no service",
                partial(names.delete, key),
            )


def _is_named(view: View, key: bytes, number: int) -> bool:
    value = view.values.get(number)
    return (
        value is not None and not name_fault(value) and codec.name_key(view.known[number].service.name) == key
    )


def _put(view: View, number: int, value: ServiceValue) -> None:
    view.writer.map("services").update(U32.pack(number), SERVICE.pack(value))


def _stray_items(view: View) -> Iterator[Finding]:
    """services: no items but those that a value speaks of. Programs read none of them."""
    for name, items in (("service_fronts", view.fronts), ("service_members", view.items)):
        for service, entries in sorted(items.items()):
            one = view.known.get(service)
            if one is not None and one.fault:
                continue
            kept: range = range(0)
            if one is not None:
                count = one.value.frontends if name == "service_fronts" else one.value.members
                kept = range(one.value.base, one.value.base + count)
            stray = [number for number in entries if number not in kept]
            if stray:
                keys = b"".join(ITEM_KEY.pack(ItemKey(service, number)) for number in stray)
                yield Finding(
                    "services",
                    f"{name}: {len(stray)} entries of {one or f'service {service}'} that nothing speaks of",
                    partial(view.writer.map(name).delete_many, keys, len(stray)),
                )


def _lanes(view: View) -> Iterator[Finding]:
    """lanes: one for each family of a service, nobody else's, and its word leads to what the service says."""
    largest = view.writer.map("current").info.max_entries
    owners = _owners(view)
    for one in view.known.values():
        if one.fault:
            continue
        for family in families(one.service):
            lane = one.lanes.get(family, 0)
            other = owners.get(lane)
            if not lane or lane >= largest or other != one.service.id:
                whose = f", which is {view.known[other]}'s" if other and other != one.service.id else ""
                yield Finding(
                    "lanes",
                    f"{one}: its {FAMILY_NAMES[family]} lane is {lane}{whose}",
                    partial(_give_lane, view, one.service.id, family),
                )
        for family in one.lanes.keys() - set(families(one.service)):
            yield Finding(
                "lanes",
                f"{one} has an {FAMILY_NAMES[family]} lane and no such frontend",
                partial(_set_lane, view, one.service.id, family, 0),
            )
        for wanted in blocks_of(one.service):
            lane = one.lanes.get(wanted.family, 0)
            if lane and lane < largest and owners.get(lane) == one.service.id:
                fault = _lane_fault(view, one, lane, wanted)
                if fault:
                    yield Finding(
                        "lanes",
                        f"{one}: {FAMILY_NAMES[wanted.family]} lane {lane} {fault}",
                        partial(_rebuild, view, one, lane, wanted),
                    )


def _owners(view: View) -> dict[int, int]:
    """Lane -> service. Of two that claim one, the service whose block is there; else the older one."""
    owners: dict[int, int] = {}
    for number, one in view.known.items():
        for lane in one.lanes.values():
            block = view.blocks.get(view.current.get(lane, (0, 0))[0])
            if lane not in owners or (block is not None and block.service == number):
                owners[lane] = number
    return owners


def _lane_fault(view: View, one: Known, lane: int, wanted: Lane) -> str:
    cluster, local = view.current.get(lane, (0, 0))
    local_set = wanted.cluster if wanted.local is None else wanted.local
    for kind, number, backends in (("cluster", cluster, wanted.cluster), ("local", local, local_set)):
        if kind == "local" and number == cluster and same_set(backends, wanted.cluster):
            continue
        ranges = ranges_of(one.value.ranges, wanted.family)
        fault = _block_fault(view, one, NewBlock(number, lane, backends, ranges))
        if fault:
            return f"has {kind} block {number}, {fault}"
    return ""


def _block_fault(view: View, one: Known, wanted: NewBlock) -> str:
    """What a block is not that the service says."""
    record = view.blocks.get(wanted.number)
    if not wanted.number or record is None:
        return "which is not there"
    content = block_content(one.service.id, one.backends, wanted)
    slots, ids, right = content.slots, content.members, content.record
    if right.lut_size and record.lut:
        fault = table_fault(view, record, wanted, ids)
        if fault:
            return fault
        right = right._replace(lut=record.lut)
    for field, have, want in zip(record._fields, record, right, strict=True):
        if have != want:
            return f"whose {field} is {have} instead of {want}"
    if view.slots.get(wanted.number, {}) != dict(enumerate(slots)):
        return "whose slots are not those of its backends and weights"
    if view.members.get(wanted.number, {}) != content.values():
        return "whose members are not its backends"
    return ""


def _rebuild(view: View, one: Known, lane: int, wanted: Lane) -> None:
    """New blocks, then the lane's word. The old ones are stray from then on."""
    writer = view.writer
    meta = writer.meta()
    first = max(meta.next_block, 1)
    sets: list[BackendSet] = [wanted.cluster]
    if wanted.local is not None and not same_set(wanted.local, wanted.cluster):
        sets.append(wanted.local)
    writer.put_meta(meta._replace(next_block=first + len(sets)))
    ranges = ranges_of(one.value.ranges, wanted.family)
    blocks = [NewBlock(number, lane, each, ranges) for number, each in enumerate(sets, first)]
    write_blocks(writer, [(one.service.id, block) for block in blocks], one.backends)
    if lane not in view.current:
        writer.map("service_stats").update(U32.pack(lane), bytes(64))  # its counters begin with its owner
    word = CURRENT.pack(Current(first, first + len(sets) - 1))
    writer.map("current").update(U32.pack(lane), word)


def _give_lane(view: View, number: int, family: int) -> None:
    """A lane that was never anybody's; what leads to it is made by the next look."""
    writer = view.writer
    meta = writer.meta()
    lane = max(meta.next_lane, 1)
    if lane < writer.map("current").info.max_entries:
        writer.put_meta(meta._replace(next_lane=lane + 1))
    else:
        lane = free_lane(writer, Live(writer).lanes())
    _set_lane(view, number, family, lane)


def _set_lane(view: View, number: int, family: int, lane: int) -> None:
    table = view.writer.map("services")
    data = table.lookup(U32.pack(number))
    if data is not None:
        value = SERVICE.unpack(data)
        value = value._replace(lane4=lane) if family == IPV4 else value._replace(lane6=lane)
        table.update(U32.pack(number), SERVICE.pack(value))


def _unowned_lanes(view: View) -> Iterator[Finding]:
    """lanes: those that are nobody's lead nowhere."""
    owned = {lane for one in view.known.values() for lane in one.lanes.values()}
    for lane, (cluster, local) in sorted(view.current.items()):
        if lane not in owned:
            yield Finding(
                "lanes",
                f"lane {lane} leads to blocks {cluster} and {local}, and is no service's",
                partial(view.writer.map("current").update, U32.pack(lane), bytes(CURRENT.size)),
            )
