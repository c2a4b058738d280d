"""The sockets among a process's descriptors, and its descendants', and taking one of them over."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from svcctl.errors import NotFound
from svcctl.host import process
from svcctl.host.socket_info import NotASocket, SocketInfo, describe
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.host.netns import Netns


class FoundSocket(Record):
    """`fd` is ours (close-on-exec), for the caller to close; process `pid` has the socket as `target_fd`."""

    fd: int
    pid: int
    target_fd: int
    info: SocketInfo


class Target:
    """The process asked for; with `tree`, its descendants in the same network namespace as well."""

    def __init__(self, pid: int, pidfd: int, netns: Netns, tree: bool) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.netns = netns
        self.tree = tree

    def sockets(self) -> Iterator[tuple[int, int, int]]:
        """(pid, descriptor, inode) of every socket, those of the process itself first."""
        for fd, inode in process.socket_fds(self.pid):
            yield self.pid, fd, inode
        for pid in process.children(self.pid, recursive=True) if self.tree else ():
            if pid == os.getpid():
                continue  # what this command has open is not the service's
            try:
                if process.netns_inode(pid) == self.netns.inode:
                    for fd, inode in process.socket_fds(pid):
                        yield pid, fd, inode
            except NotFound:
                continue  # exited since

    def take(self, pid: int, fd: int, inode: int) -> FoundSocket | None:
        """Duplicate and describe; None when it is no longer that socket, or a descriptor that is of no use.

        Raises WrongSocket, and ProcessLookupError when the process (not a descendant) has exited.
        """
        own = -1
        try:
            pidfd = self.pidfd if pid == self.pid else process.pidfd_open(pid)
            try:
                own = process.pidfd_getfd(pidfd, fd)
            finally:
                if pidfd != self.pidfd:
                    os.close(pidfd)
            info = describe(own)
            if info.inode == inode:
                found = FoundSocket(own, pid, fd, info)
                own = -1
                return found
        except NotASocket:
            pass  # opened with O_PATH; the process may have a better one of the same inode
        except (NotFound, ProcessLookupError):
            if pid == self.pid:
                raise
        except OSError as error:
            if error.errno != errno.EBADF:
                raise  # else closed since
        finally:
            if own >= 0:
                os.close(own)
        return None
