"""What happened between two looks at the counters, per second: what `top` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.snapshot import Snapshot


class LabelRate(Record):
    """One destination: `sockets` is how many it has, the rest is per second."""

    label: str
    family: int
    protocol: int
    sockets: int
    lookups: float
    no_socket: float
    errors: float


class ServiceRate(Record):
    """One family of a service, per second: connections made, and of them by affinity and by a socket's memory."""

    service: str
    family: int
    connections: float
    affinity: float
    remembered: float
    no_backend: float
    dropped: float
    reverse_full: float


class BackendRate(Record):
    """Connections a backend was given by all services, per second."""

    backend: str
    picks: float


class Rates(Record):
    """All of it, the busiest first, over `seconds`. `drops`: reason -> refused per second, by the enum's order."""

    seconds: float
    labels: list[LabelRate]
    services: list[ServiceRate]
    backends: list[BackendRate]
    drops: dict[str, float]

    @property
    def lookups(self) -> float:
        """Incoming connections of all labels."""
        return sum(one.lookups for one in self.labels)

    @property
    def connections(self) -> float:
        """Outgoing connections through all services."""
        return sum(one.connections for one in self.services)

    @property
    def refused(self) -> float:
        """Refused for whatever reason."""
        return sum(self.drops.values())


def between(before: Snapshot, after: Snapshot, seconds: float) -> Rates:
    """Rates of everything that `after` has; what `before` did not have started at zero.

    So did a counter that is smaller than it was: its owner was deleted and made anew.
    """

    def per_second(old: Iterable[int] | None, new: Iterable[int]) -> list[float]:
        pairs = zip(old, new, strict=True) if old is not None else ((0, one) for one in new)
        return [(now - then if now >= then else now) / seconds for then, now in pairs]

    labels = {one[:3]: one[5:] for one in before.destinations}
    services = {one[:2]: _counters(one) for one in before.services}
    backends = {one.backend: (one.picks,) for one in before.backends}
    drops = dict(before.drops)
    return Rates(
        seconds,
        _busiest(
            LabelRate(*one[:3], one.sockets, *per_second(labels.get(one[:3]), one[5:]))
            for one in after.destinations
        ),
        _busiest(
            ServiceRate(*one[:2], *per_second(services.get(one[:2]), _counters(one)))
            for one in after.services
        ),
        _busiest(
            BackendRate(one.backend, *per_second(backends.get(one.backend), (one.picks,)))
            for one in after.backends
        ),
        {reason: per_second((drops.get(reason, 0),), (count,))[0] for reason, count in after.drops},
    )


def _counters(one: ServiceSample) -> tuple[int, ...]:
    return one.connections, one.affinity, one.remembered, one.no_backend, one.dropped, one.reverse_full


if TYPE_CHECKING:
    from typing import TypeVar

    from svcctl.model.snapshot import ServiceSample

    Row = TypeVar("Row", LabelRate, ServiceRate, BackendRate)


def _busiest(rows: Iterable[Row]) -> list[Row]:
    """Those with something going on first; equal ones stay in the order of the listings."""
    return sorted(rows, key=lambda row: -sum(one for one in row if isinstance(one, float)))
