"""nodes, the settings of tunnels that load takes, and nodes from a desired state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svcctl.bpf.constants import MAP_LPM_TRIE
from svcctl.bpf.map import Map
from svcctl.cli.shell import candidates
from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import DEVICE, PacketConfig
from svcctl.model.prefix import Prefix, parse_address, parse_prefix
from svcctl.state import nodes, tunnel_settings
from svcctl.state.packet_settings import put_config, read_config
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import lock_state
from tests.lib.svc import assert_one_error, svc
from tests.lib.world import World
from tests.lib.world import world as a_world

SMALL = ("--max-flows", 5000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)
OWN, OWN6 = "192.0.2.11", "2001:db8::11"
NOTHING = bytes(16)


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """One state for all, as the kernel takes a second to look at the programs."""
    with a_world() as inside:
        inside.sh(f"ip addr add {OWN}/24 dev lo; ip addr add {OWN6}/64 dev lo nodad")
        svc("load", "--no-dispatcher", "--node-address", OWN)
        yield inside
        svc("unload", "--yes")


@pytest.fixture
def state(lasting: World) -> Iterator[World]:
    """Without nodes, with the settings of a new packet path."""
    yield lasting
    names = [one["node"] for one in listed()]
    if names:
        svc("nodes", "delete", *names)
    svc(
        "load", "--no-dispatcher", "--node-address", "none", "--tunnel-port", 4789, "--tunnel-mtu", 0,
        "--no-clamp-mss", "--snat-ports", "20000-29999", "--no-dsr", "none", "--pod-prefix", "none", "--node-name",
        "none",
    )  # fmt: skip
    assert svc("check").out == "no problems found\n"


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = svc("nodes", "-o", "json").json["nodes"]
    return found


def element(prefix: str) -> tuple[int, int] | None:
    """(class and flags, number) of an element of node_addresses."""
    with open_reader(Place()) as reader:
        data = reader.map("node_addresses").lookup(nodes.key_of(parse_prefix(prefix)))
    return None if data is None else (U32.unpack(data)[0] & 0xFFF, U32.unpack(data)[0] >> enums.NODE_SHIFT)


def config() -> PacketConfig:
    with open_reader(Place()) as reader:
        return read_config(reader)


def generation() -> int:
    with open_reader(Place()) as reader:
        return reader.generation()


def test_add_change_and_delete(state: World) -> None:
    add = ("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24", "--zone", "east")
    assert svc(*add, "--dry-run").out == "would create node b\n"
    assert listed() == []
    svc("load", "--no-dispatcher", "--node-address", OWN)
    done = svc(*add)
    assert (done.out, done.err) == ("created node b\n", "")
    (one,) = listed()
    number = one["number"]
    assert one == {
        "node": "b",
        "tunnel": ["192.0.2.12"],
        "pod_prefixes": ["10.244.2.0/24"],
        "zone": "east",
        "addresses": ["192.0.2.12"],
        "node_port_addresses": ["192.0.2.12"],
        "number": number,
    }
    assert element("192.0.2.12") == (enums.NODE_PEER | enums.NODE_PORTS, number)
    assert element("10.244.2.0/24") == (enums.NODE_POD, number)
    before = generation()
    assert svc(*add).out == "unchanged node b\n"
    assert generation() == before
    done = svc("nodes", "add", "b", "--address", "192.0.2.13", "--address", "2001:db8::12")
    assert "tunnel 192.0.2.12 -> 192.0.2.13" in done.out
    assert "no IPv6 tunnel to b" in done.err or "no ipv6 tunnel to b" in done.err
    assert element("192.0.2.12") is None
    assert element("10.244.2.0/24") is None
    assert element("2001:db8::12") == (enums.NODE_PEER | enums.NODE_PORTS, number)
    assert svc("nodes", "list", "-o", "name").out == svc("nodes", "-o", "name").out == "b\n"
    assert [line.split("\t")[1] for line in candidates("zsh", ["--", "nodes", "delete", ""])] == ["b"]
    assert svc("nodes", "delete", "b").out == "deleted node b\n"
    assert element("192.0.2.13") is None
    assert svc("nodes").err == "no other nodes\n"
    svc(*add)
    assert listed()[0]["number"] == number  # what flows remember of it is right again


def test_what_is_refused(state: World) -> None:
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    svc("load", "--no-dispatcher", "--node-address", OWN)
    for words, code, says in (
        (("add", "c", "--address", "192.0.2.12"), 6, "belongs to node 'b'"),
        (("add", "c", "--address", "192.0.2.13", "--pod-prefix", "10.244.2.0/24"), 6, "belongs to node 'b'"),
        (("add", "c", "--address", OWN), 6, "this node's own"),
        (("add", "c", "--address", OWN6), 6, "this node's own address"),
        (("add", "c", "--address", "127.0.0.1"), 2, "no node can be reached there"),
        (("add", "c", "--address", "192.0.2.13/32"), 2, "without a mask"),
        (("add", "c"), 2, "--address"),
        (("add", "", "--address", "192.0.2.13"), 2, "cannot be empty"),
        (("add", "c", "--address", "192.0.2.13", "--pod-prefix", "::/0"), 2, "all there is"),
        (("delete", "b", "c"), 5, "no such node: 'c'"),
        (("delete",), 2, "NAMES"),
    ):
        done = svc("nodes", *words, code=code)
        assert_one_error(done, codes=(code,))
        assert says in done.err, done
    assert [one["node"] for one in listed()] == ["b"]
    done = svc("load", "--no-dispatcher", "--node-address", "192.0.2.12", code=6)
    assert "belongs to node 'b'" in done.err


def test_without_a_packet_path(world: World) -> None:
    svc("load", "--no-dispatcher")
    for words in (("add", "b", "--address", "192.0.2.12"), ("delete", "b"), ("list",), ()):
        done = svc("nodes", *words, code=3)
        assert "there is no packet path" in done.err
        assert "load --node-address" in done.err


def test_settings(state: World) -> None:
    assert config().address4 == NOTHING or svc("load", "--no-dispatcher", "--node-address", "none")
    done = svc(
        "load", "--no-dispatcher", "--node-address", f"{OWN},{OWN6}", "--tunnel-port", 4790, "--tunnel-mtu", 1400,
        "--clamp-mss", "--snat-ports", "21000-21999", "--no-dsr", "198.51.100.0/24", "--no-dsr", "2001:db8:9::/48",
        "--keep-flows", "--reset-unknown",
    )  # fmt: skip
    assert "tunnel port 4789 -> 4790" in done.out
    now = config()
    assert (now.address4, now.address6) == (parse_address(OWN)[1], parse_address(OWN6)[1])
    assert (now.tunnel_port, now.tunnel_mtu, now.first_port, now.ports) == (4790, 1400, 21000, 1000)
    switched = enums.PACKET_CLAMP | enums.PACKET_KEEP | enums.PACKET_RESET_UNKNOWN
    assert now.flags == switched | enums.PACKET_ADDRESS_BY_HAND
    assert "keep flows no -> yes" in done.out
    with open_reader(Place()) as reader:
        assert tunnel_settings.no_dsr(reader, now) == clients("198.51.100.0/24", "2001:db8:9::/48")
    assert svc("check").out == "no problems found\n"
    before = generation()
    svc(
        "load",
        "--no-dispatcher",
        "--tunnel-port",
        4790,
        "--no-dsr",
        "2001:db8:9::/48",
        "--no-dsr",
        "198.51.100.0/24",
    )
    assert generation() == before
    twice = ("--no-dsr", "198.51.100.0/24", "--no-dsr", "198.51.100.9/24")
    assert "-> 198.51.100.0/24)" in svc("load", "--no-dispatcher", *twice).out
    svc("load", "--no-dispatcher", "--no-reset-unknown")
    assert config().flags == now.flags & ~enums.PACKET_RESET_UNKNOWN
    svc("load", "--no-dispatcher", "--no-dsr", "none", "--no-clamp-mss", "--no-keep-flows")
    now = config()
    assert (now.no_dsr, now.flags, now.tunnel_port) == (0, enums.PACKET_ADDRESS_BY_HAND, 4790)
    assert svc("check").out == "no problems found\n"
    svc("load", "--no-dispatcher", "--node-address", "none")
    assert (config().address4, config().address6, config().flags) == (NOTHING, NOTHING, 0)


def clients(*texts: str) -> list[Prefix]:
    return sorted(map(parse_prefix, texts))


def test_settings_that_may_not_be_meant(state: World) -> None:
    done = svc("load", "--no-dispatcher", "--node-address", "192.0.2.77", "--snat-ports", "32000-33000")
    assert "192.0.2.77 is no address of this network namespace" in done.err
    assert "in the range of node ports" in done.err
    assert "net.ipv4.ip_local_port_range" in done.err
    svc("service", "add", "n", "--frontend", "10.96.0.1:80/tcp", "--node-port", 25000)
    try:
        assert "node ports in use: 25000" in svc("load", "--no-dispatcher", "--snat-ports", "24000-26000").err
    finally:
        svc("service", "delete", "n")
    quiet = svc("load", "--no-dispatcher", "--snat-ports", "24000-26000", "--node-address", OWN)
    assert "source ports" not in quiet.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--node-address", "127.0.0.1"), "no other node can reach"),
        (("--node-address", f"{OWN},192.0.2.12"), "one address of a family"),
        (("--node-address", ""), "empty"),
        (("--tunnel-port", "0"), "1-65535"),
        (("--tunnel-mtu", "100"), "576-65535"),
        (("--snat-ports", "80-90"), "1024-65535"),
        (("--snat-ports", "5000-4000"), "FIRST-LAST"),
        (("--no-dsr", "none", "--no-dsr", "::/0"), "none stands alone"),
        (("--no-dsr", "x"), "not an IPv4 address"),
    ],
)
def test_settings_that_cannot_be(lasting: World, words: tuple[str, ...], says: str) -> None:
    done = svc("load", "--no-dispatcher", *words, code=2)
    assert says in done.err, done.err


def test_settings_that_cannot_be_make_no_state(world: World) -> None:
    svc("load", "--no-dispatcher", "--no-dsr", "none", "--no-dsr", "::/0", code=2)
    svc("status", code=3)


def node(name: str, *addresses: str, pods: str = "", zone: str = "") -> dict[str, Any]:
    """A Node object."""
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDRs": pods.split()},
        "status": {"addresses": [{"type": "InternalIP", "address": each} for each in addresses]},
    }


class Applying:
    """Applies Node objects, as a file and with the API server's own service missing."""

    def __init__(self, path: Path) -> None:
        self.path = path / "nodes.json"

    def __call__(
        self, *objects: dict[str, Any], verb: str = "apply", code: int = 0, more: tuple[str, ...] = ()
    ) -> str:
        self.path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
        return svc(verb, "-f", self.path, "--node", "self", "--force", *more, code=code).out


