"""`node_addresses`: which addresses are this node's own, so that node ports are served on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.host.addresses import local_addresses
from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import NODE_KEY, NodeKey

if TYPE_CHECKING:
    from svcctl.state.writer import Writer

_OWN = U32.pack(enums.NODE_OWN)


def changes(writer: Writer) -> tuple[set[bytes], set[bytes]]:
    """Keys that the map lacks and keys it should not have, by the addresses the namespace has now."""
    wanted = {NODE_KEY.pack(NodeKey(128, address)) for address in local_addresses(writer.netns)}
    have = {key for key, value in writer.map("node_addresses").items() if value == _OWN}
    return wanted - have, have - wanted


def refresh(writer: Writer) -> int:
    """Make the map's own addresses those the namespace has now; returns how many changed. Inside `changing()`."""
    more, fewer = changes(writer)
    table = writer.map("node_addresses")
    for key in more:
        table.update(key, _OWN)
    for key in fewer:
        table.delete(key)
    return len(more) + len(fewer)
