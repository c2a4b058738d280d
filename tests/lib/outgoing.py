"""Clients in a cgroup of their own, and servers for them: what tests of services start from."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from tests.lib.balanced import SO_COOKIE, hierarchy, join
from tests.lib.child import Child, child, needs_root
from tests.lib.guard import cgroup_name
from tests.lib.run import ok
from tests.lib.until import remove_cgroup
from tests.lib.world import world

SIZES = ("--max-services", "100", "--max-backends", "200", "--max-sockets", "1000")


OTHER_NETNS = ("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
"""Words before a command that give it a network namespace of its own, without a name, its loopback up."""


@contextlib.contextmanager
def cgroup() -> Iterator[str]:
    """Path of a new cgroup, removed at the end: by then no process may be in it."""
    path = f"{hierarchy()}/{cgroup_name('out')}"
    os.mkdir(path)
    try:
        yield path
    finally:
        remove_cgroup(path)


@contextlib.contextmanager
def balancer(*load: str) -> Iterator[str]:
    """A world of its own with the balancer on a new cgroup, whose path it gives. `load`: more options of load."""
    needs_root()
    with world(), cgroup() as path:
        ok("load", "--max-bindings", "100", "--max-destinations", "10", *load)
        ok("attach", "cgroup", path, *SIZES)
        yield path


def clear_services() -> None:
    """Remove every service, and what is remembered of them."""
    for name in ok("services", "-o", "name").out.splitlines():
        ok("service", "delete", name)
    ok("gc")


@contextlib.contextmanager
def client(path: str, code: str = "", *, prefix: tuple[str, ...] = ()) -> Iterator[Child]:
    """A child whose sockets belong to the cgroup."""
    with child(prefix=prefix) as one:
        join(path, one.pid)
        one.run(f"SO_COOKIE = {SO_COOKIE}\n{_HELPERS}")
        if code:
            one.run(code)
        yield one


# What clients can call: everything they open is kept under a name.
_HELPERS = """
socks = {}
def udp(name, address, port, family=socket.AF_INET):
    s = socks[name] = socket.socket(family, socket.SOCK_DGRAM)
    s.connect((address, port))
    return cookie(name)
def tcp(name, address, port, family=socket.AF_INET):
    s = socks[name] = socket.socket(family)
    s.settimeout(60)
    s.connect((address, port))
    return cookie(name)
def serve(address, port, family=socket.AF_INET):
    s = socks[('server', address, port)] = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen(64)
def cookie(name):
    return int.from_bytes(socks[name].getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)
def peer(name):
    try:
        return list(socks[name].getpeername()[:2])
    except OSError as error:
        return error.errno
def send(name):
    try:
        return socks[name].send(b'x')
    except OSError as error:
        return error.errno
def close(name):
    socks.pop(name).close()
"""


def udp_receiver(address: str, port: int) -> socket.socket:
    """A bound UDP socket: without one, what a client sends comes back as an error."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    one.bind((address, port))
    return one
