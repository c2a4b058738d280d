"""Whether a backend is on this node, where nobody said it: by the node's own addresses, its pods' prefixes, and routes
that lead to a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.maps.packet_layouts import DEVICE
from svcctl.model.constants import IPV4
from svcctl.model.service_endpoint import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.service_endpoint import Backend, BackendSpec
    from svcctl.state.session import State


def with_places(
    state: State, specs: Iterable[BackendSpec], known: Mapping[Backend, bool] | None = None
) -> list[BackendSpec]:
    """The specs, each with a place: what it says, else what is `known`, else what addresses say. Raises OSError.

    Loopback addresses say nothing: each namespace has its own.
    """
    from svcctl.host.addresses import local_addresses

    places = known or {}
    own: frozenset[bytes] | None = None
    found = []
    for spec in specs:
        local = places.get(spec.backend) if spec.local is None else spec.local
        if local is None:
            if own is None:
                own = frozenset(local_addresses(state.netns))
            family, address, _ = spec.backend
            local = not is_loopback(family, address) and (address in own or _is_own(state, family, address))
        found.append(spec._replace(local=local))
    return found


def _is_own(state: State, family: int, address: bytes) -> bool:
    """Whether the closest element of node_addresses is this node's, or its pods'; without one: whether the host's
    routes lead to an interface with the role of a workload."""
    from svcctl.state.explain_service import whose

    word = whose(state, address)
    if word:
        return word >> enums.NODE_SHIFT == 0
    return state.has_half(catalog.PACKETS) and _leads_to_a_workload(state, family, address)


def _leads_to_a_workload(state: State, family: int, address: bytes) -> bool:
    from svcctl.host.route import interface_to
    from svcctl.maps.layouts import U32

    try:
        found = interface_to(family, address[12:] if family == IPV4 else address, netns=state.netns)
    except OSError:
        return False
    data = state.map("devices").lookup(U32.pack(found)) if found else None
    return data is not None and DEVICE.unpack(data).role == enums.ROLE_WORKLOAD
