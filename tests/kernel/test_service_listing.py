"""services, frontends, backends, nat, affinity, reverse, and what the other listings say of services."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import yaml

from svcctl.cli.shell import candidates
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import MEMBER, SLOT_KEY, SlotKey
from svcctl.state import nat as state_nat
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import open_writer
from tests.lib.child import needs_root
from tests.lib.cli import process
from tests.lib.outgoing import OTHER_NETNS, balancer, cgroup, clear_services, client
from tests.lib.run import Result, ok, svcctl
from tests.lib.scrape import parse, series
from tests.lib.stranger import GROUP, NEEDS_CAP_BPF, as_stranger
from tests.lib.svc import process_env
from tests.lib.until import lose_link
from tests.lib.world import world

NOUNS = ("services", "frontends", "backends", "nat", "affinity", "reverse")
V6 = "socket.AF_INET6"


@pytest.fixture(scope="module")
def attached() -> Iterator[str]:
    """The path of a cgroup with the balancer, in a world for all tests of this file."""
    with balancer("--group", str(GROUP)) as path:
        yield path


@pytest.fixture
def group(attached: str) -> Iterator[str]:
    """That cgroup; no service is left after the test."""
    yield attached
    clear_services()


@pytest.fixture
def mixed(group: str) -> str:
    """Services of many sorts."""
    ok("service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--frontend", "[fd00::10]:80/tcp",
       "--backend", "127.0.0.1:8081", "--backend", "127.0.0.2:8082,weight=3", "--affinity", "600", "--block")  # fmt: skip
    ok("service", "add", "dns", "--frontend", "10.96.0.9:53/udp", "--frontend", "10.96.0.9:53/tcp")
    ok("backend", "add", "dns", "127.0.0.3:53,state=draining", "127.0.0.1:53,local", "127.0.0.2:53,weight=0")
    ok("service", "set", "dns", "--node-port", "30053", "--internal-policy", "local")
    ok("service", "add", "shut", "--frontend", "10.96.0.11:1/tcp", "--drop")
    return group


def rows(noun: str, *words: str) -> list[dict[str, Any]]:
    """The rows of a listing."""
    found: list[dict[str, Any]] = ok(noun, *words, "-o", "json").json[noun]
    return found


def test_services(mixed: str) -> None:
    found = {row["name"]: row for row in rows("services")}
    assert list(found) == ["dns", "shut", "web"]
    web = found["web"]
    assert web["frontends"] == ["10.96.0.10:80/tcp", "[fd00::10]:80/tcp"]
    assert web["backends"] == {"active": 2, "all": 2}
    assert (web["policy"], web["affinity"], web["block"]) == ("cluster", 600, True)
    assert (web["connections"], web["no_backend"]) == (0, 0)
    dns = found["dns"]
    assert dns["backends"] == {"active": 1, "all": 3}
    assert (dns["policy"], dns["node_port"]) == ("internal=local,external=cluster", 30053)
    assert "affinity" not in dns
    assert rows("services", "web") == [web]
    assert "2/2" in ok("services").out


def test_frontends_show_who_answers(mixed: str) -> None:
    found = {row["frontend"]: row for row in rows("frontends")}
    assert list(found) == [
        "0.0.0.0:30053/tcp", "0.0.0.0:30053/udp", "10.96.0.9:53/tcp", "10.96.0.9:53/udp",
        "10.96.0.10:80/tcp", "10.96.0.11:1/tcp", "[fd00::10]:80/tcp",
    ]  # fmt: skip
    brief = {name: (row["backends"], row["result"], row.get("flags")) for name, row in found.items()}
    assert brief["10.96.0.10:80/tcp"] == (2, "serves", ["block"])
    assert brief["[fd00::10]:80/tcp"] == (0, "refuses", ["block"])
    assert brief["10.96.0.11:1/tcp"] == (0, "drops", None)
    assert brief["10.96.0.9:53/udp"] == (1, "serves", ["local"])
    assert brief["0.0.0.0:30053/udp"] == (1, "serves", ["host"])
    assert found["0.0.0.0:30053/udp"]["kind"] == "node-port"
    assert [row["frontend"] for row in rows("frontends", "shut")] == ["10.96.0.11:1/tcp"]


def test_backends(mixed: str) -> None:
    found = rows("backends")
    names = [(row["service"], row["backend"]) for row in found]
    assert names == sorted(names)
    dns = {row["backend"]: row for row in rows("backends", "dns")}
    assert dns["127.0.0.3:53"]["state"] == "draining"
    assert dns["127.0.0.2:53"]["weight"] == 0
    assert dns["127.0.0.1:53"]["local"] is True
    assert "local" not in dns["127.0.0.2:53"]
    assert dns["127.0.0.1:53"]["since"].startswith("20")
    assert [row for row in found if row["service"] == "dns"] == list(dns.values())


def test_nat_is_what_the_kernel_has(mixed: str) -> None:
    found = {row["frontend"]: row for row in rows("nat")}
    assert list(found)[:2] == ["0.0.0.0:30053/tcp", "0.0.0.0:30053/udp"]
    assert found["10.96.0.10:80/tcp"]["backends"] == [
        {"backend": "127.0.0.1:8081", "share": 0.25},
        {"backend": "127.0.0.2:8082", "share": 0.75},
    ]
    assert found["10.96.0.10:*"]["result"] == "blocks"
    assert found["[fd00::10]:80/tcp"]["result"] == "refuses"
    assert found["10.96.0.11:1/tcp"]["result"] == "drops"
    assert found["10.96.0.9:53/udp"]["set"] == "local"
    assert "127.0.0.1:8081=25% 127.0.0.2:8082=75%" in ok("nat").out
    # Whatever the index of the writers says.
    with open_writer(Place(), "test") as writer:
        items = dict(writer.map("service_members").items())
        for key, value in items.items():
            writer.map("service_members").update(key, MEMBER.pack(MEMBER.unpack(value)._replace(weight=9)))
        try:
            assert {row["frontend"]: row for row in rows("nat")} == found
        finally:
            for key, value in items.items():
                writer.map("service_members").update(key, value)


def test_nat_shows_what_leads_nowhere(mixed: str) -> None:
    web = next(row for row in rows("nat", "web") if row["result"] == "serves")
    with open_writer(Place(), "test") as writer:
        slots = writer.map("slots")
        key = SLOT_KEY.pack(SlotKey(web["block"], 1))
        kept = slots.lookup(key)
        assert kept is not None
        slots.delete(key)
        try:
            (row,) = (row for row in rows("nat", "web") if row["frontend"] == web["frontend"])
            assert (row["result"], row["backends"]) == ("broken", [])
            assert explain("10.96.0.10:80/tcp")["verdict"] == "refuse"
        finally:
            slots.update(key, kept)
        current = writer.map("current")
        word = current.lookup(U32.pack(web["lane"]))
        assert word is not None
        current.update(U32.pack(web["lane"]), bytes(8))
        try:
            row = next(row for row in rows("nat") if row["frontend"] == web["frontend"])
            assert row["result"] == "broken"
            assert "service" not in row
        finally:
            current.update(U32.pack(web["lane"]), word)
    assert next(row for row in rows("nat", "web") if row["result"] == "serves") == web


def test_shares_are_exact(group: str) -> None:
    """Within the rounding of the thresholds, 2^-31, for any weights."""
    chance = random.Random(11)
    sets = [(1, 65535), (1, 1, 1, 2), (1,), (3, 3, 3)]
    sets += [tuple(chance.randint(1, 65535) for _ in range(chance.randint(2, 20))) for _ in range(4)]
    for number, weights in enumerate(sets):
        ok("service", "add", f"s{number}", "--frontend", f"10.97.0.{number}:80/tcp")
        specs = [f"127.1.{number}.{n}:80,weight={weight}" for n, weight in enumerate(weights)]
        ok("backend", "add", f"s{number}", *specs)
    with open_reader(Place()) as reader:
        found = {one.service: one for one in state_nat.routes(reader)}
    for number, weights in enumerate(sets):
        shares = found[f"s{number}"].shares
        assert sum(one.share for one in shares) == 1
        for one, weight in zip(shares, weights, strict=True):
            assert abs(one.share - Fraction(weight, sum(weights))) < Fraction(1, 1 << 31)


def explain(endpoint: str) -> dict[str, Any]:
    """What `explain` says of outgoing connections."""
    value: dict[str, Any] = ok("explain", endpoint, "-o", "json").json["explain"][0]["outgoing"]
    return value


def test_explain_equals_nat(mixed: str) -> None:
    for row in rows("nat"):
        if row["result"] == "blocks" or row["frontend"].startswith(("0.0.0.0", "[::]")):
            continue
        found = explain(row["frontend"])
        assert found["backends"] == row["backends"]
        assert (found["service"], found["set"]) == (row["service"], row["set"])
        assert found["verdict"] == ("serve" if row["result"] == "serves" else "refuse")


def test_explain_says_why(mixed: str) -> None:
    web = explain("10.96.0.10:80/tcp")
    assert web["affinity"] == 600
    assert any("10.96.0.10:*" in line for line in web["losers"])
    dns = explain("10.96.0.9:53/udp")
    assert dns["others"] == ["127.0.0.2:53: weight 0", "127.0.0.3:53: draining"]
    assert explain("10.96.0.10:81/tcp")["met"] == "blocked address"
    assert explain("127.0.0.1:30053/udp")["met"] == "node port"
    assert explain("0.0.0.0:30053/udp")["met"] == "node port"
    assert explain("127.0.0.1:30053/udp")["only_host"] is True
    far = explain("192.0.2.1:30053/udp")
    assert far["verdict"] == "pass"
    assert "no node's address that serves node ports" in far["losers"][0]
    assert "outgoing" not in ok("explain", "192.0.2.1:80/tcp", "-o", "json").json["explain"][0]
    text = ok("explain", "10.96.0.9:53/udp").out
    assert "not chosen" in text
    assert "go to 127.0.0.1:53" in text
    ok("attach", "cgroup", mixed, "--exclude-udp")
    try:
        assert "leaves UDP alone" in explain("10.96.0.9:53/udp")["reason"]
        assert explain("10.96.0.9:53/tcp")["verdict"] == "serve"
    finally:
        ok("attach", "cgroup", mixed, "--include-udp")


def test_affinity(mixed: str) -> None:
    code = "serve('127.0.0.1', 8081); serve('127.0.0.2', 8082); tcp('a', '10.96.0.10', 80)"
    cookie = "out = int.from_bytes(socks['a'].getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder)"
    with client(mixed, code) as here, client(mixed, code, prefix=OTHER_NETNS) as there:
        clients = [one.run(cookie) for one in (here, there)]
        found = rows("affinity")
        assert sorted(row["client"] for row in found) == sorted(f"netns:{one}" for one in clients)
        for row in found:
            assert (row["service"], row["state"]) == ("web", "live")
            assert row["backend"] in ("127.0.0.1:8081", "127.0.0.2:8082")
            assert 0 <= row["age"] < 60
            assert abs(row["age"] + row["remaining"] - 600) < 0.01
        mine = next(row for row in found if row["client"] == f"netns:{clients[0]}")
        affine = explain("10.96.0.10:80/tcp")["affine"]
        assert (affine["client"], affine["backend"]) == (mine["client"], mine["backend"])
        ok("backend", "drain", "web", mine["backend"])
        stale = next(row for row in rows("affinity") if row["client"] == mine["client"])
        assert stale["state"] == "stale"
        assert "affine" not in explain("10.96.0.10:80/tcp")
        ok("backend", "set", "web", mine["backend"], "--state", "active")
        ok("service", "set", "web", "--affinity", "1")
        time.sleep(1.1)
        assert {row["state"] for row in rows("affinity")} == {"expired"}
        assert {row["remaining"] for row in rows("affinity")} == {0.0}
        assert rows("affinity", "dns") == []
        assert ok("affinity", "-o", "name").out.splitlines() == [f"web/{row['client']}" for row in found]


def test_reverse(mixed: str) -> None:
    ok("service", "add", "u", "--frontend", "10.96.0.20:53/udp", "--backend", "127.0.0.1:5300")
    code = f"out = [udp('a', '10.96.0.20', 53), udp('b', '::ffff:10.96.0.20', 53, {V6})]"
    with client(mixed) as here, client(mixed, prefix=OTHER_NETNS) as there:
        cookies = here.run(code) + there.run(code)
        found = rows("reverse")
        assert [row["cookie"] for row in found] == sorted(cookies)
        assert {(row["frontend"], row["backend"], row["service"], row["state"]) for row in found} == {
            ("10.96.0.20:53", "127.0.0.1:5300", "u", "live")
        }
        names = ok("reverse", "-o", "name").out.splitlines()
        assert names == [f"sk:{one:x}/127.0.0.1:5300" for one in sorted(cookies)]
        assert rows("reverse", "web") == []
        ok("service", "delete", "u")
        assert {row["state"] for row in rows("reverse")} == {"stale"}
        # A new service of that name is another one.
        ok("service", "add", "u", "--frontend", "10.96.0.20:53/udp", "--backend", "127.0.0.1:5300")
        assert {row["state"] for row in rows("reverse")} == {"stale"}
        assert here.run("out = peer('a')") == ["127.0.0.1", 5300]
        assert all(row["service"].startswith("?") for row in rows("reverse"))
    assert rows("reverse") == []


def test_reverse_of_many_sockets_while_they_change(mixed: str) -> None:
    """The batches that read values with a spin lock, while programs write them."""
    ok("service", "add", "u", "--frontend", "10.96.0.20:53/udp")
    ok("backend", "add", "u", "127.0.0.1:5300", "127.0.0.2:5300")
    code = """
