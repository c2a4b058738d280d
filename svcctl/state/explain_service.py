"""explain, for services: what the balancer does with a connection of a socket of this host, step by step as it does.

Everything that decides is read where the programs read it (`nat.py`); the index adds why other backends are not
among the candidates.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import AFFINITY, AFFINITY_KEY, NODE_KEY, AffinityKey, Config, NodeKey
from svcctl.model.constants import IPV4, UDP
from svcctl.model.prefix import MAPPED, format_address
from svcctl.model.service_endpoint import (
    ACTIVE,
    STATE_NAMES,
    Frontend,
    format_backend,
    is_loopback,
    is_zero,
    zero_address,
)
from svcctl.record import Record
from svcctl.state import nat, services
from svcctl.state.condition import condition
from svcctl.state.remembered import Names, affinity_seconds
from svcctl.state.service_config import read_service_config
from svcctl.state.service_listing import lane_stats, policy_text

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import ServiceStats
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service
    from svcctl.state.nat import Route
    from svcctl.state.session import State

EXACT, NODE_PORT, BLOCKED = "frontend", "node port", "blocked address"
"""What of a service an address met."""
SERVE, REFUSE, PASS = "serve", "refuse", "pass"


class Affine(Record):
    """Where this namespace's own sockets go for `remaining` seconds more. `backend` is text."""

    client: str
    backend: str
    remaining: float


class ExplainedService(Record):
    """What happens to a connection of a socket that the balancer serves.

    `verdict`: SERVE (one of `route.shares`), REFUSE, PASS: left alone, for the reason in `why`. `met` says what
    matched. `losers` and `others` are lines: frontends that match too, backends that are no candidates. `only_host`:
    sockets of other namespaces are left alone. `attached`: every hook there should be is; `fault` says what is not.
    `sources`: the ranges that clients are admitted from, None for a frontend that admits everybody.
    """

    verdict: str
    why: str
    route: Route | None
    met: str | None
    service: Service | None
    policy: str | None
    stats: ServiceStats | None
    affinity_seconds: int
    affine: Affine | None
    only_host: bool
    attached: bool
    losers: tuple[str, ...]
    others: tuple[str, ...]
    fault: str | None
    sources: tuple[Prefix, ...] | None


def explain_service(
    state: State, family: int, address: bytes, port: int, protocol: int
) -> ExplainedService | None:
    """What a service does with a connection to `address` (16 bytes, v4-mapped); None: no service has to do with it."""
    if not state.has_half(catalog.BALANCER):
        return None
    config = read_service_config(state)
    address = _zero_is_loopback(family, address)
    exact = nat.route_of(state, codec.frontend_key(Frontend(family, address, port, protocol)))
    wild = nat.route_of(state, codec.frontend_key(Frontend(family, zero_address(family), port, protocol)))
    blocked = nat.route_of(state, codec.blocked_key(address))
    own = _is_node_address(state, family, address)
    route, met, losers = _choose(exact, wild, blocked, own, format_address(family, address))
    if route is None and not losers:
        return None
    now = condition(state)
    hooks = (f"connect{family}", *((f"sendmsg{family}",) if protocol == UDP and not now.excludes_udp else ()))
    service = _service(state, route)
    only_host = bool(
        config.flags & enums.CONFIG_HOST_ONLY or (route is not None and route.flags & enums.FRONTEND_HOST)
    )
    verdict, why = _verdict(route, config, protocol, now.fault_of(hooks))
    names = Names(state)
    seconds, affine = 0, None
    if route is not None and route.block is not None and verdict == SERVE:
        seconds = route.block.affinity_seconds
        affine = _affine(state, names, route, seconds)
    return ExplainedService(
        verdict,
        why,
        route,
        met,
        service,
        policy_text(service) if service is not None else None,
        lane_stats(state, route.lane) if route is not None else None,
        seconds,
        affine,
        only_host,
        now.serves,
        tuple(losers),
        tuple(_others(state, service, route)),
        now.text,
        _sources(service, route),
    )


def _choose(
    exact: Route | None, wild: Route | None, blocked: Route | None, own: bool, address: str
) -> tuple[Route | None, str | None, list[str]]:
    """The entry that decides, what it is, and why each other one does not."""
    losers = []
    if wild is not None and exact is not None:
        losers.append(f"{_named(wild)} loses: a frontend of the very address is closer than a node port")
    elif wild is not None and not own:
        losers.append(f"{_named(wild)} does not match: {address} is no node's address that serves node ports")
    use_wild = exact is None and wild is not None and own
    if blocked is not None and (exact is not None or use_wild):
        losers.append(f"{_named(blocked)} loses: it refuses the ports of the address that are no frontend")
    if exact is not None:
        return exact, EXACT, losers
    if use_wild:
        return wild, NODE_PORT, losers
    return (blocked, BLOCKED, losers) if blocked is not None else (None, None, losers)


