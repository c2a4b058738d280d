"""What new node ports are in the way of on this node: its listeners, and its own connections.

A range of node ports is not enforced, as whoever gives them out has one. `tunnel_settings.py` looks from the other
side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.host.sock_diag import listeners
from svcctl.model.constants import PROTOCOL_NAMES, UDP
from svcctl.model.prefix import format_address
from svcctl.model.service_endpoint import KIND_NODE_PORT
from svcctl.state.tunnel_settings import local_ports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.service import Service
    from svcctl.state.session import State

    Port = tuple[int, int]
    """Protocol and number."""

NAMED = 3
"""How many ports, or listeners, are named one by one."""


def clashes(state: State, changes: Iterable[tuple[Service | None, Service | None]]) -> list[str]:
    """A line about each thing that the node ports which changes of services (old, new) add are in the way of."""
    new: set[Port] = set()
    for have, want in changes:
        if want is not None and want.node_port:
            new |= _ports(want) - (_ports(have) if have is not None else set())
    if not new:
        return []
    local = local_ports(state)
    return [*_of_connections(new, local), *_of_listeners(state, new, local)]


def _ports(service: Service) -> set[Port]:
    return {
        (each.frontend.protocol, each.frontend.port)
        for each in service.frontends
        if each.kind == KIND_NODE_PORT
    }


def _of_connections(new: set[Port], local: tuple[int, int] | None) -> list[str]:
    if local is None:
        return []
    hit = sorted((number, protocol) for protocol, number in new if local[0] <= number <= local[1])
    if not hit:
        return []
    shown = ", ".join(f"{number}/{PROTOCOL_NAMES[protocol]}" for number, protocol in hit[:NAMED])
    shown += f" and {len(hit) - NAMED} more" if len(hit) > NAMED else ""
    what = f"node ports {shown} are" if len(hit) > 1 else f"node port {shown} is"
    where = f"net.ipv4.ip_local_port_range, {local[0]}-{local[1]}"
    return [f"{what} in {where}: a connection of this node may have the same one"]


def _of_listeners(state: State, new: set[Port], local: tuple[int, int] | None) -> list[str]:
    try:
        found = [
            one
            for protocol in sorted({protocol for protocol, _ in new})
            for one in listeners(protocol, netns=state.netns)
            if (protocol, one.port) in new and not _is_client(one, local)
        ]
    except (OSError, SvcctlError):
        return []  # no sock_diag: a warning less
    lines = [
        f"node port {one.port}/{PROTOCOL_NAMES[one.protocol]} is in the way of the listener on"
        f" {format_address(one.family, one.mapped_address)} (uid {one.uid})"
        for one in found[:NAMED]
    ]
    if len(found) > NAMED:
        lines.append(f"node ports are in the way of {len(found) - NAMED} more listeners")
    return lines


def _is_client(one: DiagSocket, local: tuple[int, int] | None) -> bool:
    """Whether it is a UDP socket that was given its port, as every resolver's."""
    return one.protocol == UDP and local is not None and local[0] <= one.port <= local[1]
