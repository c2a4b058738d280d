"""`svcctl apply`, `diff`, `export` and `check -f` on the pinned maps: ownership, pruning, what is written and what is not."""

from __future__ import annotations

import importlib
import json
import os
import signal
from pathlib import Path

import pytest

from svcctl.model.constants import TCP
from svcctl.model.desired import KUBERNETES
from svcctl.model.prefix import parse_prefix
from svcctl.state import change_write
from svcctl.state.node_status import read_health
from svcctl.state.owners import note_owners, read_owners
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import open_writer
from tests.lib import applying
from tests.lib.applying import actions, apply, desired, plain_services, problems, service
from tests.lib.balanced import VIP, Balanced
from tests.lib.inspect_state import generation
from tests.lib.svc import svc, svc_process
from tests.lib.world import World
from tests.unit import kubernetes_objects

FILE = """
version: 1
services:
  - name: shop
    frontends: ["10.96.0.10:80/tcp", {address: "203.0.113.1:80/tcp", kind: load-balancer}]
    backends: ["10.1.0.1:8080", {address: "10.1.0.2:8080", weight: 3}]
    sources: [10.0.0.0/8, "2001:db8::/32"]
  - name: dns
    frontends: ["10.96.0.53:53/udp", "[2001:db8:96::53]:53/udp"]
    backends: ["10.1.0.9:53", "[2001:db8::9]:53"]
    node_port: 30053
    affinity: 60
"""
BINDINGS = """bindings:
  - {label: web, protocol: tcp, prefix: 192.0.2.0/24, port: 443}
  - {label: web, protocol: tcp, prefix: 192.0.2.1, port: 443}
"""


