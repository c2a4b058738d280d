"""balancer, ids, usage, counters: numbers that are kept beside the services, counted anew."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from svcctl.bpf.constants import LOCK
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32, U64
from svcctl.maps.service_layouts import AFFINITY_KEY, REVERSE, REVERSE_ENTRY, SERVICE_STATS
from svcctl.state.audit.finding import Finding
from svcctl.state.change_frontends import special_frontends, wild_ports
from svcctl.state.node_addresses import changes, refresh
from svcctl.state.service_config import change_service_config, read_service_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.audit.service_view import View


def balancer(view: View, *, too_low: bool) -> Iterator[Finding]:
    """balancer: how many frontends make programs look further, when the first drain ends, and the addresses that
    node ports are served on.

    A count that is too low is mended before the frontends are, one that is too high after them.
    """
    writer = view.writer
    now = read_service_config(writer)
    node_ports = blocked = tables = 0
    ports: list[int] = []
    for one in view.known.values():
        more = special_frontends(one.service)
        node_ports, blocked, tables = node_ports + more[0], blocked + more[1], tables + more[2]
        ports += wild_ports(one.service)
    if too_low and ports and not (0 < now.first_node_port <= min(ports) <= max(ports) <= now.last_node_port):
        yield Finding(
            "balancer",
            f"node ports are looked for from {now.first_node_port} to {now.last_node_port}, there are"
            f" {min(ports)} to {max(ports)}",
            partial(
                change_service_config, view.writer, first_node_port=min(ports), last_node_port=max(ports)
            ),
        )
    for name, have, want in (
        ("node_ports", now.node_ports, node_ports),
        ("blocked", now.blocked, blocked),
        ("tables", now.tables, tables),
    ):
        if have != want and (have < want) == too_low and (too_low or view.is_sure):
            yield Finding(
                "balancer",
                f"{name} is {have}, {want} counted",
                partial(change_service_config, view.writer, **{name: want}),
            )
    ends = [one.until_ns for each in view.known.values() for one in each.service.members if one.until_ns]
    if too_low and ends and not 0 < now.drain_ns <= min(ends):
        repair = partial(change_service_config, view.writer, drain_ns=min(ends))
        yield Finding("balancer", "a drain ends before drains are looked for", repair)
    if too_low and node_ports:
        more_addresses, fewer = changes(writer)
        if more_addresses or fewer:
            yield Finding(
                "balancer",
                f"node_addresses lacks {len(more_addresses)} addresses of the interfaces and has {len(fewer)} others",
                partial(refresh, writer),
            )


def ids(view: View, deep: bool) -> Iterator[Finding]:
    """ids: what is handed out next is above all that is in use, or that a socket or client still means."""
    writer = view.writer
    meta = writer.meta()
    services = {*view.values, *view.fronts, *view.items, *(block.service for block in view.blocks.values())}
    backends = {*view.backends, *(entry.id for entry in view.index.values())}
    lanes = {*view.current, *(lane for one in view.known.values() for lane in one.lanes.values())}
    if deep:
        for key, _ in writer.map("affinity").items():
            services.add(AFFINITY_KEY.unpack(key).service)
        for _, data in writer.map("reverse").items():
            for entry in REVERSE_ENTRY.struct.iter_unpack(REVERSE.unpack(data).entries):
                services.add(entry[4])
    most = writer.map("current").info.max_entries
    lanes = {lane for lane in lanes if lane < most}
    blocks = {*view.blocks, *view.slots, *view.members, *(n for pair in view.current.values() for n in pair)}
    for name, have, used in (
        ("service", meta.next_service, services),
        ("backend", meta.next_backend, backends),
        ("block", meta.next_block, blocks),
        ("lane", meta.next_lane, lanes),
        ("ranges", meta.next_ranges, {number + 1 for number in view.ranges}),
    ):
        highest = max(used, default=0)
        if have <= highest and highest:
            yield Finding(
                "ids",
                f"the next {name} is {have}, but {highest} is in use",
                partial(_set_next, view, f"next_{name}", min(highest + 1, 0xFFFFFFFF)),
            )
    if meta.next_lane > most:
        yield Finding(
            "ids",
            f"the next lane is {meta.next_lane}, of {most}",
            partial(_set_next, view, "next_lane", most),
        )


def _set_next(view: View, field: str, number: int) -> None:
    fields: dict[str, Any] = {field: number}
    view.writer.put_meta(view.writer.meta()._replace(**fields))


def usage(view: View) -> Iterator[Finding]:
    """usage: entries and room of each counted map as they are."""
    counts = {
        "service_names": len(view.names),
        "frontends": len(view.words),
        "service_fronts": sum(map(len, view.fronts.values())),
        "backends": len(view.backends),
        "service_members": sum(map(len, view.items.values())),
        "blocks": len(view.blocks),
        "slots": sum(map(len, view.slots.values())),
        "members": sum(map(len, view.members.values())),
        "current": sum(len(one.lanes) for one in view.known.values()),
        "source_ranges": sum(map(len, view.ranges.values())),
    }
    writer = view.writer
    for name, used in counts.items():
        have = writer.usage(name)
        right = layouts.Usage(used, writer.map(name).info.max_entries)
        if have != right:
            yield Finding(
                "usage",
                f"{name}: {have.used} of {have.max} noted, {right.used} of {right.max} counted",
                partial(writer.put_usage, name, right),
            )


def counters(view: View) -> Iterator[Finding]:
    """counters: lanes that were never handed out have counted nothing."""
    stats = view.writer.map("service_stats")
    _, values, count = stats.read_all()
    used = {lane for one in view.known.values() for lane in one.lanes.values()}
    first = max(view.writer.meta().next_lane, max(used, default=0) + 1)
    size = SERVICE_STATS.size
    for lane in range(first, count):
        data = values[size * lane : size * (lane + 1)]
        if data.strip(b"\0"):
            yield Finding(
                "counters",
                f"lane {lane}, which was never handed out, has counted {SERVICE_STATS.unpack(data).connections}"
                " connections",
                partial(stats.update, U32.pack(lane), bytes(size)),
            )


MARGIN = 16
"""A count that is too high costs a look-up; programs may count while it is written."""


def reverse_counts(view: View) -> Iterator[Finding]:
    """balancer: `reverse_counts` is never lower than the entries it stands for, which would not be looked for.

    Programs count before they add an entry, and after they took one away; so one that looks too low is looked at
    again.
    """
    reverse, table = view.writer.map("reverse"), view.writer.map("reverse_counts")
    sockets: dict[int, list[bytes]] = {}
    for key, _ in reverse.items(LOCK):
        sockets.setdefault(U64.unpack(key)[0] % catalog.REVERSE_COUNTS, []).append(key)
    if not sockets:
        return
    counts = table.read_all()[1]
    for slot, keys in sockets.items():
        if U32.unpack_from(counts, 4 * slot)[0] >= len(keys):
            continue
        there = sum(reverse.lookup(key) is not None for key in keys)
        count = U32.unpack(table.lookup(U32.pack(slot)) or bytes(4))[0]
        if count < there and all(reverse.lookup(key) is not None for key in keys):
            yield Finding(
                "balancer",
                f"reverse_counts has {count} for slot {slot}, in which are {there} sockets",
                partial(table.update, U32.pack(slot), U32.pack(there + MARGIN)),
            )
