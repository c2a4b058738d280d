"""load --from-tubular: bindings and sockets of a loaded tubular are taken over, and no connection notices."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from tests.lib import inspect_state, strace, tubular
from tests.lib.forge import forge
from tests.lib.servers import Asking, Server, asking
from tests.lib.svc import svc
from tests.lib.traffic import Traffic
from tests.lib.tubular import Tubular
from tests.lib.world import World

TCP, UDP = 6, 17
SMALL = ("--max-bindings", 1000, "--max-destinations", 64)
TAKE = ("load", "--from-tubular", *map(str, SMALL))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tubular.build(tmp_path_factory.mktemp("tubular"))


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    with Traffic() as made:
        yield made


def _fill(one: Tubular, traffic: Traffic) -> None:
    one.register("web", 4, TCP, traffic.listen("web", "127.0.0.1", 7001).fileno())
    one.register("web", 6, TCP, traffic.listen("web6", "::1", 7001).fileno())
    one.register("dns", 4, UDP, traffic.listen("dns", "127.0.0.1", 7003, udp=True).fileno())
    one.register("lonely", 4, TCP, traffic.listen("lonely", "127.0.0.1", 7004).fileno())
    traffic.listen("plain", "0.0.0.0", 80)
    one.bind("web", TCP, "127.1.0.0/16", 80)
    one.bind("web", TCP, "127.1.2.3", 0)
    one.bind("web", TCP, "::1", 80)
    one.bind("dns", UDP, "127.0.0.0/8", 53)
    one.bind("nobody", TCP, "127.1.9.0/24", 80)


WANT = {
    ("127.1.0.1", 80, False): "web",
    ("127.1.2.3", 8888, False): "web",
    ("::1", 80, False): "web6",
    ("127.9.9.9", 53, True): "dns",
    ("127.1.9.9", 80, False): None,
    ("127.2.0.1", 80, False): "plain",
}


def _answers(traffic: Traffic) -> dict[tuple[str, int, bool], str | None]:
    return {(where, port, udp): traffic.ask(where, port, udp=udp) for where, port, udp in WANT}


def _check_taken(traffic: Traffic) -> None:
    assert _answers(traffic) == WANT
    listed = json.loads(svc("bindings", "-o", "json").out)["bindings"]
    assert [(one["protocol"], one["prefix"], one["port"], one["label"]) for one in listed] == [
        ("tcp", "127.1.2.3/32", 0, "web"),
        ("tcp", "127.1.9.0/24", 80, "nobody"),
        ("tcp", "127.1.0.0/16", 80, "web"),
        ("tcp", "::1/128", 80, "web"),
        ("udp", "127.0.0.0/8", 53, "dns"),
    ]
    found = json.loads(svc("destinations", "-o", "json").out)["destinations"]
    assert {(one["label"], one["family"], len(one["members"])) for one in found} == {
        ("web", "ipv4", 1),
        ("web", "ipv6", 1),
        ("dns", "ipv4", 1),
        ("lonely", "ipv4", 1),
        ("nobody", "ipv4", 0),
    }
    assert len(inspect_state.attached_programs()) == 1
    assert len(inspect_state.directories()) == 1
    assert not [name for name in os.listdir(inspect_state.BPFFS) if name.endswith("_dispatcher")]
    assert inspect_state.problems() == []


@pytest.mark.quick
def test_taken_over(world: World, built: str, traffic: Traffic) -> None:
    _fill(Tubular(built), traffic)
    assert _answers(traffic) == WANT
    ran = svc(*TAKE)
    for said in ("web#tcp:[127.1.0.0/16]:80", "dns#udp:[127.0.0.0/8]:53", "sk:", "_dispatcher"):
        assert said in ran.out, ran
    _check_taken(traffic)
    again = svc(*TAKE)
    assert "nothing to take over" in again.err
    svc("bind", "lonely", "tcp", "127.3.0.1", 80)
    assert traffic.ask("127.3.0.1", 80) == "lonely"


def test_into_loaded_state(world: World, built: str, traffic: Traffic) -> None:
    """svcctl's own bindings and sockets stay; what both have is left alone."""
    svc("load", *SMALL)
    svc("bind", "own", "tcp", "127.7.0.1", 80)
    svc("bind", "web", "tcp", "::1", 80)
    _fill(Tubular(built), traffic)
    with forge() as server:
        server.ok("register-pid", str(os.getpid()), "own", "tcp", "127.0.0.1", "7004")
    ran = svc("load", "--from-tubular")
    assert "[::1/128]" not in ran.out
    assert traffic.ask("127.7.0.1", 80) == "lonely"
    svc("unregister", "own", "ipv4", "tcp")
    svc("unbind", "own", "tcp", "127.7.0.1", 80)
    _check_taken(traffic)


