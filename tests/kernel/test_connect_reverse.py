"""Reverse entries: made when a backend is chosen, gone with their socket, true as long as they are there."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable

import pytest

from svcctl.bpf.map import Map
from svcctl.state.place import Place
from svcctl.state.writer import open_writer
from tests.kernel.test_connect_udp import dissolve
from tests.lib.balanced import VIP, VIP6, Balanced, cookie, name
from tests.lib.svc import svc
from tests.lib.world import sh

MAPPED = f"::ffff:{VIP}"
EACH = 100
"""Sockets in each way of closing."""


@pytest.fixture
def web(balanced: Balanced) -> list[str]:
    """Two backends of each family behind the VIPs, TCP and UDP, and port 81 that nobody listens on."""
    backends = [balanced.farm.open(f"127.0.1.{n}", 8080, "tcp udp") for n in (1, 2)]
    backends.append(balanced.farm.open("::1", 8080, "tcp udp"))
    balanced.add(
        "web", *(f"{a}:80/{k}" for a in (VIP, f"[{VIP6}]") for k in ("tcp", "udp")), backends=backends
    )
    balanced.add("dead", *(f"{a}:81/{k}" for a in (VIP, f"[{VIP6}]") for k in ("tcp", "udp")),
                 backends=["127.0.1.1:9", "[::1]:9"])  # fmt: skip
    return backends


Way = Callable[[Balanced, str, int], None]


def _connected(balanced: Balanced, address: str, family: int) -> None:
    balanced.client(address, 80, "udp", family).close()


def _unconnected(balanced: Balanced, address: str, family: int) -> None:
    with balanced.socket("udp", family) as one:
        one.sendto(b"?", (address, 80))


def _tcp(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "tcp", family) as one:
        assert name(one.getpeername()) == (address, 80)


def _tcp_shut_down(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "tcp", family) as one:
        one.shutdown(socket.SHUT_RDWR)


def _tcp_reset(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "tcp", family) as one:
        balanced.farm.takers()
        with contextlib.suppress(OSError):
            one.recv(1)


def _refused(balanced: Balanced, address: str, family: int) -> None:
    with balanced.socket("tcp", family) as one:
        one.settimeout(None)
        assert one.connect_ex((address, 81)) == errno.ECONNREFUSED


def _refused_non_blocking(balanced: Balanced, address: str, family: int) -> None:
    with balanced.socket("tcp", family) as one:
        one.setblocking(False)
        assert one.connect_ex((address, 81)) in (errno.EINPROGRESS, errno.ECONNREFUSED)


def _dissolved(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "udp", family) as one:
        dissolve(one)


def _dissolved_tcp(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "tcp", family) as one:
        dissolve(one)


def _elsewhere(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "udp", family) as one:
        one.connect(({VIP: "127.0.0.1", VIP6: "::1", MAPPED: "::ffff:127.0.0.1"}[address], 9))


def _two_services(balanced: Balanced, address: str, family: int) -> None:
    with balanced.client(address, 80, "udp", family) as one:
        one.connect((address, 81))
        with contextlib.suppress(ConnectionRefusedError):
            one.sendto(b"?", (address, 80))


WAYS = (
    _connected, _unconnected, _tcp, _tcp_shut_down, _tcp_reset, _refused, _refused_non_blocking, _dissolved,
    _dissolved_tcp, _elsewhere, _two_services,
)  # fmt: skip


@pytest.mark.parametrize("address", [VIP, VIP6, MAPPED], ids=["v4", "v6", "mapped"])
@pytest.mark.parametrize("way", WAYS, ids=[way.__name__[1:] for way in WAYS])
def test_nothing_is_left(balanced: Balanced, web: list[str], way: Way, address: str) -> None:
    """After each kind of close the map is empty again. T12."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for number in range(EACH):
        way(balanced, address, family)
        if not number % 20:
            balanced.farm.takers("tcp")
    assert balanced.reverse() == {}
    assert counted(balanced) == 0
    assert balanced.stats("web", 6 if address == VIP6 else 4).reverse_full == 0


