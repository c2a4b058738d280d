"""Sockets that connections are steered to, and the question which of them answers.

Nothing runs in the background: a connection waits in the backlog of the listener it was steered to, a datagram
in its receiver's buffer.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from types import TracebackType

PATIENCE = 60 * float(os.environ.get("SVCCTL_SLOWNESS", "1"))
"""Seconds to wait for what should be there already."""

NOBODY = "nobody"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: close resets, and no port stays in TIME_WAIT."""


class Traffic:
    """Named listeners, closed together."""

    def __init__(self) -> None:
        self._sockets: list[tuple[str, socket.socket]] = []

    def listen(
        self, name: str, address: str, port: int, *, udp: bool = False, reuseport: bool = False
    ) -> socket.socket:
        """A listening TCP socket or a bound UDP socket."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        one = socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
        one.setblocking(False)
        if not udp:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuseport:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((address, port))
        if not udp:
            one.listen(64)
        self._sockets.append((name, one))
        return one

    def drop(self, one: socket.socket) -> None:
        """Close a listener."""
        self._sockets = [(name, other) for name, other in self._sockets if other is not one]
        one.close()

    def ask(self, address: str, port: int, *, udp: bool = False) -> str | None:
        """The name of the socket that gets a connection or datagram to an address.

        None: refused; NOBODY: refused because a service has no backend.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE)
            try:
                client.connect((address, port))
                if udp:
                    client.send(b"?")
                else:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return self._taker(client, udp)
            except ConnectionRefusedError:
                return None
            except OSError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                return NOBODY

    def _taker(self, client: socket.socket, udp: bool) -> str:
        """Which socket it is. At once as a rule; on a busy machine the last packet may be on its way still."""
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        names = {one: name for name, one in self._sockets if one.type == kind}
        # A refused datagram makes its sender readable: recv then raises.
        ready = select.select([*names, *([client] if udp else [])], [], [], PATIENCE)[0]
        assert len(ready) == 1, f"one connection, takers: {[names.get(one) for one in ready]}"
        (taker,) = ready
        if udp:
            taker.recv(16)
        else:
            taker.accept()[0].close()
        return names[taker]

    def close(self) -> None:
        """Close every socket."""
        for _, one in self._sockets:
            one.close()
        self._sockets.clear()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
