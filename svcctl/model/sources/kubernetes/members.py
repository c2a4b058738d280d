"""Chooses among the endpoints of a Service's port and family: who is a member, in which state, of which set.

R18 (duplicates), R20 (candidates) and R24 (topology) of a kube-proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.service import IN_BOTH, IN_LOCAL, Member
from svcctl.model.service_endpoint import ACTIVE, DEFAULT_WEIGHT, DOWN, DRAINING, Backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcctl.model.sources.kubernetes.endpoint_fields import Said
    from svcctl.model.sources.kubernetes.services import ServicePort
    from svcctl.model.sources.kubernetes.slices import SliceOf


_new = tuple.__new__  # of a member, without what a NamedTuple's own takes


def count(slices: Iterable[SliceOf], family: int, port: ServicePort) -> int:
    """How many endpoints `gather` looks at."""
    key = (port.name, port.protocol)
    return sum(len(ports.get(key) or ()) * len(those) for at, ports, those in slices if at == family)


def gather(slices: Iterable[SliceOf], family: int, port: ServicePort) -> tuple[dict[Backend, Said], bool]:
    """The endpoints of the port, each address and port once, and whether any slice has such a port.

    Ports match by name and protocol. Of doubles one that is not terminating counts, then a ready one, then
    a serving one; else the first of the first slice, so the slices' order (their names') decides.
    """
    found: dict[Backend, Said] = {}
    matched = False
    for at, ports, endpoints in slices:
        numbers = ports.get((port.name, port.protocol)) if at == family else None
        for number in numbers or ():
            matched = True
            for address, said in endpoints:
                backend = Backend(family, address, number)
                known = found.setdefault(backend, said)
                if known is not said and _preference(said) < _preference(known):
                    found[backend] = said
    return found, matched


def choose(found: dict[Backend, Said], node: str, zone: str, *, local_set: bool) -> list[Member]:
    """The members, ordered by address and port.

    Active ones are in the sets that new connections get: everybody's (ready endpoints that topology leaves
    in, else those that are terminating and still serve) and, on this node, the local one (the same rule
    among those of this node, without topology). A ready endpoint that topology leaves out is active and in
    neither, so that its connections live. What else still serves drains; the rest is down. `local_set`:
    whether any policy of the service asks for the local set.
    """
    ready = [said for said in found.values() if said[0]]
    nodes, zones = _topology(ready, node, zone)
    if len(ready) == len(found) and not nodes and not zones:  # as nearly always
        return [
            _new(Member, (backend, DEFAULT_WEIGHT, ACTIVE, found[backend][3], 0, 0, IN_BOTH))
            for backend in sorted(found)
        ]
    local_ready = any(said[3] for said in ready)
    members = []
    for backend in sorted(found):
        is_ready, serving, terminating, local, for_nodes, for_zones = found[backend]
        state, sets = ACTIVE, IN_BOTH
        if is_ready:
            if (nodes and node not in for_nodes) or (zones and zone not in for_zones):
                sets = IN_LOCAL if local else 0
        elif serving and terminating and not ready:
            pass  # no ready one anywhere, so none here either: both sets fall back
        elif local_set and serving and terminating and local and not local_ready:
            sets = IN_LOCAL
        else:
            state = DRAINING if serving else DOWN
        members.append(Member(backend, DEFAULT_WEIGHT, state, local, 0, 0, sets))
    return members


def _topology(ready: Sequence[Said], node: str, zone: str) -> tuple[bool, bool]:
    """Whether ready endpoints are narrowed to those hinted for our node, or for our zone.

    Each only if every ready endpoint has such hints and one of them names us. Nodes go before zones.
    """
    if node and all(said[4] for said in ready) and any(node in said[4] for said in ready):
        return True, False
    return False, bool(zone) and all(said[5] for said in ready) and any(zone in said[5] for said in ready)


def _preference(said: Said) -> tuple[bool, bool, bool]:
    return said[2], not said[0], not said[1]
