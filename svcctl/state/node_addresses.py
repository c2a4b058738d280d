"""`node_addresses`: which addresses are this node's own, so that node ports are served on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.host.addresses import local_addresses
from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import NODE_KEY, NodeKey

if TYPE_CHECKING:
    from svcctl.state.writer import Writer


def refresh(writer: Writer) -> int:
    """Make the map's own addresses those the namespace has now; returns how many changed. Inside `changing()`."""
    wanted = {NODE_KEY.pack(NodeKey(128, address)) for address in local_addresses(writer.netns)}
    table = writer.map("node_addresses")
    own = U32.pack(enums.NODE_OWN)
    have = {key for key, value in table.items() if value == own}
    for key in wanted - have:
        table.update(key, own)
    for key in have - wanted:
        table.delete(key)
    return len(wanted ^ have)