@pytest.mark.timeout(180)
def test_no_connection_notices(world: World, built: str) -> None:
    with Server() as server:
        one = Tubular(built)
        _register_by_server(one, server)
        with asking("tcp", "127.1.0.1", 80) as web, asking("udp", "127.4.0.1", 53) as dns:
            _wait(web, dns)
            svc(*TAKE)
            _wait(web, dns)
            svc("upgrade", "--force")
            _wait(web, dns)
        assert set(web.heard) == {"web"}
        assert set(dns.heard) == {"dns"}
    assert inspect_state.problems() == []


def _register_by_server(one: Tubular, server: Server) -> None:
    """Sockets of another process, duplicated here only to be registered."""
    for name, kind, protocol, prefix, port in (
        ("web", "tcp", TCP, "127.1.0.0/16", 80),
        ("dns", "udp", UDP, "127.4.0.0/16", 53),
    ):
        opened = server.open(name, kind)
        pidfd = os.pidfd_open(server.pid)
        fd = _pidfd_getfd(pidfd, opened.fd)
        one.register(name, 4, protocol, fd)
        os.close(fd)
        os.close(pidfd)
        one.bind(name, protocol, prefix, port)


def _pidfd_getfd(pidfd: int, fd: int) -> int:
    from svcctl.host.process import pidfd_getfd

    return pidfd_getfd(pidfd, fd)


def _wait(*clients: Asking) -> None:
    for one in clients:
        one.wait_for(10)


def test_conflict_changes_nothing(world: World, built: str, traffic: Traffic) -> None:
    svc("load", *SMALL)
    svc("bind", "mine", "tcp", "127.1.0.0/16", 80)
    one = Tubular(built)
    _fill(one, traffic)
    before = svc("bindings").out
    ran = svc("load", "--from-tubular", code=6)
    assert "web#tcp:[127.1.0.0/16]:80 is bound to 'mine' already" in ran.err
    assert svc("bindings").out == before
    assert _answers(traffic) == WANT
    assert os.path.exists(f"{one.path}/link")
    one.remove()


def test_nothing_there(world: World) -> None:
    ran = svc("load", "--from-tubular", code=5)
    assert "no tubular state for this network namespace" in ran.err
    assert inspect_state.directories() == []
    svc("load", "--from-tubular", "--no-dispatcher", code=2)


def test_dispatcher_off(world: World, built: str, traffic: Traffic) -> None:
    """Without a dispatcher nobody would steer afterwards."""
    one = Tubular(built)
    _fill(one, traffic)
    svc("load", *SMALL)
    svc("detach", "netns")
    assert "attach netns" in svc("load", "--from-tubular", code=6).err
    assert _answers(traffic) == WANT
    svc("attach", "netns")
    svc("load", "--from-tubular")
    _check_taken(traffic)


def test_id_given_out_twice(world: World, built: str, traffic: Traffic) -> None:
    """tubular gives the id of a label whose socket has gone to another, and keeps the first one's entry."""
    one = Tubular(built)
    one.ids[("stale", 4, TCP)] = 0
    one.ids[("web", 4, TCP)] = 0
    one._destination("stale", 4, TCP, 0)
    one.register("web", 4, TCP, traffic.listen("web", "127.0.0.1", 7001).fileno())
    one.bind("web", TCP, "127.1.0.1", 80)
    svc(*TAKE)
    assert traffic.ask("127.1.0.1", 80) == "web"
    assert "web" in svc("bindings").out
    assert "stale" not in svc("destinations").out


