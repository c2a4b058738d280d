"""One consistent look at everything `metrics` shows, for a reader without capabilities.

Counts come from where writers keep them (`refs`, `usage`), never from a walk over the bindings: a scrape
costs the same for ten bindings as for a million.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from svcctl.model.destination import Destination, sort_key
from svcctl.model.snapshot import AttachmentSample, DestinationSample, MapSample, Snapshot
from svcctl.state import counters, destinations
from svcctl.state.attach import list_attachments, netns_key
from svcctl.state.session import read_consistent

if TYPE_CHECKING:
    from svcctl.model.snapshot import BackendSample, ServiceSample
    from svcctl.state.attach import Attached
    from svcctl.state.place import Place
    from svcctl.state.session import State


def collect(place: Place) -> Snapshot:
    """Open the state, read it, close it again: so it may be upgraded, unloaded and loaded between two calls.

    Raises NotLoaded, PermissionProblem, Incompatible, BpfError.
    """
    snapshot, consistent = read_consistent(place, read_snapshot)
    return snapshot._replace(consistent=consistent)


def read_snapshot(state: State) -> Snapshot:
    """Everything, from open state. A pin that is missing is an error, also where it would not be read."""
    meta = state.meta()
    made = [half for half in catalog.HALVES if state.has_half(half)]
    has_dispatcher, has_services = (half in made for half in (catalog.DISPATCHER, catalog.BALANCER))
    for maps in (catalog.STATE_MAPS, *(half.maps for half in made)):
        for name in maps:
            state.map(name)
    services: list[ServiceSample] = []
    backends: list[BackendSample] = []
    if has_services:
        from svcctl.state.service_samples import backend_samples, service_samples

        services, backends = service_samples(state), backend_samples(state)
    return Snapshot(
        version=layouts.text(meta.version),
        schema=meta.schema,
        interrupted=bool(meta.generation & 1),
        last_change=meta.mark_time_ns / 1e9,
        lock_waits=meta.lock_waits,
        lock_wait_seconds=meta.lock_wait_ns / 1e9,
        destinations=tuple(_destinations(state)) if has_dispatcher else (),
        maps=tuple(_maps(state)),
        attachments=tuple(_attachments(state)),
        drops=tuple(counters.drops(state).items()) if made else (),
        services=tuple(services),
        backends=tuple(backends),
        packets=tuple(counters.packet_events(state).items()) if catalog.PACKETS in made else (),
    )


def _destinations(state: State) -> list[DestinationSample]:
    # Not destinations.read_all(): two records with one id, which only damage can make, are two series.
    found = [
        Destination(destinations.decode_key(key), *layouts.DESTINATION.unpack(value))
        for key, value in state.map("destinations").items()
    ]
    return [
        DestinationSample(
            *one.key,
            one.refs,
            len(destinations.cookies(state, one)),
            *counters.dispatch_stats(state, one.id),
        )
        for one in sorted(found, key=lambda destination: sort_key(destination.key))
    ]


def _maps(state: State) -> list[MapSample]:
    usage = state.map("usage")
    samples = []
    for name, shape in catalog.MAPS.items():
        if shape.usage is not None and state.has_map(name):
            data = usage.lookup(U32.pack(shape.usage)) or bytes(layouts.USAGE.size)
            used = layouts.USAGE.unpack(data).used
            samples.append(MapSample(name, used, state.map(name).info.max_entries))
    for name in catalog.FILLED:
        half = catalog.PACKETS if name in catalog.PACKET_MAPS else catalog.BALANCER
        if state.has_half(half) and state.has_map(name):
            used = counters.count_entries(state, name)
            samples.append(MapSample(name, used, state.map(name).info.max_entries))
    return samples


def recorded_attachments(state: State) -> list[AttachmentSample]:
    """What is recorded as attached, and whether it is.

    Only root can ask the kernel about a link: links cannot be opened read-only. Others see that its pin is
    there, which keeps the link, and know that the namespace lives: they are in it, or hold it open.
    """
    return [
        AttachmentSample(
            row.kind,
            row.hook,
            row.target,
            row.program,
            row.up
            if row.up is not None
            else (row.link_id != 0 or row.clsact) and _link_is_pinned(state, row),
        )
        for row in list_attachments(state)
    ]


def _attachments(state: State) -> list[AttachmentSample]:
    """What is recorded, and the dispatcher also when it is made but attached nowhere."""
    samples = recorded_attachments(state)
    if state.has_dispatcher() and all(one.kind != "netns" for one in samples):
        key = netns_key(state.netns.inode)
        samples.append(AttachmentSample("netns", "sk_lookup", key.target, catalog.DISPATCH.name, False))
    return samples


def _link_is_pinned(state: State, row: Attached) -> bool:
    if row.kind == "dev":
        # A link keeps its pin when its interface goes, and of a filter there is none: what is recorded is all.
        return row.clsact or os.path.lexists(state.pin(f"link_{row.hook}_{row.target}"))
    shapes = (catalog.DISPATCH,) if row.kind == "netns" else catalog.CONNECT
    return any(
        os.path.lexists(state.pin(shape.link_pin))
        for shape in shapes
        if row.kind == "netns" or shape.name == row.hook
    )
