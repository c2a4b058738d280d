"""The sockets in the slots of a destination, and whether each could take a connection now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import PermissionProblem
from svcctl.host import sock_diag
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, U64
from svcctl.model.constants import IPV6
from svcctl.state.place import parse_directory_name

if TYPE_CHECKING:
    from svcctl.host.sock_diag import DiagSocket
    from svcctl.state.session import State


class Member(NamedTuple):
    """A socket in a slot. `listed` is what sock_diag says of it, None when it says nothing.

    `fault` says why it cannot take the connection; None: it can.
    """

    slot: int
    cookie: int
    listed: DiagSocket | None
    fault: str | None


def read_members(state: State, number: int, family: int, protocol: int) -> list[Member]:
    """Every socket under a destination id, and whether it could take a connection now."""
    cookies = {}
    sockets = state.map("sockets")
    for slot in range(SOCKETS_PER_DESTINATION):
        index = number * SOCKETS_PER_DESTINATION + slot
        data = sockets.lookup(U32.pack(index)) if index < sockets.info.max_entries else None
        if data is not None:
            cookies[slot] = U64.unpack(data)[0]
    if not cookies:
        return []
    listed = read_listed(state, protocol)
    return [
        Member(slot, cookie, listed.get(cookie) if listed else None, fault(listed, cookie, family))
        for slot, cookie in cookies.items()
    ]


def read_listed(state: State, protocol: int) -> dict[int, DiagSocket] | None:
    """Sockets that listen (TCP), or are not connected (UDP), by cookie.

    None without sock_diag, without the right to ask, or for a state of another namespace than the one that is asked.
    """
    if parse_directory_name(os.path.basename(state.path)) != state.netns.inode:
        return None
    try:
        return {one.cookie: one for one in sock_diag.listeners(protocol, netns=state.netns)}
    except (OSError, PermissionProblem):
        return None


def fault(listed: dict[int, DiagSocket] | None, cookie: int, family: int) -> str | None:
    """Why the dispatcher goes on to the next slot: the same tests as is_live() and bpf_sk_assign()."""
    if listed is None:
        return None
    one = listed.get(cookie)
    if one is None:
        return "does not listen any more, or is connected, or is of another protocol"
    if one.family == family or (one.family == IPV6 and not one.v6only):
        return None
    return "is of another family"
