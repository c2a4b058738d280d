"""Nodes' prefixes that have something of another node's in them, by what there is or is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog
from svcctl.model.desired import WARNING, Notice
from svcctl.model.node import claims, host
from svcctl.model.node_overlap import OWN, Overlap, overlaps
from svcctl.model.service_endpoint import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.node import ClusterNode, OwnNode
    from svcctl.model.service import Service
    from svcctl.state.session import State

TOLD = 5
"""So many are told one by one."""


def find(
    state: State, nodes: Iterable[ClusterNode], own: OwnNode, services: Iterable[Service]
) -> list[Overlap]:
    """With these other nodes, this node and these services."""
    others = claims(nodes)
    if not others:
        return []
    from svcctl.state.nodes import namespace_addresses

    mine = (*own.pod_prefixes, *namespace_addresses(state), *map(host, own.ends))
    return overlaps(others | dict.fromkeys(mine, OWN), local_addresses_of(services))


def present(state: State, *, changed: ClusterNode | None = None) -> list[Overlap]:
    """With the nodes and services there are; `changed`: with one node as it is to be, and only what concerns it."""
    from svcctl.state import nodes
    from svcctl.state.own_node import read_own
    from svcctl.state.services import read_all

    there = nodes.read(state)
    known = dict(there.nodes)
    if changed is not None:
        known[changed.name] = changed
    services = (one.service for one in read_all(state).values()) if state.has_half(catalog.BALANCER) else ()
    found = find(state, known.values(), read_own(state, there.own_pods), services)
    if changed is None:
        return found
    return [
        one
        for one in found
        if one.node == changed.name or any(name == changed.name for name, _ in one.inside)
    ]


def local_addresses_of(services: Iterable[Service]) -> set[tuple[int, bytes]]:
    """(family, address) of the backends on this node that nodes have a say about."""
    return {
        member.backend[:2]
        for one in services
        for member in one.members
        if member.local and not is_loopback(member.backend.family, member.backend.address)
    }


def texts(found: list[Overlap]) -> list[tuple[str, str]]:
    """(subject, what to know) of each, and of those that are not told one by one."""
    told = [(f"node {one.node}" if one.node else "this node", str(one)) for one in found[:TOLD]]
    if len(found) > TOLD:
        told.append(("nodes", f"{len(found) - TOLD} more pod prefixes have something of other nodes in them"))
    return told


def notices(found: list[Overlap]) -> tuple[Notice, ...]:
    """As warnings."""
    return tuple(Notice(WARNING, subject, text) for subject, text in texts(found))