import threading
for n in range(300):
    udp(n, '10.96.0.20', 53)
going = True
def change():
    while going:
        for n in range(300):
            socks[n].connect(('127.0.0.1', 1)); socks[n].connect(('10.96.0.20', 53))
thread = threading.Thread(target=change)
thread.start()
"""
    with client(mixed, code) as one:
        try:
            for _ in range(5):
                for row in rows("reverse"):
                    assert row["frontend"] == "10.96.0.20:53"
                    assert row["backend"] in ("127.0.0.1:5300", "127.0.0.2:5300")
                    assert (row["service"], row["state"]) == ("u", "live")
        finally:
            one.run("going = False; thread.join()")
        assert len({row["cookie"] for row in rows("reverse")}) == 300


def test_counters(mixed: str) -> None:
    code = "serve('127.0.0.1', 8081); serve('127.0.0.2', 8082)\nfor n in range(10): tcp(n, '10.96.0.10', 80)"
    with client(mixed, code) as one:
        for endpoint in (("fd00::10", 80, "socket.AF_INET6"), ("10.96.0.11", 1, "socket.AF_INET")):
            assert one.run(
                f"try: tcp('x', {endpoint[0]!r}, {endpoint[1]}, {endpoint[2]})\nexcept OSError as e: out = e.errno"
            )
    web = rows("services", "web")[0]
    assert (web["connections"], web["no_backend"], web["by_affinity"]) == (10, 1, 9)
    assert sum(row["picks"] for row in rows("backends", "web")) == 10
    samples = parse(ok("metrics").out)
    assert samples[series("service_connections_total", service="web", family="ipv4")] == 10
    assert samples[series("service_no_backend_total", service="web", family="ipv6")] == 1
    assert samples[series("service_dropped_total", service="shut", family="ipv4")] == 1
    picks = [value for (name, _), value in samples.items() if name == "svcctl_backend_picks_total"]
    assert sum(picks) == 10
    assert samples[series("drops_total", reason="no_backend")] >= 1
    assert samples[series("map_entries", map="service_names")] == 3
    assert samples[series("map_entries", map="affinity")] == 1
    assert samples[series("map_max_entries", map="reverse")] == 1000
    (status,) = ok("status", "-o", "json").json["status"]
    assert next(row for row in status["services"] if row["name"] == "web")["connections"] == 10
    fill = {row["name"]: row["used"] for row in status["maps"]}
    assert (fill["affinity"], fill["service_names"]) == (1, 3)
    text = ok("status").out
    assert "balancer    9 programs" in text
    assert "services    3 (" in text


@pytest.mark.parametrize("noun", NOUNS)
def test_every_format_and_the_same_order_each_time(mixed: str, noun: str) -> None:
    code = "serve('127.0.0.1', 8081); serve('127.0.0.2', 8082); tcp('a', '10.96.0.10', 80)"
    with client(mixed, code):
        first = ok(noun, "-o", "json").json
        assert first["schema"] == 1
        assert first[noun]
        documents = [yaml.safe_load(ok(noun, "-o", "yaml").out)[noun], ok(noun, "-o", "json").json[noun]]
        for document in documents:
            assert [_without_times(row) for row in document] == [_without_times(row) for row in first[noun]]
        names = ok(noun, "-o", "name").out.splitlines()
        assert len(names) == len(first[noun])
        text, wide = (ok(noun, "-o", output).out.splitlines() for output in ("text", "wide"))
        assert len(text) == len(wide) == len(names) + 1
        assert all(len(a) <= len(b) for a, b in zip(text, wide, strict=True))
        assert len(ok(noun, "--no-headers").out.splitlines()) == len(names)


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("age", "remaining")}


@pytest.mark.parametrize("noun", NOUNS)
def test_nothing_there(group: str, noun: str) -> None:
    done = ok(noun)
    assert done.out == ""
    assert done.err
    assert ok(noun, "-o", "json").json == {"schema": 1, noun: []}


def test_as_a_member_of_the_group(mixed: str) -> None:
    code = "serve('127.0.0.1', 8081); serve('127.0.0.2', 8082); tcp('a', '10.96.0.10', 80)"
    words = [(noun, "-o", "json") for noun in NOUNS]
    words += [("explain", "10.96.0.10:80/tcp", "-o", "json"), ("metrics", "-o", "json")]  # type: ignore[list-item]
    words += [("status", "-o", "json"), ("attachments", "-o", "json")]
    words += [("backend", "delete", "web", "127.0.0.1:8081", "--dry-run")]  # type: ignore[list-item]

    def look() -> list[tuple[int, str, str]]:
        return [tuple(svcctl(*one)) for one in words]  # type: ignore[misc]

    with client(mixed, code):
        for args, theirs, ours in zip(
            words, as_stranger(look, cap_bpf=NEEDS_CAP_BPF), [ok(*one) for one in words], strict=True
        ):
            result = Result(*theirs)
            assert result.code == 0, (args, result)
            if args[0] in NOUNS:
                rows_of = [[_without_times(row) for row in one.json[args[0]]] for one in (result, ours)]
                assert rows_of[0] == rows_of[1]
            elif args[0] == "explain":
                outgoing = [one.json["explain"][0]["outgoing"]["backends"] for one in (result, ours)]
                assert outgoing[0] == outgoing[1]


@pytest.mark.parametrize("noun", ["services", "frontends", "backends"])
def test_no_such_service(group: str, noun: str) -> None:
    assert svcctl(noun, "nobody").code == 5


@pytest.mark.parametrize("noun", NOUNS)
def test_without_service_maps(noun: str) -> None:
    needs_root()
    with world():
        assert svcctl(noun).code == 3
        ok("load", "--no-dispatcher")
        done = svcctl(noun)
        assert done.code == 3
        assert "attach cgroup" in done.err


def test_attachments(group: str) -> None:
    found = {row["hook"]: row for row in rows("attachments") if row["kind"] == "cgroup"}
    assert sorted(found) == [
        "connect4", "connect6", "getpeername4", "getpeername6", "recvmsg4", "recvmsg6", "sendmsg4", "sendmsg6",
        "sock_release",
    ]  # fmt: skip
    for row in found.values():
        assert row["path"] == group
        assert row["target"] == os.stat(group).st_ino
        assert row["state"] == "up"
        assert row["program"] == row["hook"]


def test_attachments_that_are_lost() -> None:
    with balancer() as path:
        with open_reader(Place()) as reader:
            lose_link(reader.pin("link_recvmsg4"))
        state = {row["hook"]: row["state"] for row in rows("attachments")}
        assert state.pop("recvmsg4") == "down"
        assert set(state.values()) == {"up"}
        samples = parse(ok("metrics").out)
        down = [dict(labels)["hook"] for (name, labels), value in samples.items()
                if name == "svcctl_attachment_up" and not value]  # fmt: skip
        assert down == ["recvmsg4"]
        assert "DOWN: recvmsg4" in ok("status").out
        ok("detach", "cgroup")
        assert [row["kind"] for row in rows("attachments")] == ["netns"]
        assert "not attached" in ok("status").out
        with cgroup() as other:
            ok("attach", "cgroup", other)
            ok("detach", "cgroup")
        assert os.path.isdir(path)


def completed(*words: str) -> list[str]:
    return [line.split("\t")[1] for line in candidates("zsh", ["--", *words])]


def test_completion(mixed: str) -> None:
    assert completed("services", "") == ["dns", "shut", "web"]
    assert completed("backend", "delete", "w") == ["web"]
    assert completed("backend", "delete", "web", "127.0.0.2") == ["127.0.0.2:8082"]
    assert completed("service", "set", "web", "--no-frontend", "10.96.0.1") == ["10.96.0.10:80/tcp"]
    assert "10.96.0.9:53/udp" in completed("explain", "10.")


def test_a_listing_imports_nothing_heavy(mixed: str) -> None:
    code = "import json, sys; from svcctl.cli.main import main; main(['services', '-q']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=process_env(), check=True
    )
    assert not {"socket", "subprocess", "pyroute2", "rich", "yaml"} & set(done.stdout.split())
    assert process("services", "-o", "name").stdout.split() == ["dns", "shut", "web"]


def test_external_mode(group: str) -> None:
    ok("service", "add", "far", "--frontend", "192.0.2.80:80/tcp", "--kind", "external", "--external-mode", "dsr",
       "--external-policy", "local")  # fmt: skip
    (row,) = ok("services", "-o", "json").json["services"]
    assert row["external_mode"] == "dsr"
    (front,) = ok("frontends", "-o", "json").json["frontends"]
    assert front["flags"] == ["outside-local", "dsr"]
    (entry,) = ok("export").json["services"]
    assert entry["external_mode"] == "dsr"
    done = ok("service", "set", "far", "--external-mode", "tunnel")
    assert "external-mode dsr -> tunnel" in done.out
    (row,) = ok("services", "-o", "json").json["services"]
    assert "external_mode" not in row
    assert "external_mode" not in ok("export").json["services"][0]
    (front,) = ok("frontends", "-o", "json").json["frontends"]
    assert front["flags"] == ["outside-local"]
    assert svcctl("service", "set", "far", "--external-mode", "nat").code == 2
    assert ok("check").out == "no problems found\n"
