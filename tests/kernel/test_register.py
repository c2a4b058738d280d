"""`svcctl register`: sockets handed over by systemd, each accepted or refused by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lib.activation import register_fds, register_sockets
from tests.lib.pins import dump
from tests.lib.servers import SLOWNESS
from tests.lib.svc import ROOT, assert_one_error, installed, process_env, svc
from tests.lib.until import PATIENCE
from tests.lib.world import World

INET, INET6 = socket.AF_INET, socket.AF_INET6
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
IPPROTO_MPTCP, IPPROTO_UDPLITE = 262, 136
SO_COOKIE = 57


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


def listener(
    keep: ExitStack, family: int = INET, kind: int = STREAM, protocol: int = 0, port: int = 0, **options: bool
) -> socket.socket:
    """A socket that may be registered: TCP listening, UDP bound, on the loopback address."""
    made = keep.enter_context(socket.socket(family, kind, protocol))
    if family == INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, options.get("v6only", True))
    if options.get("reuseport"):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1" if family == INET else "::1" if options.get("v6only", True) else "::", port))
    if kind == STREAM:
        made.listen(16)
    return made


def cookie(one: socket.socket) -> int:
    return int.from_bytes(one.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)


def registered(label: str = "web") -> dict[tuple[str, str], set[int]]:
    """(family, protocol) -> cookies."""
    every = svc("destinations", "-o", "json").json["destinations"]
    rows = [row for row in every if row["label"] == label]
    return {(row["family"], row["protocol"]): {one["cookie"] for one in row["members"]} for row in rows}


@pytest.mark.parametrize("kind", [STREAM, DGRAM])
@pytest.mark.parametrize("family", [INET, INET6])
def test_each_supported_kind(loaded: World, keep: ExitStack, family: int, kind: int) -> None:
    made = listener(keep, family, kind)
    register_sockets([made], "web")
    name = ("ipv4" if family == INET else "ipv6", "tcp" if kind == STREAM else "udp")
    assert registered() == {name: {cookie(made)}}


@pytest.mark.parametrize("kind", [STREAM, DGRAM])
def test_dual_stack_counts_for_both_families(loaded: World, keep: ExitStack, kind: int) -> None:
    """tubular refuses it, and so what Python, Go and nginx listen on by default."""
    made = listener(keep, INET6, kind, v6only=False)
    register_sockets([made], "web")
    name = "tcp" if kind == STREAM else "udp"
    assert registered() == {("ipv4", name): {cookie(made)}, ("ipv6", name): {cookie(made)}}


def test_one_socket_of_each_kind_at_once(loaded: World, keep: ExitStack) -> None:
    made = [listener(keep, family, kind) for family in (INET, INET6) for kind in (STREAM, DGRAM)]
    register_sockets(made, "web")
    assert set().union(*registered().values()) == set(map(cookie, made))
    assert len(registered()) == 4


@pytest.mark.parametrize("kind", [STREAM, DGRAM])
def test_reuseport_group(loaded: World, keep: ExitStack, kind: int) -> None:
    first = listener(keep, kind=kind, reuseport=True)
    made = [
        first,
        *(listener(keep, kind=kind, reuseport=True, port=first.getsockname()[1]) for _ in range(3)),
    ]
    register_sockets(made, "web")
    assert set().union(*registered().values()) == set(map(cookie, made))


def test_two_sockets_that_are_no_group(loaded: World, keep: ExitStack) -> None:
    """tubular gives an error after the map was already overwritten by the second one. Here nothing changes."""
    register_sockets([listener(keep)], "web")
    before = dump(loaded.state_dir)
    ran = register_sockets([listener(keep), listener(keep)], "web", code=6)
    assert_one_error(ran, codes=(6,))
    assert "SO_REUSEPORT" in ran.err
    assert dump(loaded.state_dir) == before


def unix(keep: ExitStack, kind: int) -> socket.socket:
    return keep.enter_context(socket.socket(socket.AF_UNIX, kind))


def connected(keep: ExitStack, family: int, kind: int) -> socket.socket:
    peer = listener(keep, family, kind)
    made = keep.enter_context(socket.socket(family, kind))
    made.connect(peer.getsockname())
    return made


def not_listening(keep: ExitStack) -> socket.socket:
    made = keep.enter_context(socket.socket(INET, STREAM))
    made.bind(("127.0.0.1", 0))
    return made


def netlink(keep: ExitStack) -> socket.socket:
    return keep.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


def raw(keep: ExitStack) -> socket.socket:
    return keep.enter_context(socket.socket(INET, socket.SOCK_RAW, 253))


Make = Callable[[ExitStack], socket.socket]
REFUSED_KINDS: dict[str, tuple[Make, str]] = {
    "unix stream": (lambda keep: unix(keep, STREAM), "unix"),
    "unix datagram": (lambda keep: unix(keep, DGRAM), "unix"),
    "unix packet": (lambda keep: unix(keep, socket.SOCK_SEQPACKET), "unix"),
    "netlink": (netlink, "netlink"),
    "raw": (raw, "raw"),
    "mptcp": (lambda keep: listener(keep, protocol=IPPROTO_MPTCP), "MPTCP"),
    "udplite": (lambda keep: listener(keep, kind=DGRAM, protocol=IPPROTO_UDPLITE), "UDP-Lite"),
    "tcp4 connected": (lambda keep: connected(keep, INET, STREAM), "connected"),
    "tcp6 connected": (lambda keep: connected(keep, INET6, STREAM), "connected"),
    "udp4 connected": (lambda keep: connected(keep, INET, DGRAM), "connected"),
    "udp6 connected": (lambda keep: connected(keep, INET6, DGRAM), "connected"),
    "tcp not listening": (not_listening, "not listening"),
    "udp not bound": (lambda keep: keep.enter_context(socket.socket(INET, DGRAM)), "not bound"),
}


@pytest.mark.parametrize("what", REFUSED_KINDS)
def test_other_sockets_are_refused_by_name(loaded: World, keep: ExitStack, what: str) -> None:
    """Nothing is left behind, not even by a good socket that came along."""
    make, word = REFUSED_KINDS[what]
    try:
        made = make(keep)
    except OSError as problem:
        if problem.errno in (93, 94):  # EPROTONOSUPPORT, ESOCKTNOSUPPORT: a kernel without it
            pytest.skip(f"this kernel has no {what} sockets")
        raise
    before = dump(loaded.state_dir)
    ran = register_sockets([listener(keep), made], "web", code=2)
    assert_one_error(ran, codes=(2,))
    assert word in ran.err
    assert "descriptor 4" in ran.err
    assert dump(loaded.state_dir) == before


def test_a_file_is_refused(loaded: World, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open() as file:
        ran = register_fds([file.fileno()], "web", code=2)
    assert_one_error(ran, codes=(2,))
    assert "not a socket" in ran.err
    assert registered() == {}


def test_file_status_flags_stay(loaded: World, keep: ExitStack) -> None:
    """The peer's tests assert it on every registration."""
    for blocking in (True, False):
        made = listener(keep)
        made.setblocking(blocking)
        register_sockets([made], "web")
        assert os.get_blocking(made.fileno()) == blocking


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"LISTEN_FDS": ""}, "LISTEN_FDS: not set"),
        ({"LISTEN_FDS": "0"}, "no sockets were passed"),
        ({"LISTEN_FDS": "x"}, "expected a number"),
        ({"LISTEN_FDS": "-1"}, "expected a number"),
        ({"LISTEN_FDS": "4294967297"}, "expected a number"),
        ({"LISTEN_FDS": "5"}, "not open"),
        ({"LISTEN_PID": "1"}, "process 1"),
        ({"LISTEN_PID": "x"}, "LISTEN_PID"),
        ({"LISTEN_FDNAMES": "a:b:c"}, "3 names for 1 socket"),
    ],
)
def test_wrong_environment(loaded: World, keep: ExitStack, variables: dict[str, str], word: str) -> None:
    before = dump(loaded.state_dir)
    ran = register_fds([listener(keep).fileno()], "web", env=variables, code=2)
    assert_one_error(ran, codes=(2,))
    assert word in ran.err
    assert dump(loaded.state_dir) == before


