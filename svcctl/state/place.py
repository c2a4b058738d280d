"""Where a command works: which network namespace, which bpffs, how patient, whom to tell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.errors import Incompatible, NotLoaded, PermissionProblem, SvcctlError
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIX = "_svcctl"
TEMPORARY = "svcctl_tmp_"
"""Directories being made by `load`; anything so named and not locked is a leftover."""


def _silent(_text: str) -> None:
    pass


class Place(Record):
    """`netns` and `bpffs` are paths, `lock_timeout` seconds; `notice` gets lines for stderr."""

    netns: str = "/proc/self/ns/net"
    bpffs: str = "/sys/fs/bpf"
    lock_timeout: float = 10.0
    notice: Callable[[str], None] = _silent


def directory_name(netns_inode: int) -> str:
    """Name of the state directory of a network namespace."""
    return f"{netns_inode}{SUFFIX}"


def parse_directory_name(name: str) -> int | None:
    """The inode in a state directory's name, None for any other name."""
    number, found, rest = name.partition(SUFFIX)
    return int(number) if found and not rest and number.isascii() and number.isdigit() else None


def not_loaded(inode: int, bpffs: str) -> NotLoaded:
    """The error of every command that finds no state directory."""
    left = _leftovers(bpffs)
    return NotLoaded(
        f"no state for network namespace {inode} under {bpffs}",
        hint=f"{bpffs}/{left[0]} is left over from a load or unload that died: 'svcctl unload' removes it"
        if left
        else "run 'svcctl load', or name the namespace with --netns",
    )


def _leftovers(bpffs: str) -> list[str]:
    """Names of temporary directories, some of which may still be attached; none for who may not look."""
    try:
        return sorted(name for name in os.listdir(bpffs) if name.startswith(TEMPORARY))
    except OSError:
        return []


def check_bpffs(path: str) -> None:
    """Refuse a path that is no BPF file system: with NotLoaded, since nothing can be loaded there."""
    from svcctl.host import bpffs

    if not os.path.isdir(path):
        raise NotLoaded(
            f"{path}: no such directory", hint="--bpffs names the mount point of a BPF file system"
        )
    if not bpffs.is_bpffs(path):
        raise NotLoaded(
            f"{path}: not a BPF file system",
            hint=f"'svcctl load' mounts one; by hand: mount -t bpf -o mode=0711 bpf {path}"
            if path == Place().bpffs
            else "--bpffs names the mount point of a BPF file system: 'findmnt -t bpf' lists them",
        )


def check_owner(path: str, status: os.stat_result) -> None:
    """Refuse what others could have put there or can change.

    A directory or pin must belong to root or the caller and be writable by its owner only: whoever can
    replace a pin decides where traffic goes.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionProblem(
            f"{path}: belongs to uid {status.st_uid}, not to root or the caller: not used"
        )
    if status.st_mode & 0o022:
        raise PermissionProblem(
            f"{path}: mode {status.st_mode & 0o7777:04o} lets others write: not used",
            hint="'svcctl check --repair' sets owner and mode right",
        )


def missing_pin(path: str) -> SvcctlError:
    """The error for a pin that should be there. Nothing is created in its place."""
    return Incompatible(
        f"{path}: the pin is missing",
        hint="'svcctl check --repair' pins again what the kernel still has;"
        " if that is not enough, 'svcctl unload' and 'svcctl load' start anew",
    )
