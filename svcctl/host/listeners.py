"""Listening stream sockets: made on a numeric address, or taken over from whoever started us."""

from __future__ import annotations

import socket

BACKLOG = 256


def listen(address: str, port: int) -> socket.socket:
    """A TCP socket that listens on a numeric address; port 0: any free one.

    `::` takes IPv4 too. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES; socket.gaierror for what is not an
    address.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV | socket.AI_PASSIVE
    family, kind, protocol, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=flags
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.split("%")[0] != "::"))
        listener.bind(where)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def adopt(fd: int) -> socket.socket:
    """The listening stream socket behind a descriptor that was passed in. Raises OSError or ValueError."""
    passed = socket.socket(fileno=fd)
    if passed.type != socket.SOCK_STREAM or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.detach()
        raise ValueError("not a listening stream socket")
    return passed


def name_of(listener: socket.socket, path: str = "/metrics") -> str:
    """What a client would call it: `http://[::1]:9100/metrics`, or the path of a unix socket."""
    where = listener.getsockname()
    if listener.family == socket.AF_INET6:
        return f"http://[{where[0]}]:{where[1]}{path}"
    if listener.family == socket.AF_INET:
        return f"http://{where[0]}:{where[1]}{path}"
    return f"unix:{where if isinstance(where, str) else where.decode('utf-8', 'backslashreplace')}"
