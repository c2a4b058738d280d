"""Network namespaces: held by an open descriptor, told apart by inode and cookie."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

from svcctl.errors import NotFound, PermissionProblem, UsageProblem
from svcctl.host.syscalls import CLONE_NEWNET, call

if TYPE_CHECKING:
    from types import TracebackType

_OWN = "/proc/thread-self/ns/net"  # of the calling thread: setns(2) moves threads, not processes

_NS_GET_NSTYPE = 0xB703  # <linux/nsfs.h>, Linux 4.11
_NS_GET_ID = 0x8008B70D  # _IOR(0xb7, 13, __u64), Linux 6.18; for a network namespace the same as its cookie
_SO_NETNS_COOKIE = 71  # <asm-generic/socket.h>, Linux 5.14


class Netns:
    """A network namespace.

    While the object is open the kernel cannot give the inode number to another namespace, so comparing
    `inode` with what the kernel reports elsewhere (a link's `netns_ino`, say) proves identity.
    """

    def __init__(self, fd: int, path: str) -> None:
        """Take over `fd`; `Netns.open` is the usual way."""
        self.fd = fd
        self.path = path
        status = os.fstat(fd)
        self.inode: int = status.st_ino
        self._device: int = status.st_dev

    @classmethod
    def open(cls, path: str = "/proc/self/ns/net") -> Netns:
        """Open a namespace file: `/proc/PID/ns/net`, `/run/netns/NAME`, or a bind mount of one.

        Raises NotFound, PermissionProblem, or UsageProblem when `path` is not a network namespace.
        """
        what = f"open network namespace: {path}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # NONBLOCK: it might be a FIFO
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            raise NotFound(f"{what}: no such file or process") from None
        except PermissionError:
            hint = "another process's namespace needs CAP_SYS_PTRACE" if path.startswith("/proc/") else None
            raise PermissionProblem(f"{what}: permission denied", hint=hint) from None
        except (OSError, ValueError) as error:  # ENXIO of a socket; ValueError of a NUL byte
            raise UsageProblem(f"{what}: not a network namespace ({error})") from None
        try:
            if fcntl.ioctl(fd, _NS_GET_NSTYPE) != CLONE_NEWNET:
                raise UsageProblem(f"{what}: a namespace, but not of the network kind")
        except OSError:
            os.close(fd)
            hint = "`ip netns add` and `ip netns list` use /run/netns/NAME"
            raise UsageProblem(f"{what}: not a network namespace", hint=hint) from None
        except UsageProblem:
            os.close(fd)
            raise
        return cls(fd, path)

    def is_own(self) -> bool:
        """Whether the calling thread is in this namespace."""
        own = os.stat(_OWN)
        return own.st_ino == self.inode and own.st_dev == self._device

    def cookie(self) -> int | None:
        """The namespace's cookie: never reused until the next boot. None on kernels before 5.14.

        Needs no right for the caller's own namespace, nor on Linux 6.18 and later; elsewhere the thread
        visits the namespace, which takes CAP_SYS_ADMIN (PermissionProblem).
        """
        if not self.is_own():
            try:
                return int.from_bytes(fcntl.ioctl(self.fd, _NS_GET_ID, bytes(8)), sys.byteorder)
            except OSError:
                pass  # ENOTTY before Linux 6.18
        with self.entered():
            return _own_cookie()

    def entered(self) -> Visit:
        """Context manager: the calling thread is in this namespace inside the block, and back after it.

        Costs nothing when it is there already. Raises PermissionProblem without CAP_SYS_ADMIN.
        """
        return Visit(self)

    def close(self) -> None:
        """Let the namespace go. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Netns:
        """Nothing to do: it is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """Tell of a forgotten `close`."""
        if getattr(self, "fd", -1) >= 0:
            import warnings

            message = f"network namespace {self.path} was not closed"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __repr__(self) -> str:
        """For debugging."""
        return f"<Netns {self.path} net:[{self.inode}]>"


class Visit:
    """One stay in a namespace, made by `Netns.entered`."""

    def __init__(self, netns: Netns) -> None:
        self._netns = netns
        self._home = -1

    def __enter__(self) -> Netns:
        """Go there, and remember the way back."""
        if not self._netns.is_own():
            self._home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
            try:
                call("setns", self._netns.fd, CLONE_NEWNET)
            except OSError as error:
                self._close()
                if isinstance(error, PermissionError):
                    raise PermissionProblem(
                        f"enter network namespace: {self._netns.path}: operation not permitted",
                        hint="entering another network namespace needs CAP_SYS_ADMIN",
                    ) from None
                raise
            except BaseException:
                self._close()
                raise
        return self._netns

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go back. A failure is raised: nothing may go on in the wrong namespace."""
        if self._home >= 0:
            try:
                call("setns", self._home, CLONE_NEWNET)
            finally:
                self._close()

    def _close(self) -> None:
        os.close(self._home)
        self._home = -1


def _own_cookie() -> int | None:
    from _socket import AF_UNIX, SOCK_DGRAM, SOL_SOCKET, socket

    # Any socket tells; one of the unix family is the cheapest and is there in every kernel.
    probe = socket(AF_UNIX, SOCK_DGRAM)
    try:
        return int.from_bytes(probe.getsockopt(SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError:
        return None  # ENOPROTOOPT before Linux 5.14
    finally:
        probe.close()
