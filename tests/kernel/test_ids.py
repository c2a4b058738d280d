"""Destination ids: handed out once, reused only when nothing can mean the old owner, and then as new.

tubular's defect A (an id with two owners sends traffic to the wrong service) and B (owners that are gone fill
the table for good) are tests here. `--max-destinations 4` makes ids wrap after four labels.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from svcctl.bpf.map import Map
from svcctl.host import process
from svcctl.maps import layouts
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32
from tests.lib.pins import dump
from tests.lib.servers import REFUSED, Server, ask
from tests.lib.svc import assert_one_error, svc
from tests.lib.world import World

ROOM = 4


@pytest.fixture
def small(world: World) -> World:
    """A dispatcher with room for four destinations."""
    svc("load", "--max-bindings", 1000, "--max-destinations", ROOM)
    return world


def rows() -> dict[str, dict[str, Any]]:
    """Destinations by label (each label here has one)."""
    return {row["label"]: row for row in svc("destinations", "-o", "json").json["destinations"]}


def use_up_ids(first: int = 0, last: int = ROOM) -> None:
    """Hand out ids and give them back: the next labels get used ones."""
    for number in range(first, last):
        svc("bind", f"used{number}", "tcp", "127.0.9.9", 9)
        svc("unbind", f"used{number}", "tcp", "127.0.9.9", 9)


def raw(state_dir: str, number: int) -> tuple[bytes, int, list[bytes | None]]:
    """What an id has in the program's maps: counters, hint, sockets."""
    with (
        Map.open_pinned(f"{state_dir}/dispatch_stats", read_only=True) as stats,
        Map.open_pinned(f"{state_dir}/hints", read_only=True) as hints,
        Map.open_pinned(f"{state_dir}/sockets", read_only=True) as sockets,
    ):
        counters, hint = stats.lookup(U32.pack(number)), hints.lookup(U32.pack(number))
        assert counters is not None
        assert hint is not None
        slots = range(number * SOCKETS_PER_DESTINATION, (number + 1) * SOCKETS_PER_DESTINATION)
        return counters, U32.unpack(hint)[0], [sockets.lookup(U32.pack(slot)) for slot in slots]


def test_ids_only_grow_while_there_are_fresh_ones(small: World) -> None:
    for number in range(ROOM):
        svc("bind", f"label{number}", "tcp", f"127.0.0.{number}", 80)
        assert rows()[f"label{number}"]["id"] == number
        svc("unbind", f"label{number}", "tcp", f"127.0.0.{number}", 80)
    assert rows() == {}
    svc("bind", "wrapped", "tcp", "127.0.0.1", 80)
    assert rows()["wrapped"]["id"] == 0