def put(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "state.yaml"
    path.write_text(text)
    return path


def test_applied_twice_the_second_writes_nothing(balanced: Balanced, tmp_path: Path) -> None:
    file = put(tmp_path, FILE)
    assert svc("apply", "-f", file, "--dry-run").out.splitlines() == [
        "service dns created (dry run)",
        "service shop created (dry run)",
        "2 created, 0 changed, 0 deleted, 0 unchanged (dry run)",
    ]
    assert svc("services", "-o", "json").json["services"] == []
    assert svc("apply", "-f", file).out.splitlines()[:2] == ["service dns created", "service shop created"]
    before = generation()
    again = svc("apply", "-f", file, "-o", "json").json
    assert again["counts"] == {"created": 0, "changed": 0, "deleted": 0, "unchanged": 2}
    assert [(one["kind"], one["name"], one["action"]) for one in again["changes"]] == [
        ("service", "dns", "unchanged"),
        ("service", "shop", "unchanged"),
    ]
    assert generation() == before
    assert problems() == []


def test_many_that_are_unchanged_are_counted(loaded: World, tmp_path: Path) -> None:
    """Ten thousand lines that say nothing hide the one that does."""
    lines = [f"  - {{label: web, protocol: tcp, prefix: 10.0.0.{n}, port: 80}}\n" for n in range(102)]
    text = "version: 1\nbindings:\n"
    svc("apply", "-f", put(tmp_path, text + "".join(lines[:100])))
    few = svc("apply", "-f", put(tmp_path, text + "".join(lines[:101]))).out.splitlines()
    assert (len(few), few[-1]) == (102, "1 created, 0 changed, 0 deleted, 100 unchanged")
    file = put(tmp_path, text + "".join(lines))
    assert svc("apply", "-f", file, "--dry-run").out.splitlines() == [
        "binding web#tcp:[10.0.0.101/32]:80 created (dry run)",
        "1 created, 0 changed, 0 deleted, 101 unchanged (dry run)",
    ]
    assert len(svc("apply", "-f", file, "--dry-run", "-v").out.splitlines()) == 103
    assert len(svc("apply", "-f", file, "--dry-run", "-o", "json").json["changes"]) == 102


def test_export_applied_writes_nothing(balanced: Balanced, tmp_path: Path) -> None:
    """Made by hand, by one owner and another: all of it stays whose it is."""
    svc("attach", "netns", "--max-bindings", 1000, "--max-destinations", 64)
    svc("apply", "-f", put(tmp_path, FILE + BINDINGS))
    svc("apply", "-f", put(tmp_path, FILE.replace("shop", "s2").replace("dns", "d2")), code=6)
    balanced.add("hand", "10.96.0.77:80/tcp", backends=["10.1.0.1:8080,weight=9", "10.1.0.3:80"], affinity=7)
    svc("backend", "drain", "hand", "10.1.0.3:80")
    svc("bind", "own", "udp", "192.0.2.9", 53)
    before, text = generation(), svc("export").out
    assert {one.get("owner") for one in json.loads(text)["services"]} == {"native", None}
    assert {one.get("owner") for one in json.loads(text)["bindings"]} == {"native", None}
    for form in ("json", "yaml"):
        file = put(tmp_path, svc("export", "-o", form).out)
        ran = svc("apply", "-f", file)
        assert "0 created, 0 changed, 0 deleted, 6 unchanged" in ran.out
        assert ran.err == ""
        assert "0 changed" in svc("apply", "-f", file, "--prune").out
        assert svc("diff", "-f", file, "--prune").out == "0 created, 0 changed, 0 deleted, 6 unchanged\n"
    assert "3 unchanged" in svc("load-bindings", file if form == "json" else put(tmp_path, text)).out
    assert generation() == before
    # On a host that has nothing it makes the same, and the same export.
    everything = svc("export").out
    svc("apply", "-f", put(tmp_path, "version: 1\nservices: []\nbindings: []\n"), "--prune")
    svc("service", "delete", "hand")
    svc("unbind", "own", "udp", "192.0.2.9", 53)
    assert json.loads(svc("export").out)["services"] == []
    svc("apply", "-f", put(tmp_path, everything))
    assert svc("export").out == everything
    # As at boot: bindings by the one command, services by the other.
    none = tmp_path / "none.yaml"
    none.write_text("version: 1\nservices: []\nbindings: []\n")
    svc("apply", "-f", none, "--prune")
    svc("load-bindings", put(tmp_path, everything))
    assert svc("apply", "-f", put(tmp_path, everything)).err == ""
    assert svc("export").out == everything
    assert "4 deleted" in svc("apply", "-f", none, "--prune").out  # what is native's, and no more
    assert problems() == []


def test_diff_ends_as_diff_does(balanced: Balanced, tmp_path: Path) -> None:
    file = put(tmp_path, FILE)
    assert "service shop created" in svc("diff", "-f", file, code=1).out
    svc("apply", "-f", file)
    svc("diff", "-f", file)
    before = generation()
    file = put(tmp_path, FILE.replace("10.1.0.1:8080", "10.1.0.3:8080"))
    assert svc("diff", "-f", file, code=1).out.splitlines() == [
        "service shop changed",
        "  backend 10.1.0.3:8080 added",
        "  backend 10.1.0.1:8080 deleted",
        "0 created, 1 changed, 0 deleted, 1 unchanged",
    ]
    assert generation() == before
    svc("diff", "-f", put(tmp_path, "version: 1\nservices: 7\n"), code=2)
    svc("apply", "-f", put(tmp_path, FILE), "--owner", "other", code=0)
    svc(
        "diff", "-f", put(tmp_path, FILE.replace("affinity: 60", "affinity: 61")), "--owner", "other", code=10
    )


def test_no_reader_says_that_what_a_killed_apply_left_is_as_wanted(
    balanced: Balanced, tmp_path: Path
) -> None:
    """It died after what services are was written, before their sets were: everybody is served as before."""
    one, other = "10.1.0.1:80", "10.1.0.2:80"
    apply(desired(service("web", f"{VIP}:80/tcp", one)))
    file = put(
        tmp_path,
        f"version: 1\nservices: [{{name: web, frontends: ['{VIP}:80/tcp'], backends: ['{other}']}}]\n",
    )
    child = os.fork()
    if not child:
        try:
            change_write.write_blocks = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            svc("apply", "-f", file)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    ran = svc("diff", "-f", file, code=10)
    assert (ran.out, "inconsistent" in ran.err) == ("0 created, 0 changed, 0 deleted, 1 unchanged\n", True)
    assert "inconsistent" in svc("apply", "-f", file, "--dry-run").err
    assert svc("nat", "-o", "json").out.count(one)
    assert "repairing after" in svc("apply", "-f", file).err
    assert svc("diff", "-f", file).err == ""
    assert svc("apply", "-f", file, "--dry-run").err == ""
    assert svc("nat", "-o", "json").out.count(other)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("nodes: [{name: node-b, addresses: [192.0.2.11]}]\n", "node 'node-b' is asked for twice"),
        (
            "nodes: [{name: node-c, addresses: [192.0.2.2]}]\n",
            "node 'node-c': 192.0.2.2 belongs to node 'node-b'",
        ),
        ("node_port_addresses: [10.0.0.0/8]\n", "do not agree on where node ports are served"),
    ],
)
def test_inputs_that_exclude_each_other(balanced: Balanced, tmp_path: Path, more: str, words: str) -> None:
    """To check -f as to apply."""
    objects = [
        kubernetes_objects.service(),
        kubernetes_objects.endpoint_slice("10.1.0.1"),
        kubernetes_objects.node("node-a", "192.0.2.1"),
        kubernetes_objects.node("node-b", "192.0.2.2"),
    ]
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    inputs = ["-f", cluster, "-f", put(tmp_path, "version: 1\nservices: []\n" + more), "--node", "node-a"]
    if "node_port" in more:
        inputs += ["--node-port-addresses", "all"]
        assert words in svc("apply", *inputs, code=2).err
    assert words in svc("check", *inputs, code=2).err


