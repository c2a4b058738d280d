"""What one scrape reads of the state, as plain values: what `metrics` renders."""

from __future__ import annotations

from svcctl.record import Record


class DestinationSample(Record):
    """One destination: `family` 4 or 6, `protocol` an IP protocol number, counters since it was made.

    `bindings` is the reference count writers keep: exact, or after a killed command too high until the next
    one repairs it. `sockets` counts those the kernel still has.
    """

    label: str
    family: int
    protocol: int
    bindings: int
    sockets: int
    lookups: int
    no_socket: int
    errors: int


class MapSample(Record):
    """How full a map is, and how many entries it can have."""

    name: str
    used: int
    max: int


class AttachmentSample(Record):
    """One place where a program should be attached, and whether it is."""

    kind: str
    hook: str
    target: int
    program: str
    up: bool


class ServiceSample(Record):
    """One family of a service: `family` 4 or 6, counters since the service had that family."""

    service: str
    family: int
    connections: int
    no_backend: int
    dropped: int
    affinity: int
    remembered: int
    reverse_full: int


class BackendSample(Record):
    """A backend as text, and how often all services chose it."""

    backend: str
    picks: int


class Snapshot(Record):
    """The state at one moment. Times are seconds since 1970.

    `interrupted`: a writer has marked a change and not finished it. `consistent` is False when writers
    gave no chance to read the state between two changes.
    """

    version: str
    schema: int
    interrupted: bool
    last_change: float
    lock_waits: int
    lock_wait_seconds: float
    destinations: tuple[DestinationSample, ...]
    maps: tuple[MapSample, ...]
    attachments: tuple[AttachmentSample, ...]
    drops: tuple[tuple[str, int], ...]
    consistent: bool = True
    services: tuple[ServiceSample, ...] = ()
    backends: tuple[BackendSample, ...] = ()
    packets: tuple[tuple[str, int], ...] = ()
    """Counters of the packet path by event."""
