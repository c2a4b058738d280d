"""Every network namespace of the host that somebody can still use, the ones without a name too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.host.netns import Netns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATHS_KEPT = 4
"""Ways to a namespace that are remembered: a process may end before its turn comes."""
_KTHREADD, _OWN = "/proc/2/ns/net", "/proc/self/ns/net"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of <linux/proc_ns.h>


def mounted_anywhere() -> dict[int, str]:
    """Network namespaces that a mount keeps, in whatever mount namespace has a process: inode -> a path to it."""
    paths: dict[int, str] = {}
    seen: set[str] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            mounts = os.readlink(f"/proc/{name}/ns/mnt")
            if mounts in seen:
                continue
            with open(f"/proc/{name}/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
                for line in lines:
                    fields = line.split(" ", 5) if " - nsfs " in line else []
                    if fields and fields[3].startswith("net:["):
                        paths[int(fields[3][5:-1])] = f"/proc/{name}/root{_unescape(fields[4])}"
            seen.add(mounts)
        except (OSError, ValueError):
            continue
    return paths


def _if_there(look: Callable[[str], None], path: str) -> None:
    """A thread that has ended and a descriptor that was closed meanwhile say nothing of the process's others."""
    try:
        look(path)
    except PermissionError:
        raise
    except OSError:
        pass


def _unescape(path: str) -> str:
    return path.replace("\\040", " ")


class Namespaces:
    """What was found: `paths` by inode number, and the processes that would not be looked at.

    Found are the namespaces of processes and threads and those that are mounted (`ip netns`, container
    runtimes); with `thorough` also those of which a process merely has a descriptor, which takes a look at every
    descriptor of the host. One that nothing but open sockets keeps alive is not found.
    """

    def __init__(self, *, thorough: bool = False) -> None:
        self.paths: dict[int, list[str]] = {}
        self.unseen: list[int] = []
        self._mounted()
        for name in os.listdir("/proc"):
            if name.isdigit():
                self._of_process(name, thorough)
        if self.unseen == [1] and os.access(_KTHREADD, os.R_OK):
            # Some sandboxes hide the first process; it is where the kernel's own threads are.
            self.unseen = []

    @property
    def complete(self) -> bool:
        """Whether every process of the host was looked at: none refused, and none hidden by a pid namespace."""
        if self.unseen:
            return False
        try:
            return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
        except OSError:
            return False

    def __iter__(self) -> Iterator[Netns]:
        """Each namespace, opened for its turn and closed after it. One that went meanwhile is left out."""
        for inode, paths in sorted(self.paths.items()):
            for path in paths:
                try:
                    netns = Netns.open(path)
                except SvcctlError:
                    continue
                with netns:
                    if netns.inode == inode:
                        yield netns
                        break

    def _note(self, path: str) -> None:
        inode = os.stat(path).st_ino
        known = self.paths.setdefault(inode, [])
        if len(known) < _PATHS_KEPT:
            known.append(path)

    def _of_process(self, name: str, thorough: bool) -> None:
        try:
            _if_there(self._note, f"/proc/{name}/ns/net")
            threads = os.listdir(f"/proc/{name}/task")
            for thread in threads if len(threads) > 1 else ():
                _if_there(self._note, f"/proc/{name}/task/{thread}/ns/net")
            for fd in os.listdir(f"/proc/{name}/fd") if thorough else ():
                _if_there(self._note_descriptor, f"/proc/{name}/fd/{fd}")
        except PermissionError:
            self.unseen.append(int(name))
        except OSError:
            pass  # it has ended

    def _note_descriptor(self, path: str) -> None:
        link = os.readlink(path)
        # `/` is one that was opened by a name (`ip netns add`) which has been removed since.
        if link.startswith("net:[") or (link == "/" and os.stat(path).st_dev == os.stat(_OWN).st_dev):
            self._note(path)

    def _mounted(self) -> None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
                mounts = [line.split(" ") for line in lines if " - nsfs " in line]
        except OSError:
            return
        for fields in mounts:
            if fields[3].startswith("net:["):
                try:
                    self._note(_unescape(fields[4]))
                except OSError:
                    continue
