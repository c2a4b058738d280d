"""Rows of the listings of services as writers keep them: services, frontends, backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.maps import catalog
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import BACKEND, SERVICE_STATS, ServiceStats
from svcctl.model.constants import FAMILY_NAMES
from svcctl.model.service import (
    ALGORITHM_NAMES,
    FRONTEND_DSR,
    FRONTEND_FILTERED,
    FRONTEND_HOST,
    FRONTEND_LOCAL,
    FRONTEND_OUTSIDE_LOCAL,
    blocks_of,
    frontend_flags,
)
from svcctl.model.service_endpoint import ACTIVE, KIND_NAMES, STATE_NAMES, format_backend, format_frontend
from svcctl.state import services

if TYPE_CHECKING:
    from svcctl.model.service import BackendSet, Service
    from svcctl.state.services import Stored
    from svcctl.state.session import State

FLAG_NAMES = (
    (FRONTEND_LOCAL, "local"),
    (FRONTEND_FILTERED, "filtered"),
    (FRONTEND_HOST, "host"),
    (FRONTEND_OUTSIDE_LOCAL, "outside-local"),
    (FRONTEND_DSR, "dsr"),
)
"""What a frontend's flags are called, in the order they are shown."""

SERVES, REFUSES, DROPS, FILTERS = "serves", "refuses", "drops", "filters"
"""What becomes of a new connection: a backend gets it, there is none, a rule says that nobody is to, or source ranges
tell, which the packet path goes by and sockets cannot obey."""


def find_services(state: State, name: str | None, noun: str) -> dict[str, Stored]:
    """All services by name, or the one asked for, for the command `noun`. Raises NotFound, NotLoaded."""
    services.need_services(state)
    if name is None:
        return services.read_all(state)
    return {name: services.get(state, name, noun)}


def lane_stats(state: State, lane: int) -> ServiceStats:
    """Counters of one lane: a service's connections in one family."""
    data = state.map("service_stats").lookup(U32.pack(lane))
    return SERVICE_STATS.unpack(data or bytes(SERVICE_STATS.size))


def all_stats(state: State) -> list[ServiceStats]:
    """Counters of every lane, from one read of the map."""
    _, values, _ = state.map("service_stats").read_all()
    return [ServiceStats(*row) for row in SERVICE_STATS.struct.iter_unpack(values)]


def total(rows: list[ServiceStats]) -> ServiceStats:
    """The sum of several lanes."""
    return (
        ServiceStats(*(sum(column) for column in zip(*rows, strict=True))) if rows else ServiceStats(*[0] * 8)
    )


def policy_text(service: Service) -> str:
    """The traffic policies: `cluster` or `local` for both, else each."""
    internal, external = (
        "local" if local else "cluster" for local in (service.internal_local, service.external_local)
    )
    return internal if internal == external else f"internal={internal},external={external}"


def service_rows(state: State, name: str | None = None) -> list[tuple[Any, ...]]:
    """One row a service, by name: see `svcctl.cli.commands.services.COLUMNS`."""
    found = find_services(state, name, "services")
    stats = all_stats(state) if name is None else None
    rows = []
    for one in found.values():
        service = one.service
        lanes = [stats[lane] if stats else lane_stats(state, lane) for lane in one.lanes.values()]
        sums = total(lanes)
        active = sum(1 for member in service.members if member.state == ACTIVE and member.weight)
        rows.append(
            (
                service.name,
                [format_frontend(each.frontend) for each in sorted(service.frontends)],
                {"active": active, "all": len(service.members)},
                policy_text(service),
                service.affinity_seconds or None,
                sums.connections,
                sums.no_backend,
                service.id,
                ALGORITHM_NAMES.get(service.algorithm, str(service.algorithm)),
                service.node_port or None,
                "dsr" if service.dsr else None,
                service.block or None,
                service.drop or None,
                service.owner or None,
                [str(each) for each in sorted(service.sources)] or None,
                service.health_port or None,
                sums.dropped,
                sums.affinity,
                sums.remembered,
                sums.reverse_full,
                service.changed_ns,
            )
        )
    return rows


def frontend_rows(state: State, name: str | None = None) -> list[tuple[Any, ...]]:
    """One row a frontend, by address: (frontend, kind, service, backends that answer, result, flags)."""
    found = []
    has_packets = state.has_half(catalog.PACKETS)
    for one in find_services(state, name, "frontends").values():
        service = one.service
        lanes = {lane.family: lane for lane in blocks_of(service)}
        blocked = service.block
        for each in service.frontends:
            flags = frontend_flags(service, each)
            lane = lanes[each.frontend.family]
            chosen = lane.local if flags & FRONTEND_LOCAL and lane.local is not None else lane.cluster
            names = [text for bit, text in FLAG_NAMES if flags & bit] + (["block"] if blocked else [])
            row = (
                format_frontend(each.frontend),
                KIND_NAMES.get(each.kind, str(each.kind)),
                service.name,
                len(chosen.members),
                _result(chosen, flags, has_packets=has_packets),
                names or None,
            )
            found.append((each.frontend, row))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _result(chosen: BackendSet, flags: int, *, has_packets: bool) -> str:
    if flags & FRONTEND_FILTERED and not has_packets:
        return DROPS
    if chosen.members:
        return FILTERS if flags & FRONTEND_FILTERED else SERVES
    return DROPS if chosen.verdict else REFUSES


def backend_rows(state: State, name: str | None = None) -> list[tuple[Any, ...]]:
    """One row a membership, by service and address: see `svcctl.cli.commands.backends.COLUMNS`."""
    rows = []
    found = find_services(state, name, "backends")
    picks: dict[int, int] = {}
    if name is None:
        picks = {one.id: one.picks for one in map(BACKEND.unpack, _values(state))}
    for one in found.values():
        pairs = sorted(zip(one.service.members, one.backends, strict=True))
        for member, number in pairs:
            if name is not None:
                value = services.read_backend(state, number)
                picks[number] = value.picks if value is not None else 0
            rows.append(
                (
                    format_backend(member.backend),
                    one.service.name,
                    member.weight,
                    STATE_NAMES.get(member.state, str(member.state)),
                    member.since_ns,
                    member.local or None,
                    picks.get(number, 0),
                    FAMILY_NAMES[member.backend.family],
                    number,
                    member.until_ns or None,
                )
            )
    return rows


def _values(state: State) -> list[bytes]:
    return [value for _, value in state.map("backends").items()]