def test_diff_without_state(world: World, tmp_path: Path) -> None:
    assert svc("diff", "-f", put(tmp_path, FILE), code=10).out == ""
    svc("apply", "-f", put(tmp_path, FILE), code=3)
    svc("load", "--no-dispatcher")
    assert "attach cgroup" in svc("apply", "-f", put(tmp_path, FILE), code=3).err
    assert "attach netns" in svc("apply", "-f", put(tmp_path, "version: 1\n" + BINDINGS), code=3).err


def test_check_of_a_file_needs_nothing(tmp_path: Path) -> None:
    assert svc("check", "-f", put(tmp_path, FILE + BINDINGS)).out == "native: 2 services, 2 bindings\n"
    svc("check", "-f", put(tmp_path, FILE.replace("8080", "80800")), code=2)
    svc("check", "-f", put(tmp_path, ""), code=2)
    svc("check", "-f", put(tmp_path, FILE), "--repair", code=2)
    svc("check", "-f", put(tmp_path, FILE), "--node-port-addresses", "rubbish", code=2)


@pytest.mark.parametrize(
    "text", ["", "   \n", "{", '{"kind": "Status"}', '{"version": 1, "services": [{"na', "<html>"]
)
def test_what_is_no_state_changes_nothing(balanced: Balanced, tmp_path: Path, text: str) -> None:
    svc("apply", "-f", put(tmp_path, FILE))
    before = generation()
    ran = svc("apply", "-f", put(tmp_path, text), "--prune", code=None)
    assert ran.code in (1, 2)
    assert ran.err.startswith("svcctl: error: ")
    assert generation() == before


