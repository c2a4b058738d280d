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
from svcctl.maps.packet_layouts import DEVICE, NODE
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
from svcctl.model.service_endpoint import Frontend, format_backend, zero_address
from svcctl.record import Record
from svcctl.state import nat, services
from svcctl.state.explain_service import whose
from svcctl.state.service_config import read_service_config
from svcctl.state.services import as_backend

if TYPE_CHECKING:
    from svcctl.maps.packet_layouts import Device
    from svcctl.maps.service_layouts import Block
    from svcctl.state.nat import Share
    from svcctl.state.session import State

SERVE, REFUSE, DROP, PASS = "serve", "refuse", "drop", "pass"
"""One of `shares` gets it; it is answered; it is not; it is left alone."""
LOCAL, TUNNEL, MASQUERADED, ROUTED, NOWHERE = "local", "tunnel", "masqueraded", "routed", "nowhere"
"""To a workload here; to its node; with this node's address; as the host's routes say; no tunnel leads there."""


class Way(Record):
    """How a packet from outside gets to a backend: `way` is LOCAL, TUNNEL, MASQUERADED, ROUTED or NOWHERE.

    `node` is the other end of the tunnel; `direct`: that node answers the client by itself (DSR).
    """

    backend: str
    way: str
    node: str | None = None
    direct: bool = False


class ExplainedPacket(Record):
    """What happens to a client's first packet, and why. `interface`: where it comes in, None: by none that is attached.

    `affine`: the backend that the client is kept on, as text; `remaining`: for how many seconds. `ways`: of a packet
    from outside, for each of `shares`. `admitted_by`: the source range that lets the client in, as text, of a frontend
    that has some.
    """

    verdict: str
    why: str
    interface: str | None
    service: str | None
    set: str | None
    shares: tuple[Share, ...]
    affine: str | None
    remaining: float | None
    outside: bool = False
    ways: tuple[Way, ...] = ()
    admitted_by: str | None = None


def explain_packet(
    state: State, family: int, address: bytes, port: int, protocol: int, source: bytes
) -> ExplainedPacket | None:
    """For a client with the address `source` (both 16 bytes, v4-mapped); None without a packet path or service."""
    if not state.has_half(catalog.PACKETS):
        return None
    config = read_service_config(state)
    exact = nat.route_of(state, codec.frontend_key(Frontend(family, address, port, protocol)))
    wild = None
    if exact is None and config.node_ports:
        key = codec.frontend_key(Frontend(family, zero_address(family), port, protocol))
        wild = nat.route_of(state, key)
    route = exact or wild or nat.route_of(state, codec.blocked_key(address))
    if route is None:
        return None
    interface, role = _interface(state, family, source)
    outside = role == enums.ROLE_HOST
    local = bool(
        route.flags & enums.FRONTEND_LOCAL
        or (outside and route.flags & enums.FRONTEND_OUTSIDE_LOCAL and not whose(state, source))
    )
    reader = nat.Reader(state, bulk=False)
    block = reader.block(route.lane, local=local)
    which = "local" if local else "cluster"
    is_filtered = bool(route.flags & enums.FRONTEND_FILTERED)
    if interface is None:
        verdict, why = PASS, "the client is behind no interface that is attached"
    elif route.result == nat.BLOCKS:
        verdict, why = REFUSE, "the service refuses the other ports of its address (--block)"
    elif exact is not None and route.flags & enums.FRONTEND_HOST:
        verdict, why = PASS, "the frontend is for sockets of this host"
    elif wild is not None and not _serves_node_ports(state, address, outside=outside):
        verdict, why = PASS, "the address is none that serves node ports"
    elif block is None or (route.result == nat.BROKEN and not local):
        verdict, why = DROP, "it leads nowhere: 'svcctl check' says more"
    elif is_filtered and not _is_admitted(state, block.ranges, source):
        verdict, why = DROP, "no source range of the service admits the client"
    elif not block.slots:
        verdict = DROP if block.verdict else REFUSE
        why = f"the {which} set has no backend that takes new connections"
    else:
        verdict, why = SERVE, f"the {which} set has backends"
    if verdict != SERVE or block is None:
        return ExplainedPacket(verdict, why, interface, route.service, which, (), None, None, outside)
    shares = reader.shares_of(block)
    affine, remaining = _affine(state, block, source)
    ways: tuple[Way, ...] = ()
    if outside:
        here = None if local else reader.block(route.lane, local=True)
        ways = tuple(
            _way(state, route.flags, source, one, here=local or _is_of(state, here, one.id)) for one in shares
        )
    by = _range(state, route.service, family, source) if is_filtered else None
    return ExplainedPacket(
        verdict, why, interface, route.service, which, shares, affine, remaining, outside, ways, by
    )