def test_without_systemd(loaded: World) -> None:
    ran = svc("register", "web", code=2)
    assert_one_error(ran, codes=(2,))
    assert "LISTEN_FDS" in ran.err


def test_name_selects(loaded: World, keep: ExitStack) -> None:
    http, admin, dns = listener(keep), listener(keep), listener(keep, kind=DGRAM)
    fds = [one.fileno() for one in (http, admin, dns)]
    names = ["http", "admin", "dns"]
    register_fds(fds, "web", "--name", "http", names=names)
    assert registered() == {("ipv4", "tcp"): {cookie(http)}}
    register_fds(fds, "web", "--name", "admin", "--name", "dns", names=names)
    assert registered() == {("ipv4", "tcp"): {cookie(admin)}, ("ipv4", "udp"): {cookie(dns)}}
    ran = register_fds(fds, "web", "--name", "none", names=names, code=2)
    assert_one_error(ran, codes=(2,))
    assert "admin, dns, http" in ran.err


def test_second_registration_replaces_the_first(loaded: World, keep: ExitStack) -> None:
    first, second = listener(keep), listener(keep)
    register_sockets([first], "web")
    ran = register_sockets([second], "web")
    assert f"replaced sk:{cookie(first):x}" in ran.out
    assert registered() == {("ipv4", "tcp"): {cookie(second)}}


