"""check: each invariant is broken by writing the map, pin or mode directly; check names it, --repair mends it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.bpf.map import Map
from svcctl.maps import layouts
from svcctl.state.audit import INVARIANTS
from tests.lib import breaks_maps, breaks_pins  # the cases enlist themselves
from tests.lib.breaks import BINDINGS, CASES, Setup, put_meta
from tests.lib.run import ok, svcctl
from tests.lib.sockets import register, tcp, udp, writer
from tests.lib.until import lose_link
from tests.lib.world import World

SERVICE_ROWS = ("services", "lanes", "frontends", "blocks", "backends", "balancer")
TABLE_ROWS = ("tables",)
"""Broken by hand in test_maglev.py."""
NODE_ROWS = ("nodes",)
"""In test_check_nodes.py."""


@pytest.fixture
def setup(world: World) -> Iterator[Setup]:
    ok("load", "--max-bindings", "1000", "--max-destinations", "64")
    for binding in BINDINGS:
        ok("bind", *binding)
    with tcp() as web, udp() as dns:
        register("web", 4, 6, web)
        register("dns", 4, 17, dns)
        made = Setup(world, web, dns)
        yield made
        for one in made.close_later:
            one.close()  # type: ignore[attr-defined]


def test_a_sound_state_has_no_problems(setup: Setup) -> None:
    done = ok("check")
    assert done.out == "no problems found\n"
    assert ok("check", "-o", "json").json == {"schema": 1, "problems": []}


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken(setup: Setup, name: str) -> None:
    case = CASES[name]
    bindings = ok("bindings").out
    before = meta(setup)
    case.breaks(setup)
    broken = None if name in ("lost_meta", "magic", "meta_mode") else meta(setup)

    done = svcctl("check", "-o", "json")
    assert done.code == 1, done.err
    found = [one for one in done.json["problems"] if one["invariant"] == case.invariant]
    wanted = "mendable" if case.mended else "undecided"
    named = [
        one for one in found if case.says in one["message"] + one.get("advice", "") and one["state"] == wanted
    ]
    assert named, done.out
    if broken is not None:
        assert meta(setup) == broken  # looking changes nothing
    assert svcctl("check", "--repair", "--dry-run").code == 1
    assert "Traceback" not in svcctl("check").err

    done = svcctl("check", "--repair", "-o", "json")
    left = [one for one in done.json["problems"] if one["state"] == "undecided"]
    if not case.mended:
        assert done.code == 1, done.err
        assert any(one["invariant"] == case.invariant for one in left)
        assert all(one.get("advice") for one in left)
        return
    assert done.code == 0, done.out + done.err
    assert not left
    assert any(
        one["invariant"] == case.invariant and one["state"] == "mended" for one in done.json["problems"]
    )
    assert ok("check").out == "no problems found\n"
    if case.same:
        assert ok("bindings").out == bindings
    after = meta(setup)
    assert not after.generation & 1
    if case.invariant != "temporary":
        assert after.generation > before.generation
    ok("bind", "later", "tcp", "127.0.0.1", "8080")
    ok("check")


def meta(setup: Setup) -> layouts.Meta:
    with Map.open_pinned(f"{setup.path}/meta") as opened:
        data = opened.lookup(bytes(4))
        assert data is not None
        return layouts.META.unpack(data)


def test_every_invariant_has_a_case() -> None:
    """Those of services are in test_check_services.py, with the other rows' service maps."""
    assert {case.invariant for case in CASES.values()} == set(INVARIANTS) - {
        *SERVICE_ROWS,
        *TABLE_ROWS,
        *NODE_ROWS,
    }


def test_the_table_names_the_invariants() -> None:
    root = Path(__file__).parents[2]
    texts = [
        (root / name).read_text()
        for name in ("ARCHITECTURE.md", "docs-invariants.md")
        if (root / name).exists()
    ]
    rows = [line.split("`")[1] for text in texts for line in text.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row in INVARIANTS] == list(INVARIANTS)


def test_after_a_lost_link_traffic_is_steered_again(setup: Setup) -> None:
    with socket.socket() as client:
        lose_link(f"{setup.path}/link_netns")
        ok("check", "--repair")
        client.settimeout(60)
        client.connect(("127.0.0.1", 80))
        peer, _ = setup.web.accept()
        peer.close()


def test_check_when_it_cannot_look(world: World) -> None:
    done = svcctl("check")
    assert done.code == 10
    assert "no state for network namespace" in done.err
    assert svcctl("check", "--bpffs", "/tmp").code == 10
    assert svcctl("check", "--netns", "/nonexistent").code == 10
    assert svcctl("check", "--repari").code == 2
    error = svcctl("check", "-o", "json").error
    assert (error["exit_code"], error["code"]) == (10, "trouble")


def test_check_of_another_layout(setup: Setup) -> None:
    put_meta(schema=layouts.SCHEMA + 1)
    done = svcctl("check")
    assert done.code == 10
    assert f"layout {layouts.SCHEMA + 1}" in done.err


def test_check_waits_for_the_lock_and_says_so(setup: Setup) -> None:
    with writer():
        done = svcctl("check", "--lock-timeout", "0")
    assert done.code == 10
    assert "held by" in done.err


def test_several_at_once(setup: Setup) -> None:
    """Everything that can be mended, in one go."""
    for name in (
        "lost_usage",
        "lost_exact",
        "meta_mode",
        "directory_mode",
        "references_too_many",
        "ring_position",
    ):
        if name != "meta_mode":
            CASES[name].breaks(setup)
    os.chmod(f"{setup.path}/meta", 0o666)
    os.unlink(f"{setup.path}/ports")
    done = ok("check", "--repair")
    assert "mended" in done.out
    assert ok("check").out == "no problems found\n"
    assert len(ok("bindings", "-o", "json").json["bindings"]) == len(BINDINGS)


__all__ = ["breaks_maps", "breaks_pins"]
