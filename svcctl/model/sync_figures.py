"""What `svcctl follow` counts of itself: the figures behind kube-proxy's metrics. Pure, and gone with the process."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from svcctl.model.service import blocks_of
from svcctl.model.service_endpoint import KIND_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.service import Service

SYNC_BUCKETS = tuple(0.001 * 2**n for n in range(15))
"""Seconds, as kube-proxy has them: 1 ms, 2 ms, ... 16 s."""

PROGRAMMING_BUCKETS = (
    0.25,
    0.5,
    *map(float, range(1, 60)),
    *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)
"""Seconds from the change of a pod to the maps, as kube-proxy has them."""


class Histogram:
    """Counts of values up to each bound, their sum and number."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, how many values are not above it), `+Inf` at the end."""
        rows, total = [], 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound is None else f"{bound:g}", total))
        return rows


class Figures:
    """All of them. Times are seconds since 1970; `*_pending` came since the last apply, `*_total` in all."""

    def __init__(self) -> None:
        self.sync_seconds = Histogram(SYNC_BUCKETS)
        self.programming_seconds = Histogram(PROGRAMMING_BUCKETS)
        self.last_queued = 0.0
        self.last_sync = 0.0
        self.failures = 0
        self.services_pending = self.services_total = 0
        self.endpoints_pending = self.endpoints_total = 0
        self.no_local_internal = self.no_local_external = 0
        self.ended_flows = 0
        self.followed: list[Followed] = []


class Followed:
    """One kind of object: how many there are, how often it was listed and watched, whether that works."""

    def __init__(self, name: str, objects: int, lists: int, watches: int, failures: int, up: bool) -> None:
        self.name = name
        self.objects = objects
        self.lists = lists
        self.watches = watches
        self.failures = failures
        self.up = up


def count_no_local(services: Iterable[Service]) -> tuple[int, int]:
    """How many drop here though other nodes have backends: by their internal policy, by their external one."""
    internal = external = 0
    for service in services:
        if not (service.internal_local or service.external_local):
            continue
        if any(lane.local and not lane.local.members and lane.cluster.members for lane in blocks_of(service)):
            internal += service.internal_local
            external += service.external_local and any(
                each.kind != KIND_CLUSTER for each in service.frontends
            )
    return internal, external