def _named(route: Route) -> str:
    return f"{route.name} of {route.service or 'no service'}"


def _verdict(route: Route | None, config: Config, protocol: int, fault: str | None) -> tuple[str, str]:
    if route is None:
        return PASS, "no frontend matches"
    if fault is not None:
        return PASS, fault
    if protocol == UDP and config.flags & enums.CONFIG_EXCLUDE_UDP:
        return PASS, "the balancer leaves UDP alone ('svcctl attach cgroup --include-udp')"
    if route.result == nat.SERVES:
        return SERVE, "the service has backends"
    reasons = {
        nat.REFUSES: "the service has no backend that takes new connections here",
        nat.DROPS: "a rule of the service says that nobody is served here",
        nat.BLOCKS: "the service refuses the other ports of its address (--block)",
        nat.BROKEN: "it leads nowhere: 'svcctl check' says more",
    }
    if route.flags & enums.FRONTEND_FILTERED:
        return REFUSE, "it has source ranges, which sockets cannot obey; packets can ('svcctl attach dev')"
    return REFUSE, reasons[route.result]


def _service(state: State, route: Route | None) -> Service | None:
    found = services.find(state, route.service) if route is not None and route.service is not None else None
    return found.service if found is not None else None


def _sources(service: Service | None, route: Route | None) -> tuple[Prefix, ...] | None:
    if service is None or route is None or not route.flags & enums.FRONTEND_FILTERED:
        return None
    return tuple(sorted(each for each in service.sources if each.family == route.frontend.family))


def _others(state: State, service: Service | None, route: Route | None) -> list[str]:
    """The members that are no candidates, and why."""
    if service is None or route is None or route.result == nat.BLOCKS:
        return []
    shares = route.shares
    if route.flags & enums.FRONTEND_FILTERED and route.block is not None:
        shares = nat.Reader(state, bulk=False).shares_of(route.block)  # candidates for packets
    chosen = {share.backend for share in shares}
    lines = []
    for member in sorted(service.members):
        if member.backend in chosen:
            continue
        if member.backend.family != route.frontend.family:
            why = "of the other family"
        elif member.state != ACTIVE:
            why = STATE_NAMES.get(member.state, str(member.state))
        elif not member.weight:
            why = "weight 0"
        elif route.set == "local" and not member.local:
            why = "not on this node, and the policy is local"
        else:
            why = "not in the kernel's block: 'svcctl check' says more"
        lines.append(f"{format_backend(member.backend)}: {why}")
    return lines


def _affine(state: State, names: Names, route: Route, seconds: int) -> Affine | None:
    """What is remembered of this very namespace, if the program would obey it."""
    cookie = state.netns.cookie()
    if not cookie or route.block is None:
        return None
    # Programs put the family behind the cookie: a client has a backend of each.
    client = cookie.to_bytes(8, sys.byteorder) + bytes((route.frontend.family,)) + bytes(7)
    data = state.map("affinity").lookup(
        AFFINITY_KEY.pack(AffinityKey(route.block.service, enums.CLIENT_COOKIE, client))
    )
    if data is None:
        client = cookie.to_bytes(8, sys.byteorder) + bytes(8)
        data = state.map("affinity").lookup(
            AFFINITY_KEY.pack(AffinityKey(route.block.service, enums.CLIENT_COOKIE, client))
        )
    if data is None:
        return None
    value = AFFINITY.unpack(data)
    seconds = seconds or affinity_seconds(names, names.service(route.block.service))
    remaining = seconds - max(time.monotonic_ns() - value.used_ns, 0) / 1e9
    if remaining <= 0 or all(share.id != value.backend for share in route.shares):
        return None
    return Affine(f"netns:{cookie}", names.backend_name(value.backend), round(remaining, 3))


def _is_node_address(state: State, family: int, address: bytes) -> bool:
    if is_loopback(family, address):
        address = _loopback(family)  # stands for all of it, as in the programs
    word = whose(state, address)
    return word & 0xFF == enums.NODE_OWN or bool(word & enums.NODE_PORTS)


def whose(state: State, address: bytes) -> int:
    """The closest element of node_addresses, as the programs look it up; 0: of outside."""
    data = state.map("node_addresses").lookup(NODE_KEY.pack(NodeKey(128, address)))
    return 0 if data is None else int(U32.unpack(data)[0])


def _zero_is_loopback(family: int, address: bytes) -> bytes:
    """The kernel turns the zero address into loopback."""
    return _loopback(family) if is_zero(family, address) else address


def _loopback(family: int) -> bytes:
    return MAPPED + bytes((127, 0, 0, 1)) if family == IPV4 else bytes(15) + b"\1"
