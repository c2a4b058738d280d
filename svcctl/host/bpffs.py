"""The BPF file system: is it there, mount it, rename in it without replacing anything."""

from __future__ import annotations

import errno
import os

from svcctl.errors import Incompatible, NotFound, PermissionProblem
from svcctl.host.syscalls import call

_BPF_FS_MAGIC = 0xCAFE4A11  # <linux/magic.h>
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def is_bpffs(path: str) -> bool:
    """Whether `path` lies in a BPF file system. A path that does not exist does not."""
    import ctypes

    # struct statfs starts with f_type, a long; the rest is not looked at and the buffer is large enough.
    buffer = ctypes.create_string_buffer(256)
    try:
        call("statfs", os.fsencode(path), buffer, path=path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise PermissionProblem(f"look at BPF file system: {path}: permission denied") from None
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF == _BPF_FS_MAGIC


def mount(path: str, mode: int = 0o711) -> None:
    """Mount a new BPF file system on the directory `path`; its root gets `mode`.

    The default lets the members of a state directory's group through to it, and nobody list the root.
    Raises NotFound, PermissionProblem, Incompatible (a kernel without it).
    """
    what = f"mount BPF file system: {path}"
    try:
        call(
            "mount",
            b"bpf",
            os.fsencode(path),
            b"bpf",
            _unsigned_long(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC),
            f"mode={mode:04o}".encode(),
            path=path,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{what}: no such directory") from None
    except PermissionError:
        hint = "mounting needs CAP_SYS_ADMIN"
        raise PermissionProblem(f"{what}: operation not permitted", hint=hint) from None
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise Incompatible(f"{what}: this kernel has no BPF file system (CONFIG_BPF_SYSCALL)") from None
        raise


def in_pid1_mount_namespace() -> bool:
    """Whether the calling thread sees the mounts that PID 1 sees.

    A mount made in another mount namespace would die with the command. The namespace files are compared;
    when PID 1's cannot be read (no CAP_SYS_PTRACE), the numbers of the mounts. Those are unique on the host
    and a mount is in one namespace only, so one in common is proof.
    False when neither can be read.
    """
    try:
        theirs, ours = os.stat("/proc/1/ns/mnt"), os.stat("/proc/thread-self/ns/mnt")
        return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
    except OSError:
        pass
    try:
        return not _mount_ids("/proc/1/mountinfo").isdisjoint(_mount_ids("/proc/thread-self/mountinfo"))
    except OSError:
        return False


def rename_noreplace(src: str, dst: str) -> None:
    """Rename a pin or directory; FileExistsError when there is something at `dst`, whatever it is.

    Works on bpffs on every kernel from 5.10 (RENAME_EXCHANGE does not). Other failures are OSError.
    """
    call(
        "renameat2",
        _AT_FDCWD,
        os.fsencode(src),
        _AT_FDCWD,
        os.fsencode(dst),
        _RENAME_NOREPLACE,
        path=src,
        path2=dst,
    )


def _mount_ids(path: str) -> set[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        return {line.split(" ", 1)[0] for line in lines}


def _unsigned_long(value: int) -> object:
    import ctypes

    return ctypes.c_ulong(value)
