"""What a new binding would take from somebody: the caller's own SSH access, and other listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Conflict
from svcctl.host.sock_diag import listeners
from svcctl.host.ssh import ssh_connection
from svcctl.model.binding import format_binding
from svcctl.model.constants import PROTOCOL_NAMES, TCP, UDP
from svcctl.model.prefix import MAPPED, covers, format_address, parse_address
from svcctl.state import destinations

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.binding import Binding
    from svcctl.state.session import State

NAMED = 3
"""How many shadowed listeners are named one by one."""


def guard_ssh(binding: Binding) -> None:
    """Raise Conflict if the binding takes the port of the SSH server the caller came in by.

    The connection itself would live on; the next one would not be let in.
    """
    if binding.protocol != TCP:
        return
    connection = ssh_connection()
    if connection is None or binding.port not in (0, connection.server_port):
        return
    family, address = parse_address(connection.server_address)
    if covers(binding.prefix, family, address):
        raise Conflict(
            f"bind {format_binding(binding)}: takes {connection.server_address} port {connection.server_port},"
            " where your own SSH connection came in",
            hint="--force binds it all the same",
        )


def warn_shadowed(state: State, binding: Binding, warn: Callable[[str], None]) -> None:
    """Name the listeners that no longer get what the binding takes, except the label's own sockets."""
    try:
        found = listeners(binding.protocol, binding.port or None, netns=state.netns)
    except OSError:
        return  # no sock_diag: a warning less
    hit = [one for one in found if _shadows(binding, one)]
    if not hit:
        return
    own = _own_cookies(state, binding)
    hit = [one for one in hit if one.cookie not in own]
    for one in hit[:NAMED]:
        shown = format_address(one.family, one.mapped_address)
        warn(
            f"shadows the listener on {shown} port {one.port}/{PROTOCOL_NAMES[one.protocol]} (uid {one.uid})"
        )
    if len(hit) > NAMED:
        warn(f"shadows {len(hit) - NAMED} more listeners")


def _own_cookies(state: State, binding: Binding) -> set[int]:
    from svcctl.model.destination import DestinationKey

    mine = destinations.find(state, DestinationKey(binding.label, binding.family, binding.protocol))
    return set(destinations.cookies(state, mine).values()) if mine else set()


def _shadows(binding: Binding, listener: DiagSocket) -> bool:
    """Whether the listener gets connections now that the binding will take."""
    if binding.port not in (0, listener.port) or not listener.port:
        return False
    if binding.protocol == UDP and binding.port == 0 and not any(listener.address):
        return False  # an unbound client's port: every resolver would be listed
    if any(listener.address):
        address = listener.mapped_address
        return (4 if address.startswith(MAPPED) else 6) == binding.family and covers(
            binding.prefix, binding.family, address
        )
    if listener.family == 4:
        return binding.family == 4
    return binding.family == 6 or listener.v6only is False
