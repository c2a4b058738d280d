"""What commands on services say and refuse: wrong use, names nobody knows, notices, and candidates for completion."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from svcctl.cli.shell import candidates
from tests.lib.outgoing import balancer, clear_services
from tests.lib.run import ok, svcctl


@pytest.fixture(scope="module")
def attached() -> Iterator[str]:
    """The path of a cgroup with the balancer, in a world for all tests of this file."""
    with balancer() as path:
        yield path


@pytest.fixture
def two(attached: str) -> Iterator[str]:
    """That cgroup, and two services; none is left after the test."""
    ok("service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--backend", "127.0.0.1:8081")
    ok("service", "add", "dns", "--frontend", "10.96.0.53:53/udp", "--backend", "127.0.0.2:5300")
    yield attached
    clear_services()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("service", "set", "web"), "nothing to set"),
        (("service", "set", "web", "--kind", "external"), "--kind goes with --frontend"),
        (
            ("service", "set", "web", "--frontend", "1.1.1.1:1/tcp", "--no-frontend", "1.1.1.1:1/tcp"),
            "both --frontend and --no-frontend 1.1.1.1:1/tcp",
        ),
        (("service", "set", "web", "--source", "10.0.0.0/8", "--no-source", "10.1.2.3/8"), "both --source and --no-source 10.0.0.0/8"),
        (("service", "set", "web", "--source", "10.0.0.0/8"), "source ranges are for load-balancer frontends"),
        (("service", "delete", "web", "--tcp"), "--tcp goes with --terminate"),
        (("service", "add", "  ", "--frontend", "1.1.1.1:1/tcp"), "nothing but blanks"),
        (("service", "add", "x", "--frontend", "::ffff:1.1.1.1:1/tcp"), "hint: write 1.1.1.1:1/tcp"),
        (("explain", "[::ffff:1.1.1.1]:1/tcp"), "hint: write 1.1.1.1\n"),
        (
            ("service", "add", "x", "--frontend", "1.1.1.1:1/tcp", "--backend", "1.1.1.2:1", "--backend", "1.1.1.2:1,weight=2"),
            "named twice",
        ),
    ],
)  # fmt: skip
def test_wrong_use(two: str, words: tuple[str, ...], text: str) -> None:
    ran = svcctl(*words)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert ok("services", "-o", "name").out == "dns\nweb\n"


@pytest.mark.parametrize("noun", ["services", "frontends", "backends", "nat", "affinity", "reverse"])
def test_a_name_nobody_has(two: str, noun: str) -> None:
    ran = svcctl(noun, "nope")
    assert (ran.code, ran.out) == (5, "")
    assert f"{noun}: no such service: 'nope'" in ran.err
    assert ok(noun, "web").code == 0


def test_said_twice_counts_once(two: str) -> None:
    twice = ("--frontend", "10.96.0.20:1/tcp") * 2 + ("--backend", "127.0.0.1:1") * 2
    assert ok("service", "add", "x", *twice).out.count("added") == 3
    assert ok("service", "add", "x", *twice).out.startswith("unchanged")


def test_how_a_service_differs(two: str) -> None:
    ran = svcctl("service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--backend", "127.0.0.9:1")
    assert ran.code == 6
    assert "differs: backend 127.0.0.9:1 is missing there (and 1 more)" in ran.err
    ran = svcctl("service", "add", "web", "--frontend", "10.96.0.10:80/tcp")
    assert "differs: backend 127.0.0.1:8081 is there too" in ran.err
    ran = svcctl(
        "service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--backend", "127.0.0.1:8081,weight=2"
    )
    assert "differs: backend 127.0.0.1:8081: weight 1 there, asked for 2" in ran.err


def test_nothing_is_translated_twice(two: str) -> None:
    assert "is a frontend of 'web'" in ok("backend", "add", "dns", "10.96.0.10:80").err
    assert "is a backend as well" in ok("service", "add", "x", "--frontend", "127.0.0.1:8081/tcp").err
    assert ok("backend", "add", "dns", "10.96.0.11:80").err == ""


def completed(*words: str) -> list[str]:
    """What zsh would offer."""
    return [line.split("\t")[1] for line in candidates("zsh", ["--", *words])]


def test_completion_offers_what_the_service_has(two: str) -> None:
    for verb in ("set", "drain", "delete"):
        assert completed("backend", verb, "dns", "") == ["127.0.0.2:5300"]
    assert completed("service", "set", "web", "--no-frontend", "") == ["10.96.0.10:80/tcp"]
    assert completed("backend", "set", "nope", "") == []
    assert completed("backend", "add", "dns", "127") == ["127.0.0.1:8081", "127.0.0.2:5300"]


def test_explain_ends_with_what_a_socket_meets(two: str) -> None:
    lines = ok("explain", "10.96.0.10:80/tcp").out.splitlines()
    assert (
        lines[-1].split()
        == "result sockets of this host in the balancer's cgroup go to 127.0.0.1:8081".split()
    )
    assert not any("ip route" in line for line in lines)
    assert sum("incoming" in line for line in lines) == 1


def test_status_all_counts_services(two: str) -> None:
    head, row = ok("status", "--all").out.splitlines()
    values = dict(zip(head.replace("LAST WRITE", "LAST").split(), row.split(), strict=False))
    assert (values["SERVICES"], values["BACKENDS"]) == ("2", "2")


def test_unload_asks_what_for(two: str) -> None:
    ran = svcctl("unload")
    assert ran.code == 2
    assert "2 services (dns, web), the connect balancer on " in ran.err
    assert two in ran.err


def test_where_there_is_no_bpffs(two: str) -> None:
    ran = svcctl("--bpffs", "/etc", "services")
    assert ran.code == 3
    assert "hint: --bpffs names" in ran.err
    ran = svcctl("--bpffs", "/etc", "load")
    assert (ran.code, "would hide" in ran.err) == (1, True)


def ranges(name: str) -> list[str]:
    """The source ranges of a service."""
    (row,) = json.loads(ok("services", name, "-o", "json").out)["services"]
    return list(row.get("sources", []))


def test_source_ranges_one_by_one(two: str) -> None:
    """Added and taken away, alone and together with the frontend that may have them; what is so already is."""
    lb = ("--frontend", "192.0.2.40:80/tcp", "--kind", "load-balancer")
    change = ("service", "set", "web")
    ok(*change, *lb, "--source", "198.51.100.0/24", "--source", "2001:db8::1")
    assert ranges("web") == ["198.51.100.0/24", "2001:db8::1/128"]
    assert completed(*change, "--no-source", "") == ["198.51.100.0/24", "2001:db8::1/128"]
    assert completed(*change, "--no-source", "2") == ["2001:db8::1/128"]
    again = ok(*change, "--source", "198.51.100.7/24")
    assert again.out.startswith("unchanged")
    dry = ok(*change, "--no-source", "2001:db8::1", "--dry-run")
    assert "2001:db8::1" in dry.out
    ok(*change, "--no-source", "2001:db8::1", "--source", "203.0.113.0/24")
    assert ranges("web") == ["198.51.100.0/24", "203.0.113.0/24"]
    missing = svcctl(*change, "--no-source", "203.0.113.1")
    assert (missing.code, missing.out) == (5, "")
    assert "203.0.113.1/32: no source range of this service" in missing.err
    # The last frontend that may have ranges stays as long as there are some, and goes with them.
    kept = svcctl(*change, "--no-frontend", "192.0.2.40:80/tcp")
    assert kept.code == 2
    assert "source ranges are for load-balancer frontends" in kept.err
    all_gone = ("--no-source", "198.51.100.0/24", "--no-source", "203.0.113.0/24")
    ok(*change, *all_gone, "--no-frontend", "192.0.2.40:80/tcp")
    assert ranges("web") == []
    ok(*change, *lb, "--source", "10.0.0.0/8")
    ok(*change, *lb[:2], "--kind", "external", "--no-source", "10.0.0.0/8")
    assert ranges("web") == []
    assert ok("check").code == 0
