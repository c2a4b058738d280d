"""What a socket descriptor is, and whether connections can be steered to it; each refusal told by name."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SO_ACCEPTCONN,
    SO_REUSEPORT,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    inet_pton,
    socket,
)

from svcctl.record import Record

TCP = 6
UDP = 17

# <asm-generic/socket.h>; _socket has no names for these.
_SO_COOKIE = 57
_SO_NETNS_COOKIE = 71  # Linux 5.14
_SIOCGSKNS = 0x894C  # <linux/sockios.h>; needs CAP_NET_ADMIN

_MAPPED = bytes(10) + b"\xff\xff"
_FAMILIES = {0: "unspecified", 1: "unix", 16: "netlink", 17: "packet", 38: "crypto", 40: "vsock", 43: "SMC"}
_TYPES = {1: "stream", 2: "datagram", 3: "raw", 4: "RDM", 5: "seqpacket", 6: "DCCP", 10: "packet"}
_PROTOCOLS = {1: "ICMP", 33: "DCCP", 58: "ICMPv6", 132: "SCTP", 136: "UDP-Lite", 256: "SMC", 262: "MPTCP"}


class SocketProblem(ValueError):
    """Base of the two refusals. `reason` completes the sentence "the descriptor is ..."."""

    def __init__(self, error_number: int, reason: str, port: int | None = None) -> None:
        super().__init__(reason)
        self.errno = error_number
        self.reason = reason
        self.port = port  # local port, of IPv4 and IPv6 sockets


class NotASocket(SocketProblem):
    """The descriptor is not open (EBADF), or open on something else (ENOTSOCK)."""


class WrongSocket(SocketProblem):
    """A socket, but of a kind or in a state that connections cannot be steered to."""


class SocketInfo(Record):
    """A TCP or UDP socket. `family` (4 or 6) is the socket's own, see `serves` for what it takes.

    `address` is 16 bytes, IPv4 v4-mapped; `port` is in host order. `netns_inode` is None
    without CAP_NET_ADMIN, `netns_cookie` before Linux 5.14.
    """

    family: int
    protocol: int
    listening: bool
    connected: bool
    address: bytes
    port: int
    v6only: bool
    reuseport: bool
    cookie: int
    netns_inode: int | None
    inode: int
    netns_cookie: int | None

    def serves(self) -> tuple[int, ...]:
        """Families of the traffic that the socket takes by itself: (4,), (6,), or (4, 6): dual-stack."""
        return serves(self.family, self.address, self.v6only)


def serves(family: int, address: bytes, v6only: bool) -> tuple[int, ...]:
    """Families of the traffic that a socket of `family`, bound to the 16 bytes `address`, takes by itself.

    An IPv6 socket takes IPv4 only when it is bound to :: without IPV6_V6ONLY, or to a v4-mapped address. (On
    one that is bound to an IPv6 address the kernel sets IPV6_V6ONLY itself.)
    """
    if family == 4 or address.startswith(_MAPPED):
        return (4,)
    return (4, 6) if not v6only and address == bytes(16) else (6,)


def describe(fd: int, *, any_state: bool = False) -> SocketInfo:
    """Look at a socket through a descriptor of this process. Changes nothing, its file status flags neither.

    Raises NotASocket; WrongSocket for another family, type or protocol and, unless `any_state`, for a TCP
    socket that does not listen and a UDP socket that is connected or not bound to a port.
    """
    try:
        inode = os.fstat(fd).st_ino
        probe = socket(-1, -1, -1, fd)  # asks for family, type and protocol; sets nothing
    except OSError as error:
        raise _not_a_socket(error) from None
    try:
        return _describe(probe, fd, inode, any_state)
    finally:
        probe.detach()  # the descriptor stays the caller's


def _describe(probe: socket, fd: int, inode: int, any_state: bool) -> SocketInfo:
    domain, kind, protocol = probe.family, probe.type, probe.proto
    if domain not in (AF_INET, AF_INET6):
        named = _FAMILIES.get(domain, f"family {domain}")
        raise WrongSocket(errno.EAFNOSUPPORT, f"a {named} socket, not IPv4 or IPv6")
    address, port = _local(probe)
    if kind not in (SOCK_STREAM, SOCK_DGRAM):
        named = _TYPES.get(kind, f"type {kind}")
        raise WrongSocket(errno.ESOCKTNOSUPPORT, f"a {named} socket, not TCP or UDP", port)
    if protocol != (TCP if kind == SOCK_STREAM else UDP):
        named = _PROTOCOLS.get(protocol, f"protocol {protocol}")
        article = "an" if named[0] in "MI" else "a"
        raise WrongSocket(errno.EPROTONOSUPPORT, f"{article} {named} socket, not TCP or UDP", port)
    listening = bool(probe.getsockopt(SOL_SOCKET, SO_ACCEPTCONN))
    connected = not listening and _has_peer(probe)
    if not any_state:
        _check_state(protocol, listening, connected, port)
    return SocketInfo(
        family=4 if domain == AF_INET else 6,
        protocol=protocol,
        listening=listening,
        connected=connected,
        address=address,
        port=port,
        v6only=domain == AF_INET6 and bool(probe.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY)),
        reuseport=bool(probe.getsockopt(SOL_SOCKET, SO_REUSEPORT)),
        cookie=int.from_bytes(probe.getsockopt(SOL_SOCKET, _SO_COOKIE, 8), sys.byteorder),
        netns_inode=_netns_inode(fd),
        inode=inode,
        netns_cookie=_netns_cookie(probe),
    )


def _check_state(protocol: int, listening: bool, connected: bool, port: int) -> None:
    if protocol == TCP and not listening:
        state = "connected" if connected else "not listening"
        raise WrongSocket(errno.EBADFD, f"a TCP socket that is {state}", port)
    if protocol == UDP and connected:
        raise WrongSocket(errno.EBADFD, "a UDP socket that is connected to a peer", port)
    if port == 0:
        raise WrongSocket(errno.EBADFD, "a UDP socket that is not bound to a port", port)


def _not_a_socket(error: OSError) -> SocketProblem:
    if error.errno == errno.ENOTSOCK:
        return NotASocket(errno.ENOTSOCK, "not a socket")
    if error.errno == errno.EBADF:
        return NotASocket(errno.EBADF, "not open, or opened with O_PATH")
    return WrongSocket(error.errno or 0, f"a socket that cannot be asked ({error.strerror})")


def _local(probe: socket) -> tuple[bytes, int]:
    """Local address as 16 bytes, and port. (Python leaves the zone out of an IPv6 address.)"""
    text, port = probe.getsockname()[:2]
    return (inet_pton(AF_INET6, text) if ":" in text else _MAPPED + inet_pton(AF_INET, text)), port


def _has_peer(probe: socket) -> bool:
    try:
        probe.getpeername()
    except OSError:
        return False
    return True


def _netns_inode(fd: int) -> int | None:
    try:
        namespace = fcntl.ioctl(fd, _SIOCGSKNS)
    except OSError:
        return None
    try:
        return os.fstat(namespace).st_ino
    finally:
        os.close(namespace)


def _netns_cookie(probe: socket) -> int | None:
    try:
        return int.from_bytes(probe.getsockopt(SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError:
        return None
