"""The program behind `tests.lib.servers.Server`: opens sockets as told on stdin, answers clients with their names.

One JSON object a line in, one a line out. It needs the standard library only and is started with -I -S, so that
it is up in a few milliseconds. A client that connects, or sends a datagram, gets the name of the socket it met.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

PROTOCOLS = {
    "tcp": (socket.SOCK_STREAM, 0),
    "udp": (socket.SOCK_DGRAM, 0),
    "mptcp": (socket.SOCK_STREAM, 262),
    "udplite": (socket.SOCK_DGRAM, 136),
    "unix": (socket.SOCK_STREAM, 0),
    "raw": (socket.SOCK_RAW, 253),
}
SO_COOKIE = 57
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000

sockets: dict[str, socket.socket] = {}
selector = selectors.DefaultSelector()


def watch(name: str) -> None:
    kept = sockets[name]
    kept.setblocking(False)
    selector.register(kept, selectors.EVENT_READ, name)


def free_port(like: socket.socket, address: str) -> int:
    """A port that nobody has: of SO_REUSEPORT sockets the kernel may give one another's, which makes them a group."""
    with socket.socket(like.family, like.type, like.proto) as probe:
        if like.family == socket.AF_INET6:
            only = like.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def op_open(
    name: str,
    kind: str = "tcp",
    family: int = 4,
    address: str = "127.0.0.1",
    port: int = 0,
    reuseport: bool = False,
    v6only: bool | None = None,
    listen: bool = True,
    fd: int | None = None,
) -> dict[str, int]:
    """Make a socket, bind it, listen; `fd` moves it to that descriptor."""
    domain = socket.AF_UNIX if kind == "unix" else socket.AF_INET if family == 4 else socket.AF_INET6
    made = socket.socket(domain, *PROTOCOLS[kind])
    if kind != "unix":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kind == "tcp")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuseport)
        if v6only is not None:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        if address:
            made.bind((address, port or free_port(made, address) if reuseport else port))
    else:
        made.bind(address)
    if kind in ("tcp", "mptcp", "unix") and listen:
        made.listen(128)
    if fd is not None:
        os.dup2(made.fileno(), fd)
        made.close()
        made = socket.socket(domain, *PROTOCOLS[kind], fd)
    sockets[name] = made
    if kind != "raw" and (listen or kind in ("udp", "udplite")):
        watch(name)
    return describe(made)


def describe(made: socket.socket) -> dict[str, int]:
    where = made.getsockname()
    return {
        "fd": made.fileno(),
        "inode": os.fstat(made.fileno()).st_ino,
        "cookie": int.from_bytes(made.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder),
        "port": where[1] if isinstance(where, tuple) else 0,
    }


def op_close(name: str) -> None:
    closed = sockets.pop(name)
    with contextlib.suppress(KeyError):
        selector.unregister(closed)
    closed.close()


def op_shutdown(name: str) -> None:
    """Stop listening without closing. The selector would spin on the hang-up."""
    selector.unregister(sockets[name])
    sockets[name].shutdown(socket.SHUT_RDWR)


def op_listen(name: str) -> None:
    sockets[name].listen(128)
    watch(name)


def op_connect(name: str, address: str, port: int) -> None:
    sockets[name].connect((address, port))


def op_dup(name: str, fd: int) -> None:
    os.dup2(sockets[name].fileno(), fd)


def op_opath(name: str, fd: int) -> None:
    """An O_PATH descriptor of the very socket, or of the root directory for an empty name."""
    path = f"/proc/self/fd/{sockets[name].fileno()}" if name else "/"
    opened = os.open(path, os.O_PATH)
    os.dup2(opened, fd)
    os.close(opened)


def op_flags(fd: int) -> dict[str, int]:
    return {"flags": fcntl.fcntl(fd, fcntl.F_GETFL)}


def op_fork(depth: int = 1) -> dict[str, int]:
    """Hand everything to a child (or grandchild) and keep nothing; it ends when the parent does."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(reader)
        if depth > 1:
            op_fork(depth - 1)
            os.write(writer, b"%d" % os.getpid())
            os.close(writer)
            while True:
                signal.pause()
        os.write(writer, b"%d" % os.getpid())
        os.close(writer)
        loop(selectors_without_stdin())
    os.close(writer)
    child = int(os.read(reader, 20))
    os.close(reader)
    for name in list(sockets):
        op_close(name)
    return {"pid": child}


def op_unshare() -> None:
    """Go on in a new network namespace (with its loopback down)."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        raise OSError("unshare")


def selectors_without_stdin() -> selectors.BaseSelector:
    own = selectors.DefaultSelector()
    for name, kept in sockets.items():
        own.register(kept, selectors.EVENT_READ, name)
    return own


def answer(name: str) -> None:
    kept = sockets[name]
    try:
        if kept.type & socket.SOCK_DGRAM:
            _, client = kept.recvfrom(2048)
            kept.sendto(name.encode(), client)
            return
        taken, _ = kept.accept()
    except OSError:
        return
    with taken, contextlib.suppress(OSError):
        taken.sendall(name.encode())


def command(line: str) -> None:
    request = json.loads(line)
    try:
        result = globals()[f"op_{request.pop('op')}"](**request) or {}
    except OSError as problem:
        result = {"error": str(problem)}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def loop(watched: selectors.BaseSelector) -> None:
    stdin: Any = sys.stdin
    raw = stdin.buffer.raw  # nothing may wait in a buffer behind select
    while True:
        for key, _ in watched.select():
            if key.fileobj is sys.stdin:
                line = raw.readline()
                if not line:
                    os._exit(0)
                command(line.decode())
            elif key.data in sockets:
                answer(key.data)


if __name__ == "__main__":
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    loop(selector)
