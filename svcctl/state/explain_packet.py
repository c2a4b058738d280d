"""explain --from: what the packet path does with a new connection of that client, as find_backend() in svc_open.h does.

Everything that decides is read where the programs read it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.host.route import interface_to
from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import DEVICE
from svcctl.maps.service_layouts import (
    AFFINITY,
    AFFINITY_KEY,
    BACKEND,
    MEMBER_KEY,
    MEMBER_RESTS,
    RANGE_KEY,
    AffinityKey,
    MemberKey,
    RangeKey,
)
from svcctl.model.constants import IPV4
from svcctl.model.service import admitting
from svcctl.model.service_endpoint import Frontend, format_backend
from svcctl.record import Record
from svcctl.state import nat, services
from svcctl.state.services import as_backend

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import Block
    from svcctl.state.nat import Share
    from svcctl.state.session import State

SERVE, REFUSE, DROP, PASS = "serve", "refuse", "drop", "pass"
"""One of `shares` gets it; it is answered; it is not; it is left alone."""


class ExplainedPacket(Record):
    """What happens to a client's first packet, and why. `interface`: where it comes in, None: by none that is attached.

    `affine`: the backend that the client is kept on, as text; `remaining`: for how many seconds. `admitted_by`: the
    source range that lets the client in, as text, of a frontend that has some.
    """

    verdict: str
    why: str
    interface: str | None
    service: str | None
    set: str | None
    shares: tuple[Share, ...]
    affine: str | None
    remaining: float | None
    admitted_by: str | None = None


def explain_packet(
    state: State, family: int, address: bytes, port: int, protocol: int, source: bytes
) -> ExplainedPacket | None:
    """For a client with the address `source` (both 16 bytes, v4-mapped); None without a packet path or service."""
    if not state.has_half(catalog.PACKETS):
        return None
    route = nat.route_of(state, codec.frontend_key(Frontend(family, address, port, protocol)))
    if route is None:
        route = nat.route_of(state, codec.blocked_key(address))
    if route is None:
        return None
    interface = _interface(state, family, source)
    block = route.block
    is_filtered = bool(route.flags & enums.FRONTEND_FILTERED)
    if interface is None:
        verdict, why = PASS, "the client is behind no interface that is attached as a workload's"
    elif route.result == nat.BLOCKS:
        verdict, why = REFUSE, "the service refuses the other ports of its address (--block)"
    elif route.flags & enums.FRONTEND_HOST:
        verdict, why = PASS, "the frontend is for sockets of this host"
    elif block is None or route.result == nat.BROKEN:
        verdict, why = DROP, "it leads nowhere: 'svcctl check' says more"
    elif is_filtered and not _is_admitted(state, block.ranges, source):
        verdict, why = DROP, "no source range of the service admits the client"
    elif not block.slots:
        verdict = DROP if block.verdict else REFUSE
        why = f"the {route.set} set has no backend that takes new connections"
    else:
        verdict, why = SERVE, f"the {route.set} set has backends"
    if verdict != SERVE or block is None:
        return ExplainedPacket(verdict, why, interface, route.service, route.set, (), None, None)
    shares = nat.Reader(state, bulk=False).shares_of(block)
    affine, remaining = _affine(state, block, source)
    by = _range(state, route.service, family, source) if is_filtered else None
    return ExplainedPacket(verdict, why, interface, route.service, route.set, shares, affine, remaining, by)


def _interface(state: State, family: int, source: bytes) -> str | None:
    """The workload's interface that the host's routes to the client go out of."""
    try:
        found = interface_to(family, source[12:] if family == IPV4 else source, netns=state.netns)
    except OSError:
        return None
    data = state.map("devices").lookup(U32.pack(found))
    if data is None or DEVICE.unpack(data).role != enums.ROLE_WORKLOAD:
        return None
    from svcctl.state.device_links import records
    from svcctl.state.devices import device_name

    return device_name(records(state), found)


def _is_admitted(state: State, ranges: int, source: bytes) -> bool:
    key = RANGE_KEY.pack(RangeKey(160, ranges, source))
    return bool(ranges) and state.map("source_ranges").lookup(key) is not None


def _range(state: State, name: str | None, family: int, source: bytes) -> str | None:
    """The programs know that one of the ranges admits the client; the service says which."""
    found = services.find(state, name) if name is not None else None
    closest = admitting(found.service.sources, family, source) if found is not None else None
    return None if closest is None else str(closest)


def _affine(state: State, block: Block, source: bytes) -> tuple[str | None, float | None]:
    """The backend that is remembered of the client, if the program would obey it."""
    key = AFFINITY_KEY.pack(AffinityKey(block.service, enums.CLIENT_ADDRESS, source))
    data = state.map("affinity").lookup(key) if block.affinity_seconds else None
    if data is None:
        return None, None
    value = AFFINITY.unpack(data)
    remaining = block.affinity_seconds - max(time.monotonic_ns() - value.used_ns, 0) / 1e9
    slot = state.map("members").lookup(MEMBER_KEY.pack(MemberKey(block.block, value.backend)))
    backend = state.map("backends").lookup(U32.pack(value.backend))
    if remaining <= 0 or backend is None or slot is None or U32.unpack(slot)[0] & MEMBER_RESTS:
        return None, None
    return format_backend(as_backend(BACKEND.unpack(backend))), round(remaining, 3)
