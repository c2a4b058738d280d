"""The dispatcher in a few quick tests: these run inside every kernel of the matrix as well.

Each says what it covers; tests/abi/test_quick_coverage.py holds that against the objects.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from sys import byteorder

import pytest

from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.maps import enums
from svcctl.maps.layouts import exact_check
from svcctl.model.binding import parse_binding
from svcctl.model.constants import IPV4, IPV6, PROTOCOL_NUMBERS, TCP, UDP
from tests.lib.look_up import DROPPED, PASSED, SK_PASS, Answer, look_up
from tests.lib.pins import entries, meta
from tests.lib.servers import REFUSED, SLOWNESS, Server, ask, ask_often, ask_until, asking
from tests.lib.svc import installed, process_env, svc
from tests.lib.world import World

DROP_SLOTS = 64  # SVC_DROP_SLOTS of bpf/include/svc_types.h
AT = {4: "127.0.0.53", 6: "2001:db8::53"}
NET = {4: "127.5.0.0/16", 6: "2001:db8:5::/48"}
IN_NET = {4: "127.5.1.1", 6: "2001:db8:5::1"}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


@pytest.fixture
def small(world: World) -> World:
    svc("load", "--max-bindings", 1000, "--max-destinations", 16)
    world.sh("ip -6 route add local 2001:db8::/32 dev lo")
    return world


@pytest.mark.quick
@pytest.mark.covers(
    "load", "dispatch: sk_lookup", "dispatch: map hash", "dispatch: map lpm_trie", "dispatch: map array",
    "dispatch: map sockmap", "dispatch: map percpu_array", "dispatch: helper map_lookup_elem",
    "dispatch: helper sk_assign", "dispatch: helper sk_release",
)  # fmt: skip
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_traffic_by_hash_and_by_trie(small: World, server: Server, kind: str, family: int) -> None:
    """A host and a prefix, bound, without a socket and with one; counters; what is not bound."""
    svc("bind", "web", kind, AT[family], 80)
    svc("bind", "web", kind, NET[family], 0)
    assert ask(kind, AT[family], 80) == REFUSED
    assert ask(kind, IN_NET[family], 1234) == REFUSED
    opened = server.open("it", kind, family=family, address=LOOPBACK[family])
    svc("register-pid", server.pid, "web", kind, LOOPBACK[family], opened.port)
    assert ask(kind, AT[family], 80) == "it"
    assert ask(kind, IN_NET[family], 1234) == "it"
    assert ask(kind, LOOPBACK[family], opened.port) == "it"
    (row,) = svc("destinations", "-o", "json").json["destinations"]
    assert (row["lookups"], row["no_socket"], row["errors"], row["bindings"]) == (4, 2, 0, 2)
    assert [one["cookie"] for one in row["members"]] == [opened.cookie]
    svc("unbind", "web", kind, AT[family], 80)
    assert ask(kind, AT[family], 80) == REFUSED  # nobody listens there
    assert ask(kind, IN_NET[family], 1234) == "it"


@pytest.mark.quick
def test_order_of_the_four_look_ups(small: World, server: Server) -> None:
    """Exact and wildcard port in the hash, then in the trie; the families apart; by test run and listing."""
    cookies = {}
    for label, port in (("host80", 80), ("host", 0), ("net80", 80), ("net", 0)):
        opened = server.open(label)
        svc("register-pid", server.pid, label, "tcp", "127.0.0.1", opened.port)
        svc("bind", label, "tcp", "10.1.1.1" if label.startswith("host") else "10.1.0.0/16", port)
        cookies[label] = Answer(SK_PASS, opened.cookie)
    svc("bind", "six", "tcp", "::/0", 0)
    with Program.open_pinned(f"{small.state_dir}/prog_dispatch") as program:

        def at(protocol: int, address: str, port: int) -> Answer:
            binding = parse_binding("x", "tcp", address, "1")
            return look_up(program, protocol, binding.family, binding.address, port)

        assert at(TCP, "10.1.1.1", 80) == cookies["host80"]
        assert at(TCP, "10.1.1.1", 81) == cookies["host"]
        assert at(TCP, "10.1.1.2", 80) == cookies["net80"]
        assert at(TCP, "10.1.1.2", 81) == cookies["net"]
        assert at(TCP, "10.2.1.2", 80) == PASSED
        assert at(UDP, "10.1.1.1", 80) == PASSED
        assert at(TCP, "2001:db8::1", 80) == DROPPED
        svc("unbind", "host80", "tcp", "10.1.1.1", 80)
        assert at(TCP, "10.1.1.1", 80) == cookies["host"]
        svc("unbind", "host", "tcp", "10.1.1.1", 0)
        assert at(TCP, "10.1.1.1", 80) == cookies["net80"]
        svc("unbind", "net80", "tcp", "10.1.0.0/16", 80)
        assert at(TCP, "10.1.1.1", 80) == cookies["net"]
    labels = [row["label"] for row in svc("bindings", "-o", "json").json["bindings"]]
    assert labels == ["net", "six"]


@pytest.mark.quick
def test_digest_of_exact_keys(small: World) -> None:
    """Python and the program compute the same digest: whatever is bound is found, a wrong digest is not."""
    chosen = random.Random(1)
    hosts = []
    for _ in range(40 if SLOWNESS == 1 else 12):
        kind, port = chosen.choice(["tcp", "udp"]), chosen.choice([0, 1, 80, 65535])
        host = ".".join(str(chosen.randrange(256)) for _ in range(4))
        if chosen.random() < 0.5:
            host = ":".join(f"{chosen.randrange(1, 65536):x}" for _ in range(8))
        hosts.append(parse_binding("none", kind, host, str(port)))
        svc("bind", "none", kind, host, port)
    stored = entries(small.state_dir, "exact")
    assert isinstance(stored, dict)
    with Program.open_pinned(f"{small.state_dir}/prog_dispatch") as program:
        for binding in hosts:
            assert int.from_bytes(stored[binding.key()[4:]][4:], byteorder) == exact_check(binding.key()[4:])
            query = (binding.protocol, binding.family, binding.address, binding.port or 4711)
            assert look_up(program, *query) == DROPPED, binding
            assert _drops(small) == 0
        key, query = hosts[0].key()[4:], (*hosts[0][1:4], hosts[0].port or 4711)
        with Map.open_pinned(f"{small.state_dir}/exact") as exact:
            exact.update(key, stored[key][:4] + bytes(a ^ 1 for a in stored[key][4:]))
        assert look_up(program, *query) == DROPPED
        assert _drops(small) == 1
    assert {binding.family for binding in hosts} == {IPV4, IPV6}
    assert {binding.protocol for binding in hosts} == set(PROTOCOL_NUMBERS.values())


def _drops(world: World) -> int:
    """How often an entry of the hash did not hold still."""
    values = entries(world.state_dir, "drop_stats")
    assert isinstance(values, bytes)
    per_reason = len(values) // DROP_SLOTS
    found = values[per_reason * enums.DROP_UNSTABLE : per_reason * (enums.DROP_UNSTABLE + 1)]
    return sum(int.from_bytes(found[at : at + 8], byteorder) for at in range(0, per_reason, 8))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_group_down_to_its_last_member(small: World, server: Server, kind: str) -> None:
    group = [server.open("m0", kind, reuseport=True)]
    group += [server.open(f"m{n}", kind, reuseport=True, port=group[0].port) for n in (1, 2)]
    svc("bind", "web", kind, AT[4], 80)
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    assert set(ask_until(kind, AT[4], 80, ("m0", "m1", "m2"))) == {"m0", "m1", "m2"}
    server.close("m0")
    assert set(ask_often(kind, AT[4], 80, 10)) <= {"m1", "m2"}
    server.close("m2")
    assert ask_often(kind, AT[4], 80, 5) == {"m1": 5}
    if kind == "tcp":
        # Shut down, not closed: its slot stays full. Without a look at its state Linux 5.10 swallows the SYN.
        server.ask("shutdown", name="m1")
    else:
        server.ask("connect", name="m1", address="127.0.0.1", port=9)
    assert ask(kind, AT[4], 80) == REFUSED
    server.kill()
    assert ask(kind, AT[4], 80) == REFUSED


@pytest.mark.quick
@pytest.mark.covers(
    "upgrade", "copy_sockets: sk_lookup", "copy_sockets: map sockmap", "copy_sockets: helper map_lookup_elem",
    "copy_sockets: helper map_update_elem", "copy_sockets: helper sk_release",
)  # fmt: skip
def test_upgrade_and_resize_under_load(small: World, server: Server) -> None:
    """Programs swapped and maps grown with the sockets in them: no request fails."""
    opened = server.open("it")
    svc("bind", "web", "tcp", AT[4], 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    with asking("tcp", AT[4], 80) as client:
        client.wait_for(2)
        svc("upgrade", "--force")
        client.wait_for(2)
        svc("upgrade", "--max-destinations", 32, "--max-bindings", 2000)
        client.wait_for(2)
    assert set(client.heard) == {"it"}
    svc("bind", "web", "tcp", NET[4], 80)
    assert ask("tcp", IN_NET[4], 80) == "it"


@pytest.mark.quick
@pytest.mark.covers("kill")
def test_killed_writer(small: World, server: Server, tmp_path: Path) -> None:
    """kill -9 in the middle of many changes: traffic goes by the old or the new rules, the next command mends."""
    opened = server.open("it")
    svc("bind", "web", "tcp", AT[4], 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    base = {"label": "web", "protocol": "tcp", "prefix": AT[4], "port": 80}
    hosts = [base | {"prefix": f"127.7.{n // 250}.{n % 250}"} for n in range(500)]
    few, many = tmp_path / "few.json", tmp_path / "many.json"
    few.write_text(json.dumps({"bindings": [base]}))
    many.write_text(json.dumps({"bindings": [base, *hosts]}))
    cut = 0
    for attempt in range(60):
        with subprocess.Popen(
            [*installed(), "load-bindings", str(many)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=process_env(),
        ) as writer:
            if _wait_for_mark(small, writer):
                time.sleep(0.001 * (attempt % 3))
            writer.kill()
        cut += meta(small.state_dir).generation & 1
        assert ask("tcp", AT[4], 80) == "it"
        svc("bind", "other", "tcp", "127.0.0.54", 80)
        assert not meta(small.state_dir).generation & 1
        assert ask("tcp", AT[4], 80) == "it"
        svc("check")
        svc("load-bindings", few)
        assert len(svc("bindings", "-o", "json").json["bindings"]) == 1
        if cut == (2 if SLOWNESS == 1 else 1):
            break
    assert cut, "no writer was killed in the middle of its work"
    svc("load-bindings", many)
    assert len(svc("bindings", "-o", "json").json["bindings"]) == 501
    assert ask("tcp", "127.7.1.249", 80) == "it"
    svc("check")


def _wait_for_mark(world: World, writer: subprocess.Popen[bytes]) -> bool:
    """Until the writer is at work (the generation is odd), or has ended."""
    end = time.monotonic() + 60 * SLOWNESS
    while time.monotonic() < end and writer.poll() is None:
        if meta(world.state_dir).generation & 1:
            return True
        time.sleep(0.0005)
    return False
