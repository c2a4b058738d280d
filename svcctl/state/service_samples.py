"""What `metrics` reads of services: counters of lanes and picks of backends, each map read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps.layouts import text
from svcctl.maps.service_layouts import BACKEND, SERVICE
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.service_endpoint import format_backend
from svcctl.model.snapshot import BackendSample, ServiceSample
from svcctl.state.service_listing import all_stats
from svcctl.state.services import as_backend

if TYPE_CHECKING:
    from svcctl.state.session import State


def service_samples(state: State) -> list[ServiceSample]:
    """One for each service and family of its frontends, by name and family."""
    stats = all_stats(state)
    rows = []
    for _, data in state.map("services").items():
        value = SERVICE.unpack(data)
        for family, lane in ((IPV4, value.lane4), (IPV6, value.lane6)):
            if lane and lane < len(stats):
                one = stats[lane]
                rows.append(
                    ServiceSample(
                        text(value.name),
                        family,
                        one.connections,
                        one.no_backend,
                        one.dropped,
                        one.affinity,
                        one.remembered,
                        one.reverse_full,
                    )
                )
    return sorted(rows)


def backend_samples(state: State) -> list[BackendSample]:
    """One for each backend, by address."""
    found = [BACKEND.unpack(data) for _, data in state.map("backends").items()]
    pairs = sorted((as_backend(one), one.picks) for one in found)
    return [BackendSample(format_backend(backend), picks) for backend, picks in pairs]
