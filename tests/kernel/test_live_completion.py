"""Completion from the live state: quick, silent, without waiting for anybody."""

from __future__ import annotations

import subprocess

import pytest

from svcctl.cli import live
from svcctl.cli.env import Env
from svcctl.cli.shell import candidates
from svcctl.errors import NotLoaded
from tests.lib.run import ok
from tests.lib.sockets import writer
from tests.lib.svc import installed, process_env
from tests.lib.world import World

BINDINGS = (
    ("web", "tcp", "127.0.0.1", "80"),
    ("web", "tcp", "192.0.2.0/24", "0"),
    ("dns", "udp", "2001:db8::/32", "53"),
    ("dns", "udp", "::1", "53"),
    ('a "b" #ü', "tcp", "0.0.0.0/0", "443"),
)


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "20")
    for binding in BINDINGS:
        ok("bind", *binding)
    return world


def generation() -> int:
    with writer() as state:
        return state.meta().generation


def completed(*words: str) -> list[str]:
    return [line.split("\t")[1] for line in candidates("zsh", ["--", *words])]


def test_completion(loaded: World) -> None:
    assert completed("bind", "") == ['a "b" #ü', "dns", "web"]
    assert completed("bind", "w") == ["web"]
    assert completed("unbind", "web", "tcp", "19") == ["192.0.2.0/24"]
    assert completed("unbind", "web", "tcp", "") == [
        "127.0.0.1/32",
        "192.0.2.0/24",
        "0.0.0.0/0",
        "::1/128",
        "2001:db8::/32",
    ]
    assert completed("bind", "web", "tcp", "::1", "") == ["0", "53", "80", "443"]
    assert completed("explain", "") == ["127.0.0.1:80/tcp", "[::1]:53/udp"]
    assert completed("explain", "127.0.0.1:80/tcp", "--from", "") == ["127.0.0.1", "::1"]
    assert completed("status", "d") == ["dns"]
    assert "netns" in completed("attach", "")
    assert completed("load-bindings", "/tmp/x") == ["/tmp/x"]
    loaded.sh("ip link add veth1 type veth peer name other")
    assert completed("attach", "dev", "") == ["other", "veth1"]
    assert completed("detach", "dev", "v") == ["veth1"]
    assert completed("attach", "dev", "veth1", "--role", "") == ["workload", "host"]
    assert completed("attach", "dev", "--timeout", "u") == ["udp="]


def test_completion_does_not_wait_and_changes_nothing(loaded: World) -> None:
    before = generation()
    with writer():
        assert completed("bind", "w") == ["web"]
    assert generation() == before


def test_completion_without_state(world: World) -> None:
    assert completed("bind", "") == []
    with pytest.raises(NotLoaded):
        list(live.candidates("label", Env()))
    assert list(live.candidates("nonsense", Env())) == []
    ok("load", "--no-dispatcher")
    assert completed("bind", "") == []


def test_completion_by_a_shell(loaded: World) -> None:
    """Through the process that a shell starts: nothing on stderr, whatever happens."""
    environment = process_env() | {"_SVCCTL_COMPLETE": "bash"}
    line = "svcctl unbind web tcp 127"
    done = subprocess.run(
        [*installed(), line], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("plain\t127.0.0.1/32\t\n", "")