def test_several_files_and_standard_input(balanced: Balanced, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.json"
    one.write_text(FILE)
    two.write_text(
        '{"version": 1, "services": [{"name": "more", "frontends": ["10.96.0.11:80/tcp"], "backends": []}]}'
    )
    ran = svc_process("apply", "-f", one, "-f", "-", input=two.read_text())
    assert [line.split()[1] for line in ran.out.splitlines()[:3]] == ["dns", "more", "shop"]
    svc("apply", "-f", one, "-f", one, code=2)


def test_what_may_be_an_outage_is_refused(balanced: Balanced) -> None:
    """The same through the command is the readers' to test: here what is made of their blockers."""
    from svcctl.cli.apply_commands import refuse_outage
    from svcctl.errors import SvcctlError

    with pytest.raises(SvcctlError, match="nothing is changed: no EndpointSlices") as raised:
        refuse_outage("apply", [desired(blockers=("no EndpointSlices",))])
    assert (raised.value.exit_code, "--force" in (raised.value.hint or "")) == (1, True)


def test_owners(balanced: Balanced, tmp_path: Path) -> None:
    balanced.add("hand", "10.96.0.77:80/tcp", backends=["10.1.0.1:1"])
    svc("apply", "-f", put(tmp_path, FILE))
    more = "version: 1\nservices:\n  - {name: more, frontends: ['10.96.0.11:80/tcp'], backends: []}\n"
    svc("apply", "-f", put(tmp_path, more), "--owner", "other", "--prune")
    assert {name: one.owner for name, one in plain_services().items()} == {
        "dns": "native",
        "shop": "native",
        "hand": "",
        "more": "other",
    }
    ran = svc("apply", "-f", put(tmp_path, more.replace("[]", "['10.1.0.1:1']")), code=6)
    assert "service 'more' belongs to other" in ran.err
    ran = svc("apply", "-f", put(tmp_path, more.replace("more", "mine")), "--owner", "me", code=6)
    assert "10.96.0.11:80/tcp" in ran.err
    assert "'more'" in ran.err
    svc("apply", "-f", put(tmp_path, more.replace("more", "mine")), "--owner", "me", "--force", code=6)
    svc("apply", "-f", put(tmp_path, more.replace("more", "mine")), "--owner", "me", "--take-over")
    assert plain_services()["more"].frontends == ()
    svc("apply", "-f", put(tmp_path, "version: 1\nservices: []\n"), "--prune")
    assert list(plain_services()) == ["hand", "mine", "more"]
    assert problems() == []


def test_owners_of_bindings_end_with_what_a_hand_does(loaded: World, tmp_path: Path) -> None:
    file = put(tmp_path, "version: 1\n" + BINDINGS)
    none = tmp_path / "none.yaml"
    none.write_text("version: 1\nbindings: []\n")
    svc("apply", "-f", file)
    svc("bind", "blue", "tcp", "192.0.2.0/24", 443, "--replace")  # by hand now
    svc("unbind", "web", "tcp", "192.0.2.1", 443)
    svc("bind", "web", "tcp", "192.0.2.1", 443)  # and so is this
    assert "0 deleted" in svc("apply", "-f", none, "--prune").out
    assert len(svc("bindings", "-o", "json").json["bindings"]) == 2
    # Adopted, for it differs; the other one stays a hand's.
    assert "1 changed" in svc("apply", "-f", file).out
    assert "1 deleted" in svc("apply", "-f", none, "--prune").out
    # load-bindings is a hand, too: step by step, and swapped in whole.
    for more in (0, 9_990):
        svc("apply", "-f", file)
        prefixes = [f"10.{n >> 8}.{n & 255}.1" for n in range(more)]
        wanted = [{"label": "web", "protocol": "udp", "prefix": prefix, "port": 1} for prefix in prefixes]
        wanted += [
            {"label": "red", "protocol": "tcp", "prefix": f"192.0.{n}.0/24", "port": 443}
            for n in range(2, 20)
        ]
        loads = tmp_path / "load.json"
        loads.write_text(json.dumps({"bindings": wanted}))
        svc("load-bindings", loads)
        with open_reader(Place()) as reader:
            assert read_owners(reader) == {}
        loads.write_text('{"bindings": []}')
        svc("load-bindings", loads)
    assert svc("check").out == "no problems found\n"


def test_an_owner_left_behind_is_found_and_mended(loaded: World, tmp_path: Path) -> None:
    with open_writer(Place(), "test") as writer:
        note_owners(writer, {applying.binding("web", TCP, "192.0.2.0/24", 443).key(): "native"})
    assert "bindings: 1 owners" in svc("check", code=1).out
    svc("check", "--repair")
    assert svc("check").out == "no problems found\n"


def test_source_ranges_are_stored_and_never_passed_over(balanced: Balanced, tmp_path: Path) -> None:
    backend = balanced.farm.many(1)[0]
    front = "203.0.113.1:80/tcp"
    lb = service("lb", front, backend, kind=2, sources="10.0.0.0/8 2001:db8::/32")
    apply(desired(lb))
    assert plain_services()["lb"].sources == applying.plain(lb).sources
    assert balanced.error("203.0.113.1", 80) != 0
    assert "10.0.0.0/8" in svc("export").out
    assert applying.used()["source_ranges"] == 2
    first = applying.stored()["lb"].ranges
    # Backends change: the ranges keep their number. The ranges change: another one, and the old entries go.
    apply(desired(lb._replace(affinity_seconds=3)))
    assert applying.stored()["lb"].ranges == first
    apply(desired(lb._replace(sources=(parse_prefix("10.0.0.0/9"),))))
    assert applying.stored()["lb"].ranges > first
    assert applying.used()["source_ranges"] == 1
    assert problems() == []
    # By hand, too.
    svc("service", "set", "lb", "--affinity", 9)
    assert svc("services", "lb", "-o", "json").json["services"][0]["sources"] == ["10.0.0.0/9"]
    # Lost: nobody is admitted, which is told, and mended by the next apply.
    with open_writer(Place(), "test") as writer:
        for key, _ in list(writer.map("source_ranges").items()):
            writer.map("source_ranges").delete(key)
    assert "has lost 1 of its 1 source ranges" in svc("check", code=1).out
    assert svc("services", "lb", "-o", "json").json["services"][0]["sources"] == ["255.255.255.255/32"]
    assert balanced.error("203.0.113.1", 80) != 0
    assert actions(apply(desired(lb))) == {"lb": "changed"}
    assert balanced.error("203.0.113.1", 80) != 0
    assert problems() == []
    apply(desired(lb._replace(sources=())))
    assert balanced.ask("203.0.113.1", 80) == backend
    assert applying.used()["source_ranges"] == 0
    svc("service", "delete", "lb")
    assert problems() == []


def test_ids_and_order_mean_nothing(balanced: Balanced) -> None:
    """A, B, A is A; objects in another order are the same; ids of what stays are kept."""
    first = service("web", f"{VIP}:80/tcp {VIP}:81/tcp", "10.1.0.1:80 10.1.0.2:80 10.1.0.3:80")
    other = service("dns", f"{VIP}:53/udp", "10.1.0.9:53")
    apply(desired(first, other))
    there, before, used = applying.stored(), generation(), applying.used()
    turned = first._replace(members=first.members[::-1], frontends=first.frontends[::-1])
    assert actions(apply(desired(other, turned))) == {"dns": "unchanged", "web": "unchanged"}
    assert generation() == before
    apply(desired(first._replace(members=first.members[:1]), service("more", f"{VIP}:99/tcp")))
    apply(desired(other, turned))
    again = applying.stored()
    assert again["web"].service.id == there["web"].service.id
    assert again["web"].lanes == there["web"].lanes
    assert again["web"].backends[-1] == there["web"].backends[0]
    assert applying.used() == used
    assert plain_services() == {"dns": applying.plain(other), "web": applying.plain(first)}
    assert problems() == []


def test_node_ports_are_served_where_kubernetes_says(
    balanced: Balanced, world: World, tmp_path: Path
) -> None:
    world.sh("ip addr add 192.0.2.1/32 dev lo; ip addr add 198.51.100.1/32 dev lo")
    backend = balanced.farm.many(1)[0]
    web = service("web", f"{VIP}:80/tcp", backend, node_port=30080, owner=KUBERNETES)
    nets = (parse_prefix("192.0.2.0/24"),)
    apply(desired(web, owner=KUBERNETES, kind=KUBERNETES, node_port_addresses=nets))
    assert balanced.ask("192.0.2.1", 30080) == backend
    assert balanced.error("198.51.100.1", 30080) != 0
    assert problems() == []
    before = generation()
    apply(desired(web, owner=KUBERNETES, kind=KUBERNETES, node_port_addresses=nets))
    apply(desired(service("own", f"{VIP}:1/tcp")), prune=False)  # has no say about it
    assert balanced.error("198.51.100.1", 30080) != 0
    world.sh("ip addr add 192.0.2.2/32 dev lo")
    apply(desired(web, owner=KUBERNETES, kind=KUBERNETES, node_port_addresses=nets))
    assert generation() > before
    assert balanced.ask("192.0.2.2", 30080) == backend
    # It stays until somebody says otherwise, is shown, and goes with the export.
    apply(desired(web, owner=KUBERNETES, kind=KUBERNETES))
    assert balanced.error("198.51.100.1", 30080) != 0
    assert svc("status", "-o", "json").json["status"][0]["balancer"]["node_port_addresses"] == [
        "192.0.2.0/24"
    ]
    assert "on 192.0.2.0/24" in svc("status").out
    text = svc("export").out
    assert json.loads(text)["node_port_addresses"] == ["192.0.2.0/24"]
    file = put(tmp_path, text)
    before = generation()
    svc("load-bindings", file)  # which passes it over
    assert "0 changed" in svc("apply", "-f", file).out
    assert generation() == before
    file.write_text(text.replace('["192.0.2.0/24"]', "[]"))
    assert (
        "setting node-port-addresses changed (all; was 192.0.2.0/24)" in svc("diff", "-f", file, code=1).out
    )
    svc("apply", "-f", file)
    assert balanced.ask("198.51.100.1", 30080) == backend
    assert "node_port_addresses" not in svc("export").json
    svc("apply", "-f", put(tmp_path, text))
    assert balanced.error("198.51.100.1", 30080) != 0
    file.write_text(
        json.dumps({key: value for key, value in json.loads(text).items() if key != "node_port_addresses"})
    )
    svc("apply", "-f", file, "--node-port-addresses", "all")
    assert balanced.ask("198.51.100.1", 30080) == backend
    svc("apply", "-f", file, "--node-port-addresses", "192.0.2.0/24")
    assert balanced.error("198.51.100.1", 30080) != 0
    apply(desired(web, owner=KUBERNETES, kind=KUBERNETES, node_port_addresses=()))
    assert balanced.ask("198.51.100.1", 30080) == backend
    assert problems() == []


def test_udp_sockets_of_backends_that_left_are_ended(balanced: Balanced, tmp_path: Path) -> None:
    """B3: the client is told, whose backends are gone; who goes to another is left alone, and so is TCP."""
    first, second = balanced.farm.many(2, "udp tcp")
    text = "version: 1\nservices:\n  - {{name: dns, frontends: ['{vip}:53/udp', '{vip}:53/tcp'], backends: {list}}}\n"
    svc("apply", "-f", put(tmp_path, text.format(vip=VIP, list=json.dumps([first]))))
    with balanced.client(VIP, 53, "udp") as gone, balanced.client(VIP, 53, "tcp") as kept:
        gone.send(b"?")
        assert balanced.farm.taker("udp") == first
        ran = svc("apply", "-f", put(tmp_path, text.format(vip=VIP, list=json.dumps([second]))))
        assert "ended 1 UDP socket of backends that left" in ran.err
        with pytest.raises(ConnectionAbortedError):
            gone.recv(10)
        assert kept.getpeername()[:2] == (VIP, 53)
        with balanced.client(VIP, 53, "udp") as here:
            here.send(b"?")
            assert balanced.farm.taker("udp") == second
            ran = svc("apply", "-f", put(tmp_path, text.format(vip=VIP, list=json.dumps([second, first]))))
            assert "ended" not in ran.err
            here.send(b"?")
            svc("apply", "-f", put(tmp_path, "version: 1\nservices: []\n"), "--prune")
            with pytest.raises(OSError, match="Destination address required"):
                here.send(b"?")


@pytest.mark.parametrize(
    "where", ["svcctl.state.change_write.apply_changes", "svcctl.state.terminate.terminate_udp"]
)
def test_killed_before_it_ended_udp_sockets(balanced: Balanced, tmp_path: Path, where: str) -> None:
    """The backends are gone by then and nothing tells what they were; the next apply ends the flows all the same."""
    first, second = balanced.farm.many(2, "udp")
    text = f"version: 1\nservices:\n  - {{name: dns, frontends: ['{VIP}:53/udp'], backends: [BACKEND]}}\n"
    after = put(tmp_path, text.replace("BACKEND", second))
    before = tmp_path / "before.yaml"
    before.write_text(text.replace("BACKEND", first))
    svc("apply", "-f", before)
    module = importlib.import_module(where.rpartition(".")[0])
    function = where.rpartition(".")[2]
    with balanced.client(VIP, 53, "udp") as gone:
        child = os.fork()
        if child == 0:
            done = getattr(module, function)

            def die(*words: object) -> None:
                if function == "apply_changes":
                    done(*words)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(module, function, die)
            try:
                svc("apply", "-f", after)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with balanced.client(VIP, 53, "udp") as kept:
            assert balanced.stands(kept)[0][0] == second
            ran = svc("apply", "-f", after)
            assert "1 unchanged" in ran.out
            assert "ended 1 UDP socket of backends that left" in ran.err
            with pytest.raises(ConnectionAbortedError):
                gone.recv(10)
            assert kept.getpeername() == (VIP, 53)
        ended = generation()
        assert "ended" not in svc("apply", "-f", after).err
        assert generation() == ended
    assert problems() == []


def test_what_a_hand_did_to_a_backend_is_undone(balanced: Balanced, tmp_path: Path) -> None:
    """State and weight come from the input, never from the maps; and what a hand added goes, what it deleted comes back."""
    backends = balanced.farm.many(3)
    text = f"version: 1\nservices:\n  - {{name: web, frontends: ['{VIP}:80/tcp'], backends: {json.dumps(backends)}}}\n"
    file = put(tmp_path, text)
    svc("apply", "-f", file)
    before = plain_services()
    svc("backend", "drain", "web", backends[0], "--after", 1000)
    svc("backend", "set", "web", backends[1], "--weight", 9)
    svc("backend", "delete", "web", backends[2])
    svc("backend", "add", "web", "127.0.1.9:8080")
    assert "service web changed" in svc("apply", "-f", file).out
    assert plain_services() == before
    assert set(balanced.ask_often(60, VIP, 80)) == set(backends)
    for backend in backends:
        svc("backend", "set", "web", backend, "--state", "down")
    assert "service web changed" in svc("apply", "-f", file).out
    assert plain_services() == before
    assert problems() == []


def test_in_a_batch_and_as_a_reader(balanced: Balanced, tmp_path: Path) -> None:
    file = put(tmp_path, FILE)
    lines = tmp_path / "lines"
    lines.write_text(
        f"apply -f {file}\nservice add more --frontend 10.96.0.99:80/tcp\napply -f {file} --prune\n"
    )
    ran = svc("batch", lines)
    assert ran.out.count("service shop created") == 1
    assert ran.out.count("service shop unchanged") == 1


def kubernetes(*kinds: str) -> str:
    """A List as kubectl prints it, of the API server's service and another one, as far as `kinds` go."""
    service = {"apiVersion": "v1", "kind": "Service"}
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}
    items: list[dict[str, object]] = [
        service
        | {"metadata": {"name": name, "namespace": "default"}, "spec": {"clusterIP": at, "ports": [port]}}
        for name, at in (("kubernetes", "10.96.0.1"), ("web", "10.96.0.2"))
    ]
    items += [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-1",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["192.0.2.7"], "conditions": {"ready": True}}],
        }
        for name in ("kubernetes", "web")
    ]
    items.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    return json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [one for one in items if one["kind"] in kinds]}
    )


