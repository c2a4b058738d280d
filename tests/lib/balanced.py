"""What the tests of the connect balancer start from: a cgroup of their own with the balancer on it, and backends.

The test's process moves into the cgroup, so its own sockets and those of every child are served; it moves back at
the end. Nothing runs in the background: a loopback connect is complete, in the backlog of the backend it was sent
to, before connect(2) returns, and a datagram is in its receiver's buffer before sendto(2) does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from sys import byteorder

import pytest

from svcctl.bpf.map import Map
from svcctl.errors import NotFound
from svcctl.host import cgroup
from svcctl.host.capability import kernel_release
from svcctl.maps import enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32, U64
from svcctl.maps.service_layouts import (
    BACKEND,
    REVERSE,
    REVERSE_ENTRY,
    SERVICE,
    SERVICE_STATS,
    ReverseEntry,
    ServiceStats,
    ServiceValue,
)
from svcctl.model.constants import IPV4
from svcctl.model.prefix import format_address
from svcctl.model.service_endpoint import parse_backend
from tests.lib.guard import cgroup_name
from tests.lib.servers import SLOWNESS
from tests.lib.svc import svc
from tests.lib.until import remove_cgroup
from tests.lib.world import World, sh

Socket = socket.socket


SO_COOKIE, SO_RCVBUFFORCE, SO_NETNS_COOKIE = 57, 33, 71
REFUSED = errno.EHOSTUNREACH if kernel_release() >= (6, 1) else errno.EPERM
"""What a refusal is: exactly this. Before Linux 6.1 the hooks cannot say which."""
VIP, VIP6 = "10.96.0.10", "2001:db8:96::10"
_RESET = struct.pack("ii", 1, 0)


def hierarchy() -> str:
    """Where cgroup2 is mounted; mounted here (in the world's own mount namespace) if it is not."""
    try:
        return cgroup.mount_point()
    except NotFound:
        sh("mount -t cgroup2 none /sys/fs/cgroup")
        return "/sys/fs/cgroup"


def join(path: str, pid: int = 0) -> None:
    """Move a process (0: this one) to a cgroup. Its sockets made from now on belong there."""
    with open(f"{path}/cgroup.procs", "w", encoding="ascii") as procs:
        procs.write(str(pid or os.getpid()))


@contextlib.contextmanager
def own_cgroup(parent: str | None = None) -> Iterator[str]:
    """A new cgroup below `parent` (the root), removed at the end."""
    path = f"{parent or hierarchy()}/{cgroup_name('test')}"
    os.mkdir(path)
    try:
        yield path
    finally:
        remove_cgroup(path)


@contextlib.contextmanager
def inside(path: str) -> Iterator[None]:
    """This process in the cgroup for the length of a block."""
    with open("/proc/self/cgroup", encoding="ascii") as lines:
        (home,) = [line.rstrip("\n")[3:] for line in lines if line.startswith("0::")]
    join(path)
    try:
        yield
    finally:
        join(hierarchy() + home)


def name(where: object) -> tuple[str, int]:
    """The first two parts of a socket address."""
    assert isinstance(where, tuple)
    return where[0], where[1]


def family_of(address: str) -> int:
    """AF_INET or AF_INET6 for an address text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def cookie(one: Socket) -> int:
    """The kernel's cookie of a socket."""
    return int.from_bytes(one.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), byteorder)


