"""What goes to a node and comes from it at the moment: asked before it is forgotten."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection

    from svcctl.state.nodes import Nodes
    from svcctl.state.session import State


class Use(Record):
    """Of a node: flows that go through its tunnel, backends that are reached by it, and services that have those."""

    flows: int = 0
    backends: int = 0
    services: int = 0

    def __str__(self) -> str:
        """`3 flows of conntrack go through its tunnel and stop; 2 backends of 1 service are reached by it`."""
        parts = []
        if self.flows:
            one = self.flows == 1
            parts.append(
                f"{self.flows} flow{'' if one else 's'} of conntrack {'goes' if one else 'go'} through its tunnel and"
                f" {'stops' if one else 'stop'}"
            )
        if self.backends:
            parts.append(
                f"{self.backends} backend{'' if self.backends == 1 else 's'} of {self.services}"
                f" service{'' if self.services == 1 else 's'} {'is' if self.backends == 1 else 'are'} reached by it"
            )
        return "; ".join(parts)


def uses(state: State, have: Nodes, names: Collection[str]) -> dict[str, Use]:
    """By the names of nodes; a node that nothing uses is not in it."""
    numbers = {have.numbers[name]: name for name in names}
    flows = _flows(state, numbers.keys())
    backends: dict[int, set[object]] = {}
    services: dict[int, set[str]] = {}
    if state.has_half(catalog.BALANCER):
        from svcctl.state.backend_places import Places
        from svcctl.state.services import read_all

        with Places(state, have.table) as places:
            for one in read_all(state).values():
                for member in one.service.members:
                    number = places.whose(member.backend.address) >> enums.NODE_SHIFT
                    if number in numbers and not member.local:
                        backends.setdefault(number, set()).add(member.backend)
                        services.setdefault(number, set()).add(one.service.name)
    return {
        name: Use(flows.get(number, 0), len(backends.get(number, ())), len(services.get(number, ())))
        for number, name in sorted(numbers.items(), key=lambda item: item[1])
        if number in flows or number in backends
    }


def _flows(state: State, numbers: Collection[int]) -> dict[int, int]:
    """How many flows have each of the nodes at their other end, and are not over."""
    from svcctl.state.conntrack import is_over, read_flows, read_timeouts

    timeouts, now = read_timeouts(state), time.monotonic_ns()
    found: dict[int, int] = {}
    for flow in read_flows(state):
        if flow.value.node in numbers and not is_over(timeouts, flow, now):
            found[flow.value.node] = found.get(flow.value.node, 0) + 1
    return found