def test_kubernetes_and_what_may_be_an_outage(balanced: Balanced, tmp_path: Path) -> None:
    """Objects that are missing change nothing, but by force; even then the API server keeps its backends."""
    here = ("--node", "node-a", "--prune")
    file = put(tmp_path, kubernetes("Service", "EndpointSlice", "Node"))
    assert "service default/web:https/tcp created" in svc("apply", "-f", file, *here).out
    before = generation()
    assert "2 unchanged" in svc("apply", "-f", file, *here).out
    without = put(tmp_path, kubernetes("Service", "Node"))
    assert "nothing is changed" in svc("apply", "-f", without, *here, code=1).err
    assert "nothing is changed" in svc("diff", "-f", without, *here, code=10).err
    assert svc("check", "-f", without, "--node", "node-a", code=1).out.startswith("kubernetes: 2 services\n")
    assert generation() == before
    ran = svc("apply", "-f", without, *here, "--force")
    assert "service default/web:https/tcp changed" in ran.out
    assert "default/kubernetes:https/tcp: keeps its backends" in ran.err
    counts = {name: len(one.members) for name, one in plain_services().items()}
    assert counts == {"default/kubernetes:https/tcp": 1, "default/web:https/tcp": 0}
    assert {one.owner for one in plain_services().values()} == {KUBERNETES}
    assert problems() == []


