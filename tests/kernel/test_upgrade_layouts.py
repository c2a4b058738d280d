"""Upgrades from an older layout: everything is carried over, and no connection notices."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svcctl.maps import catalog, layouts
from svcctl.state.counters import dispatch_stats
from tests.lib import inspect_state, older, strace
from tests.lib.forge import Forge, forge
from tests.lib.older import KINDS, Older
from tests.lib.servers import Server, ask, ask_often, asking
from tests.lib.sockets import writer
from tests.lib.svc import svc
from tests.lib.world import World

pytestmark = pytest.mark.timeout(300)
SMALL = ("--max-bindings", 1000, "--max-destinations", 64)


@pytest.fixture
def used(world: World) -> Iterator[Server]:
    """State with a bit of everything, and traffic that has been counted."""
    svc("load", *SMALL)
    with Server() as server:
        for name, kind, address in (
            ("web", "tcp", "127.0.0.1"),
            ("web", "tcp", "::1"),
            ("dns", "udp", "127.0.0.1"),
        ):
            port = server.open(
                name if address != "::1" else "web6", kind, address=address, family=6 if ":" in address else 4
            ).port
            svc("register-pid", server.pid, name, kind, address, port)
        for number in range(3):
            port = server.open(f"group{number}", address="127.0.0.2", port=8000, reuseport=True).port
        svc("register-pid", server.pid, "group", "tcp", "127.0.0.2", port)
        svc("bind", "web", "tcp", "127.1.0.1", 80)
        svc("bind", "web", "tcp", "127.2.0.0/16", 0)
        svc("bind", "web", "tcp", "::1", 80)
        svc("bind", "group", "tcp", "127.3.0.0/16", 80)
        svc("bind", "dns", "udp", "127.4.0.0/16", 53)
        svc("bind", "nobody", "tcp", "127.5.0.1", 80)
        assert ask_often("tcp", "127.1.0.1", 80, 7) == {"web": 7}
        assert ask("tcp", "127.5.0.1", 80) == "refused"
        yield server


def _listing() -> dict[str, Any]:
    """What must be the same afterwards."""
    found = json.loads(svc("destinations", "-o", "json").out)["destinations"]
    return {"bindings": json.loads(svc("bindings", "-o", "json").out), "destinations": found}


def _traffic() -> None:
    assert ask("tcp", "127.1.0.1", 80) == "web"
    assert ask("tcp", "127.2.9.9", 1234) == "web"
    assert ask("tcp", "::1", 80) == "web6"
    assert ask("tcp", "127.3.0.1", 80).startswith("group")
    assert ask("udp", "127.4.0.1", 53) == "dns"
    assert ask("tcp", "127.5.0.1", 80) == "refused"


def _check_carried_over(before: dict[str, Any]) -> None:
    with writer() as state:
        meta = state.meta()
        assert meta.schema == layouts.SCHEMA
        for name, shape in (catalog.STATE_MAPS | catalog.DISPATCH_MAPS).items():
            info = state.map(name).info
            assert (info.type, info.key_size, info.value_size) == (
                shape.type,
                shape.key_size,
                shape.value_size,
            )
        assert layouts.text(meta.version) == "0.1.0"
    after = _listing()
    for was, now in zip(before["destinations"], after["destinations"], strict=True):
        # The test's own clients were counted, too.
        assert now["lookups"] >= was["lookups"]
        assert now["no_socket"] >= was["no_socket"]
        now.update(lookups=was["lookups"], no_socket=was["no_socket"])
    assert after == before
    assert inspect_state.problems() == []
    assert len(inspect_state.attached_programs()) == 1
    svc("check")


def _carry_over(kind: Older, tmp_path: Path) -> None:
    before = _listing()
    older.make_older(kind, older.build(kind, tmp_path))
    for words in (
        ("bind", "x", "tcp", "127.9.0.1", 1),
        ("bindings",),
        ("destinations",),
        ("unregister", "web", "ipv4", "tcp"),
    ):
        ran = svc(*words, code=7)
        assert "svcctl upgrade" in ran.err, ran
    with asking("tcp", "127.1.0.1", 80) as web, asking("tcp", "127.3.0.1", 80) as group:
        web.wait_for(5)
        group.wait_for(5)
        ran = svc("upgrade")
        web.wait_for(5)
        group.wait_for(5)
    assert set(web.heard) == {"web"}
    assert set(group.heard) <= {"group0", "group1", "group2"}
    assert older.VERSION in ran.out, ran
    _traffic()
    _check_carried_over(before)


@pytest.mark.quick
def test_maps_carry_their_types(used: Server) -> None:
    """Without them a later version cannot read this one's layouts; kernels refuse BTF for small reasons."""
    with writer() as state:
        without = [
            name for name in (catalog.STATE_MAPS | catalog.DISPATCH_MAPS) if not state.map(name).info.btf_id
        ]
    assert without == ["sockets"]  # the kernel takes none for a sockmap