def _is_of(state: State, block: Block | None, backend: int) -> bool:
    """Whether a backend of the set takes new connections."""
    if block is None:
        return False
    slot = state.map("members").lookup(MEMBER_KEY.pack(MemberKey(block.block, backend)))
    return slot is not None and not U32.unpack(slot)[0] & MEMBER_RESTS


def _serves_node_ports(state: State, address: bytes, *, outside: bool) -> bool:
    """As serves_node_ports() in svc_open.h."""
    word = whose(state, address)
    return word & 0xFF == enums.NODE_OWN or (not outside and bool(word & enums.NODE_PORTS))


def _way(state: State, flags: int, source: bytes, share: Share, *, here: bool) -> Way:
    """As describe() in svc_begin.h. `here`: the backend is in the local set."""
    from svcctl.state.nodes import names
    from svcctl.state.packet_settings import read_config

    if share.backend is None:
        return Way(share.name, NOWHERE)
    family, address, _ = share.backend
    word = whose(state, address)
    number = 0 if here else word >> enums.NODE_SHIFT
    config = read_config(state)
    own_end = config.address4 if family == IPV4 else config.address6
    if number and flags & enums.FRONTEND_OUTSIDE:
        excepted = config.no_dsr and _is_admitted(state, config.no_dsr + (family != IPV4), source)
        direct = bool(flags & enums.FRONTEND_DSR) and not excepted
        data = state.map("nodes").lookup(U32.pack(number))
        node = NODE.unpack(data) if data is not None else None
        end = bytes(16) if node is None else node.address4 if family == IPV4 else node.address6
        name = names(state).get(number, f"?{number}")
        return Way(share.name, TUNNEL if any(end) and any(own_end) else NOWHERE, name, direct)
    device = _device_to(state, family, address)
    if device is None or device.role != enums.ROLE_HOST:
        return Way(share.name, LOCAL if word or device is not None else ROUTED)
    neighbour = device.flags & (enums.DEVICE_PEER | enums.DEVICE_NEIGHBOUR) == enums.DEVICE_NEIGHBOUR
    return Way(share.name, MASQUERADED if neighbour and any(own_end) else ROUTED)


def _device_to(state: State, family: int, address: bytes) -> Device | None:
    """What programs know of the interface that packets to an address leave by."""
    try:
        found = interface_to(family, address[12:] if family == IPV4 else address, netns=state.netns)
    except OSError:
        return None
    data = state.map("devices").lookup(U32.pack(found))
    return None if data is None else DEVICE.unpack(data)


def _interface(state: State, family: int, source: bytes) -> tuple[str | None, int]:
    """The attached interface that the host's routes to the client go out of, and its role."""
    device = _device_to(state, family, source)
    if device is None or device.role not in enums.ROLE_NAMES:
        return None, 0
    from svcctl.state.device_links import records
    from svcctl.state.devices import current_names, device_name

    found = interface_to(family, source[12:] if family == IPV4 else source, netns=state.netns)
    return current_names(state).get(found) or device_name(records(state), found), device.role


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
