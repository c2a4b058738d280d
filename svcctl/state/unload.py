"""Taking state away: unload, and what killed commands and dead namespaces left under a bpffs root."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import PermissionProblem
from svcctl.host import flock
from svcctl.host.netns import Netns
from svcctl.maps import catalog
from svcctl.state import place as places
from svcctl.state.lock import open_locked

if TYPE_CHECKING:
    from svcctl.state.place import Place


def remove_directory(path: str, netns: Netns) -> None:
    """Unpin everything in a state directory and remove it: links first, so that nothing runs on half a state.

    Filters, which have no pin, before all: the pinned programs tell which are of this directory.
    """
    from svcctl.state.attach import drop_link

    if any(os.path.lexists(f"{path}/{shape.pin}") for shape in catalog.PACKET):
        from svcctl.state.filters import drop_filters

        drop_filters(path, netns)
    names = sorted(os.listdir(path), key=lambda name: (not name.startswith("link_"), name))
    for name in names:
        one = f"{path}/{name}"
        if os.path.isdir(one) and not os.path.islink(one):
            remove_directory(one, netns)  # none of ours, but in the way
        elif name.startswith("link_"):
            drop_link(one)
        else:
            os.unlink(one)
    os.rmdir(path)


def retire_directory(place: Place, path: str) -> None:
    """Take a published directory away at one stroke, then remove it.

    Killed in between, it is a leftover that the next load, unload or gc clears; until then it still steers as
    before, by rules nobody can change any more. The root's lock must be held.
    """
    temporary = f"{place.bpffs}/{places.TEMPORARY}{os.getpid()}_{time.monotonic_ns()}"
    with Netns.open(place.netns) as netns:
        os.rename(path, temporary)
        remove_directory(temporary, netns)


def find_directory(place: Place) -> str | None:
    """Path of the namespace's state directory, None if there is none."""
    places.check_bpffs(place.bpffs)
    with Netns.open(place.netns) as netns:
        path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
    return path if os.path.lexists(path) else None


def unload(place: Place) -> str | None:
    """Detach everything and remove the state directory; None if there was none.

    Looks at no map, so it clears broken and incompatible state too.
    """
    with Netns.open(place.netns) as netns:
        path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
        root = lock_root(place, "unload")
        try:
            clear_leftovers(place)
            if not os.path.lexists(path):
                return None
            fd = open_locked(path, place)  # only load, unload and gc remove it, and they hold the root's lock
            try:
                retire_directory(place, path)
            finally:
                os.close(fd)
            return path
        finally:
            os.close(root)


def clear_leftovers(place: Place) -> list[str]:
    """Remove directories of `load`s that died before they were published, and say so. The root's lock must be held."""
    found = find_leftovers(place, remove=True)
    for path in found:
        place.notice(f"removed {path}, left over from a load that was interrupted")
    return found


def find_leftovers(place: Place, *, remove: bool = False) -> list[str]:
    """Paths of the directories that dead `load`s left; removed too, if wanted.

    One whose lock can be had is nobody's: a living `load` holds its directory's.
    """
    found = []
    for name in sorted(os.listdir(place.bpffs)):
        if not name.startswith(places.TEMPORARY):
            continue
        path = f"{place.bpffs}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid() and flock.try_lock(fd, exclusive=remove):
                found.append(path)
                if remove:
                    with Netns.open(place.netns) as netns:
                        remove_directory(path, netns)
        finally:
            os.close(fd)
    return found


def lock_root(place: Place, action: str) -> int:
    """Descriptor of the bpffs root with its lock, to be had before any directory's.

    Raises PermissionProblem, NotLoaded where there is no BPF file system, LockTimeout.
    """
    places.check_bpffs(place.bpffs)
    try:
        return open_locked(os.path.realpath(place.bpffs), place)  # a link to a mount point is one, too
    except PermissionError:
        raise PermissionProblem(
            f"{action}: {place.bpffs}: permission denied", hint="needs root: try sudo"
        ) from None


def dead_directories(place: Place) -> list[str]:
    """State directories whose network namespace is gone, judged by their links. The root's lock must be held.

    A link that names another inode than the directory is that of a dead namespace. So is one that names 0,
    unless it was detached by hand: then, and without a link (no dispatcher), a namespace with that inode and the
    recorded cookie is looked for in all of the host (`liveness.py`); where that cannot tell, the directory is left
    alone.
    """
    return [path for path, dead in judge_directories(place) if dead]


def judge_directories(place: Place) -> list[tuple[str, bool | None]]:
    """Each state directory under the root, and whether its network namespace is gone; None: there is no telling."""
    from svcctl.bpf.link import Link
    from svcctl.state.liveness import is_dead

    found: list[tuple[str, bool | None]] = []
    for name in sorted(os.listdir(place.bpffs)):
        inode = places.parse_directory_name(name)
        path = f"{place.bpffs}/{name}"
        if inode is None:
            continue
        try:
            with Link.open_pinned(f"{path}/{catalog.DISPATCH.link_pin}") as link:
                target = link.info.netns_inode
        except (BpfError, OSError):
            found.append((path, is_dead(path, inode)))
            continue
        if target == 0:  # of a dead namespace, or detached by hand
            found.append((path, is_dead(path, inode, had_link=True)))
        else:
            found.append((path, target is not None and target != inode))
    return found
