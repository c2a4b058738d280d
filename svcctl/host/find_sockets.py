"""Find the socket on which another process takes connections, and duplicate it into this one.

sock_diag names the candidates by port in a tenth of a millisecond; the links in /proc/PID/fd tell which of
them the process has, and under which number; one pidfd_getfd takes it; its cookie proves that it is the one.
"""

from __future__ import annotations

import os
import time
from _socket import AF_INET, AF_INET6, inet_ntop
from typing import TYPE_CHECKING

from svcctl.errors import Conflict, NotFound, PermissionProblem, UsageProblem
from svcctl.host import process, sock_diag
from svcctl.host.socket_info import SocketInfo, WrongSocket, serves
from svcctl.host.target import FoundSocket, Target
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

MOST = 16  # the kernel reaches the other members of a SO_REUSEPORT group through any of these

_PROTOCOLS = {6: "tcp", 17: "udp"}
_LONGEST_PAUSE = 0.2
_MOST_IN_HINT = 8


class _Wanted(Record):
    protocol: int
    family: int
    address: bytes
    port: int

    def rank(self, family: int, address: bytes, v6only: bool) -> int | None:
        """How well a socket bound to `address` (16 bytes) fits: 0 best, None not at all.

        0: bound to just this address; 1: to the wildcard of its family; 2: to ::, dual-stack, for IPv4.
        """
        if self.family not in serves(family, address, v6only):
            return None
        if address == self.address:
            return 0
        if address == sock_diag.MAPPED + bytes(4):
            return 1
        if address == bytes(16):
            return 1 if self.family == 6 else 2
        return None

    def __str__(self) -> str:
        return f"{_PROTOCOLS[self.protocol]} {_endpoint(self.address, self.port)}"


def find_sockets(
    pid: int,
    protocol: int,
    family: int,
    address: bytes,
    port: int,
    *,
    netns: Netns,
    tree: bool = False,
    wait: float = 5.0,
    granularity: float = 0.02,
) -> list[FoundSocket]:
    """The process's sockets, 1 to 16, that take what comes to `address` (16 bytes, v4-mapped) and `port`.

    A TCP socket listens, a UDP socket is unconnected. One bound to the very address goes before one bound to
    a wildcard (0.0.0.0, ::, a dual-stack :: for IPv4). More than one is returned only of a SO_REUSEPORT
    group; each socket once, however many descriptors it has. `tree`: descendants of the process are searched
    too, but for those in another network namespace. Looks every `granularity` seconds, less often later, for
    up to `wait` seconds (0: once). Changes nothing in the process, nor the sockets' file status flags.

    Raises UsageProblem (own pid, port 0), NotFound (no process, it exited, no such socket: the hint says what
    it has), Conflict (its network namespace is not `netns`; several sockets that are not one group),
    PermissionProblem (CAP_SYS_PTRACE).
    """
    wanted = _Wanted(protocol, family, address, port)
    what = f"find socket of process {pid}: {wanted}"
    if pid == os.getpid():
        raise UsageProblem(f"{what}: that is this command itself")
    if not 0 < port < 65536:
        raise UsageProblem(f"{what}: a port from 1 to 65535 is needed")
    deadline = time.monotonic() + wait
    pidfd = process.pidfd_open(pid)
    try:
        _check_netns(pid, netns)
        target = Target(pid, pidfd, netns, tree)
        pause = granularity
        while True:
            found = _look(target, wanted)
            if found:
                return found
            left = deadline - time.monotonic()
            if process.has_exited(pidfd, max(0.0, min(pause, left))):
                raise NotFound(f"{what}: the process has exited")
            if left <= 0:
                raise NotFound(f"{what}: no such socket", hint=_what_there_is(target, wanted))
            pause = min(pause * 1.5, max(_LONGEST_PAUSE, granularity))
    except ProcessLookupError:
        raise NotFound(f"{what}: the process has exited") from None
    finally:
        os.close(pidfd)


def _check_netns(pid: int, netns: Netns) -> None:
    inode = process.netns_inode(pid)
    if inode != netns.inode:
        where = f"network namespace {inode}, not {netns.inode} ({netns.path})"
        hint = f"name its namespace: --netns /proc/{pid}/ns/net"
        raise Conflict(f"find socket of process {pid}: it is in {where}", hint=hint)


def _look(target: Target, wanted: _Wanted) -> list[FoundSocket]:
    """One look: the best sockets there are now, or none."""
    ranks = _listed(target, wanted)
    found: list[tuple[int, FoundSocket]] = []
    try:
        seen: set[int] = set()
        for pid, fd, inode in target.sockets() if ranks is None or ranks else ():
            if inode in seen or (ranks is not None and inode not in ranks):
                continue
            try:
                socket = target.take(pid, fd, inode)
            except WrongSocket:
                continue
            if socket is None:
                continue
            seen.add(inode)
            rank = _rank(target, wanted, socket.info, ranks)
            if rank is None:
                os.close(socket.fd)
                continue
            found.append((rank, socket))
            if ranks is not None and _nothing_better(ranks, seen, min(rank for rank, _ in found)):
                break
        return _choose(found, wanted)
    except BaseException:
        for _, socket in found:
            os.close(socket.fd)
        raise