@pytest.mark.parametrize("name", KINDS)
def test_one_difference(name: str, used: Server, tmp_path: Path) -> None:
    _carry_over(KINDS[name], tmp_path)


@pytest.mark.quick
def test_all_differences_at_once(used: Server, tmp_path: Path) -> None:
    _carry_over(older.everything(), tmp_path)


def test_counters_without_traffic_are_the_same(used: Server, tmp_path: Path) -> None:
    kind = older.everything()
    objects = older.build(kind, tmp_path)
    with writer() as state:
        before = [dispatch_stats(state, number) for number in range(6)]
    older.make_older(kind, objects)
    svc("upgrade")
    with writer() as state:
        assert [dispatch_stats(state, number) for number in range(6)] == before
    assert before[0].lookups == 7


def test_older_layout_and_a_new_size(used: Server, tmp_path: Path) -> None:
    before = _listing()
    kind = older.everything()
    older.make_older(kind, older.build(kind, tmp_path))
    ran = svc("upgrade", "--max-destinations", 200, "--max-bindings", 77)
    assert "64 -> 200" in ran.out
    assert "1000 -> 77" in ran.out
    _check_carried_over(before)
    _traffic()


def test_too_small_for_what_an_older_layout_holds(used: Server, tmp_path: Path) -> None:
    kind = older.everything()
    older.make_older(kind, older.build(kind, tmp_path))
    pins = _pins()
    assert "holds 5 entries, more than 4" in svc("upgrade", "--max-destinations", 4, code=8).err
    assert _pins() == pins
    svc("upgrade")
    _traffic()


def _pins() -> dict[str, int]:
    (directory,) = inspect_state.directories()
    path = f"{inspect_state.BPFFS}/{directory}"
    return {name: os.stat(f"{path}/{name}").st_ino for name in os.listdir(path)}


def test_dry_run_changes_nothing(used: Server, tmp_path: Path) -> None:
    kind = older.everything()
    older.make_older(kind, older.build(kind, tmp_path))
    pins = _pins()
    ran = svc("upgrade", "--dry-run")
    assert "layout carried over" in ran.out
    assert _pins() == pins
    _traffic()


def test_unload_of_an_older_layout(used: Server, tmp_path: Path) -> None:
    kind = older.everything()
    older.make_older(kind, older.build(kind, tmp_path))
    svc("unload", "--yes")
    assert inspect_state.directories() == []


@pytest.mark.crash
def test_killed_on_the_way(used: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a few points spread over the whole way, with other points in the next run."""
    kind = older.everything()
    objects = older.build(kind, tmp_path)
    before = _listing()
    with forge() as server:
        older.make_older(kind, objects)
        points = strace.trace(server, "upgrade").changing
        chosen = points if os.environ.get("SVCCTL_CRASH") == "all" else strace.some(points, 7)
        for point in chosen:
            older.make_older(kind, objects)
            _killed(server, point)
    with capsys.disabled():
        print(f"\nupgrade from an older layout: {len(chosen)} kills at {len(points)} system calls")
    _check_carried_over(before)


def _killed(server: Forge, point: strace.Point) -> None:
    done = strace.kill_at(server, point, "upgrade")
    assert done.code == -9, f"not killed at {point}: {done.all}"
    assert ask("tcp", "127.1.0.1", 80) == "web", point
    assert ask("udp", "127.4.0.1", 53) == "dns", point
    inspect_state.assert_owned()
    with writer() as state:
        newer = state.meta().schema == layouts.SCHEMA
    # The mark is the border: before it the state is the older version's, behind it anybody goes forward.
    done = server.run("bind", "spare", "tcp", "127.9.9.9", "9")
    assert done.code == (0 if newer else 7), f"{point}: {done.all}"
    server.ok("upgrade")
    assert inspect_state.problems() == [], point
    assert ask("tcp", "127.1.0.1", 80) == "web", point
    server.run("unbind", "spare", "tcp", "127.9.9.9", "9")


def test_interfaces_of_an_older_layout(used: Server, world: World, tmp_path: Path) -> None:
    """Their links are found by the records of the older layout, and follow the upgrade."""
    world.sh("ip link add old0 type veth peer name old1")
    svc("attach", "dev", "old*", "--role", "host", "--max-flows", 1000, "--max-sockets", 1000)

    def rows() -> list[tuple[str, str, str]]:
        found = svc("attachments", "-o", "json").json["attachments"]
        return [(row["interface"], row["hook"], row["state"]) for row in found if row["kind"] == "dev"]

    before = rows()
    kind = KINDS["attachment-without-role"]
    older.make_older(kind, older.build(kind, tmp_path))
    svc("upgrade")
    assert svc("check").out == "no problems found\n"
    assert rows() == before
    assert len(before) == 4
    _traffic()