class Farm:
    """Backends of TCP and UDP, by name, and the question which of them was met."""

    def __init__(self) -> None:
        self.sockets: dict[str, socket.socket] = {}

    def open(self, address: str, port: int, kinds: str = "tcp", family: int | None = None) -> str:
        """A backend that is there for the given kinds; its name, `address:port`."""
        family = family_of(address) if family is None else family
        text = f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
        for kind in kinds.split():
            one = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
            one.setblocking(False)
            if kind == "tcp":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            else:
                one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
            one.bind((address, port))
            if kind == "tcp":
                one.listen(1024)
            self.sockets[f"{kind} {text}"] = one
        return text

    def many(self, count: int, kinds: str = "tcp", port: int = 8080, first: int = 1) -> list[str]:
        """`count` backends 127.0.1.x."""
        return [self.open(f"127.0.1.{n}", port, kinds) for n in range(first, first + count)]

    def takers(self, kind: str = "tcp", least: int = 0) -> Counter[str]:
        """Who got how many connections or datagrams since the last question. Waits until there are so many.

        At once as a rule; on a busy machine, or in an emulated kernel, the last packet may be in a queue still.
        """
        found = self._taken(kind)
        until = time.monotonic() + 60 * SLOWNESS
        while found.total() < least and time.monotonic() < until:
            time.sleep(0.01)
            found += self._taken(kind)
        return found

    def accept(self, backend: str) -> tuple[Socket, tuple[str, int]]:
        """One backend's next connection and who made it. The last packet of a handshake may be in a queue still."""
        one = self.sockets[f"tcp {backend}"]
        assert select.select([one], [], [], 60 * SLOWNESS)[0], f"no connection to {backend}"
        accepted, source = one.accept()
        return accepted, source

    def _taken(self, kind: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for text, one in self.sockets.items():
            if text.startswith(kind):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        if kind == "udp":
                            one.recv(64)
                        else:
                            accepted = one.accept()[0]
                            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                            accepted.close()
                        found[text.partition(" ")[2]] += 1
        return found

    def taker(self, kind: str = "tcp") -> str:
        """Who got the one connection or datagram there was."""
        found = self.takers(kind, 1)
        assert found.total() == 1, found
        return next(iter(found))

    def reply(self, times: int = 1) -> str:
        """Have each datagram answered by who got it, with its name; the name of the last."""
        last, until = "", time.monotonic() + 60 * SLOWNESS
        while not last:
            assert time.monotonic() < until, "no backend got a datagram"
            for text, one in self.sockets.items():
                if text.startswith("udp"):
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            _, client = one.recvfrom(64)
                            last = text.partition(" ")[2]
                            for _ in range(times):
                                one.sendto(last.encode(), client)
        return last

    def close(self, backend: str) -> None:
        """End one backend."""
        for kind in ("tcp", "udp"):
            one = self.sockets.pop(f"{kind} {backend}", None)
            if one is not None:
                one.close()

    def close_all(self) -> None:
        """End them all."""
        for one in self.sockets.values():
            one.close()
        self.sockets.clear()


class Balanced:
    """A world with the balancer on `cgroup`, this process in it, and a farm of backends."""

    def __init__(self, world: World, path: str, farm: Farm) -> None:
        self.world, self.cgroup, self.farm = world, path, farm

    @property
    def state_dir(self) -> str:
        """Path of the state directory."""
        return self.world.state_dir

    def add(self, service: str, *frontends: str, backends: object = (), **options: object) -> None:
        """`service add`; options as `affinity=3`, `block=True`."""
        words: list[object] = ["service", "add", service]
        for one in frontends:
            words += ["--frontend", one]
        for backend in list(backends):  # type: ignore[call-overload]
            words += ["--backend", backend]
        for option, value in options.items():
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [value])]
        svc(*words)

    def client(self, address: str, port: int, kind: str = "tcp", family: int | None = None) -> Socket:
        """A connected socket; the caller closes it."""
        one = self.socket(kind, family_of(address) if family is None else family)
        try:
            one.connect((address, port))
        except BaseException:
            one.close()
            raise
        return one

    def socket(self, kind: str = "tcp", family: int = socket.AF_INET) -> Socket:
        """A socket that waits a minute at most, and leaves no port in TIME_WAIT."""
        one = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        one.settimeout(60)
        if kind == "tcp":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return one

    def ask(self, address: str, port: int, kind: str = "tcp", family: int | None = None) -> str:
        """Connect, see who got it, close."""
        with self.client(address, port, kind, family) as one:
            if kind == "udp":
                one.send(b"?")
            return self.farm.taker(kind)

    def ask_often(self, times: int, address: str, port: int, kind: str = "tcp") -> Counter[str]:
        """Who got how many of as many new connections."""
        found: Counter[str] = Counter()
        for _ in range(times):
            found[self.ask(address, port, kind)] += 1
        return found

    def error(self, address: str, port: int, kind: str = "tcp", family: int | None = None) -> int:
        """The errno of a connect; 0: none."""
        with self.socket(kind, family_of(address) if family is None else family) as one:
            return one.connect_ex((address, port))

    def lookup(self, table: str, key: bytes) -> bytes | None:
        """A value of a pinned map, or None."""
        with Map.open_pinned(f"{self.state_dir}/{table}", read_only=True) as opened:
            return opened.lookup(key)

    def reverse(self) -> dict[int, list[ReverseEntry]]:
        """Entries in use by socket cookie; a socket whose entries are all empty has an empty list."""
        found: dict[int, list[ReverseEntry]] = {}
        with Map.open_pinned(f"{self.state_dir}/reverse", read_only=True) as opened:
            for key, data in opened.items():
                rows = REVERSE_ENTRY.struct.iter_unpack(REVERSE.unpack(data).entries)
                entries = [ReverseEntry(*row) for row in rows]
                found[U64.unpack(key)[0]] = [entry for entry in entries if entry.service]
        return found

    def stands(self, one: Socket) -> list[tuple[str, str]]:
        """(backend, frontend) of each entry of a socket, as `address:port`."""
        return [
            (
                _place(entry.backend_address, entry.backend_port),
                _place(entry.frontend_address, entry.frontend_port),
            )
            for entry in self.reverse().get(cookie(one), [])
        ]

    def service(self, service: str) -> ServiceValue:
        """What `services` has of it."""
        number = self.lookup("service_names", codec.name_key(service))
        assert number is not None
        data = self.lookup("services", number)
        assert data is not None
        return SERVICE.unpack(data)

    def stats(self, service: str, family: int = IPV4) -> ServiceStats:
        """A service's counters of one family."""
        value = self.service(service)
        lane = value.lane4 if family == IPV4 else value.lane6
        found = self.lookup("service_stats", U32.pack(lane))
        assert found is not None
        return SERVICE_STATS.unpack(found)

    def picks(self, backend: str) -> int:
        """Connections a backend was given by all services."""
        place = parse_backend(backend)
        found = self.lookup("backend_ids", codec.backend_key(place))
        assert found is not None, backend
        data = self.lookup("backends", found[:4])
        assert data is not None
        return BACKEND.unpack(data).picks

    def drops(self, reason: str) -> int:
        """How often something was refused for a reason: `NO_BACKEND` and so on."""
        data = self.lookup("drop_stats", U32.pack(enums.DROP_REASON[f"SVC_DROP_{reason}"]))
        assert data is not None
        return sum(int.from_bytes(data[n : n + 8], byteorder) for n in range(0, len(data), 8))


def _place(address: bytes, port: int) -> str:
    family = codec.family_of(address)
    text = format_address(family, address)
    return f"{text}:{port}" if family == IPV4 else f"[{text}]:{port}"


def needs_cookie(made: Balanced) -> None:
    """Skip what needs a namespace's cookie: before Linux 5.14 only the initial one's sockets are told apart."""
    with socket.socket() as one:
        try:
            one.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        except OSError:
            pytest.skip(f"no SO_NETNS_COOKIE, and {made.state_dir} is not the initial namespace's")


@contextlib.contextmanager
def balanced(world: World, *options: object) -> Iterator[Balanced]:
    """`load --no-dispatcher` and `attach cgroup` with the options given."""
    farm = Farm()
    with own_cgroup() as path, inside(path):
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", path, *options)
        try:
            yield Balanced(world, path, farm)
        finally:
            farm.close_all()
            svc("unload", "--yes", code=None)


SMALL = ("--max-services", 64, "--max-backends", 256, "--max-sockets", 4096)
