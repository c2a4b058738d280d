"""attach netns, detach netns, attachments: with real programs, foreign ones among them."""

from __future__ import annotations

import os
import socket

import pytest

from svcctl.bpf.link import Link, query_programs
from svcctl.maps import catalog
from svcctl.state import swap
from svcctl.state.place import Place
from svcctl.state.reattach import attach_dispatcher, plan_attach
from svcctl.state.writer import lock_state
from tests.lib.foreign import foreign_program
from tests.lib.run import ok, svcctl
from tests.lib.world import World


def attached() -> list[int]:
    with open("/proc/self/ns/net") as netns:
        return query_programs(netns.fileno(), catalog.SK_LOOKUP)


def refused(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(60)
        return client.connect_ex(("127.0.0.1", port)) != 0


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_attachments_lists_the_dispatcher(world: World) -> None:
    ok("load")
    (row,) = ok("attachments", "-o", "json").json["attachments"]
    assert row["kind"] == "netns"
    assert row["target"] == world.netns_inode
    assert row["program_id"] in attached()
    assert row["state"] == "up"
    assert row["order"] == 1
    assert row["since"].endswith("Z")
    assert ok("attachments", "-o", "name").out == f"netns:{world.netns_inode}/sk_lookup\n"


def test_attached_again_after_the_link_was_detached_by_hand(world: World) -> None:
    """`bpftool link detach` leaves the pin, whose link attaches nothing any more."""
    ok("load")
    with Link.open_pinned(f"{world.state_dir}/{catalog.DISPATCH.link_pin}") as link:
        link.detach()
    assert attached() == []
    assert ok("attach", "netns", "--dry-run").out.startswith("would attach")
    assert ok("attach", "netns").out.startswith("attached dispatcher")
    assert len(attached()) == 1
    assert ok("check").out == "no problems found\n"
    assert ok("attach", "netns").out.startswith("unchanged")


def test_attachments_when_not_loaded(world: World) -> None:
    assert svcctl("attachments").code == 3


def test_attachments_without_any(world: World) -> None:
    ok("load", "--no-dispatcher")
    done = ok("attachments")
    assert done.out == ""
    assert "nothing is attached" in done.err
    assert ok("attachments", "-o", "json").json == {"schema": 1, "attachments": []}


def test_foreign_programs_are_listed_and_marked(world: World) -> None:
    with foreign_program() as before:
        ok("load")
        with foreign_program() as after:
            rows = ok("attachments", "-o", "json").json["attachments"]
    assert [row["state"] for row in rows] == ["up", "foreign", "foreign"]
    assert [row["program_id"] for row in rows[1:]] == [before.program_id, after.program_id]
    assert [row["link_id"] for row in rows[1:]] == [before.link_id, after.link_id]
    assert [row["order"] for row in rows] == [2, 1, 3]


def test_a_lost_link_is_down(world: World) -> None:
    ok("load")
    with Link.open_pinned(f"{world.state_dir}/link_netns") as link:
        link.detach()
    (row,) = ok("attachments", "-o", "json").json["attachments"]
    assert row["state"] == "down"


def test_detach_and_attach_again(world: World) -> None:
    ok("load")
    with listener() as server:
        port = server.getsockname()[1]
        ok("bind", "web", "tcp", "127.0.0.1", str(port))
        assert refused(port)  # the label has no socket
        done = ok("detach", "netns")
        assert done.out == f"detached dispatcher (network namespace {world.netns_inode})\n"
        assert attached() == []
        assert not refused(port)
        ok("detach", "netns")
        assert "web" in ok("bindings").out
        done = ok("attach", "netns")
        assert done.out == f"attached dispatcher (network namespace {world.netns_inode})\n"
        assert refused(port)


def test_twice_writes_nothing(world: World) -> None:
    ok("load")
    before = generation(world)
    assert ok("attach", "netns").out.startswith("unchanged dispatcher")
    ok("detach", "netns")
    middle = generation(world)
    assert middle == before + 2
    assert ok("detach", "netns").out.startswith("unchanged dispatcher")
    assert generation(world) == middle


def test_dry_runs_change_nothing(world: World) -> None:
    ok("load")
    ids = attached()
    assert ok("detach", "netns", "--dry-run").out.startswith("would detach dispatcher")
    assert attached() == ids
    ok("detach", "netns")
    assert ok("attach", "netns", "--dry-run").out.startswith("would attach dispatcher")
    assert attached() == []
    done = ok("attach", "netns", "--dry-run", "-o", "json").json
    assert done["dry_run"] is True
    assert done["changes"][0]["action"] == "created"


def test_first_attach_makes_the_maps_with_the_sizes_given(world: World) -> None:
    ok("load", "--no-dispatcher")
    before = set(os.listdir(world.state_dir))
    ok("attach", "netns", "--max-bindings", "100", "--max-destinations", "7", "--dry-run")
    assert set(os.listdir(world.state_dir)) == before
    ok("attach", "netns", "--max-bindings", "100", "--max-destinations", "7")
    with lock_state(Place(), "test") as writer:
        assert writer.map("bindings").info.max_entries == 100
        assert writer.map("exact").info.max_entries == 100
        assert writer.map("destinations").info.max_entries == 7
        assert writer.map("sockets").info.max_entries == 7 * 16
        assert writer.usage("exact").max == 100
        assert not swap.next_pins(writer.path)
    ok("bind", "web", "tcp", "127.0.0.1", "80")
    assert ok("check").code == 0
    again = svcctl("attach", "netns", "--max-bindings", "200")
    assert again.code == 6
    assert "room for 100 bindings, asked for 200 (--max-bindings)" in again.err
    assert "upgrade" in again.err


def test_sizes_of_load_and_attach_agree(world: World) -> None:
    ok("load")
    assert svcctl("attach", "netns", "--max-destinations", "5").code == 6
    ok("attach", "netns", "--max-destinations", "1024")


@pytest.mark.parametrize("point", ["pins", "mark", "renames"])
def test_a_first_attach_that_dies_leaves_all_maps_or_none(world: World, point: str) -> None:
    """Killed between the pins of its maps, or after the mark: the next writer goes back, or forward."""
    ok("load", "--no-dispatcher")
    with pytest.raises(Died), lock_state(Place(), "attach netns") as writer:
        plan = plan_attach(writer, 10, 10)
        victim = _DieAt(point)
        try:
            victim.arm()
            attach_dispatcher(writer, plan, 10, 10)
        finally:
            victim.disarm()
    names = os.listdir(world.state_dir)
    if point == "pins":
        assert "bindings" not in names
    ok("attach", "netns", "--max-bindings", "10", "--max-destinations", "10")
    assert ok("check").code == 0
    assert len(attached()) == 1


def test_a_program_pin_that_is_gone_is_made_anew(world: World) -> None:
    ok("load")
    ok("bind", "web", "tcp", "127.0.0.1", "80")
    ok("detach", "netns")
    os.unlink(f"{world.state_dir}/prog_dispatch")
    ok("attach", "netns")
    assert len(attached()) == 1
    assert "web" in ok("bindings").out
    ok("check")


def test_attach_needs_a_loaded_state(world: World) -> None:
    done = svcctl("attach", "netns")
    assert done.code == 3
    assert svcctl("detach", "netns").code == 3


def test_attach_does_not_displace_a_foreign_program(world: World) -> None:
    ok("load", "--no-dispatcher")
    with foreign_program() as foreign:
        ok("attach", "netns")
        assert attached()[0] == foreign.program_id
        ok("detach", "netns")
        assert attached() == [foreign.program_id]


def test_unknown_target(world: World) -> None:
    done = svcctl("attach", "cgrop")
    assert done.code == 2
    assert "no such command 'cgrop'" in done.err


def generation(world: World) -> int:
    with lock_state(Place(), "test") as writer:
        return writer.meta().generation


class Died(Exception):
    """Stands for a kill: nothing after it runs but what an interpreter that dies would not run either."""


class _DieAt:
    """Makes one step of attaching raise, and recovery as well: what is left is what a kill leaves."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.renames = 0
        self.patches: list[pytest.MonkeyPatch] = []

    def arm(self) -> None:
        patch = pytest.MonkeyPatch()
        self.patches.append(patch)

        def die(*_args: object, **_kwargs: object) -> None:
            raise Died

        if self.point == "mark":
            patch.setattr("svcctl.state.swap.go_forward", die)
        elif self.point == "renames":
            patch.setattr("svcctl.state.swap.os.rename", self._third_rename)
        else:
            patch.setattr("svcctl.state.swap.record_program", die)
        patch.setattr("svcctl.state.recover.recover", lambda *_a, **_k: [])

    def _third_rename(self, src: str, dst: str) -> None:
        self.renames += 1
        if self.renames == 3:
            raise Died
        os.replace(src, dst)

    def disarm(self) -> None:
        for patch in self.patches:
            patch.undo()
