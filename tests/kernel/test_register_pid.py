"""`svcctl register-pid`: the right socket of a process, found wherever it is and whatever lies around it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from svcctl.host import process
from tests.lib.activation import register_fds
from tests.lib.pins import dump
from tests.lib.servers import REFUSED, SLOWNESS, Server, ask
from tests.lib.svc import assert_one_error, svc, svc_process
from tests.lib.world import World

KINDS = ("tcp", "udp")
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def bind_label(label: str = "web", kind: str = "tcp", prefix: str = "127.0.0.53", port: int = 80) -> None:
    svc("bind", label, kind, prefix, port)


def members(label: str = "web") -> list[list[int]]:
    """Cookies of each destination of a label, in the listing's order."""
    every = svc("destinations", "-o", "json").json["destinations"]
    rows = [row for row in every if row["label"] == label]
    return [[one["cookie"] for one in row["members"]] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [4, 6])
def test_served_after_registration(loaded: World, server: Server, kind: str, family: int) -> None:
    """No socket: refused. Registered: served on every bound address and port. Gone: refused again."""
    at, prefix = ("127.9.9.9", "127.9.0.0/16") if family == 4 else ("2001:db8::9", "2001:db8::/64")
    if family == 6:
        loaded.sh("ip -6 route add local 2001:db8::/32 dev lo")
    svc("bind", "web", kind, prefix, 53)
    assert ask(kind, at, 53) == REFUSED
    opened = server.open("it", kind, family=family, address=LOOPBACK[family])
    ran = svc("register-pid", server.pid, "web", kind, LOOPBACK[family], opened.port)
    assert f"sk:{opened.cookie:x}" in ran.out
    assert ask(kind, at, 53) == "it"
    assert members() == [[opened.cookie]]
    server.kill()
    assert ask(kind, at, 53) == REFUSED
    assert members() == [[]]


@pytest.mark.parametrize("fd", [100, 1000])
def test_socket_behind_a_gap(loaded: World, server: Server, fd: int) -> None:
    """tubular 6.2, 11: there a gap of more than 32 descriptors ended the search."""
    opened = server.open("far", fd=fd)
    bind_label()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", "127.0.0.53", 80) == "far"


def test_opath_descriptors_are_no_obstacle(loaded: World, server: Server) -> None:
    """tubular 6.2, 11: one O_PATH descriptor made the whole command fail."""
    opened = server.open("it", fd=50)
    server.ask("opath", name="", fd=10)
    server.ask("opath", name="it", fd=11)  # the very socket, but useless; found first
    bind_label()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", "127.0.0.53", 80) == "it"


def test_duplicated_descriptors_are_one_socket(loaded: World, server: Server) -> None:
    """tubular 6.2, 11: a listener with two descriptors ended with an error, although it was registered."""
    opened = server.open("it")
    for fd in (40, 41, 90):
        server.ask("dup", name="it", fd=fd)
    bind_label()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert members() == [[opened.cookie]]
    assert ask("tcp", "127.0.0.53", 80) == "it"


def test_sockets_of_other_kinds_at_the_same_port_are_no_obstacle(loaded: World, server: Server) -> None:
    """UDP, the other family, another address, unix: the one that was asked for is taken."""
    opened = server.open("it", fd=60)
    server.open("udp", "udp", port=opened.port)
    server.open("v6", family=6, address="::1", port=opened.port, v6only=True)
    server.open("other", address="127.0.0.2", port=opened.port)
    server.open("unix", "unix", address="\0svcctl-test")
    server.open("unbound", listen=False, address="")
    bind_label()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert members() == [[opened.cookie]]
    assert ask("tcp", "127.0.0.53", 80) == "it"


def test_nothing_changes_in_the_process(loaded: World, server: Server) -> None:
    """The peer's tests hold it too: file status flags of the target are as before."""
    opened = server.open("it")
    before = server.ask("flags", fd=opened.fd)
    links = sorted(os.listdir(f"/proc/{server.pid}/fd"))
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert server.ask("flags", fd=opened.fd) == before
    assert sorted(os.listdir(f"/proc/{server.pid}/fd")) == links


