"""`svcctl health` on real maps: which ports answer, with what, and what the node is said to be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcctl.model.prefix import parse_prefix
from svcctl.state.node_status import note_node
from svcctl.state.place import Place
from svcctl.state.writer import open_writer
from tests.lib import applying, stranger, units
from tests.lib.cli import clean_environment, process
from tests.lib.health import ask, change, health, status, wait_for
from tests.lib.svc import svc
from tests.lib.until import lets_go

if TYPE_CHECKING:
    from tests.lib.balanced import Balanced
    from tests.lib.world import World

WEB = "default/web:http/tcp"
NODE = 10256


def note(**what: object) -> None:
    with open_writer(Place(), "test") as writer:
        note_node(writer, **what)  # type: ignore[arg-type]


def web(made: Balanced, name: str = WEB, vip: str = "10.96.0.10:80/tcp", port: int = 30100) -> None:
    made.add(name, vip)
    change(name, health_port=port, local_ready=2)


def test_ports_come_and_go_with_services(balanced: Balanced) -> None:
    with health() as one:
        assert status(NODE, "/healthz") == 200
        assert status(30100) == 0
        web(balanced)
        wait_for(200, 30100)
        answer = ask(30100, "/anything?at=all")
        assert answer.json == {
            "service": {"namespace": "default", "name": "web"},
            "localEndpoints": 2,
            "serviceProxyHealthy": True,
        }
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-load-balancing-endpoint-weight"] == "2"
        change(WEB, local_ready=0)
        answer = ask(30100)  # at once, and not only with the next look
        assert (answer.status, answer.headers["x-load-balancing-endpoint-weight"]) == (503, "0")
        assert answer.json["localEndpoints"] == 0
        change(WEB, health_port=30101, local_ready=1)
        wait_for(200, 30101)
        wait_for(0, 30100)
        svc("service", "delete", WEB)
        wait_for(0, 30101)
        _, err = one.stop()
    assert "port 30100 of default/web: listening on http://[::]:30100/\n" in err
    assert "port 30101: closed\n" in err


def test_both_families_by_one_socket(balanced: Balanced) -> None:
    web(balanced)
    with health():
        wait_for(200, 30100)
        for host in ("127.0.0.1", "::1"):
            assert status(30100, host=host) == 200
            assert status(NODE, "/livez", host=host) == 200


def test_only_on_the_addresses_named(balanced: Balanced) -> None:
    web(balanced)
    with health("--address", "127.0.0.2", "--address", "::1", "--healthz", "127.0.0.3:9000"):
        wait_for(200, 30100, host="127.0.0.2")
        assert status(30100, host="::1") == 200
        assert status(30100, host="127.0.0.1") == 0
        assert status(9000, "/healthz", host="127.0.0.3") == 200
        assert status(NODE, "/healthz") == 0


def test_where_node_ports_are_served(balanced: Balanced) -> None:
    """As kube-proxy: 82163. What is said on the command line goes before that."""
    balanced.world.sh("ip address add 192.0.2.1/32 dev lo; ip address add 198.51.100.1/32 dev lo")
    web(balanced)

    def limit(*prefixes: str) -> None:
        nets = tuple(parse_prefix(each) for each in prefixes)
        applying.apply(applying.desired(kind="kubernetes", node_port_addresses=nets), prune=False)

    with health() as one:
        wait_for(200, 30100, host="198.51.100.1")
        with units.watched("svcctl-health.service", one.process.pid):
            limit("192.0.2.0/24", "::/0")
            wait_for(0, 30100, host="198.51.100.1")
            wait_for(200, 30100, host="192.0.2.1")
            wait_for(200, 30100, host="::1")
        assert status(30100) == 0
        limit("198.51.100.1")
        wait_for(200, 30100, host="198.51.100.1")
        assert (status(30100, host="192.0.2.1"), status(30100, host="::1")) == (0, 0)
        limit("203.0.113.0/24")
        wait_for(0, 30100, host="198.51.100.1")
        with health("--address", "127.0.0.2", "--healthz", "none"):
            wait_for(200, 30100, host="127.0.0.2")
        assert status(NODE, "/healthz") == 200
        limit()
        wait_for(200, 30100)
        _, err = one.stop()
    assert "port 30100 of default/web: listening on http://192.0.2.1:30100/\n" in err


def test_the_node(balanced: Balanced) -> None:
    web(balanced)
    with health("--late", "3600"):
        wait_for(200, 30100)
        assert ask(NODE, "/healthz").json["nodeEligible"] is True
        assert (status(NODE, "/"), status(NODE, "/metrics")) == (404, 404)
        note(eligible=False)
        answer = ask(NODE, "/healthz")
        assert (answer.status, answer.json["nodeEligible"]) == (503, False)
        assert status(NODE, "/livez") == 200
        assert status(30100) == 200, "the services' checks do not ask about the node's future"
        note(eligible=True, pending_ns=time.time_ns() - 1000 * 10**9)
        assert status(NODE, "/healthz") == 200
        note(pending_ns=time.time_ns() - 5000 * 10**9)
        assert (status(NODE, "/healthz"), status(NODE, "/livez"), status(30100)) == (503, 503, 503)
        assert ask(30100).json["serviceProxyHealthy"] is False
        note(pending_ns=0)
        assert (status(NODE, "/healthz"), status(NODE, "/livez"), status(30100)) == (200, 200, 200)


def test_noting_what_is_noted_writes_nothing(balanced: Balanced) -> None:
    with open_writer(Place(), "test") as writer:
        before = writer.meta().generation
        assert not note_node(writer, eligible=True, pending_ns=0)
        assert writer.meta().generation == before
        assert note_node(writer, eligible=False, pending_ns=7)
        assert not note_node(writer, eligible=False, pending_ns=7)
        assert note_node(writer, eligible=True, pending_ns=0)
        assert writer.meta().generation == before + 4
    assert svc("check").code == 0


def test_a_program_that_is_not_attached(balanced: Balanced) -> None:
    web(balanced)
    with health():
        wait_for(200, 30100)
        os.rename(f"{balanced.state_dir}/link_connect4", f"{balanced.state_dir}/away")
        answer = ask(NODE, "/livez")
        os.rename(f"{balanced.state_dir}/away", f"{balanced.state_dir}/link_connect4")
        assert answer.status == 503
        assert answer.json["reason"].startswith("not attached: connect4")
        assert status(NODE, "/livez") == 200


def test_an_interface_that_went_is_no_fault(balanced: Balanced) -> None:
    """As one does with its container: its record stays until somebody looks."""
    balanced.world.sh(
        "ip link add gone0 type veth peer name gone1; ip link add here0 type veth peer name here1"
    )
    svc("attach", "dev", "gone0", "here0", "--role", "workload", "--max-flows", 1000)
    web(balanced)
    with health():
        wait_for(200, 30100)
        balanced.world.sh("ip link del gone0")
        assert (status(NODE, "/livez"), status(30100)) == (200, 200)
    assert "its interface is gone" in svc("gc").out


def test_a_balancer_that_is_nowhere(balanced: Balanced) -> None:
    web(balanced)
    with health():
        wait_for(200, 30100)
        svc("detach", "cgroup")
        answer = ask(NODE, "/livez")
        assert (answer.status, answer.json["reason"]) == (
            503, "the balancer is not attached ('svcctl attach cgroup')",
        )  # fmt: skip
        svc("attach", "cgroup", balanced.cgroup)
        assert status(NODE, "/livez") == 200


def test_an_apply_that_went_well_ends_the_wait(balanced: Balanced, tmp_path: Path) -> None:
    """Of a follower that could not apply and was stopped, say; an input without nodes says as much."""
    note(pending_ns=time.time_ns() - 5000 * 10**9)
    kubernetes = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "b"}}
    spec = {"clusterIP": "10.96.0.77", "ports": [{"port": 80}], "selector": {"a": "b"}}
    file = tmp_path / "file.json"
    file.write_text(json.dumps({**kubernetes, "spec": spec}))
    with health():
        assert status(NODE, "/livez") == 503
        svc("apply", "-f", file, "--force")
        assert status(NODE, "/livez") == 200


def test_load_upgrade_unload(world: World) -> None:
    with health():
        answer = ask(NODE, "/healthz")
        assert answer.status == 503
        assert answer.json["reason"].startswith("no state for network namespace")
        svc("load")
        assert status(NODE, "/healthz") == 200
        svc("upgrade")
        assert status(NODE, "/healthz") == 200
        svc("unload", "--yes")
        assert status(NODE, "/healthz") == 503


def test_a_port_that_is_taken(balanced: Balanced) -> None:
    with socket.create_server(("127.0.0.1", 30100)), health() as one:
        web(balanced)
        web(balanced, "default/other:http/tcp", "10.96.0.11:80/tcp", 30101)
        wait_for(200, 30101)
        change("default/other:http/tcp", health_port=30102)
        wait_for(200, 30102)
        code, err = one.stop()
    assert code == 0
    assert err.count("port 30100 of default/web: Address already in use; trying again") == 1


def test_kube_proxy_may_still_be_there(balanced: Balanced) -> None:
    """Its port is taken over when it goes."""
    with socket.create_server(("127.0.0.1", NODE)) as taken, health("--healthz", f"127.0.0.1:{NODE}") as one:
        assert one.lines[0] == "healthz: Address already in use; trying again\n"
        taken.close()
        wait_for(200, NODE, "/healthz")


def test_it_keeps_nothing_open_and_no_lock(balanced: Balanced) -> None:
    web(balanced)
    with health() as one:
        wait_for(200, 30100)
        lets_go(one.process.pid, "bpf", "net:")


def test_metrics_too(balanced: Balanced) -> None:
    with health("--metrics", "[::1]:9280"):
        wait_for(200, 9280, "/", "::1")
        answer = ask(9280, "/metrics", "::1")
        assert answer.status == 200
        assert b"\nsvcctl_build_info{" in answer.body
        assert status(9280, "/healthz", "::1") == 404


def test_as_a_group_member_without_capabilities(balanced: Balanced) -> None:
    svc("unload", "--yes")
    svc("load", "--group", stranger.GROUP, "--no-dispatcher")
    svc("attach", "cgroup", balanced.cgroup, "--max-services", 64, "--max-backends", 256)
    web(balanced)
    with health(before=lambda: stranger.drop(stranger.GROUP, cap_bpf=stranger.NEEDS_CAP_BPF)):
        wait_for(200, 30100)
        assert (status(NODE, "/healthz"), status(NODE, "/livez")) == (200, 200)


def test_strangers_get_the_reason(balanced: Balanced) -> None:
    with health(before=lambda: stranger.drop(stranger.STRANGERS)):
        answer = ask(NODE, "/healthz")
        assert answer.status == 503
        assert "ermission denied" in answer.json["reason"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals(world: World, number: int, code: int) -> None:
    with health() as one:
        assert one.stop(number)[0] == code


def test_usage(world: World) -> None:
    for args, words in (
        (("--healthz", "10256"), "expected 127.0.0.1:9280"),
        (("--healthz", "::1:80"), "expected 127.0.0.1:9280"),
        (("--healthz", "[::1]:80000"), "expected a port"),
        (("--address", "localhost"), "expected an address"),
        (("--timeout", "0"), "--timeout"),
    ):
        done = process("health", *args)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed"
)
def test_socket_activation(balanced: Balanced) -> None:
    """Sockets by name, and one by the port that a service has."""
    web(balanced)
    words = [
        "systemd-socket-activate",
        "-l",
        "127.0.0.1:8001",
        "-l",
        "127.0.0.1:8002",
        "-l",
        "127.0.0.1:30100",
    ]
    words += ["--fdname", "healthz:metrics:service", "-E", f"PYTHONPATH={clean_environment()['PYTHONPATH']}"]
    server = subprocess.Popen([*words, sys.executable, "-m", "svcctl", "health"], stderr=subprocess.PIPE)
    try:
        wait_for(200, 8001, "/healthz")
        assert status(8002, "/metrics") == 200
        assert status(30100) == 200
        assert status(NODE, "/healthz") == 0
        change(WEB, health_port=30101)
        wait_for(200, 30101)
        assert status(30100) == 404, "the socket is systemd's"
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