def test_a_part_of_a_cluster_prunes_nothing(balanced: Balanced, tmp_path: Path) -> None:
    """`kubectl get` of one namespace: what the others have is not deleted, unless that is said to be meant."""
    here = ("--node", "node-a", "--prune")
    whole = json.loads(kubernetes("Service", "EndpointSlice", "Node"))
    web = [one for one in whole["items"] if one["metadata"]["name"].startswith("web")]
    for number, space in enumerate(("shop", "more"), 3):
        copies = json.loads(json.dumps(web).replace("10.96.0.2", f"10.96.0.{number}"))
        for one in copies:
            one["metadata"]["namespace"] = space
        whole["items"] += copies
    parts = {
        space: {
            **whole,
            "items": [one for one in whole["items"] if one["metadata"].get("namespace") == space],
        }
        for space in ("default", "shop")
    }
    svc("apply", "-f", put(tmp_path, json.dumps(whole)), *here)
    there, before = set(plain_services()), generation()
    assert len(there) == 4
    for space, words in (
        ("default", "the input is of one namespace, default: 2 services of namespaces more, shop would go"),
        ("shop", "has no Service default/kubernetes, which every cluster has: 3 services of namespaces"),
    ):
        part = put(tmp_path, json.dumps(parts[space]))
        for code, *verb in ((1, "apply"), (1, "apply", "--dry-run"), (10, "diff")):
            ran = svc(*verb, "-f", part, *here, code=code)
            assert words in ran.err
            assert "hint: --force takes the input as it is" in ran.err
            assert ran.out == ""
        assert (
            "0 deleted" in svc("apply", "-f", part, "--node", "node-a").out
        )  # without --prune there is no doubt
        svc("apply", "-f", part, *here, "--take-over", code=1)
        assert generation() == before
    assert set(plain_services()) == there
    svc("apply", "-f", part, *here, "--force")
    assert list(plain_services()) == ["shop/web:https/tcp"]
    assert problems() == []


