"""This node among the nodes: a file for all of them, its pods' prefixes, what export and save say of it, its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from svcctl.maps import enums
from tests.kernel.test_nodes import OWN, OWN6, config, element, generation, lasting, listed, state
from tests.lib.svc import svc
from tests.lib.world import World

__all__ = ["lasting", "state"]

PODS = "10.244.1.0/24"
SERVICE = ("service", "add", "web", "--frontend", "203.0.113.5:80/tcp", "--kind", "load-balancer")
NODES = [
    {"name": "a", "addresses": [OWN], "pod_prefixes": [PODS], "zone": "east"},
    {"name": "b", "addresses": ["192.0.2.12"], "pod_prefixes": ["10.244.2.0/24"]},
]


def load(*words: object) -> Any:
    return svc("load", "--no-dispatcher", *words)


def own() -> dict[str, Any]:
    """What status says of this node."""
    (found,) = svc("status", "-o", "json").json["status"]
    return {key: found["tunnel"].get(key) for key in ("node", "zone", "addresses", "by_hand", "pod_prefixes")}


def apply(path: Path, *words: object, code: int = 0, **document: object) -> Any:
    file = path / "file.json"
    file.write_text(json.dumps({"version": 1, **document}))
    return svc("apply", "-f", file, *words, code=code)


def test_one_file_for_all_nodes(state: World, tmp_path: Path) -> None:
    load("--node-address", "none")
    done = apply(tmp_path, nodes=NODES)
    assert "node b created" in done.out
    assert f"setting node-address changed ({OWN})" in done.out
    assert f"setting pod-prefixes changed (none -> {PODS})" in done.out
    assert [one["node"] for one in listed()] == ["b"]
    assert element(PODS) == (enums.NODE_POD, 0)
    assert own() == {
        "node": "a",
        "zone": "east",
        "addresses": [OWN],
        "by_hand": False,
        "pod_prefixes": [PODS],
    }
    before = generation()
    assert "0 created, 0 changed, 0 deleted, 1 unchanged" in apply(tmp_path, nodes=NODES).out
    assert generation() == before
    # As the other one it is this one's entry that is left out; and what was another node is none any more.
    done = apply(tmp_path, "--node", "b", nodes=[{**NODES[0], "addresses": ["192.0.2.14"]}, NODES[1]])
    assert "node b deleted (it is this node)" in done.out
    assert [one["node"] for one in listed()] == ["a"]
    assert own()["node"] == "b"
    done = apply(tmp_path, "--node", "b", nodes=NODES, code=6)
    assert f"node 'a': {OWN} is this node's own address" in done.err


def test_an_entry_that_says_it_is_this_node(state: World, tmp_path: Path) -> None:
    apply(tmp_path, nodes=[{"name": "x", "own": True, "addresses": ["192.0.2.77"], "by_hand": ["addresses"]}])
    assert own() | {"zone": None} == {
        "node": "x",
        "zone": None,
        "addresses": ["192.0.2.77"],
        "by_hand": True,
        "pod_prefixes": None,
    }
    apply(tmp_path, nodes=[{"name": "x", "own": True, "pod_prefixes": [PODS]}])
    assert (own()["addresses"], own()["pod_prefixes"]) == (["192.0.2.77"], [PODS])
    for wrong in ({"name": "x"}, {"name": "x", "own": True, "by_hand": ["zone"]}, {"name": "x", "own": 1}):
        apply(tmp_path, nodes=[wrong], code=2)


def test_prefixes_and_a_name_by_hand(state: World) -> None:
    assert load(
        "--pod-prefix", PODS, "--pod-prefix", "fd00:1::/64", "--node-name", "n1", "--dry-run"
    ).out == (
        f"would change packet path (node name the host's -> n1; pod prefixes none -> {PODS}, fd00:1::/64 (by hand))\n"
    )
    assert own()["pod_prefixes"] is None
    done = load("--pod-prefix", PODS, "--pod-prefix", "fd00:1::/64", "--node-name", "n1")
    assert done.out.startswith("changed packet path (node name the host's -> n1; pod prefixes none ->")
    assert element("fd00:1::/64") == (enums.NODE_POD, 0)
    assert (load("--node-name", "n1").out, load("--node-name", "n1").err) == ("unchanged packet path\n", "")
    svc(*SERVICE, "--backend", "10.244.1.9:80", "--backend", "10.244.2.9:80")
    try:
        rows = svc("backends", "-o", "json").json["backends"]
        assert [one.get("local") for one in rows] == [True, None]
    finally:
        svc("service", "delete", "web")
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    for words, says in (
        (("--pod-prefix", "10.244.2.0/24"), "belongs to node 'b'"),
        (("--node-name", "b"), "another node of that name"),
    ):
        assert says in svc("load", "--no-dispatcher", *words, code=6).err
    for words in (("--pod-prefix", "::/0"), ("--pod-prefix", "none", "--pod-prefix", PODS)):
        svc("load", "--no-dispatcher", *words, code=2)
    assert (
        "this node's own pod prefix"
        in svc("nodes", "add", "c", "--address", "192.0.2.13", "--pod-prefix", PODS, code=6).err
    )
    assert "this node has the name" in svc("nodes", "add", "n1", "--address", "192.0.2.13", code=6).err
    load("--pod-prefix", "none")
    assert own()["pod_prefixes"] is None
    assert element(PODS) is None
    svc(*SERVICE, "--backend", "10.244.1.9:80")
    try:
        assert "1 backend in these prefixes not known to be on this node" in load("--pod-prefix", PODS).err
    finally:
        svc("service", "delete", "web")


def test_a_hand_is_not_overruled_by_a_node_object(state: World, tmp_path: Path) -> None:
    load("--node-address", OWN, "--pod-prefix", PODS)
    entry = {"name": "a", "addresses": [OWN6, OWN], "pod_prefixes": ["10.244.9.0/24"]}
    apply(tmp_path, nodes=[entry])
    assert (own()["addresses"], own()["pod_prefixes"]) == ([OWN], [PODS])
    load("--pod-prefix", "none")
    apply(tmp_path, nodes=[entry])
    assert (own()["addresses"], own()["pod_prefixes"]) == ([OWN], ["10.244.9.0/24"])


def test_export_is_for_any_node_and_save_for_this_one(state: World, tmp_path: Path) -> None:
    load(
        "--node-address", OWN, "--pod-prefix", PODS, "--node-name", "a", "--tunnel-port", 4790, "--clamp-mss"
    )
    load("--keep-flows", "--reset-unknown")
    load("--snat-ports", "21000-21999", "--no-dsr", "198.51.100.0/24", "--tunnel-mtu", 1400)
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    places = ("10.244.1.9:80", "10.244.2.9:80", f"{OWN}:80", "10.99.0.1:80,local", "10.244.1.8:80,local=no")
    svc(*SERVICE, *(word for one in places for word in ("--backend", one)))
    try:
        whole = svc("export").json
        settings = {
            "tunnel_port": 4790,
            "tunnel_mtu": 1400,
            "clamp_mss": True,
            "keep_flows": True,
            "reset_unknown": True,
            "snat_ports": "21000-21999",
            "no_dsr": ["198.51.100.0/24"],
        }
        assert whole["settings"] == settings
        mine = {
            "name": "a",
            "addresses": [OWN],
            "pod_prefixes": [PODS],
            "by_hand": ["addresses", "pod_prefixes"],
        }
        b = {"name": "b", "addresses": ["192.0.2.12"], "pod_prefixes": ["10.244.2.0/24"]}
        assert whole["nodes"] == [mine, b]
        assert whole["services"][0]["backends"] == [
            {"address": "10.99.0.1:80", "local": True},
            {"address": "10.244.1.8:80", "local": False},
            "10.244.1.9:80",
            "10.244.2.9:80",
            f"{OWN}:80",
        ]
        before, text = generation(), svc("export").out
        apply(tmp_path, **whole)
        assert generation() == before
        file = tmp_path / "saved.json"
        svc("save", file)
        saved = json.loads(file.read_text())
        assert saved["nodes"] == [{**mine, "own": True}, b]
        local = [one for one in saved["services"][0]["backends"] if isinstance(one, dict) and one["local"]]
        assert [one["address"] for one in local] == ["10.99.0.1:80", "10.244.1.9:80", f"{OWN}:80"]
        # What comes back on a node that knows nothing, and has no address yet.
        forget()
        state.sh(f"ip addr del {OWN}/24 dev lo")
        try:
            svc("apply", "-f", file)
        finally:
            state.sh(f"ip addr add {OWN}/24 dev lo")
        assert svc("export").out == text
        # On another one, which has b's address.
        forget()
        state.sh(f"ip addr del {OWN}/24 dev lo; ip addr add 192.0.2.12/24 dev lo")
        try:
            apply(tmp_path, **whole)
            assert [one["node"] for one in listed()] == ["a"]
            assert (own()["node"], own()["pod_prefixes"]) == ("b", ["10.244.2.0/24"])
            rows = svc("backends", "web", "-o", "json").json["backends"]
            assert {one["backend"]: bool(one.get("local")) for one in rows} == {
                "10.99.0.1:80": True,  # a hand said so
                "10.244.1.8:80": False,
                "10.244.1.9:80": False,
                "10.244.2.9:80": True,
                f"{OWN}:80": False,
            }
            assert config().tunnel_port == 4790
        finally:
            state.sh(f"ip addr del 192.0.2.12/24 dev lo; ip addr add {OWN}/24 dev lo")
    finally:
        svc("service", "delete", "web")


def forget() -> None:
    """As a new state."""
    svc("service", "delete", "web")
    svc("nodes", "delete", *[one["node"] for one in listed()])
    load(
        "--node-address", "none", "--tunnel-port", 4789, "--tunnel-mtu", 0, "--no-clamp-mss", "--snat-ports",
        "20000-29999", "--no-dsr", "none", "--pod-prefix", "none", "--node-name", "none", "--no-keep-flows",
        "--no-reset-unknown",
    )  # fmt: skip
    assert "nodes" not in svc("export").json


def test_settings_of_a_file(state: World, tmp_path: Path) -> None:
    done = apply(tmp_path, settings={"tunnel_port": 4790, "no_dsr": ["198.51.100.0/24"]})
    assert "setting tunnel-port changed (4789 -> 4790)" in done.out
    assert "setting no-dsr changed (nobody -> 198.51.100.0/24)" in done.out
    assert "2 changed" in done.out
    before = generation()
    assert "0 changed" in apply(tmp_path, settings={"tunnel_port": 4790}).out
    assert generation() == before
    apply(tmp_path, settings={"no_dsr": [], "snat_ports": "32000-33000"})
    now = config()
    assert (now.tunnel_port, now.no_dsr, now.first_port, now.ports) == (4790, 0, 32000, 1001)
    wrongs: tuple[object, ...] = (
        {"tunnel_port": 0},
        {"tunnel_port": "4789"},
        {"tunnel_mtu": 100},
        {"snat_ports": "5-4"},
        {"no_dsr": ["x"]},
        {"clamp_mss": 1},
        {"keep_flows": "yes"},
        {"reset_unknown": None},
        {"node_address": OWN},
        [],
    )
    for wrong in wrongs:
        assert "settings" in apply(tmp_path, settings=wrong, code=2).err


def test_what_is_for_this_node_needs_a_packet_path(world: World, tmp_path: Path) -> None:
    """A restore that cannot bring it back fails, and the file is kept."""
    svc("load", "--max-bindings", 100, "--max-destinations", 8)
    for document in ({"settings": {"tunnel_port": 4790}}, {"nodes": [{"name": "x", "own": True}]}):
        assert "there is no packet path" in apply(tmp_path, code=3, **document).err
    assert "not kept" in apply(tmp_path, nodes=NODES).err


def test_what_load_says_of_a_loaded_state(state: World) -> None:
    """One line, whatever else there is to know of the state."""
    done = svc("load", "--tunnel-port", 4791)
    assert (done.out, done.err) == ("changed packet path (tunnel port 4789 -> 4791)\n", "")
    done = svc("load", "--tunnel-port", 4791)
    assert (done.out, done.err) == ("unchanged packet path\n", "")
    done = svc("load", "--timeout", "udp=61")
    assert (done.out, done.err) == ("changed settings (udp 60 s -> 61 s)\n", "")
    done = svc("load", "--timeout", "udp=61")
    assert (done.out, done.err) == ("unchanged settings\n", "")
    svc("load", "--timeout", "udp=60")
    assert "already loaded" in svc("load").err


def test_a_node_of_an_input_is_taken_over_only_if_it_is_said(state: World, tmp_path: Path) -> None:
    apply(tmp_path, "--owner", "me", nodes=[NODES[1]])
    same = ("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    assert svc(*same).out == "unchanged node b\n"
    done = svc("nodes", "add", "b", "--address", "192.0.2.13", code=6)
    assert "node 'b' belongs to me" in done.err
    assert "--take-over" in done.err
    assert "was me's" in svc(*same, "--take-over").out
    (one,) = listed()
    assert "owner" not in one
    assert svc("nodes", "add", "b", "--address", "192.0.2.13").out.startswith("changed node b")


def test_prefixes_in_each_other(state: World, tmp_path: Path) -> None:
    """The closest one counts, and what is not apart is told."""
    load("--pod-prefix", PODS)
    svc(*SERVICE, "--backend", "10.244.9.9:80,local", "--backend", "10.244.1.9:80")
    try:
        svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
        wide = ("nodes", "add", "w", "--address", "192.0.2.13", "--pod-prefix", "10.244.0.0/16")
        done = svc(*wide)
        says = (
            f"node w: pod prefix 10.244.0.0/16 has in it {PODS} of this node, 10.244.2.0/24 of node b, 1 backend"
            " of this node, which stay there"
        )
        assert says in done.err
        assert says in svc(*wide, "--dry-run").err
        entry = {"name": "w", "addresses": ["192.0.2.13"], "pod_prefixes": ["10.244.0.0/16"]}
        assert says in apply(tmp_path, nodes=[entry]).err
        assert "has in it" not in svc("nodes", "add", "d", "--address", "192.0.2.14").err
        assert svc("check").out == "no problems found\n"
        svc("backend", "add", "web", "10.244.1.10:80", "10.244.2.10:80", "10.244.77.1:80")
        rows = svc("backends", "web", "-o", "json").json["backends"]
        assert [one["backend"] for one in rows if one.get("local")] == [
            "10.244.1.9:80",
            "10.244.1.10:80",
            "10.244.9.9:80",
        ]
    finally:
        svc("service", "delete", "web")


def test_maps_of_nodes_in_the_listings(state: World) -> None:
    load("--pod-prefix", PODS, "--node-name", "a")
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    (found,) = svc("status", "-o", "json").json["status"]
    used = {one["name"]: (one["used"], one["max"]) for one in found["maps"]}
    assert used["nodes"] == (2, 16384)
    assert used["node_addresses"] == (3, 65536)
    text = svc("metrics").out
    assert 'svcctl_map_entries{map="nodes"} 2' in text
    assert 'svcctl_map_entries{map="node_addresses"} 3' in text
