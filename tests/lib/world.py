"""A throw-away world for one test: own network and mount namespace, own bpffs on /sys/fs/bpf.

The calling thread is moved in with unshare(2) and back with setns(2), so the test's own sockets and every
child process live inside. Nothing outlives the world: the mounts go with the namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def sh(command: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a shell command, fail loudly with its output."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True, **kwargs)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise AssertionError(f"{command!r} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done  # type: ignore[no-any-return]


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


class World:
    """Where a test lives: `bpffs` is the mounted path (mode 0711)."""

    bpffs = "/sys/fs/bpf"

    @property
    def netns_inode(self) -> int:
        """Inode number of the network namespace the calling thread is in."""
        return os.stat("/proc/thread-self/ns/net").st_ino

    @property
    def state_dir(self) -> str:
        """Path of the state directory of this namespace."""
        return f"{self.bpffs}/{self.netns_inode}_svcctl"

    def sh(self, command: str) -> str:
        """Output of a shell command that must succeed."""
        return sh(command).stdout


@contextlib.contextmanager
def world(bpffs_mode: str = "0711") -> Iterator[World]:
    """Enter a new world; leave it on exit. Needs root."""
    net = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    mnt = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    cwd = os.getcwd()
    try:
        _check(_libc.unshare(CLONE_NEWNET | CLONE_NEWNS), "unshare")
        try:
            # System calls and not mount(8) and ip(8): in an interpreted guest five processes cost half a second.
            _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
            _check(
                _libc.mount(b"bpf", b"/sys/fs/bpf", b"bpf", 0, f"mode={bpffs_mode}".encode()), "mount bpffs"
            )
            _loopback_up()
            yield World()
        finally:
            _leave_mounts(mnt)
            _check(_libc.setns(net, CLONE_NEWNET), "setns net")
            os.chdir(cwd)
    finally:
        os.close(net)
        os.close(mnt)


def _leave_mounts(mnt: int) -> None:
    """EINVAL: a thread that was joined is not quite gone yet, and still shares the mount namespace."""
    for _ in range(6000):
        if _libc.setns(mnt, CLONE_NEWNS) == 0:
            return
        if ctypes.get_errno() != errno.EINVAL:
            break
        time.sleep(0.01)
    _check(-1, "setns mnt")


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A temporary directory that goes away."""
    with tempfile.TemporaryDirectory(prefix="svcctl-test-") as path:
        yield path