def test_reused_id_is_as_new(small: World, server: Server) -> None:
    """No counter, no socket and no hint of the old owner; its socket still lives and must not answer."""
    group = [server.open("old0", reuseport=True)]
    group += [server.open(f"old{n}", reuseport=True, port=group[0].port) for n in (1, 2)]
    svc("bind", "old", "tcp", "127.0.0.61", 80)
    svc("register-pid", server.pid, "old", "tcp", "127.0.0.1", group[0].port)
    assert ask("tcp", "127.0.0.61", 80).startswith("old")
    server.close("old0")
    for _ in range(3):
        assert ask("tcp", "127.0.0.61", 80) in ("old1", "old2")
    counters, _, _ = raw(small.state_dir, 0)
    assert counters.strip(b"\0")
    svc("unregister", "old", "ipv4", "tcp")
    svc("unbind", "old", "tcp", "127.0.0.61", 80)
    assert rows() == {}
    use_up_ids(1)
    svc("bind", "new", "tcp", "127.0.0.62", 80)
    assert rows()["new"] | {"members": []} == {
        "label": "new", "family": "ipv4", "protocol": "tcp", "id": 0, "members": [],
        "bindings": 1, "lookups": 0, "no_socket": 0, "errors": 0,
    }  # fmt: skip
    assert rows()["new"]["members"] == []
    counters, hint, sockets = raw(small.state_dir, 0)
    assert counters.strip(b"\0") == b""
    assert (hint, sockets) == (0, [None] * SOCKETS_PER_DESTINATION)
    assert ask("tcp", "127.0.0.62", 80) == REFUSED
    opened = server.open("new")
    svc("register-pid", server.pid, "new", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", "127.0.0.62", 80) == "new"


def test_reused_id_after_a_socket_left_in_a_slot(small: World, server: Server) -> None:
    """Even what a dead command left in `sockets`, `hints` and the counters does not reach the next owner."""
    use_up_ids()
    stray = server.open("stray")
    pidfd = process.pidfd_open(server.pid)
    fd = process.pidfd_getfd(pidfd, stray.fd)
    os.close(pidfd)
    with (
        Map.open_pinned(f"{small.state_dir}/sockets") as sockets,
        Map.open_pinned(f"{small.state_dir}/hints") as hints,
        Map.open_pinned(f"{small.state_dir}/dispatch_stats") as stats,
    ):
        sockets.update(U32.pack(3), layouts.U64.pack(fd))
        hints.update(U32.pack(0), U32.pack(3))
        stats.update(U32.pack(0), b"\1" * stats.value_bytes)
    os.close(fd)
    svc("bind", "new", "tcp", "127.0.0.62", 80)
    row = rows()["new"]
    assert (row["id"], row["lookups"], row["no_socket"], row["errors"], row["members"]) == (0, 0, 0, 0, [])
    assert ask("tcp", "127.0.0.62", 80) == REFUSED


def test_counters_live_as_long_as_the_owner(small: World, server: Server) -> None:
    """They survive unbind and bind while a socket holds the destination, and start anew with a new owner."""
    opened = server.open("it")
    svc("bind", "web", "tcp", "127.0.0.61", 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    ask("tcp", "127.0.0.61", 80)
    svc("unbind", "web", "tcp", "127.0.0.61", 80)
    svc("bind", "web", "tcp", "127.0.0.62", 80)
    assert rows()["web"]["lookups"] == 1
    assert rows()["web"]["id"] == 0


def test_defect_a_no_id_has_two_owners(small: World) -> None:
    """A registered label without bindings loses its process; another label comes; the first comes back.

    In tubular both then had one id: connections to b were answered by a's process.
    """
    with Server() as a:
        opened = a.open("a")
        svc("register-pid", a.pid, "a", "tcp", "127.0.0.1", opened.port)
    use_up_ids(1)
    svc("bind", "b", "tcp", "127.0.0.62", 80)
    with Server() as a, Server() as b:
        again = a.open("a", port=opened.port)
        svc("register-pid", a.pid, "a", "tcp", "127.0.0.1", again.port)
        ids = [row["id"] for row in rows().values()]
        assert len(ids) == len(set(ids)), rows()
        assert ask("tcp", "127.0.0.62", 80) == REFUSED
        own = b.open("b")
        svc("register-pid", b.pid, "b", "tcp", "127.0.0.1", own.port)
        assert ask("tcp", "127.0.0.62", 80) == "b"
        assert [row["label"] for row in svc("bindings", "-o", "json").json["bindings"]] == ["b"]


def test_defect_b_labels_that_are_gone_do_not_fill_the_table(small: World) -> None:
    """Register and exit with one new label after the other, many times the room there is.

    In tubular the 1025th was refused, for ever, and nothing could be seen or removed.
    """
    for number in range(3 * ROOM):
        with Server() as one:
            opened = one.open("it")
            svc("register-pid", one.pid, f"label{number}", "tcp", "127.0.0.1", opened.port)
            svc("bind", f"label{number}", "tcp", "127.0.0.61", 80)
            assert ask("tcp", "127.0.0.61", 80) == "it"
            row = rows()[f"label{number}"]
            assert (row["lookups"], row["no_socket"]) == (1, 0)
            svc("unbind", f"label{number}", "tcp", "127.0.0.61", 80)
    assert len(rows()) <= ROOM
    # Two at once, as a dual-stack listener takes them.
    with Server() as one:
        opened = one.open("dual", family=6, address="::", v6only=False)
        svc("register-pid", one.pid, "dual", "tcp", "127.0.0.1", opened.port)
        assert rows()["dual"]["members"] != []


def test_gone_labels_can_be_seen_and_removed(small: World) -> None:
    """The peer's `unregister` of such a label ended with "delete: invalid argument"."""
    with Server() as one:
        opened = one.open("it")
        svc("register-pid", one.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert rows()["web"]["members"] == []
    svc("unregister", "web", "ipv4", "tcp")
    assert rows() == {}


def test_full_is_said_before_anything_is_written(small: World, server: Server) -> None:
    for number in range(ROOM):
        svc("bind", f"label{number}", "tcp", f"127.0.0.{number}", 80)
    before = dump(small.state_dir)
    ran = svc("bind", "one-more", "tcp", "127.0.1.1", 80, code=8)
    assert_one_error(ran, codes=(8,))
    assert "'destinations'" in ran.err
    assert f"{ROOM} of {ROOM}" in ran.err
    assert "--max-destinations" in ran.err
    opened = server.open("it")
    ran = svc("register-pid", server.pid, "one-more", "tcp", "127.0.0.1", opened.port, code=8)
    assert_one_error(ran, codes=(8,))
    assert dump(small.state_dir) == before
    # A destination that is there takes more bindings and sockets.
    svc("bind", "label0", "tcp", "127.0.1.1", 80)
    svc("register-pid", server.pid, "label0", "tcp", "127.0.0.1", opened.port)
    svc("unbind", "label3", "tcp", "127.0.0.3", 80)
    svc("bind", "one-more", "tcp", "127.0.0.3", 80)


@pytest.mark.parametrize("prefix", ["127.{}.0.0/16", "127.0.0.{}"])
def test_full_bindings(world: World, prefix: str) -> None:
    svc("load", "--max-bindings", 5)
    for number in range(5):
        svc("bind", "web", "tcp", prefix.format(number), 80)
    before = dump(world.state_dir)
    ran = svc("bind", "web", "tcp", prefix.format(9), 80, code=8)
    assert_one_error(ran, codes=(8,))
    assert ("'exact'" if "/" not in prefix else "'bindings'") in ran.err
    assert "5 of 5" in ran.err
    assert "--max-bindings" in ran.err
    assert dump(world.state_dir) == before
    svc("bind", "other", "tcp", prefix.format(0), 80, "--replace")  # no room needed
    svc("unbind", "web", "tcp", prefix.format(1), 80)
    svc("bind", "web", "tcp", prefix.format(9), 80)
