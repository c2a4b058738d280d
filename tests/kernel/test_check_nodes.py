"""check of nodes: the row is broken by writing a map directly; check names it, --repair mends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import NODE
from svcctl.model.prefix import parse_address, parse_prefix
from svcctl.state import nodes
from svcctl.state.packet_settings import put_config, read_config
from tests.kernel import test_check
from tests.lib.run import ok, svcctl
from tests.lib.sockets import writer
from tests.lib.world import World
from tests.lib.world import world as a_world

A4, A6, B4 = "192.0.2.12", "2001:db8::12", "192.0.2.13"


class Case(NamedTuple):
    """`says` is in the finding; not `mended`: it needs a decision; `same`: nodes are as before afterwards."""

    breaks: Callable[[], None]
    says: str
    mended: bool
    same: bool


CASES: dict[str, Case] = {}


def case(says: str, *, mended: bool = True, same: bool = True) -> Callable[..., None]:
    def add(breaks: Callable[[], None]) -> None:
        CASES[breaks.__name__] = Case(breaks, says, mended, same)

    return add


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """One state for all, as the kernel takes a second to look at the programs."""
    with a_world() as inside:
        inside.sh("ip addr add 192.0.2.11/24 dev lo")
        ok("load", "--no-dispatcher", "--node-address", "192.0.2.11")
        yield inside
        svcctl("unload", "--yes")


def make_nodes() -> None:
    there = [one["node"] for one in ok("nodes", "-o", "json").json["nodes"]]
    if there:
        ok("nodes", "delete", *there)
    ok("load", "--no-dispatcher", "--node-address", "192.0.2.11", "--no-dsr", "198.51.100.0/24")
    ok("nodes", "add", "a", "--address", A4, "--address", A6, "--address", "203.0.113.12",
       "--pod-prefix", "10.244.2.0/24", "--zone", "east")  # fmt: skip
    ok("nodes", "add", "b", "--address", B4)


def number_of(name: str) -> int:
    with writer() as state:
        return nodes.read(state).numbers[name]


def put_node(node: str, **fields: Any) -> None:
    """Change the value of a node."""
    number = number_of(node)
    with writer() as state:
        value = nodes.read_values(state)[number]._replace(**fields)
        state.map("nodes").update(U32.pack(number), NODE.pack(value))


def put_element(prefix: str, word: int | None) -> None:
    """Write or delete an element of node_addresses."""
    with writer() as state:
        key = nodes.key_of(parse_prefix(prefix))
        if word is None:
            assert state.map("node_addresses").delete(key)
        else:
            state.map("node_addresses").update(key, U32.pack(word))


def settings(**fields: Any) -> None:
    """Change the packet path's settings."""
    with writer() as state:
        put_config(state, read_config(state)._replace(**fields))


def peer(name: str) -> int:
    return number_of(name) << enums.NODE_SHIFT | enums.NODE_PEER | enums.NODE_PORTS


@case("which is not there")
def address_of_nobody() -> None:
    put_element("192.0.2.99", 77 << enums.NODE_SHIFT | enums.NODE_PEER | enums.NODE_PORTS)


@case("which is not there")
def pods_of_nobody() -> None:
    put_element("10.244.99.0/24", 77 << enums.NODE_SHIFT | enums.NODE_POD)


@case("this node's as another's")
def own_as_a_peer() -> None:
    put_element("192.0.2.98", enums.NODE_PEER | enums.NODE_PORTS)


@case("an element of class 9")
def unknown_class() -> None:
    put_element("192.0.2.97", 9)


@case("a prefix as a node's address")
def prefix_as_an_address() -> None:
    put_element("192.0.3.0/24", peer("a"))


@case("a prefix as this node's own")
def prefix_as_own() -> None:
    put_element("192.0.4.0/24", enums.NODE_OWN)


@case("everything")
def pods_everywhere() -> None:
    put_element("::/0", number_of("a") << enums.NODE_SHIFT | enums.NODE_POD)


@case("node_addresses says")
def node_ports_not_served() -> None:
    put_element(A4, number_of("a") << enums.NODE_SHIFT | enums.NODE_PEER)


