"""What the balancer remembers: which client sticks to which backend, and for whom a socket's backend stands.

The values of `reverse` hold a spin lock. They are read with BPF_F_LOCK, so that no entry is seen half written;
that works through a read-only descriptor and in batches, and the lock itself always reads as 0.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from svcctl.bpf.constants import LOCK
from svcctl.maps import enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32, U64, text
from svcctl.maps.service_layouts import (
    AFFINITY,
    AFFINITY_KEY,
    BLOCK,
    CURRENT,
    MEMBER_KEY,
    MEMBER_RESTS,
    REVERSE,
    REVERSE_ENTRY,
    SERVICE,
    MemberKey,
    ReverseEntry,
    ServiceValue,
)
from svcctl.model.prefix import format_address, format_host_port
from svcctl.model.service_endpoint import Backend, format_backend
from svcctl.record import Record
from svcctl.state.service_config import read_service_config
from svcctl.state.services import as_backend, get, need_services, read_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.maps.service_layouts import AffinityKey, AffinityValue
    from svcctl.state.session import State

LIVE, EXPIRED, STALE = "live", "expired", "stale"
"""Of an entry: it counts; its time is over; what it speaks of is no more, so programs pass over it."""


class Sticky(Record):
    """One entry of `affinity`. `client` is `netns:COOKIE` or an address; `age` and `remaining` are seconds."""

    service: str
    client: str
    backend: str
    age: float
    remaining: float
    state: str


class Stand(Record):
    """One entry of `reverse`: on the socket with this cookie the backend stands for the frontend."""

    cookie: int
    frontend: str
    backend: str
    service: str
    state: str


class Names:
    """What the ids in these maps mean; each is looked up once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._services: dict[int, ServiceValue | None] = {}
        self._backends: dict[int, str] = {}
        self._addresses: dict[int, bytes | None] = {}
        self._nodes: dict[int, str] | None = None
        self._blocks: dict[int, tuple[tuple[int, int], ...]] = {}
        self.udp_seconds: int = read_service_config(state).udp_affinity_seconds

    def service(self, number: int) -> ServiceValue | None:
        """The value of a service id, None if there is no such service (any more)."""
        if number not in self._services:
            data = self.state.map("services").lookup(U32.pack(number))
            self._services[number] = SERVICE.unpack(data) if data is not None else None
        return self._services[number]

    def service_name(self, number: int) -> str:
        """Its name, '?<id>' without one."""
        value = self.service(number)
        return text(value.name) if value is not None else f"?{number}"

    def backend_name(self, number: int) -> str:
        """Address and port of a backend id, '?<id>' if it is gone."""
        if number not in self._backends:
            value = read_backend(self.state, number)
            self._backends[number] = f"?{number}" if value is None else format_backend(as_backend(value))
        return self._backends[number]

    def backend_address(self, number: int) -> bytes | None:
        """The address of a backend id, 16 bytes; None if it is gone."""
        if number not in self._addresses:
            value = read_backend(self.state, number)
            self._addresses[number] = None if value is None else value.address
        return self._addresses[number]

    def node_name(self, number: int) -> str:
        """The name of a node's number, '?<number>' if it is gone."""
        if self._nodes is None:
            from svcctl.state.nodes import names

            self._nodes = names(self.state)
        return self._nodes.get(number, f"?{number}")

    def blocks(self, lane: int) -> tuple[tuple[int, int], ...]:
        """(block, service) of the sets that a lane has now."""
        if lane not in self._blocks:
            data = self.state.map("current").lookup(U32.pack(lane))
            found = []
            for number in dict.fromkeys(CURRENT.unpack(data) if data is not None else ()):
                raw = self.state.map("blocks").lookup(U32.pack(number)) if number else None
                if raw is not None:
                    found.append((number, BLOCK.unpack(raw).service))
            self._blocks[lane] = tuple(found)
        return self._blocks[lane]

    def is_chosen_from(self, service: ServiceValue, backend: int) -> bool:
        """Whether a block of the service gives the backend new connections, so that affinity to it is obeyed."""
        return any(
            owner == service.id and self._is_member(block, backend)
            for lane in (service.lane4, service.lane6)
            if lane
            for block, owner in self.blocks(lane)
        )

    def _is_member(self, block: int, backend: int) -> bool:
        data = self.state.map("members").lookup(MEMBER_KEY.pack(MemberKey(block, backend)))
        return data is not None and not U32.unpack(data)[0] & MEMBER_RESTS