@pytest.fixture
def applying(state: World, tmp_path: Path) -> Applying:
    return Applying(tmp_path)


SELF = node("self", OWN, OWN6, pods="10.244.1.0/24 fd00:1::/64")
OTHERS = (
    node("b", "192.0.2.12", pods="10.244.2.0/24", zone="east"),
    node("c", "192.0.2.13", "2001:db8::13", pods="10.244.3.0/24"),
)


def test_nodes_of_a_cluster(applying: Applying) -> None:
    svc("load", "--no-dispatcher", "--node-address", "none")
    assert "node b created" in applying(SELF, *OTHERS, verb="diff", code=1)
    assert listed() == []
    text = applying(SELF, *OTHERS)
    assert "node b created" in text
    assert f"setting node-address changed ({OWN}, {OWN6})" in text
    assert [(one["node"], one["owner"]) for one in listed()] == [("b", "kubernetes"), ("c", "kubernetes")]
    assert element("10.244.1.0/24") == element("fd00:1::/64") == (enums.NODE_POD, 0)
    assert (config().address4, config().flags) == (parse_address(OWN)[1], 0)
    before = generation()
    assert "0 created, 0 changed, 0 deleted, 2 unchanged" in applying(SELF, *OTHERS)
    assert generation() == before
    applying(SELF, *OTHERS, verb="diff")
    assert "1 unchanged" in applying(SELF, OTHERS[0])
    assert len(listed()) == 2
    assert "node c deleted" in applying(SELF, OTHERS[0], more=("--prune",))
    assert [one["node"] for one in listed()] == ["b"]
    assert element("192.0.2.13") is None
    moved = node("self", "192.0.2.14", pods="10.244.9.0/24")
    svc("load", "--no-dispatcher", "--node-address", OWN)  # by hand from now on
    applying(moved, OTHERS[0])
    assert config().address4 == parse_address(OWN)[1]
    assert element("10.244.9.0/24") == (enums.NODE_POD, 0)
    assert element("10.244.1.0/24") is None


