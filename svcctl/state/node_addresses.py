"""`node_addresses`: which addresses are this node's own, so that node ports are served on them; and `node_port_nets`:
the prefixes that those are limited to, if any.

The other classes of enum svc_node_class (other nodes, pods) are in `nodes.py`: nothing here touches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Full
from svcctl.host.addresses import local_addresses
from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import NODE_KEY, NodeKey
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import MAPPED, format_prefix, mask_address
from svcctl.record import Record
from svcctl.state.service_config import read_service_config

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from svcctl.model.prefix import Prefix
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

_OWN = U32.pack(enums.NODE_OWN)
_SET = U32.pack(1)


class NetChanges(Record):
    """Keys of `node_port_nets` to write and to delete, and whether addresses change now: there are node ports.

    `text`: what becomes of it.
    """

    more: frozenset[bytes]
    fewer: frozenset[bytes]
    addresses: bool
    text: str


def read_nets(state: State) -> set[bytes]:
    """Keys of `node_port_nets`."""
    return {key for key, _ in state.map("node_port_nets").items()}


def net_texts(keys: Iterable[bytes]) -> list[str]:
    """Keys of `node_port_nets` as prefixes, in order."""
    found = []
    for key in keys:
        bits, address = NODE_KEY.struct.unpack(key)
        mapped = address.startswith(MAPPED) and bits >= 96
        found.append((IPV4 if mapped else IPV6, address, bits - 96 if mapped else bits))
    return [format_prefix(*each) for each in sorted(found)]


def wanted_addresses(state: State, nets: Iterable[bytes]) -> set[bytes]:
    """Keys of the addresses node ports are to be served on: the namespace's own, within `nets` if there are any."""
    limits = list(nets)
    return {
        NODE_KEY.pack(NodeKey(128, address))
        for address in local_addresses(state.netns)
        if serves(address, limits)
    }


def serves(address: bytes, nets: Collection[bytes]) -> bool:
    """Whether node ports are served on a node's address: it is within one of `nets`, or there are none."""
    return not nets or any(_is_in(address, *NODE_KEY.struct.unpack(key)) for key in nets)


def _is_in(address: bytes, bits: int, prefix: bytes) -> bool:
    # ::/0 is for IPv6 alone.
    same_family = address.startswith(MAPPED) == prefix.startswith(MAPPED)
    return same_family and mask_address(address, bits) == prefix


def changes(state: State, nets: Iterable[bytes] | None = None) -> tuple[set[bytes], set[bytes]]:
    """Keys that the map lacks and keys it should not have, by the addresses the namespace has now."""
    wanted = wanted_addresses(state, read_nets(state) if nets is None else nets)
    have = {key for key, value in state.map("node_addresses").items() if value == _OWN}
    return wanted - have, have - wanted


def needs_refresh(state: State) -> bool:
    """Whether there are node ports, and `refresh` has something to change for them."""
    if not state.has_map("config"):
        return False
    return read_service_config(state).node_ports > 0 and any(changes(state))


def refresh(writer: Writer) -> int:
    """Make the map's own addresses those the namespace has now; returns how many changed. Inside `changing()`."""
    more, fewer = changes(writer)
    table = writer.map("node_addresses")
    for key in more:
        table.update(key, _OWN)
    for key in fewer:
        table.delete(key)
    return len(more) + len(fewer)


def plan_nets(state: State, prefixes: Iterable[Prefix] | None) -> NetChanges | None:
    """What makes node ports served on these prefixes, or None if they are.

    No prefixes: on all addresses; None: where they are, by the addresses there are now.

    Raises Full for more prefixes than there is room for.
    """
    have = read_nets(state)
    wanted = {
        NODE_KEY.struct.pack(96 + length if family == IPV4 else length, address)
        for family, address, length in prefixes or ()
    }
    if prefixes is None:
        wanted = have
    most = state.map("node_port_nets").info.max_entries
    if len(wanted | have) > most:
        raise Full(f"node_port_nets: there is room for {most} prefixes where node ports are served")
    addresses = read_service_config(state).node_ports > 0 and any(changes(state, wanted))
    if wanted == have and not addresses:
        return None
    text = ", ".join(net_texts(wanted)) or "all"
    before = (
        f"; was {', '.join(net_texts(have)) or 'all'}" if wanted != have else "; by the node's interfaces"
    )
    return NetChanges(frozenset(wanted - have), frozenset(have - wanted), addresses, text + before)


def write_nets(writer: Writer, nets: NetChanges) -> None:
    """Carry it out, with the addresses that follow from it. Inside `changing()`."""
    table = writer.map("node_port_nets")
    for key in nets.more:
        table.update(key, _SET)
    for key in nets.fewer:
        table.delete(key)
    if nets.addresses:
        refresh(writer)