def affinity_seconds(names: Names, service: ServiceValue | None) -> int:
    """How long an entry of the service counts after its last use; unconnected UDP has a time of its own."""
    if service is None:
        return 0
    return service.affinity_seconds or names.udp_seconds


def sticky(state: State, service: str | None = None) -> list[Sticky]:
    """All affinity entries (of one service), by service and client. Raises NotFound for a service nobody knows."""
    need_services(state)
    names = Names(state)
    rows = []
    now = time.monotonic_ns()
    for key_data, data in state.map("affinity").items():
        key: AffinityKey = AFFINITY_KEY.unpack(key_data)
        if service is not None and names.service_name(key.service) != service:
            continue
        value: AffinityValue = AFFINITY.unpack(data)
        owner = names.service(key.service)
        age = max(now - value.used_ns, 0) / 1e9
        remaining = max(affinity_seconds(names, owner) - age, 0.0)
        if owner is None or not names.is_chosen_from(owner, value.backend):
            standing = STALE
        else:
            standing = LIVE if remaining else EXPIRED
        row = Sticky(
            names.service_name(key.service),
            client_name(key),
            names.backend_name(value.backend),
            round(age, 3),
            round(remaining, 3),
            standing,
        )
        rows.append(((row.service, key.service, key.kind, key.client), row))
    if service is not None and not rows:
        get(state, service, "affinity")
    return [row for _, row in sorted(rows)]


def client_name(key: AffinityKey) -> str:
    """`netns:4711` for a network namespace by its cookie, or an address."""
    if key.kind == enums.CLIENT_COOKIE:
        return f"netns:{int.from_bytes(key.client[:8], sys.byteorder)}"
    return format_address(codec.family_of(key.client), key.client)


def stands(state: State, service: str | None = None) -> list[Stand]:
    """All reverse entries (of one service), by socket cookie. A socket has up to four.

    Raises NotFound for a service that is not there and that no entry speaks of.
    """
    need_services(state)
    names = Names(state)
    rows = []
    for key, data in state.map("reverse").items(LOCK):
        (cookie,) = U64.unpack(key)
        for entry in entries(data):
            if service is None or names.service_name(entry.service) == service:
                rows.append((cookie, _stand(names, cookie, entry)))
    if service is not None and not rows:
        get(state, service, "reverse")
    return [row for _, row in sorted(rows)]


def backends_of(state: State, service: int) -> set[Backend]:
    """The backends that sockets were given to through a service id, those it has no more included."""
    return {
        Backend(codec.family_of(entry.backend_address), entry.backend_address, entry.backend_port)
        for _, data in state.map("reverse").items(LOCK)
        for entry in entries(data)
        if entry.service == service
    }


def entries(data: bytes) -> Iterator[ReverseEntry]:
    """The entries of a value of `reverse` that are in use."""
    for row in REVERSE_ENTRY.struct.iter_unpack(REVERSE.unpack(data).entries):
        entry = ReverseEntry(*row)
        if entry.service:
            yield entry


def entries_of(state: State, cookie: int) -> list[ReverseEntry]:
    """The entries of one socket."""
    data = state.map("reverse").lookup(U64.pack(cookie), LOCK)
    return list(entries(data)) if data is not None else []


def all_entries(state: State) -> Iterator[tuple[int, ReverseEntry]]:
    """(cookie, entry) of all sockets."""
    for key, data in state.map("reverse").items(LOCK):
        for entry in entries(data):
            yield U64.unpack(key)[0], entry


def _stand(names: Names, cookie: int, entry: ReverseEntry) -> Stand:
    # As the programs judge it: by what the lane's blocks say now, never by the name alone.
    live = any(owner == entry.service for _, owner in names.blocks(entry.lane))
    return Stand(
        cookie,
        format_host_port(
            codec.family_of(entry.frontend_address), entry.frontend_address, entry.frontend_port
        ),
        format_host_port(codec.family_of(entry.backend_address), entry.backend_address, entry.backend_port),
        names.service_name(entry.service),
        LIVE if live else STALE,
    )