def test_node_ports_of_other_nodes(applying: Applying) -> None:
    applying(
        SELF,
        *OTHERS,
        more=("--node-port-addresses", "192.0.2.0/28", "--node-port-addresses", "2001:db8:5::/48"),
    )
    flags = {name: element(name) for name in ("192.0.2.12", "2001:db8::13")}
    assert flags["192.0.2.12"] is not None
    assert flags["2001:db8::13"] is not None
    assert flags["192.0.2.12"][0] == enums.NODE_PEER | enums.NODE_PORTS
    assert flags["2001:db8::13"][0] == enums.NODE_PEER
    assert svc("check").out == "no problems found\n"
    svc("nodes", "add", "d", "--address", "2001:db8::14")
    assert element("2001:db8::14") == (enums.NODE_PEER, listed()[2]["number"])
    applying(SELF, *OTHERS, more=("--node-port-addresses", "all"))
    assert svc("check").out == "no problems found\n"
    one = element("2001:db8::14")
    assert one is not None
    assert one[0] == enums.NODE_PEER | enums.NODE_PORTS


def test_what_is_exported_comes_back(state: World, tmp_path: Path) -> None:
    svc("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24", "--zone", "east")
    svc("nodes", "add", "c", "--address", "2001:db8::13")
    text = svc("export").out
    before = listed()
    file = tmp_path / "state.json"
    assert "2 nodes" in svc("save", file).out
    assert file.read_text() == text
    assert "2 unchanged" in svc("apply", "-f", file).out
    svc("nodes", "delete", "b", "c")
    svc("apply", "-f", file)
    assert listed() == before
    assert svc("export").out == text
    svc("check", "-f", file)


