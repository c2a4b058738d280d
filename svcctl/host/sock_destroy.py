"""Sockets connected to an address, and ending them: sock_diag(7) with a filter, and SOCK_DESTROY.

By raw netlink, as sock_diag.py: of SOCK_DESTROY pyroute2 (0.9) has the number but no call, it does not filter by
the peer's address, and importing it takes longer than all of this.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from _socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING

from svcctl.errors import PermissionProblem, SvcctlError
from svcctl.host import sock_diag
from svcctl.record import Record

if TYPE_CHECKING:
    from types import TracebackType

    from svcctl.host.netns import Netns

TCP, UDP = 6, 17
# Of <net/tcp_states.h>: ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
_TCP_CONNECTED = sum(1 << state for state in (1, 2, 3, 4, 5, 8, 9, 11))
_TIME_WAIT = 1 << 6
_UDP_CONNECTED = 1 << sock_diag.ESTABLISHED

_SOCK_DIAG_BY_FAMILY, _SOCK_DESTROY = 20, 21
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_DUMP_INTR = 0x10
_REQ_BYTECODE = 1
_BC_D_COND = 8
_RETRIES = 2

_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBxI48s")  # struct inet_diag_req_v2
_ID_AT, _ID_SIZE = 4, 48  # struct inet_diag_sockid in struct inet_diag_msg
_MESSAGE_SIZE = 72
_COOKIE = struct.Struct("=Q")
_ATTRIBUTE = struct.Struct("=HH")
_OP = struct.Struct("=BBH")  # struct inet_diag_bc_op
_HOSTCOND = struct.Struct("=BBxxi")  # struct inet_diag_hostcond


class Peer(Record):
    """A socket with a peer. `id` is the kernel's struct inet_diag_sockid: what SOCK_DESTROY wants to know."""

    family: int
    protocol: int
    state: int
    cookie: int
    id: bytes

    @property
    def place(self) -> tuple[bytes, int]:
        """The peer: address (16 bytes, IPv4 v4-mapped) and port."""
        port, address = int.from_bytes(self.id[2:4], "big"), self.id[20:36]
        return (sock_diag.MAPPED + address[:4] if self.family == 4 else address), port


class Diag:
    """A line to the kernel about the sockets of one network namespace."""

    def __init__(self, netns: Netns | None = None) -> None:
        self._kernel = sock_diag.connect(netns)

    def close(self) -> None:
        """End it."""
        self._kernel.close()

    def __enter__(self) -> Diag:
        """Nothing to do: it is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def connected_to(self, protocol: int, address: bytes, port: int) -> list[Peer]:
        """The sockets whose peer is `address` (16 bytes, IPv4 v4-mapped) and `port`, of IPv6 sockets too.

        Time-wait and listening sockets, and UDP sockets without a peer, are none of them. The kernel filters.
        """
        states = _TCP_CONNECTED if protocol == TCP else _UDP_CONNECTED
        if address.startswith(sock_diag.MAPPED):
            code = _destination(AF_INET, address[12:], port)
            # In a filter AF_INET also matches the v4-mapped peer of an IPv6 socket.
            return self._dump(AF_INET, protocol, states, code) + self._dump(AF_INET6, protocol, states, code)
        return self._dump(AF_INET6, protocol, states, _destination(AF_INET6, address, port))

    def connected(self, protocol: int) -> list[Peer]:
        """All sockets that have a peer, of both families."""
        states = _TCP_CONNECTED if protocol == TCP else _UDP_CONNECTED
        return [one for family in (AF_INET, AF_INET6) for one in self._dump(family, protocol, states, b"")]

    def cookies(self) -> set[int]:
        """The cookies of all TCP and UDP sockets that the kernel lists, but those in time-wait: nobody has them."""
        return {
            one.cookie
            for family in (AF_INET, AF_INET6)
            for protocol in (TCP, UDP)
            for one in self._dump(family, protocol, ~_TIME_WAIT & 0xFFFFFFFF, b"")
        }

    def destroy(self, peer: Peer) -> bool:
        """End a socket: its next call fails with ECONNABORTED. False: it went by itself meanwhile.

        Raises SvcctlError where the kernel cannot do it, PermissionProblem without CAP_NET_ADMIN.
        """
        family = AF_INET if peer.family == 4 else AF_INET6
        query = _QUERY.pack(family, peer.protocol, 0, 1 << peer.state, peer.id)
        self._send(_SOCK_DESTROY, _REQUEST | _ACK, query)
        try:
            for _ in self._answers():
                pass
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTCONN):
                return False
            if error.errno == errno.EOPNOTSUPP:
                raise SvcctlError(
                    "end sockets: this kernel has no SOCK_DESTROY", hint="it needs CONFIG_INET_DIAG_DESTROY"
                ) from None
            if error.errno in (errno.EPERM, errno.EACCES):
                raise PermissionProblem(
                    "end sockets: operation not permitted", hint="needs CAP_NET_ADMIN"
                ) from None
            raise
        return True

    def _dump(self, family: int, protocol: int, states: int, code: bytes) -> list[Peer]:
        query = _QUERY.pack(family, protocol, 0, states, bytes(_ID_SIZE))
        if code:
            query += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(code), _REQ_BYTECODE) + code
        found: list[Peer] = []
        for _ in range(_RETRIES + 1):
            self._send(_SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, query)
            found, complete = [], True
            for flags, body in self._answers():
                complete = complete and not flags & _DUMP_INTR
                if len(body) >= _MESSAGE_SIZE:
                    id = body[_ID_AT : _ID_AT + _ID_SIZE]
                    (cookie,) = _COOKIE.unpack_from(id, _ID_SIZE - _COOKIE.size)
                    found.append(Peer(4 if body[0] == AF_INET else 6, protocol, body[1], cookie, id))
            if complete:
                break
        return found

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)

    def _answers(self) -> list[tuple[int, bytes]]:
        """(flags, body) of each message up to the end, or the acknowledgement. Raises the kernel's OSError."""
        found: list[tuple[int, bytes]] = []
        while True:
            data = self._kernel.recv(1 << 16)
            start = 0
            while start + _HEADER.size <= len(data):
                length, kind, flags, _, _ = _HEADER.unpack_from(data, start)
                body = data[start + _HEADER.size : start + length]
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    code = -int.from_bytes(body[:4], sys.byteorder, signed=True) if len(body) >= 4 else 0
                    if code > 0:
                        raise OSError(code, os.strerror(code), "sock_diag")
                    return found
                found.append((flags, body))
                start += (length + 3) & ~3 if length else len(data)


def _destination(family: int, address: bytes, port: int) -> bytes:
    """A filter of one instruction: the peer is this address and port. As ss compiles `dst ADDRESS:PORT`."""
    size = _OP.size + _HOSTCOND.size + len(address)
    # Forward by `yes` to the end, or by `no` past it, which means no match.
    return _OP.pack(_BC_D_COND, size, size + 4) + _HOSTCOND.pack(family, 8 * len(address), port) + address
