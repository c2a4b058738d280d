"""The VXLAN interfaces of a network namespace: RTM_GETLINK by raw netlink."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from svcctl.host.rtnetlink import attributes, dump
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFLA_IFNAME, _IFLA_LINKINFO = 3, 18
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VXLAN_ID, _VXLAN_PORT, _VXLAN_COLLECT_METADATA = 1, 15, 25
_IFINFOMSG = struct.Struct("=BxHiII")
_U32 = struct.Struct("=I")


class Vxlan(Record):
    """A VXLAN interface: its network number and UDP port; `external`: it takes packets of every number."""

    name: str
    vni: int
    port: int
    external: bool


def vxlan_devices(netns: Netns) -> list[Vxlan]:
    """Those of a namespace, by name. Raises OSError."""
    request = _IFINFOMSG.pack(0, 0, 0, 0, 0)
    found = map(_vxlan, dump(netns, _RTM_GETLINK, request, _RTM_NEWLINK))
    return sorted(one for one in found if one is not None)


def _vxlan(body: bytes) -> Vxlan | None:
    name, kind, data = "", b"", b""
    for what, content in attributes(body, _IFINFOMSG.size):
        if what == _IFLA_IFNAME:
            name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif what == _IFLA_LINKINFO:
            inner = dict(attributes(content))
            kind, data = inner.get(_IFLA_INFO_KIND, b"").rstrip(b"\0"), inner.get(_IFLA_INFO_DATA, b"")
    if kind != b"vxlan":
        return None
    said = dict(attributes(data))
    return Vxlan(
        name,
        _U32.unpack(said[_VXLAN_ID])[0] if _VXLAN_ID in said else 0,
        int.from_bytes(said.get(_VXLAN_PORT, b""), "big"),
        any(said.get(_VXLAN_COLLECT_METADATA, b"")),
    )