def test_a_cluster_without_a_packet_path(world: World, tmp_path: Path) -> None:
    """Nodes cannot be kept, and it is said; what else there is is applied."""
    svc("load", "--max-bindings", 100, "--max-destinations", 8)
    file = tmp_path / "nodes.yaml"
    file.write_text("version: 1\nbindings: []\nnodes: [{name: b, addresses: [192.0.2.12]}]\n")
    done = svc("apply", "-f", file)
    assert "there is no packet path" in done.err
    svc("load-bindings", _as_json(file, tmp_path))


def _as_json(file: Path, where: Path) -> Path:
    import yaml

    made = where / "nodes.json"
    made.write_text(json.dumps(yaml.safe_load(file.read_text())))
    return made


def test_a_state_from_before_there_were_nodes(world: World) -> None:
    """No map of nodes, little room for addresses, no port of tunnels, no MTU: `upgrade` brings what is missing."""
    svc("load", "--no-dispatcher")
    world.sh(
        "ip link add dev0 type veth peer name dev1; ip addr add 192.0.2.11/24 dev dev0; ip link set dev0 up"
    )
    svc("attach", "dev", "dev0", "--role", "host", *SMALL)
    svc("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--node-port", 30080)
    with lock_state(Place(), "test") as writer:
        put_config(writer, read_config(writer)._replace(tunnel_port=0))
        for index, value in list(writer.map("devices").items()):
            writer.map("devices").update(index, DEVICE.pack(DEVICE.unpack(value)._replace(mtu=0)))
        old = writer.map("node_addresses")
        with Map.create(MAP_LPM_TRIE, "node_addresses", 20, 4, 4096, old.info.flags) as small:
            for key, word in old.items():
                small.update(key, word)
            os.unlink(writer.pin("node_addresses"))
            small.pin(writer.pin("node_addresses"))
            writer.pin_mode(writer.pin("node_addresses"))
        os.unlink(writer.pin("nodes"))
    assert "nodes" in svc("nodes", code=7).err
    svc("upgrade")
    assert svc("check").out == "no problems found\n"
    assert config().tunnel_port == 4789
    assert element("192.0.2.11") == (enums.NODE_OWN, 0)
    svc("nodes", "add", "b", "--address", "192.0.2.12")
    svc("load", "--no-dispatcher", "--node-address", "192.0.2.11", "--no-dsr", "198.51.100.0/24")
    before, settings = listed(), config()
    svc("upgrade", "--force", "--max-flows", 6000, "--max-services", 128)
    assert (listed(), config()) == (before, settings)
    with open_reader(Place()) as reader:
        assert tunnel_settings.no_dsr(reader, settings) == clients("198.51.100.0/24")
        assert reader.map("node_addresses").info.max_entries == 65536
        assert [DEVICE.unpack(value).mtu for _, value in reader.map("devices").items()] == [1500]
    assert svc("check").out == "no problems found\n"


def test_status(state: World) -> None:
    svc("load", "--no-dispatcher", "--node-address", OWN, "--clamp-mss", "--no-dsr", "198.51.100.0/24")
    svc("nodes", "add", "b", "--address", "192.0.2.12")
    (found,) = svc("status", "-o", "json").json["status"]
    assert found["nodes"] == 1
    assert found["tunnel"] == {
        "addresses": [OWN],
        "by_hand": True,
        "port": 4789,
        "clamp_mss": True,
        "keep_flows": False,
        "reset_unknown": False,
        "source_ports": [20000, 29999],
        "no_dsr": ["198.51.100.0/24"],
    }
    text = svc("status").out
    assert (
        f"node address {OWN} (by hand), tunnel port 4789, tunnel mtu the interface's, clamp mss yes" in text
    )
    assert "1 others" in text
