"""Which network namespaces live: those of processes, and those kept by a mount (`ip netns add`)."""

from __future__ import annotations

import os


def find(inode: int) -> str | None:
    """Path of a file of the network namespace with this inode, None if none is to be seen.

    Sees what root of this pid and mount namespace sees: a namespace held only by a descriptor, or by processes
    of a container's parent, is not found.
    """
    for name in os.listdir("/proc"):
        if name.isdigit():
            path = f"/proc/{name}/ns/net"
            if _has_inode(path, inode):
                return path
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # 24: root of the mount, which for a namespace is `net:[4026532178]`; then where it is mounted.
            fields = line.split(" ")
            if fields[3] == f"net:[{inode}]" and _has_inode(fields[4], inode):
                return fields[4]
    return None


def _has_inode(path: str, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