def test_what_another_owner_has_as_wanted(balanced: Balanced, tmp_path: Path) -> None:
    """It stays whose it is, which is told; taken over it is the asker's, and only that is written."""
    svc("attach", "netns", "--max-bindings", 1000, "--max-destinations", 64)
    file = put(tmp_path, FILE + BINDINGS)
    svc("apply", "-f", file, "--owner", "first")
    ids = {one["name"]: one["id"] for one in svc("services", "-o", "json").json["services"]}
    before = generation()
    ran = svc("apply", "-f", file, "--owner", "second")
    assert "2 services: unchanged, and still of another owner: 'dns' (first), 'shop' (first)" in ran.err
    assert "2 bindings: unchanged, and still of another owner: " in ran.err
    assert generation() == before
    empty = tmp_path / "empty.yaml"
    empty.write_text("version: 1\nservices: []\nbindings: []\n")
    assert "0 deleted" in svc("apply", "-f", empty, "--owner", "second", "--prune").out
    ran = svc("diff", "-f", file, "--owner", "second", "--take-over", code=1)
    assert "service dns changed (was first's)" in ran.out
    ran = svc("apply", "-f", file, "--owner", "second", "--take-over")
    assert "0 created, 4 changed, 0 deleted, 0 unchanged" in ran.out
    assert ids == {one["name"]: one["id"] for one in svc("services", "-o", "json").json["services"]}
    assert {one.owner for one in plain_services().values()} == {"second"}
    before = generation()
    ran = svc("apply", "-f", file, "--owner", "second", "--take-over")
    assert ("4 unchanged" in ran.out, ran.err, generation()) == (True, "", before)
    assert problems() == []
    assert "4 deleted" in svc("apply", "-f", empty, "--owner", "second", "--prune").out