def _listed(target: Target, wanted: _Wanted) -> dict[int, tuple[int, int]] | None:
    """Candidates by inode: (rank, cookie), from the kernel's list; None when that is not to be had."""
    try:
        listed = sock_diag.listeners(wanted.protocol, wanted.port, netns=target.netns)
    except (OSError, PermissionProblem):
        return (
            None  # no tcp_diag module, or no right to enter the namespace: look at every descriptor instead
        )
    ranks = {}
    for entry in listed:
        rank = wanted.rank(entry.family, entry.mapped_address, bool(entry.v6only))
        if rank is not None and entry.inode:
            ranks[entry.inode] = rank, entry.cookie
    return ranks


def _rank(
    target: Target, wanted: _Wanted, info: SocketInfo, ranks: dict[int, tuple[int, int]] | None
) -> int | None:
    if ranks is not None:
        rank, cookie = ranks[info.inode]
        return rank if info.cookie == cookie else None
    if info.protocol != wanted.protocol or info.port != wanted.port:
        return None
    if info.netns_inode is not None and info.netns_inode != target.netns.inode:
        return None
    return wanted.rank(info.family, info.address, info.v6only)


def _nothing_better(ranks: dict[int, tuple[int, int]], seen: set[int], best: int) -> bool:
    return all(inode in seen or rank > best for inode, (rank, _) in ranks.items())


def _choose(found: list[tuple[int, FoundSocket]], wanted: _Wanted) -> list[FoundSocket]:
    """The best rank's sockets; the others are closed. Raises Conflict when they are not one group."""
    if not found:
        return []
    best = min(rank for rank, _ in found)
    chosen = [socket for rank, socket in found if rank == best]
    if len(chosen) > 1 and not all(socket.info.reuseport for socket in chosen):
        where = ", ".join(f"{socket.target_fd} of process {socket.pid}" for socket in chosen)
        raise Conflict(
            f"find socket: {wanted}: {len(chosen)} sockets, not one SO_REUSEPORT group (descriptors {where})",
            hint="traffic can be steered to one of them only; close the others or set SO_REUSEPORT on all",
        )
    kept = chosen[:MOST]
    for _, socket in found:
        if socket not in kept:
            os.close(socket.fd)
    return kept


def _what_there_is(target: Target, wanted: _Wanted) -> str | None:
    """For the hint: what the process has, what is wrong with its sockets at that port, where else to look."""
    mine: dict[str, None] = {}
    wrong: dict[str, None] = {}
    seen: set[int] = set()
    try:
        for pid, fd, inode in target.sockets():
            if inode in seen:
                continue
            try:
                socket = target.take(pid, fd, inode)
            except WrongSocket as problem:
                if problem.port == wanted.port:
                    wrong[f"descriptor {fd} at this port is {problem.reason}"] = None
                continue
            if socket is None:
                continue
            seen.add(inode)
            os.close(socket.fd)
            endpoint = _endpoint(socket.info.address, socket.info.port)
            if socket.info.v6only and socket.info.address == bytes(16):
                endpoint += " (IPv6 only)"
            if socket.info.protocol == wanted.protocol:
                mine[endpoint] = None
            elif socket.info.port == wanted.port:
                wrong[f"descriptor {fd} is {_PROTOCOLS[socket.info.protocol]} {endpoint}"] = None
    except (OSError, NotFound, PermissionProblem):
        return None
    parts = [_list_of(wanted.protocol, list(mine)), *list(wrong)[:2]]
    if not target.tree and (heir := _descendant_with_it(target, wanted)) is not None:
        parts.append(f"its descendant {heir} has it: use --tree")
    return "; ".join(parts)


def _list_of(protocol: int, endpoints: list[str]) -> str:
    name = _PROTOCOLS[protocol]
    if not endpoints:
        return f"the process takes connections on no {name} socket"
    more = len(endpoints) - _MOST_IN_HINT
    return f"the process has {name} {', '.join(endpoints[:_MOST_IN_HINT])}" + (
        f" and {more} more" if more > 0 else ""
    )


def _descendant_with_it(target: Target, wanted: _Wanted) -> int | None:
    try:
        found = _look(Target(target.pid, target.pidfd, target.netns, True), wanted)
    except (OSError, NotFound, PermissionProblem, Conflict):
        return None
    for socket in found:
        os.close(socket.fd)
    return found[0].pid if found else None


def _endpoint(address: bytes, port: int) -> str:
    if address.startswith(sock_diag.MAPPED):
        return f"{inet_ntop(AF_INET, address[12:])}:{port}"
    return f"[{inet_ntop(AF_INET6, address)}]:{port}"
