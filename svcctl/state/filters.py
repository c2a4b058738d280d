"""Taking a state directory's tc filters away when it goes: they have no pins, the programs they run have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.program import Program
from svcctl.errors import SvcctlError
from svcctl.host import namespaces, tc
from svcctl.host.devices import devices
from svcctl.host.netns import Netns
from svcctl.maps import catalog, layouts
from svcctl.state.device_links import SIDES
from svcctl.state.session import ZERO, open_map

if TYPE_CHECKING:
    from collections.abc import Iterator


def drop_filters(path: str, netns: Netns) -> None:
    """Delete every filter that runs a program pinned in `path`, in the namespace of that directory.

    `netns` is where the caller works: the one, unless `meta` names another that can be found. Raises SvcctlError
    where filters are left (without pyroute2).
    """
    programs = _programs(path)
    inode = _inode(path)
    if inode in (None, netns.inode):
        _drop_in(netns, programs)
        return
    where = namespaces.find(inode) if inode is not None else None
    if where is not None:
        with Netns.open(where) as other:
            if other.inode == inode:
                _drop_in(other, programs)


def _drop_in(netns: Netns, programs: set[int]) -> None:
    found = [
        (device.ifindex, side.parent, one)
        for device in devices(netns)
        for side in SIDES
        for one in tc.mine(netns, device.ifindex, side.parent)
        if one.program_id in programs
    ]
    if found:
        with tc.Filters(netns) as filters:
            for ifindex, parent, one in found:
                filters.delete(ifindex, parent, one)


def _programs(path: str) -> set[int]:
    """Ids of the packet path's programs that are pinned in a directory."""
    return set(_ids(path))


def _ids(path: str) -> Iterator[int]:
    for shape in catalog.PACKET:
        for prefix in ("", catalog.NEXT):
            try:
                with Program.open_pinned(f"{path}/{prefix}{shape.pin}") as program:
                    yield program.info.id
            except BpfError:
                continue  # not there, or no program at all


def _inode(path: str) -> int | None:
    """Whose namespace `meta` says the directory is; None when it says nothing."""
    try:
        with open_map(f"{path}/meta", "meta", read_only=True) as opened:
            meta = layouts.META.unpack(opened.lookup(ZERO) or bytes(layouts.META.size))
    except (SvcctlError, BpfError, OSError):
        return None
    return meta.netns_inode if meta.magic == layouts.MAGIC else None
