"""Whether the network namespace of a state directory still lives, where no link of the dispatcher tells.

A namespace lives as long as a process or thread is in it, a mount keeps it, or somebody has a descriptor of it. All
of these are looked at, mounts in every mount namespace; where not every process may be looked at nobody can tell.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import SvcctlError
from svcctl.host import namespaces
from svcctl.host.all_netns import Namespaces, mounted_anywhere
from svcctl.host.netns import Netns
from svcctl.maps import catalog, layouts

if TYPE_CHECKING:
    from svcctl.state.place import Place


LOOKS = 2
"""A process that is in the namespace may end while another, which was not there yet, goes on in it."""
TRIES = 10
"""The kernel uses inode numbers again at once: what was found with this one may end before it is looked at."""


def is_dead(path: str, inode: int, *, had_link: bool = False) -> bool | None:
    """Whether the namespace with this inode that the directory was made for is gone; None: there is no telling.

    `had_link`: its link has no target any more, so the namespace is gone or somebody detached it by hand, and the
    directory is one of svcctl's even without a `meta`. What can be seen from here is enough then.
    """
    cookie = _recorded_cookie(path)
    if cookie is None and not had_link:
        return None
    clean = 0
    for _ in range(TRIES):
        where = namespaces.find(inode)
        paths = [where] if where is not None else []
        if not paths:
            found = Namespaces(thorough=True)
            if not found.complete and not had_link:
                return None
            paths = found.paths.get(inode) or [mounted_anywhere().get(inode, "")]
        for one in filter(None, paths):
            verdict = None if cookie is None else _is_other(one, inode, cookie)
            if verdict is not None:
                return verdict
        clean += paths == [""]
        if clean == LOOKS:
            return True
    return None


def _recorded_cookie(path: str) -> int | None:
    """The namespace's cookie as `meta` has it, 0 on kernels without; None if it cannot be read."""
    from svcctl.state.session import ZERO, open_map

    try:
        with open_map(f"{path}/meta", "meta", read_only=True) as opened:
            meta = layouts.META.unpack(opened.lookup(ZERO) or bytes(layouts.META.size))
    except (SvcctlError, BpfError, OSError):
        return None
    return meta.netns_cookie if meta.magic == layouts.MAGIC else None


def _is_other(where: str, inode: int, cookie: int) -> bool | None:
    """Whether the namespace at `where` is a later one with the inode; None if that cannot be told."""
    try:
        with Netns.open(where) as netns:
            if netns.inode != inode:
                return None
            now = netns.cookie() if cookie else None
    except (SvcctlError, OSError):
        return None
    return now is not None and now != cookie


def directory_of_program(place: Place, number: int) -> tuple[str, int] | None:
    """Path and inode of the state directory whose balancer this program is; None: it is under no such root."""
    from svcctl.bpf.link import Link
    from svcctl.state.place import parse_directory_name

    try:
        names = sorted(os.listdir(place.bpffs))
    except OSError:
        return None
    for name in names:
        inode = parse_directory_name(name)
        if inode is None:
            continue
        path = f"{place.bpffs}/{name}"
        try:
            with Link.open_pinned(f"{path}/{catalog.CONNECT[0].link_pin}") as link:
                if link.info.program_id == number:
                    return path, inode
        except (BpfError, OSError):
            continue
    return None


def how_to_detach(path: str, inode: int) -> str:
    """What takes the balancer of another state directory off."""
    if is_dead(path, inode):
        return f"the network namespace of {path} is gone: 'svcctl gc' removes it"
    where = namespaces.find(inode)
    if where is None:
        return f"{path} is of a network namespace that is not to be seen from here: 'rm -r {path}' removes it"
    there = "" if os.stat("/proc/self/ns/net").st_ino == inode else f"--netns {where} "
    return f"'svcctl {there}detach cgroup' takes that one off"