@case("node_addresses says")
def pods_with_a_flag() -> None:
    put_element("10.244.2.0/24", number_of("a") << enums.NODE_SHIFT | enums.NODE_POD | enums.NODE_PORTS)


@case("does not lead to it")
def lost_end() -> None:
    put_element(A6, None)


@case("does not lead to it")
def end_of_another() -> None:
    put_element(A4, peer("b"))


@case("is this node's own address", mended=False)
def end_is_own() -> None:
    put_element(B4, enums.NODE_OWN)


@case("'s too", mended=False)
def two_of_an_end() -> None:
    put_node("b", address4=parse_address(A4)[1])


@case("has no address", mended=False)
def no_end() -> None:
    put_node("b", address4=bytes(16))


@case("has what cannot be: flags")
def wrong_flags() -> None:
    put_node("a", flags=0)


@case("has what cannot be: pad")
def padding() -> None:
    put_node("a", pad=5)


@case("has what cannot be: name", same=False)
def torn_name() -> None:
    put_node("a", name=b"a\0b")


@case("has what cannot be: zone", same=False)
def control_characters() -> None:
    put_node("a", zone=b"\x1b[31m")


@case("has what cannot be: address6", same=False)
def loopback() -> None:
    put_node("a", address6=bytes(15) + b"\x01")


@case("are both named 'a'", mended=False)
def two_of_a_name() -> None:
    put_node("b", name=b"a")


@case("this node has what cannot be")
def own_record() -> None:
    """Number 0: its ends of tunnels are settings, and nobody looks there."""
    value = NODE.pack(
        NODE.unpack(bytes(NODE.size))._replace(name=b"a\nb", address4=parse_address("192.0.2.96")[1])
    )
    with writer() as state:
        state.map("nodes").update(bytes(4), value)


@case("this node's end of tunnels, and another node's", mended=False)
def own_end_is_a_peer() -> None:
    settings(address4=parse_address(A4)[1])


@case("tunnels have no port")
def no_port() -> None:
    settings(tunnel_port=0)


@case("clients without DSR", mended=False)
def lost_ranges() -> None:
    settings(no_dsr=1 << 20)


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken(lasting: World, name: str) -> None:
    one = CASES[name]
    make_nodes()
    assert ok("check").out == "no problems found\n"
    before = ok("nodes", "-o", "wide").out
    one.breaks()

    done = svcctl("check", "-o", "json")
    assert done.code == 1, done.err
    wanted = "mendable" if one.mended else "undecided"
    found = [
        each for each in done.json["problems"] if each["invariant"] == "nodes" and each["state"] == wanted
    ]
    assert any(one.says in each["message"] for each in found), done.out

    done = svcctl("check", "--repair", "-o", "json")
    left = [each for each in done.json["problems"] if each["state"] == "undecided"]
    if not one.mended:
        assert done.code == 1, done.err
        assert all(each.get("advice") for each in left)
        restore()
        return
    assert done.code == 0, done.out + done.err
    assert ok("check").out == "no problems found\n"
    if one.same:
        assert ok("nodes", "-o", "wide").out == before


def restore() -> None:
    """What needs a decision, decided by a hand that clears everything."""
    with writer() as state:
        for name in ("nodes", "node_addresses"):
            for key, _ in list(state.map(name).items()):
                state.map(name).delete(key)
    ok("load", "--no-dispatcher", "--node-address", "none", "--no-dsr", "none", "--tunnel-port", "4789")
    ok("check", "--repair")


def test_nodes_outlive_their_pin(lasting: World) -> None:
    """The map is read by programs only that others jump to: it is found by them."""
    make_nodes()
    before = ok("nodes", "-o", "wide").out
    with writer() as state:
        pin = state.pin("nodes")
    os.unlink(pin)
    assert svcctl("nodes").code == 7
    assert svcctl("check", "--repair").out == "pins: pin 'nodes' is missing: mended\n1 mended\n"
    assert ok("nodes", "-o", "wide").out == before
    assert ok("check").out == "no problems found\n"


def test_the_row_is_this_files() -> None:
    assert test_check.NODE_ROWS == ("nodes",)