@pytest.mark.parametrize("depth", [1, 2])
def test_socket_of_a_descendant(loaded: World, server: Server, depth: int) -> None:
    opened = server.open("child")
    server.ask("fork", depth=depth)
    bind_label()
    words = ("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, "--wait", 0)
    missing = svc(*words, code=5)
    assert "--tree" in missing.err
    svc(*words, "--tree")
    assert ask("tcp", "127.0.0.53", 80) == "child"


def test_pid_file(loaded: World, server: Server, tmp_path: Path) -> None:
    opened = server.open("it")
    pid_file = tmp_path / "it.pid"
    pid_file.write_text(f"{server.pid}\n")
    svc("register-pid", pid_file, "web", "tcp", "127.0.0.1", opened.port)
    assert members() == [[opened.cookie]]


def test_the_other_order_of_arguments(loaded: World, server: Server, tmp_path: Path) -> None:
    """LABEL PID, which some documents show, is understood when only one of the two can be a pid."""
    opened = server.open("it")
    svc("register-pid", "web", server.pid, "tcp", "127.0.0.1", opened.port)
    assert members() == [[opened.cookie]]
    pid_file = tmp_path / "it.pid"
    pid_file.write_text(f"{server.pid}\n")
    svc("register-pid", "web2", pid_file, "tcp", "127.0.0.1", opened.port)
    assert members("web2") == [[opened.cookie]]


def test_the_other_order_with_a_bare_file_name(
    loaded: World, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = server.open("it")
    (tmp_path / "it.pid").write_text(f"{server.pid}\n")
    monkeypatch.chdir(tmp_path)
    svc_process("register-pid", "web", "it.pid", "tcp", "127.0.0.1", opened.port)
    assert members() == [[opened.cookie]]


def test_a_number_is_a_label_too(loaded: World, server: Server) -> None:
    """Where both could be a pid the documented order holds."""
    opened = server.open("it")
    svc("register-pid", server.pid, "4711", "tcp", "127.0.0.1", opened.port)
    assert members("4711") == [[opened.cookie]]


@pytest.mark.parametrize("kind", KINDS)
def test_waits_until_the_socket_is_there(loaded: World, server: Server, kind: str) -> None:
    opened = server.open("early", kind)
    server.close("early")
    words = ("register-pid", server.pid, "web", kind, "127.0.0.1", opened.port, "--wait", 60)
    opening = threading.Timer(0.3, lambda: server.open("late", kind, port=opened.port))
    opening.start()
    try:
        svc(*words)
    finally:
        opening.join()
    svc("bind", "web", kind, "127.0.0.53", 80)
    assert ask(kind, "127.0.0.53", 80) == "late"


def test_waits_until_it_listens(loaded: World, server: Server) -> None:
    """A socket that is bound and does not listen yet is no socket to register."""
    opened = server.open("it", listen=False)
    words = ("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    refused = svc(*words, "--wait", 0, code=5)
    assert "not listening" in refused.err
    listening = threading.Timer(0.3, lambda: server.ask("listen", name="it"))
    listening.start()
    try:
        svc(*words, "--wait", 60)
    finally:
        listening.join()


def test_wait_ends(loaded: World, server: Server) -> None:
    begin = time.monotonic()
    ran = svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", 1, "--wait", "0.3", code=5)
    assert 0.3 <= time.monotonic() - begin < 30 * SLOWNESS
    assert_one_error(ran, codes=(5,))
    begin = time.monotonic()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", 1, "--wait", "0", code=5)
    assert time.monotonic() - begin < 30 * SLOWNESS


def test_wait_is_over_when_the_process_is(loaded: World) -> None:
    with subprocess.Popen(["sleep", "0.2"]) as sleeper:
        begin = time.monotonic()
        ran = svc("register-pid", sleeper.pid, "web", "tcp", "127.0.0.1", 1, "--wait", 120, code=5)
        assert time.monotonic() - begin < 60 * SLOWNESS
        assert "exited" in ran.err


def test_the_lock_is_free_while_it_waits(loaded: World, server: Server) -> None:
    """Another writer does not wait for a service that is slow to start."""
    opened = server.open("it")
    server.close("it")
    waiting = threading.Thread(
        target=lambda: svc_process(
            "register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, "--wait", 60
        )
    )
    waiting.start()
    try:
        for number in range(5):
            svc("--lock-timeout", "10", "bind", "other", "tcp", f"127.0.0.{number}", 80)
    finally:
        server.open("it", port=opened.port)
        waiting.join()
    assert members() != []


@pytest.mark.parametrize("kind", KINDS)
def test_wildcard_listener(loaded: World, server: Server, kind: str) -> None:
    """An address is served by a listener on 0.0.0.0 or ::, dual-stack too; the very address goes first."""
    any4 = server.open("any4", kind, address="0.0.0.0")
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", any4.port)
    assert members() == [[any4.cookie]]
    own = server.open("own", "udp" if kind == "udp" else "tcp", family=6, address="::1", v6only=True)
    svc("register-pid", server.pid, "six", kind, "::1", own.port)
    assert members("six") == [[own.cookie]]
    dual = server.open("dual", kind, family=6, address="::", v6only=False)
    svc("register-pid", server.pid, "dual", kind, "127.0.0.1", dual.port)
    assert members("dual") == [[dual.cookie], [dual.cookie]]
    svc("bind", "dual", kind, "127.0.0.53", 80)
    assert ask(kind, "127.0.0.53", 80) == "dual"


def test_the_wildcard_itself_can_be_named(loaded: World, server: Server) -> None:
    """`register-pid PID web tcp 0.0.0.0 PORT`, as people write what they see in ss."""
    any4 = server.open("any4", address="0.0.0.0")
    svc("register-pid", server.pid, "web", "tcp", "0.0.0.0", any4.port)
    assert members() == [[any4.cookie]]
    dual = server.open("dual", family=6, address="::", v6only=False)
    svc("register-pid", server.pid, "dual", "tcp", "::", dual.port)
    assert members("dual") == [[dual.cookie], [dual.cookie]]


def test_process_in_another_network_namespace(loaded: World, server: Server) -> None:
    opened = server.open("it")
    server.ask("unshare")
    there = os.stat(f"/proc/{server.pid}/ns/net").st_ino
    ran = svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, code=6)
    assert str(there) in ran.err
    assert str(loaded.netns_inode) in ran.err
    assert f"--netns /proc/{server.pid}/ns/net" in ran.err
    assert members() == []


def test_socket_of_another_network_namespace_in_a_process_of_ours(loaded: World) -> None:
    """The process is here, its socket was made elsewhere: no traffic of ours could reach it."""
    with Server(["unshare", "-n"]) as elsewhere:
        opened = elsewhere.open("it", address="0.0.0.0")
        pid, fd = os.pidfd_open(elsewhere.pid), -1
        try:
            fd = process.pidfd_getfd(pid, opened.fd)
            ran = register_fds([fd], "web", code=6)
            assert str(os.stat(f"/proc/{elsewhere.pid}/ns/net").st_ino) in ran.err
        finally:
            os.close(pid)
            os.close(fd)
    assert members() == []


@pytest.mark.parametrize("kind", KINDS)
def test_again_after_a_restart(loaded: World, kind: str) -> None:
    """The dead socket leaves its slot; the new one takes it; the id and the counters stay."""
    svc("bind", "web", kind, "127.0.0.53", 80)
    with Server() as first:
        opened = first.open("first", kind)
        svc("register-pid", first.pid, "web", kind, "127.0.0.1", opened.port)
        assert ask(kind, "127.0.0.53", 80) == "first"
        before = svc("destinations", "-o", "json").json["destinations"][0]
    assert ask(kind, "127.0.0.53", 80) == REFUSED
    with Server() as second:
        again = second.open("second", kind, port=opened.port)
        ran = svc("register-pid", second.pid, "web", kind, "127.0.0.1", again.port)
        assert f"sk:{again.cookie:x}" in ran.out
        assert ask(kind, "127.0.0.53", 80) == "second"
        after = svc("destinations", "-o", "json").json["destinations"][0]
    assert (after["id"], after["bindings"]) == (before["id"], 1)
    assert [one["cookie"] for one in after["members"]] == [again.cookie]
    assert after["lookups"] == before["lookups"] + 2
    assert after["no_socket"] == 1


def test_another_socket_replaces_a_live_one(loaded: World, server: Server) -> None:
    """The peer's TestSequenceRegisterDifferentSocket: the last one registered is the only one."""
    first, second = server.open("first"), server.open("second")
    bind_label()
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", first.port)
    ran = svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", second.port)
    assert f"replaced sk:{first.cookie:x}" in ran.out
    assert members() == [[second.cookie]]
    assert ask("tcp", "127.0.0.53", 80) == "second"


def test_registering_again_what_is_registered(loaded: World, server: Server) -> None:
    opened = server.open("it")
    words = ("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    svc(*words)
    before = dump(loaded.state_dir)
    svc(*words)
    assert dump(loaded.state_dir) == before


def test_one_socket_under_two_labels(loaded: World, server: Server) -> None:
    """Taking one label away leaves the other alone."""
    opened = server.open("it")
    for label, address in (("a", "127.0.0.61"), ("b", "127.0.0.62")):
        svc("register-pid", server.pid, label, "tcp", "127.0.0.1", opened.port)
        svc("bind", label, "tcp", address, 80)
    assert [ask("tcp", f"127.0.0.6{n}", 80) for n in (1, 2)] == ["it", "it"]
    svc("unregister", "a", "ipv4", "tcp")
    assert [ask("tcp", f"127.0.0.6{n}", 80) for n in (1, 2)] == [REFUSED, "it"]
    server.kill()
    assert ask("tcp", "127.0.0.62", 80) == REFUSED


@pytest.mark.parametrize("kind", KINDS)
def test_dual_stack_listener(loaded: World, server: Server, kind: str) -> None:
    """It is entered under both families; unregister takes one of them away."""
    loaded.sh("ip -6 route add local 2001:db8::/32 dev lo")
    dual = server.open("dual", kind, family=6, address="::", v6only=False)
    svc("bind", "web", kind, "127.0.0.53", 80)
    svc("bind", "web", kind, "2001:db8::53", 80)
    svc("register-pid", server.pid, "web", kind, "::1", dual.port)
    assert ask(kind, "127.0.0.53", 80) == "dual"
    assert ask(kind, "2001:db8::53", 80) == "dual"
    assert members() == [[dual.cookie], [dual.cookie]]
    svc("unregister", "web", "ipv4", kind)
    assert ask(kind, "127.0.0.53", 80) == REFUSED
    assert ask(kind, "2001:db8::53", 80) == "dual"


def test_dry_run_changes_nothing(loaded: World, server: Server) -> None:
    opened = server.open("it")
    before = dump(loaded.state_dir)
    ran = svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, "--dry-run")
    assert f"sk:{opened.cookie:x}" in ran.out
    assert dump(loaded.state_dir) == before


def test_installed_command_on_real_traffic(world: World, server: Server) -> None:
    """The main job by the installed command: load, bind, register-pid, traffic, unload."""
    svc_process("load", "--max-bindings", 1000)
    svc_process("bind", "web", "tcp", "127.0.0.0/8", 80)
    assert ask("tcp", "127.1.2.3", 80) == REFUSED
    opened = server.open("it")
    svc_process("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", "127.1.2.3", 80) == "it"
    assert "127.0.0.0/8" in svc_process("bindings").out
    svc_process("unload", "--yes")
    assert ask("tcp", "127.1.2.3", 80) == REFUSED
    assert not os.path.exists(world.state_dir)