def test_id_with_two_owners(world: World, built: str, traffic: Traffic) -> None:
    one = Tubular(built)
    one.ids[("blue", 4, TCP)] = 0
    one.ids[("web", 4, TCP)] = 0
    one.bind("blue", TCP, "127.1.0.2", 80)
    one.bind("web", TCP, "127.1.0.1", 80)
    ran = svc(*TAKE, code=6)
    assert "number 0, to tubular" in ran.err
    one.remove()


def test_label_that_is_none(world: World, built: str, traffic: Traffic) -> None:
    one = Tubular(built)
    one.bind("a\tb", TCP, "127.1.0.2", 80)
    ran = svc(*TAKE, code=7)
    assert ran.err.startswith("svcctl: error: load --from-tubular: ")
    assert os.path.exists(f"{one.path}/link")
    one.remove()


def test_short_prefix_took_both_families(world: World, built: str, traffic: Traffic) -> None:
    one = Tubular(built)
    one.bind("web", TCP, "::/0", 80)
    ran = svc(*TAKE)
    assert "took IPv4 as well under tubular; it no longer does" in ran.err


def test_many(world: World, built: str, monkeypatch: pytest.MonkeyPatch, traffic: Traffic) -> None:
    monkeypatch.setattr("svcctl.state.bulk.THRESHOLD", 3)
    _fill(Tubular(built), traffic)
    svc(*TAKE)
    _check_taken(traffic)


def test_foreign_directory(world: World, built: str, traffic: Traffic) -> None:
    """A directory that somebody else could have made is not believed."""
    one = Tubular(built)
    _fill(one, traffic)
    os.chown(one.path, 65534, 65534)
    assert "belongs to uid 65534" in svc(*TAKE, code=4).err
    assert _answers(traffic) == WANT
    os.chown(one.path, 0, 0)
    svc("load", "--from-tubular")
    _check_taken(traffic)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_killed_and_run_again(
    world: World, built: str, traffic: Traffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its start to its end, whatever it had made by then: traffic stays as it was."""
    everything = os.environ.get("SVCCTL_CRASH") == "all"
    first = Tubular(built)
    _fill(first, traffic)
    sockets = dict(traffic._sockets)
    with forge() as server:
        points = strace.trace(server, *TAKE).changing
        _check_taken(traffic)
        chosen = points if everything else strace.chosen(points)
        for point in chosen:
            server.ok("unload", "--yes")
            one = Tubular(built)
            _fill_again(one, sockets)
            assert _answers(traffic) == WANT
            done = strace.kill_at(server, point, *TAKE)
            assert done.code == -9, f"{point}: {done.all}"
            assert _answers(traffic) == WANT, point
            done = server.run(*TAKE)
            assert done.code == 0, f"{point}: {done.all}"
            _check_taken(traffic)
    with capsys.disabled():
        print(f"\nload --from-tubular: {len(chosen)} kills at {len(points)} system calls")


def _fill_again(one: Tubular, sockets: dict[str, socket.socket]) -> None:
    for name, label, family, protocol in (
        ("web", "web", 4, TCP),
        ("web6", "web", 6, TCP),
        ("dns", "dns", 4, UDP),
        ("lonely", "lonely", 4, TCP),
    ):
        one.register(label, family, protocol, sockets[name].fileno())
    one.bind("web", TCP, "127.1.0.0/16", 80)
    one.bind("web", TCP, "127.1.2.3", 0)
    one.bind("web", TCP, "::1", 80)
    one.bind("dns", UDP, "127.0.0.0/8", 53)
    one.bind("nobody", TCP, "127.1.9.0/24", 80)
