"""The interfaces of a network namespace, and which of them a pattern means: RTM_GETLINK by raw netlink."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from svcctl.errors import NotFound, UsageProblem
from svcctl.host.rtnetlink import attributes, dump
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.host.netns import Netns

NAME_BYTES = 15
"""IFNAMSIZ - 1: the longest name an interface can have."""
PATTERN_BYTES = 63
"""The longest pattern that a state can remember."""

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_LINKINFO = 3, 4, 5, 18
_IFLA_LINK_NETNSID, _IFLA_PROP_LIST, _IFLA_ALT_IFNAME = 37, 52, 53
_IFLA_INFO_KIND = 1
_IFF_LOOPBACK = 8
_ARPHRD_ETHER = 1
_IFINFOMSG = struct.Struct("=BxHiII")  # family, hardware type, index, flags, change mask
_INDEX = struct.Struct("=i")


class Device(Record):
    """An interface. `kind` is the driver's name ("veth"; "" of hardware); `peer` the index of a veth's other end.

    `peer_elsewhere`: that end is in another network namespace. `ethernet`: frames
    have Ethernet headers. `others` are alternative names. `mtu` is in bytes.
    """

    ifindex: int
    name: str
    kind: str
    loopback: bool
    peer: int
    peer_elsewhere: bool
    ethernet: bool
    others: tuple[str, ...] = ()
    mtu: int = 0


def devices(netns: Netns) -> list[Device]:
    """All interfaces of a namespace by rising index. Raises OSError."""
    request = _IFINFOMSG.pack(0, 0, 0, 0, 0)
    return sorted(map(_device, dump(netns, _RTM_GETLINK, request, _RTM_NEWLINK)))


def _device(body: bytes) -> Device:
    _, hardware, index, flags, _ = _IFINFOMSG.unpack_from(body)
    name, kind, peer, elsewhere = "", "", 0, False
    others: list[str] = []
    mtu = 0
    for what, content in attributes(body, _IFINFOMSG.size):
        if what == _IFLA_IFNAME:
            name = _text(content)
        elif what == _IFLA_MTU:
            (mtu,) = _INDEX.unpack(content)
        elif what == _IFLA_LINK:
            (peer,) = _INDEX.unpack(content)
        elif what == _IFLA_LINK_NETNSID:
            elsewhere = True
        elif what == _IFLA_LINKINFO:
            kind = next((_text(inner) for one, inner in attributes(content) if one == _IFLA_INFO_KIND), "")
        elif what == _IFLA_PROP_LIST:
            others += [_text(inner) for one, inner in attributes(content) if one == _IFLA_ALT_IFNAME]
    return Device(
        index,
        name,
        kind,
        bool(flags & _IFF_LOOPBACK),
        peer,
        elsewhere,
        hardware == _ARPHRD_ETHER,
        tuple(others),
        mtu,
    )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "surrogateescape")


def is_pattern(text: str) -> bool:
    """Whether a name is a shell pattern and can mean several interfaces."""
    return any(sign in text for sign in "*?[")


def check_name(text: str) -> str:
    """A name or pattern that an interface could have. Raises UsageProblem saying what is wrong with it."""
    raw = text.encode("utf-8", "surrogateescape")
    if not text or "\0" in text or "/" in text or any(sign.isspace() for sign in text) or text in (".", ".."):
        raise UsageProblem(f"interface {text!r}: no interface can have such a name")
    if is_pattern(text):
        if len(raw) > PATTERN_BYTES:
            raise UsageProblem(f"interface {text!r}: a pattern may have {PATTERN_BYTES} bytes")
    elif len(raw) > NAME_BYTES:
        raise UsageProblem(f"interface {text!r}: longer than the {NAME_BYTES} bytes a name may have")
    return text


def matches(device: Device, pattern: str) -> bool:
    """Whether a name or shell pattern means an interface, by any of its names."""
    names = (device.name, *device.others)
    if not is_pattern(pattern):
        return pattern in names
    from fnmatch import fnmatchcase  # takes re with it

    return any(fnmatchcase(name, pattern) for name in names)


def select(found: Sequence[Device], names: Sequence[str]) -> dict[str, list[Device]]:
    """Name or pattern -> the interfaces it means, loopback interfaces left out of what a pattern matches.

    Raises NotFound for a name that no interface has, UsageProblem for a loopback interface by name.
    """
    chosen: dict[str, list[Device]] = {}
    for name in names:
        mine = [one for one in found if matches(one, name)]
        if is_pattern(name):
            mine = [one for one in mine if not one.loopback]
        elif not mine:
            raise NotFound(
                f"interface {name}: there is none of this name in the network namespace",
                hint="'ip link' lists them; --netns names another namespace",
            )
        elif mine[0].loopback:
            raise UsageProblem(f"interface {name}: is a loopback interface, where nothing passes through")
        chosen[name] = mine
    return chosen
