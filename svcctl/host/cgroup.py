"""cgroup version 2: where it is mounted, which cgroup a path is, and the cgroups above and below it."""

from __future__ import annotations

import os
from errno import ENOENT, ESTALE
from typing import TYPE_CHECKING

from svcctl.errors import NotFound, PermissionProblem, UsageProblem
from svcctl.host.syscalls import call

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP2_MAGIC = 0x63677270  # <linux/magic.h>
_FILEID_KERNFS = 0xFE  # the kernel's include/linux/exportfs.h: an 8-byte node id, which is the cgroup's
_HINT = "'findmnt -t cgroup2' shows where it is mounted; mount -t cgroup2 none /sys/fs/cgroup"


def mount_point() -> str:
    """Path of the cgroup2 hierarchy: the mount whose root is the hierarchy's own, else the first one there is.

    Raises NotFound where there is none.
    """
    found = None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                if right.startswith("cgroup2 "):
                    fields = left.split(" ")
                    path = _unescape(fields[4])
                    if fields[3] == "/":
                        return path
                    found = found or path
    except OSError:
        pass
    if found is None:
        raise NotFound("find the cgroup2 hierarchy: it is not mounted", hint=_HINT)
    return found


def mounts_of(*controllers: str) -> list[str]:
    """Mount points of the cgroup v1 hierarchies that have any of these controllers."""
    found = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                kind, *_, options = right.split(" ")
                if kind == "cgroup" and set(options.strip().split(",")) & set(controllers):
                    found.append(_unescape(left.split(" ")[4]))
    except OSError:
        pass
    return found


def open_cgroup(path: str) -> int:
    """A descriptor of a cgroup2 directory. Raises NotFound, PermissionProblem, UsageProblem for anything else."""
    import ctypes

    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"open cgroup {path}: no such directory") from None
    except NotADirectoryError:
        raise UsageProblem(f"open cgroup {path}: not a directory") from None
    except PermissionError:
        raise PermissionProblem(f"open cgroup {path}: permission denied") from None
    buffer = ctypes.create_string_buffer(256)  # struct statfs begins with f_type, a long
    try:
        call("fstatfs", fd, buffer, path=path)
    except BaseException:
        os.close(fd)
        raise
    if ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF != _CGROUP2_MAGIC:
        os.close(fd)
        raise UsageProblem(f"open cgroup {path}: not in a cgroup2 hierarchy", hint=_HINT)
    return fd


def cgroup_id(fd: int) -> int:
    """The kernel's id of an open cgroup directory: its inode number on 64-bit kernels from 5.5 on."""
    return os.fstat(fd).st_ino


def open_id(number: int) -> int:
    """A descriptor of the cgroup with an id. Raises OSError, ESTALE when it is gone; NotFound without a mount.

    open_by_handle_at(2) with the node id of kernfs, below the mount of the hierarchy.
    """
    import ctypes

    class _Handle(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("id", ctypes.c_uint64))
        _pack_ = 4

    handle = _Handle(8, _FILEID_KERNFS, number)
    mount = os.open(mount_point(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return call(
            "open_by_handle_at", mount, ctypes.byref(handle), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
    finally:
        os.close(mount)


def path_of(number: int) -> str | None:
    """Path of a cgroup by its id; None if it is gone or the caller may not open by handle."""
    try:
        fd = open_id(number)
    except (OSError, NotFound):
        return None
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    finally:
        os.close(fd)


def is_gone(number: int) -> bool:
    """Whether there is certainly no cgroup of this id; False for who may not ask."""
    try:
        os.close(open_id(number))
    except OSError as error:
        return error.errno in (ESTALE, ENOENT)
    except NotFound:
        return False
    return False


def above(path: str) -> Iterator[str]:
    """The cgroups above `path`, which is below `mount_point()`, nearest first, up to the root of the mount."""
    root = os.path.realpath(mount_point())
    path = os.path.realpath(path)
    while path.startswith(f"{root}/"):
        path = os.path.dirname(path)
        yield path


def below(path: str) -> Iterator[str]:
    """The cgroups below `path`."""
    for directory, names, _ in os.walk(path):
        for name in names:
            yield os.path.join(directory, name)


def _unescape(text: str) -> str:
    """Mount points have blanks and backslashes as octal escapes."""
    if "\\" not in text:
        return text
    return text.encode("latin-1", "surrogateescape").decode("unicode_escape")