def counted(balanced: Balanced) -> int:
    """Entries that the programs believe to be there; too many costs time, too few would hide one."""
    with Map.open_pinned(f"{balanced.state_dir}/reverse_counts", read_only=True) as counts:
        _, values, count = counts.read_all()
    return sum(struct.unpack(f"={count}I", values))


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_destroyed_socket(balanced: Balanced, web: list[str], kind: str) -> None:
    """SOCK_DESTROY clears a UDP socket's peer before it is released; the entry goes by the cookie alone."""
    if "ss" not in sh("ls /usr/bin/ss /bin/ss 2>/dev/null || true").stdout:
        pytest.skip("needs ss")
    clients = [balanced.client(VIP, 80, kind) for _ in range(5)]
    assert len(balanced.reverse()) == 5
    sh(f"ss --kill -H --{kind} state established dst 127.0.1.0/24")
    broken = 0
    for one in clients:
        try:
            one.send(b"?")
        except OSError:
            broken += 1
    for one in clients:
        one.close()
    if not broken:
        pytest.skip("this kernel has no SOCK_DESTROY")
    assert broken == 5
    assert balanced.reverse() == {}


def test_killed_process(balanced: Balanced, web: list[str]) -> None:
    """Sockets of a process that is killed go like any other."""
    pid = os.fork()
    if pid == 0:
        kept = [balanced.client(VIP, 80, kind) for kind in ("tcp", "udp") for _ in range(20)]
        os.kill(os.getpid(), 9)
        kept.clear()
    os.waitpid(pid, 0)
    assert balanced.reverse() == {}


def test_entry_of_a_deleted_service(balanced: Balanced, web: list[str]) -> None:
    """The name of a service that is gone is never given: the real peer is, and no error. T2."""
    with balanced.client(VIP, 80) as tcp, balanced.client(VIP, 80, "udp") as udp:
        for one in (tcp, udp):
            assert one.getpeername() == (VIP, 80)
        udp.send(b"?")
        backend = balanced.farm.reply()
        svc("service", "delete", "web")
        address, _, port = backend.partition(":")
        assert udp.getpeername() == (address, int(port))
        assert udp.recvfrom(64)[1] == (address, int(port))
        assert tcp.getpeername()[0].startswith("127.0.1.")
        udp.send(b"!")  # the connection itself lives on
        assert balanced.farm.reply() == backend


def test_entry_of_a_service_made_anew(balanced: Balanced, web: list[str]) -> None:
    """The same name, the same frontend, the same backends: still another service, with another id."""
    with balanced.client(VIP, 80, "udp") as one, balanced.client(VIP, 80) as tcp:
        peers = [entry for entry, _ in balanced.stands(one)]
        svc("service", "delete", "web")
        balanced.add("web", f"{VIP}:80/udp", f"{VIP}:80/tcp", backends=web[:2])
        address, _, port = peers[0].partition(":")
        assert one.getpeername() == (address, int(port))
        assert tcp.getpeername() != (VIP, 80)
        assert balanced.stats("web").connections == 0
        # Connected again, it is the new one.
        one.connect((VIP, 80))
        assert one.getpeername() == (VIP, 80)
        assert balanced.stats("web").connections == 1


def test_entry_when_the_lane_is_used_again(balanced: Balanced, web: list[str]) -> None:
    """Right after its service was deleted, once all lanes have been given out: named by neither service."""
    with balanced.client(VIP, 80, "udp") as one, balanced.client(f"::ffff:{VIP}", 80) as tcp:
        (peer, _), *_ = balanced.stands(one)
        lane = balanced.service("web").lane4
        svc("service", "delete", "web")
        with open_writer(Place(), "test") as writer, writer.changing():
            writer.put_meta(writer.meta()._replace(next_lane=writer.map("current").info.max_entries))
        balanced.add("other", "10.96.0.77:80/udp", "10.96.0.77:80/tcp", backends=web[:2])
        assert balanced.service("other").lane4 == lane
        address, _, port = peer.partition(":")
        assert one.getpeername() == (address, int(port))
        assert tcp.getpeername()[0].startswith("::ffff:127.0.1.")
        assert balanced.stats("other").connections == 0