def test_dry_run(loaded: World, keep: ExitStack) -> None:
    made = listener(keep)
    before = dump(loaded.state_dir)
    ran = register_sockets([made], "web", "--dry-run")
    assert f"sk:{cookie(made):x}" in ran.out
    assert dump(loaded.state_dir) == before


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_systemd_socket_activate(loaded: World, kind: str) -> None:
    """The real thing: it binds, waits for the first client, and becomes `svcctl register` with the socket."""
    port = 8080  # nobody else is in this world, and no client has a port like this
    svc("bind", "web", kind, "127.0.0.53", 80)
    holder = '"$@"; echo "ended $?"; exec sleep 60'
    words = ["systemd-socket-activate", "-E", "PYTHONPATH", "-E", "PYTHONDONTWRITEBYTECODE", "--fdname=it"]
    words += ["-d"] if kind == "udp" else []
    # A shell that becomes svcctl has its pid; one that waits for it holds the socket afterwards.
    inner = f"LISTEN_PID=$$ exec {' '.join(installed())} register web --name it"
    words += ["-l", f"127.0.0.1:{port}", "sh", "-c", holder, "-", "sh", "-c", inner]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=process_env(), cwd=ROOT
    ) as process:
        try:
            _poke(kind, port, process)
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines[1] == "ended 0\n", lines
            assert f"127.0.0.1:{port}/{kind}" in lines[0]
            assert [len(found) for found in registered().values()] == [1]
            if kind == "tcp":
                with socket.create_connection(("127.0.0.53", 80), timeout=PATIENCE):
                    pass
        finally:
            process.kill()
    assert [len(found) for found in registered().values()] == [0]


def _poke(kind: str, port: int, process: subprocess.Popen[str]) -> None:
    """Be the client that makes it start, as soon as it listens."""
    for _ in range(int(3000 * SLOWNESS)):
        assert process.poll() is None
        with socket.socket(INET, STREAM if kind == "tcp" else DGRAM) as client:
            client.settimeout(1)
            try:
                client.connect(("127.0.0.1", port))
                client.send(b"?")
                if kind == "udp":
                    time.sleep(0.02)
                    client.send(b"?")  # says so when nobody was there for the first one
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
    raise AssertionError("it never listened")