def test_whether_the_node_is_to_be_sent_traffic_is_noted(balanced: Balanced, tmp_path: Path) -> None:
    """For health checks: by the Node's taint, written when it changes, and left as it is by a source without nodes."""

    def eligible() -> bool:
        with open_reader(Place()) as reader:
            return read_health(reader).eligible

    here = ("--node", "node-a", "--prune")
    plain = kubernetes("Service", "EndpointSlice", "Node")
    objects = json.loads(plain)
    objects["items"][-1]["spec"] = {
        "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
    }
    svc("apply", "-f", put(tmp_path, plain), *here)
    assert eligible()
    tainted = put(tmp_path, json.dumps(objects))
    assert "2 unchanged" in svc("apply", "-f", tainted, *here).out
    assert not eligible()
    before = generation()
    svc("apply", "-f", tainted, *here)
    svc("apply", "-f", put(tmp_path, "version: 1\nservices: []\n"))
    assert generation() == before
    assert not eligible()
    svc("apply", "-f", put(tmp_path, plain), *here)
    assert eligible()
    assert problems() == []


def test_who_speaks_of_bindings_only_prunes_no_service(balanced: Balanced, tmp_path: Path) -> None:
    """Left out, 'services' stay as they are; named and empty, they go. Tried as a new user would: they were lost."""
    file = tmp_path / "wanted.yaml"
    file.write_text("version: 1\nservices:\n- {name: web, frontends: ['10.96.0.1:80/tcp'], backends: []}\n")
    svc("apply", "-f", file)
    file.write_text("version: 1\nbindings: []\n")
    svc("apply", "-f", file, "--prune")
    assert [one["name"] for one in svc("services", "-o", "json").json["services"]] == ["web"]
    file.write_text("version: 1\nservices: []\n")
    svc("apply", "-f", file, "--prune")
    assert svc("services", "-o", "json").json["services"] == []


def test_the_answer_of_a_server_that_failed_is_never_forced(balanced: Balanced, tmp_path: Path) -> None:
    """Nor is there a hint that it could be; an empty name of the node is no name."""
    file = tmp_path / "answer.json"
    file.write_text('{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized"}')
    for code, *words in (
        (1, "apply", "--prune", "--force"),
        (10, "diff", "--prune", "--force"),
        (1, "apply"),
    ):
        ran = svc(*words, "-f", file, code=code)
        assert "nothing is changed" in ran.err
        assert "--force" not in ran.err
    file.write_text("version: 1\nservices: []\n")
    assert "--node: is empty" in svc("apply", "-f", file, "--node", "", code=2).err
    assert "--owner: is empty" in svc("apply", "-f", file, "--owner", "", code=2).err


def test_a_service_in_the_way_stops_only_the_frontend_it_has(balanced: Balanced, tmp_path: Path) -> None:
    """Of Kubernetes: anybody may write an external address down, and must not keep others from being applied."""
    (first,) = balanced.farm.many(1)
    balanced.add("mine", "192.0.2.77:80/tcp", backends=[first])
    text = {
        "kind": "List",
        "apiVersion": "v1",
        "items": [
            {
                "kind": "Service",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "clusterIP": address,
                    "clusterIPs": [address],
                    "ipFamilies": ["IPv4"],
                    "ports": [{"port": 80}],
                    **({"externalIPs": ["192.0.2.77"]} if name == "greedy" else {}),
                },
            }
            for name, address in (("greedy", "10.96.0.51"), ("other", "10.96.0.52"))
        ]
        + [
            {
                "kind": "EndpointSlice",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {
                    "name": f"{name}-1",
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": "IPv4",
                "ports": [{"name": "", "port": 8080}],
                "endpoints": [{"addresses": ["10.244.0.9"]}],
            }
            for name in ("greedy", "other")
        ],
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(text))
    ran = svc("apply", "-f", file, "--node", "node-a")
    assert "goes without 192.0.2.77:80/tcp: service 'mine'" in ran.err
    names = {one["name"] for one in svc("services", "-o", "json").json["services"]}
    assert names == {"mine", "default/greedy:80/tcp", "default/other:80/tcp"}
    assert balanced.ask("192.0.2.77", 80) == first
    again = svc("apply", "-f", file, "--node", "node-a", "-o", "json").json["changes"]
    assert {one["action"] for one in again} <= {"unchanged"}
    svc("apply", "-f", file, "--node", "node-a", "--take-over")
    holders = {one["frontend"]: one["service"] for one in svc("nat", "-o", "json").json["nat"]}
    assert holders["192.0.2.77:80/tcp"] == "default/greedy:80/tcp"


def test_an_export_with_a_drain_under_way_is_no_change(balanced: Balanced, tmp_path: Path) -> None:
    """No file says when a drain ends; one that asks for what is there leaves the end alone."""
    names = balanced.farm.many(2)
    balanced.add("web", "10.96.0.1:80/tcp", backends=names)
    svc("backend", "drain", "web", names[0], "--after", 600)
    file = tmp_path / "export.json"
    file.write_text(svc("export").out)
    before = svc("backends", "-o", "json").json
    assert "1 unchanged" in svc("apply", "-f", file).out
    assert svc("backends", "-o", "json").json == before