def test_names_survive_every_other_change(balanced: Balanced, web: list[str]) -> None:
    """Backends come and go, options change, the frontend itself is taken away: the peer keeps its name."""
    with balanced.client(VIP, 80, "udp") as one:
        for words in (
            ("backend", "drain", "web", *web[:2]),
            ("backend", "add", "web", "127.0.1.3:8080"),
            ("backend", "delete", "web", *web),
            ("backend", "delete", "web", "127.0.1.3:8080"),
            ("service", "set", "web", "--affinity", 5),
            ("service", "set", "web", "--no-frontend", f"{VIP}:80/udp"),
            ("upgrade", "--force"),
        ):
            svc(*words)
            assert one.getpeername() == (VIP, 80), words


def _full(balanced: Balanced) -> list[socket.socket]:
    """Sockets that fill the reverse map to the last entry."""
    room = Map.open_pinned(f"{balanced.state_dir}/reverse", read_only=True)
    with room:
        largest = room.info.max_entries
    kept = []
    for _ in range(largest):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.connect((VIP, 80))
        kept.append(one)
    return kept


def test_full_map(balanced: Balanced, web: list[str]) -> None:
    """Nobody is refused and nobody evicted: what does not fit is served, and counted. T13."""
    resource_limit(balanced)
    with balanced.client(VIP, 80) as old:
        kept = _full(balanced)
        try:
            before = balanced.stats("web")
            assert before.reverse_full == 1  # the last of them
            for kind in ("tcp", "udp"):
                with balanced.client(VIP, 80, kind) as one:
                    assert name(one.getpeername()) != (VIP, 80)
                    assert name(one.getpeername())[0].startswith("127.0.1.")
            with balanced.socket("udp") as one:
                for _ in range(3):
                    one.sendto(b"?", (VIP, 80))
                    balanced.farm.reply()
                    assert one.recvfrom(64)[1][0].startswith("127.0.1.")
            after = balanced.stats("web")
            assert after.reverse_full - before.reverse_full == 5
            assert after.connections - before.connections == 5
            assert old.getpeername() == (VIP, 80)
            assert all(one.getpeername() == (VIP, 80) for one in kept[:-1])
            assert counted(balanced) == len(balanced.reverse()) == len(kept)
            # One goes, the next one fits.
            kept.pop(0).close()
            with balanced.client(VIP, 80) as one:
                assert one.getpeername() == (VIP, 80)
        finally:
            for one in kept:
                one.close()
    balanced.farm.takers()
    assert balanced.reverse() == {}


def resource_limit(balanced: Balanced) -> None:
    import resource

    with Map.open_pinned(f"{balanced.state_dir}/reverse", read_only=True) as room:
        needed = room.info.max_entries + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"needs {needed} descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def test_nothing_is_rewritten_that_has_not_changed(balanced: Balanced, web: list[str]) -> None:
    """The same flow again leaves every byte of its socket's entry as it was."""
    with balanced.client(VIP, 80, "udp") as one, Map.open_pinned(f"{balanced.state_dir}/reverse") as table:
        key = struct.pack("=Q", cookie(one))
        data = table.lookup(key)
        assert data is not None
        for _ in range(50):
            one.connect((VIP, 80))
            one.sendto(b"?", (VIP, 80))
        assert table.lookup(key) == data
        other = balanced.client(VIP, 80, "udp")
        with other:
            assert table.lookup(key) == data
    with balanced.socket("udp") as one, Map.open_pinned(f"{balanced.state_dir}/reverse") as table:
        one.sendto(b"?", (VIP, 80))
        key = struct.pack("=Q", cookie(one))
        data = table.lookup(key)
        for _ in range(50):
            one.sendto(b"?", (VIP, 80))
        assert table.lookup(key) == data
    balanced.farm.takers("udp")


def test_threads_on_one_socket(balanced: Balanced, web: list[str]) -> None:
    """The first datagrams of one socket from two threads at once: one entry, nothing counted as full."""
    import threading

    for _ in range(50):
        with balanced.socket("udp") as one:
            gate = threading.Barrier(2)

            def send(one: socket.socket = one, gate: threading.Barrier = gate) -> None:
                gate.wait()
                one.sendto(b"?", (VIP, 80))

            threads = [threading.Thread(target=send) for _ in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert balanced.stats("web").reverse_full == 0
    assert balanced.reverse() == {}
