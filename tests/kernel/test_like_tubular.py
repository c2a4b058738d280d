"""What tubular does that svcctl must do too, and what it gets wrong that svcctl must not.

The tests that have no better place are here; the others are elsewhere. Where each one is:

| defect of tubular | test |
|---|---|
| no write command works from Linux 6.18 on | all of tests/kernel there; the quick ones everywhere |
| an id with two owners, traffic to the wrong service | test_ids: test_defect_a_... |
| labels that are gone fill the table for good | test_ids: test_defect_b_..., test_gone_labels_... |
| ::/0 takes all IPv4 | test_precedence: test_zero_of_ipv6_never_takes_ipv4 |
| a namespace with the inode of a dead one | test_places: test_namespace_made_again_with_the_same_inode |
| the first member of a group dies, the label with it | test_reuseport: test_members_leave_one_by_one |
| killed commands leave orphans, or block all others | test_crash; test_quick_dispatch: test_killed_writer |
| readers make maps; pins that the program does not read | test_pins_by_hand |
| load-bindings: not atomic, skips, converts | its own tests |
| bindings are stolen silently | here: test_nothing_is_stolen |
| register-pid: gaps, O_PATH, duplicates, exact address only | test_register_pid |
| metrics: panics, 200 on failure, 503 on parallel scrapes | test_metrics |
| waits for ever for the lock, says nothing | here: test_waiting_for_the_lock |
| errors that say nothing | test_bad_input; here: test_errors_say_what_to_do |

| behaviour of tubular (its own test) | test |
|---|---|
| TestHelp, TestSubcommandHelp | here: test_help_needs_no_state; tests/cli |
| TestBindings: filters | here: test_filters_of_bindings |
| TestBindUnbind, TestBindInvariants | here: test_bind_and_unbind, test_spellings |
| TestBindInvalidInput, TestAddInvalidBinding, empty labels | test_bad_input |
| TestOptionalArgs, TestUnregisterArgs | test_bad_input: test_too_few_and_too_many_arguments |
| TestLoadUnload: capabilities | here: test_capabilities_of_load, test_owner_without_capabilities |
| TestSingleRegisterCommand, TestFiles, TestFirstReuseport | test_register |
| TestRegisterPID, TestLocalAddress, TestListeningSocket | test_register_pid |
| TestSequenceRegisterDifferentSocket | test_register_pid: test_another_socket_replaces_a_live_one |
| TestRegisterRefuseDifferentNamespace | test_register_pid: test_process_in_another_network_namespace |
| TestUnregister, TestUnregisterNoSocket | here: test_unregister |
| TestBinding, TestParseCIDR | test_model_prefix, test_model_binding; here: test_spellings |
| TestBindingsSort..., TestBindingPrecedence | test_precedence |
| TestDestinationIDAllocation, TestMetrics (counters) | test_ids |
| TestDestinationsAddSocket | here: test_created_and_changed_are_told_apart |
| TestLoadDispatcher, TestUnloadDispatcherNotLoaded | here: test_load_and_unload_again |
| TestUnloadDispatcher: any pin missing | test_pins_by_hand: test_any_pin_deleted_then_unload |
| TestDispatcherConcurrentAccess, TestLocking | here: test_waiting_for_the_lock |
| TestDispatcherAccess: group and others | test_group_member; test_places: test_not_root |
| TestAddAndRemoveBindings | here: test_reachable_before_... |
| TestUpdateBinding, TestRemoveBinding | here: test_replace_frees_...; test_bad_input: test_conflicts_... |
| accepted sockets, connections that are established | here: test_established_connections_live_on |
| one socket under two labels | test_register_pid |
| listeners that lose their traffic; SSH | here: test_shadowed_listeners_are_named, test_ssh_is_not_cut_off |
| TestDispatcherUpgrade..., TestReplaceBindings, TestStatus | their own tests |
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.cli.registry import COMMANDS
from svcctl.host.capability import kernel_release
from tests.lib.activation import register_sockets
from tests.lib.cli import written
from tests.lib.pins import dump
from tests.lib.servers import REFUSED, SLOWNESS, Server, ask
from tests.lib.svc import assert_one_error, svc, svc_process, svc_waiting
from tests.lib.world import World

TESTS = Path(__file__).resolve().parents[1]
AT = "127.0.0.53"


def test_the_table_names_tests_that_exist() -> None:
    """Each test or file named above is there; one that ends in ... by its beginning."""
    texts = {path.stem: path.read_text() for path in TESTS.rglob("test_*.py")}
    for name in re.findall(r"\btest_\w+(?:\.\.\.)?", __doc__ or ""):
        start = name.removesuffix("...")
        named = f"def {start}" if start != name else f"def {name}("
        assert start in texts or any(named in text for text in texts.values()), name


def rows(*filters: object) -> list[tuple[str, str, int, str]]:
    listed = svc("bindings", *filters, "-o", "json").json["bindings"]
    return [(row["protocol"], row["prefix"], row["port"], row["label"]) for row in listed]


def test_nothing_is_stolen(loaded: World, server: Server) -> None:
    """A binding that another label holds is a conflict; with --replace it moves, and says from whom."""
    for label in ("old", "new"):
        opened = server.open(label)
        svc("register-pid", server.pid, label, "tcp", "127.0.0.1", opened.port)
    svc("bind", "old", "tcp", AT, 80)
    ran = svc("bind", "new", "tcp", AT, 80, code=6)
    assert_one_error(ran, codes=(6,))
    assert "'old'" in ran.err
    assert "--replace" in ran.err
    assert ask("tcp", AT, 80) == "old"
    assert "old" in svc("bind", "new", "tcp", AT, 80, "--replace").out
    assert ask("tcp", AT, 80) == "new"
    assert rows() == [("tcp", f"{AT}/32", 80, "new")]
    before = dump(loaded.state_dir, but=("dispatch_stats", "drop_stats", "hints"))
    svc("bind", "new", "tcp", AT, 80)
    svc("bind", "new", "tcp", AT, 80, "--replace")
    assert dump(loaded.state_dir, but=("dispatch_stats", "drop_stats", "hints")) == before
    svc("unbind", "old", "tcp", AT, 80, code=6)
    assert ask("tcp", AT, 80) == "new"


def test_replace_frees_the_old_destination(loaded: World) -> None:
    """The last binding of a label takes its destination along; more and less specific ones keep both."""
    svc("bind", "a", "tcp", "10.0.0.0/8", 80)
    svc("bind", "b", "tcp", "10.0.0.0/16", 80)
    svc("bind", "c", "tcp", "10.0.0.0/8", 0)
    assert labels() == {"a": 1, "b": 1, "c": 1}
    svc("bind", "b", "tcp", "10.0.0.0/8", 80, "--replace")
    assert labels() == {"b": 2, "c": 1}
    svc("unbind", "b", "tcp", "10.0.0.0/16", 80)
    assert labels() == {"b": 1, "c": 1}
    svc("unbind", "b", "tcp", "10.0.0.0/8", 80)
    svc("unbind", "c", "tcp", "10.0.0.0/8", 0)
    assert labels() == {}


def labels() -> dict[str, int]:
    """Label -> bindings."""
    return {row["label"]: row["bindings"] for row in svc("destinations", "-o", "json").json["destinations"]}


@pytest.fixture
def locked(loaded: World) -> Iterator[World]:
    """Somebody else holds the state's lock."""
    fd = os.open(loaded.state_dir, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield loaded
    os.close(fd)


def test_waiting_for_the_lock(locked: World) -> None:
    """It says whom it waits for, ends with 9 after --lock-timeout, and goes on when the lock is free."""
    begin = time.monotonic()
    ran = svc("--lock-timeout", "0.8", "bind", "web", "tcp", AT, 80, code=9)
    assert 0.8 <= time.monotonic() - begin < 30 * SLOWNESS
    waiting, error, hint = ran.err.splitlines()
    assert waiting.startswith("waiting for the lock on ")
    assert f"pid {os.getpid()}" in waiting
    assert error.startswith(f"svcctl: error: lock {locked.state_dir}: held by pid {os.getpid()}")
    assert "--lock-timeout" in hint
    svc("--lock-timeout", "0", "bind", "web", "tcp", AT, 80, code=9)
    svc("--lock-timeout", "0.1", "unload", "--yes", code=9)
    assert os.path.exists(locked.state_dir)
    # Readers do not wait.
    begin = time.monotonic()
    assert svc("bindings").out == ""
    assert time.monotonic() - begin < 30 * SLOWNESS


def test_lock_is_had_when_it_is_free(loaded: World) -> None:
    fd = os.open(loaded.state_dir, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    svc_waiting(lambda: os.close(fd), "bind", "web", "tcp", AT, 80)
    assert len(rows()) == 1


def test_lock_across_an_unload(loaded: World) -> None:
    """A writer that waited while the directory was removed says that nothing is loaded (tubular: a raw errno)."""
    fd = os.open(loaded.state_dir, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def vanish() -> None:
        for name in os.listdir(loaded.state_dir):
            os.unlink(f"{loaded.state_dir}/{name}")
        os.rmdir(loaded.state_dir)
        os.close(fd)

    ran = svc_waiting(vanish, "bind", "web", "tcp", AT, 80, code=3)
    assert "svcctl load" in ran.err


def test_errors_say_what_to_do(loaded: World, server: Server) -> None:
    """Not "delete: invalid argument", "key too big for map" or "prealloc maps not supported"."""
    with Server() as gone:
        opened = gone.open("it")
        svc("register-pid", gone.pid, "web", "tcp", "127.0.0.1", opened.port)
    svc("unregister", "web", "ipv4", "tcp")
    ran = svc("unregister", "web", "ipv4", "tcp", code=5)
    assert "web#tcp:ipv4: no such destination" in ran.err
    svc("bind", "web", "tcp", AT, 80)
    ran = svc("unregister", "web", "ipv4", "tcp", code=5)
    assert "no socket is registered" in ran.err


def test_help_needs_no_state(world: World) -> None:
    """The same text twice, exit 0, stdout; nothing is touched, wherever it is asked."""
    everywhere = {name: svc(name, "--help").out for name in written()}
    assert everywhere.keys() <= COMMANDS.keys()
    for name, text in everywhere.items():
        assert name in text
        assert svc(name, "--help").out == text
        assert svc("--netns", "/none", "--bpffs", "/none", name, "-h").out == text
    assert not os.path.exists(world.state_dir)


def test_filters_of_bindings(loaded: World) -> None:
    """Protocol, prefix (overlap, both ways), port (a wildcard binding matches every port)."""
    for words in (
        ("a", "tcp", "127.0.0.1", 80),
        ("b", "tcp", "127.0.0.0/16", 443),
        ("c", "udp", "127.0.0.1", 53),
        ("d", "tcp", "2001:db8::/32", 80),
        ("e", "tcp", "127.0.0.0/8", 0),
    ):
        svc("bind", *words)

    def found(*filters: object) -> str:
        return "".join(sorted(row[3] for row in rows(*filters)))

    assert found() == "abcde"
    assert found("tcp") == "abde"
    assert found("udp") == "c"
    assert found("any") == "abcde"
    assert found("any", "127.0.0.1") == "abce"
    assert found("tcp", "127.0.0.0/8") == "abe"
    assert found("tcp", "127.0.0.0/24") == "abe"
    assert found("tcp", "127.1.0.0/16") == "e"
    assert found("any", "::/0") == "d"
    assert found("any", "0.0.0.0/0") == "abce"
    assert found("any", "0.0.0.0/0", 443) == "be"
    assert found("tcp", "127.0.0.1", 80) == "ae"
    assert found("tcp", "127.0.0.1", 0) == "abe"
    assert found("udp", "10.0.0.0/8") == ""
    assert "no bindings matched" in svc("bindings", "udp", "10.0.0.0/8").err
    assert svc("bindings", "-q", "udp", "10.0.0.0/8").err == ""


@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("prefix", ["127.0.0.1", "127.0.0.0/8", "::1", "2001:db8::/64", "0.0.0.0/0", "::/0"])
def test_bind_and_unbind(loaded: World, kind: str, prefix: str) -> None:
    """Said, listed, gone; a second time it is not there, and everything is as before."""
    before = dump(loaded.state_dir, but=("meta", "writers"))
    full = prefix if "/" in prefix else f"{prefix}/{128 if ':' in prefix else 32}"
    assert svc("bind", "web", kind, prefix, 80).out == f"bound web#{kind}:[{full}]:80\n"
    assert rows() == [(kind, full, 80, "web")]
    assert f"web#{kind}:[{full}]:80" in svc("unbind", "web", kind, prefix, 80).out
    assert rows() == []
    svc("unbind", "web", kind, prefix, 80, code=5)
    assert dump(loaded.state_dir, but=("meta", "writers")) == before


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("127.0.0.1", "127.0.0.1/32"),
        ("127.0.0.1/32", "127.0.0.1/32"),
        ("127.9.9.9/8", "127.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("1.2.3.4/0", "0.0.0.0/0"),
        ("::1", "::1/128"),
        ("2001:DB8:0:0::1/64", "2001:db8::/64"),
        ("2001:db8:1::ffff/16", "2001::/16"),
        ("::/0", "::/0"),
    ],
)
def test_spellings(loaded: World, text: str, prefix: str) -> None:
    svc("bind", "web", "tcp", text, 80)
    assert rows() == [("tcp", prefix, 80, "web")]
    svc("unbind", "web", "tcp", prefix, 80)


@pytest.mark.parametrize("prefix", ["0.0.0.0", "::"])
def test_the_zero_address_is_warned_about(loaded: World, prefix: str) -> None:
    """It is one address that nobody connects to; tubular binds it without a word."""
    ran = svc("bind", "web", "tcp", prefix, 80)
    assert f"{prefix}/0" in ran.err
    assert ran.err.startswith("svcctl: warning: ")


def needs_capable_reading() -> None:
    if kernel_release() < (5, 19):
        pytest.skip("bpf(2) needs CAP_BPF for everything before Linux 5.19")


NONE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
TWO = ["setpriv", "--bounding-set=-all,+bpf,+net_admin", "--inh-caps=-all,+bpf,+net_admin"]


def test_capabilities_of_load(world: World, server: Server) -> None:
    """CAP_BPF and CAP_NET_ADMIN are enough for load and upgrade, as the hint says: no CAP_PERFMON.

    The owner unloads without any.
    """
    svc_process("load", "--max-bindings", 100, "--max-destinations", 16, prefix=TWO)
    opened = server.open("it")
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    svc_process("bind", "web", "tcp", AT, 80, prefix=TWO)
    svc_process("upgrade", "--force", "--max-destinations", 32, prefix=TWO)
    assert ask("tcp", AT, 80) == "it"
    needs_capable_reading()
    svc_process("unload", "--yes", prefix=NONE)
    assert not os.path.exists(world.state_dir)


def test_owner_without_capabilities(loaded: World) -> None:
    """Who owns the pins binds, lists and unbinds without a capability; only other processes' sockets need one."""
    needs_capable_reading()
    svc_process("bind", "web", "tcp", AT, 80, prefix=NONE)
    assert "web" in svc_process("bindings", prefix=NONE).out
    assert "web" in svc_process("destinations", prefix=NONE).out
    svc_process("unbind", "web", "tcp", AT, 80, prefix=NONE)
    assert rows() == []


def test_unregister(loaded: World, server: Server) -> None:
    """One family and protocol of a label only; bindings stay, and refuse."""
    cookies = {}
    for kind in ("tcp", "udp"):
        for family, address in (("ipv4", "127.0.0.1"), ("ipv6", "::1")):
            opened = server.open(kind + family, kind, family=int(family[-1]), address=address)
            svc("register-pid", server.pid, "web", kind, address, opened.port)
            cookies[family, kind] = opened.cookie
    svc("bind", "web", "tcp", AT, 80)
    assert registered() == cookies
    ran = svc("unregister", "web", "ipv4", "tcp")
    assert f"sk:{cookies.pop(('ipv4', 'tcp')):x}" in ran.out
    assert registered() == cookies
    assert ask("tcp", AT, 80) == REFUSED
    svc("unregister", "web", "ipv6", "udp", "--dry-run")
    assert registered() == cookies
    svc("unregister", "web", "ipv6", "udp")
    cookies.pop(("ipv6", "udp"))
    assert registered() == cookies
    svc("unregister", "web", "ipv6", "udp", code=5)
    assert rows() == [("tcp", f"{AT}/32", 80, "web")]


def registered() -> dict[tuple[str, str], int]:
    found = {}
    for row in svc("destinations", "web", "-o", "json").json["destinations"]:
        for one in row["members"]:
            found[row["family"], row["protocol"]] = one["cookie"]
    return found


def test_created_and_changed_are_told_apart(loaded: World, server: Server) -> None:
    """The first registration makes a destination, the second changes it, a third has nothing to do."""
    one, two = server.open("one"), server.open("two")
    actions = []
    for opened in (one, two, two):
        ran = svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port, "-o", "json")
        actions.append([change["action"] for change in ran.json["changes"]])
    assert actions == [["created"], ["changed"], ["unchanged"]]


def test_load_and_unload_again(world: World) -> None:
    """Doing again what is done is success, says so, and writes nothing."""
    svc("load", "--max-bindings", 1000)
    before = dump(world.state_dir)
    ran = svc("load")
    assert "already loaded" in ran.err
    assert dump(world.state_dir) == before
    svc("load", "--max-bindings", 1000)
    assert dump(world.state_dir) == before
    svc("load", "--max-bindings", 2000, code=6)
    assert dump(world.state_dir) == before
    svc("unload", "--yes", "--dry-run")
    assert dump(world.state_dir) == before
    svc("unload", "--yes")
    assert "not loaded" in svc("unload").err


@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("family", [4, 6])
def test_reachable_before_refused_while_bound_reachable_after(
    loaded: World, server: Server, kind: str, family: int
) -> None:
    """A binding beats the listener on that very address and port; without it everything is as it was."""
    address = "127.0.0.1" if family == 4 else "::1"
    opened = server.open("host", kind, family=family, address=address)
    assert ask(kind, address, opened.port) == "host"
    svc("bind", "web", kind, address, opened.port)
    assert ask(kind, address, opened.port) == REFUSED
    svc("unbind", "web", kind, address, opened.port)
    assert ask(kind, address, opened.port) == "host"


def test_established_connections_live_on(loaded: World) -> None:
    """Through unbind, unregister and unload; and the server sees the address that the client asked for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        register_sockets([listening], "web")
        svc("bind", "web", "tcp", "127.3.0.0/16", 0)
        with socket.create_connection(("127.3.3.3", 77), 60 * SLOWNESS) as client:
            taken, _ = listening.accept()
            with taken:
                taken.settimeout(60 * SLOWNESS)
                assert taken.getsockname() == ("127.3.3.3", 77)
                for words in (
                    ("unbind", "web", "tcp", "127.3.0.0/16", 0),
                    ("unregister", "web", "ipv4", "tcp"),
                    ("unload", "--yes"),
                ):
                    svc(*words)
                    client.sendall(b"?")
                    assert taken.recv(9) == b"?"
                    taken.sendall(b"!")
                    assert client.recv(9) == b"!"


def test_shadowed_listeners_are_named(loaded: World, server: Server) -> None:
    """What a new binding takes from others is said, and from the label itself not."""
    host = server.open("host", address="127.0.0.1", port=0)
    ran = svc("bind", "web", "tcp", "127.0.0.0/8", host.port)
    assert f"shadows the listener on 127.0.0.1 port {host.port}/tcp" in ran.err
    svc("unbind", "web", "tcp", "127.0.0.0/8", host.port)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", host.port)
    assert svc("bind", "web", "tcp", "127.0.0.0/8", host.port).err == ""
    assert svc("bind", "web", "udp", "127.0.0.0/8", host.port).err == ""
    for number in range(5):
        server.open(f"more{number}", address="127.0.0.2")
    ran = svc("bind", "all", "tcp", "127.0.0.2", 0)
    assert len(ran.err.splitlines()) == 4
    assert "2 more listeners" in ran.err


def test_ssh_is_not_cut_off(loaded: World) -> None:
    """The port of the caller's own SSH connection: a conflict, unless --force; in the environment of a parent too."""
    ssh = {"SSH_CONNECTION": "192.0.2.9 50000 127.0.0.1 22"}
    for words in (("127.0.0.1", 22), ("127.0.0.0/8", 22), ("0.0.0.0/0", 0)):
        ran = svc_process("bind", "web", "tcp", *words, env=ssh, code=6)
        assert_one_error(ran, codes=(6,))
        assert "SSH" in ran.err
        assert "--force" in ran.err
    assert rows() == []
    for words in (("127.0.0.1", 23), ("10.0.0.0/8", 22), ("::/0", 0)):
        svc_process("bind", "web", "tcp", *words, env=ssh)
    svc_process("bind", "web", "udp", "127.0.0.1", 22, env=ssh)
    through = ["sh", "-c", 'env -u SSH_CONNECTION "$@"; exit $?', "-"]
    svc_process("bind", "web", "tcp", "127.0.0.1", 22, env=ssh, prefix=through, code=6)
    svc_process("bind", "web", "tcp", "127.0.0.1", 22, "--force", env=ssh)
    assert len(rows()) == 5


def test_udp_reply_of_a_server_that_knows_how(loaded: World) -> None:
    """With IP_RECVORIGDSTADDR and IP_PKTINFO the answer comes from the address that was asked."""
    ip_recvorigdstaddr, ip_pktinfo = 20, 8
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as serving:
        serving.setsockopt(socket.IPPROTO_IP, ip_recvorigdstaddr, 1)
        serving.bind(("127.0.0.1", 0))
        serving.settimeout(60 * SLOWNESS)
        register_sockets([serving], "dns")
        port = serving.getsockname()[1]
        svc("bind", "dns", "udp", "127.4.0.0/16", port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(60 * SLOWNESS)
            client.connect(("127.4.4.4", port))
            client.send(b"?")
            data, control, _, peer = serving.recvmsg(100, 100)
            assert data == b"?"
            ((_, kind, original),) = control
            assert kind == ip_recvorigdstaddr
            assert socket.inet_ntoa(original[4:8]) == "127.4.4.4"
            source = bytes(4) + original[4:8] + bytes(4)
            serving.sendmsg([b"!"], [(socket.IPPROTO_IP, ip_pktinfo, source)], 0, peer)
            assert client.recv(100) == b"!"
