"""apply where old and new do not fit beside each other: what goes makes room, and what never fits changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import svcctl.state.apply as applies
from svcctl.bpf.map import Map
from svcctl.errors import Full
from svcctl.maps import catalog
from svcctl.maps.service_layouts import LUT, LUT_KEY, Lut, LutKey
from svcctl.model.binding import Binding
from svcctl.model.constants import TCP, UDP
from svcctl.model.service import Service
from svcctl.state.place import Place
from svcctl.state.session import State, open_reader
from tests.lib import applying
from tests.lib.applying import apply, binding, desired, plain, plain_services, problems, service
from tests.lib.balanced import VIP, Balanced
from tests.lib.balanced import balanced as balanced_world
from tests.lib.inspect_state import generation
from tests.lib.svc import svc
from tests.lib.world import World

SERVICES, BACKENDS = 7, 21


@pytest.fixture
def tight(world: World) -> Iterator[Balanced]:
    """A state with room for seven services of three backends each, and no backend to spare."""
    sizes = ("--max-services", SERVICES + 1, "--max-backends", BACKENDS, "--max-sockets", 1024)
    with balanced_world(world, *sizes) as made:
        yield made


def many(first: int, count: int = SERVICES, **fields: object) -> list[Service]:
    """Services of three backends that no other one has."""
    return [
        service(
            f"s{n}",
            f"10.96.1.{n}:80/tcp [2001:db8:96::{n:x}]:80/tcp",
            f"10.1.{n}.1:80 10.1.{n}.2:80 [2001:db8::{n:x}]:80",
            **fields,
        )
        for n in range(first, first + count)
    ]


def assert_is(*wanted: Service) -> None:
    assert plain_services() == {one.name: plain(one) for one in wanted}
    assert problems() == []


def test_all_are_replaced_by_others(tight: Balanced, tmp_path: Path) -> None:
    apply(desired(*many(1)))
    assert applying.used()["service_names"] == SERVICES
    assert applying.used()["backends"] == BACKENDS
    prepared = apply(desired(*many(101)))
    assert prepared.first is not None
    assert_is(*many(101))
    # Half of them, and without a need for it nothing is done first.
    mixed = [*many(101, 4), *many(1, 3)]
    assert apply(desired(*mixed)).first is not None
    assert_is(*mixed)
    assert apply(desired(*many(101, 4))).first is None
    assert apply(desired(*many(101, 4), *many(50, 2))).first is None
    assert_is(*many(101, 4), *many(50, 2))
    # With the same backends, which are counted and not let go in between.
    shared = [
        one._replace(name=f"t{one.name}", frontends=two.frontends)
        for one, two in zip(mixed, many(30), strict=True)
    ]
    apply(desired(*mixed))
    apply(desired(*shared))
    assert_is(*shared)


def test_what_does_not_fit_even_then_changes_nothing(tight: Balanced) -> None:
    apply(desired(*many(1)))
    before = generation()
    for wanted in (
        many(101, SERVICES + 1),
        [
            one._replace(members=()) for one in many(101, SERVICES + 1)
        ],  # 16 lanes, of which the first is nobody's
        [service("wide", "10.96.2.1:80/tcp", " ".join(f"10.2.0.{n}:80" for n in range(1, BACKENDS + 2)))],
        [service("fronts", " ".join(f"10.96.2.1:{n}/tcp" for n in range(1, SERVICES * 4 + 6)))],
    ):
        with pytest.raises(Full):
            apply(desired(*wanted))
    with pytest.raises(Full):
        apply(desired(*many(1), *many(101, 1)))  # nothing goes
    assert generation() == before
    assert_is(*many(1))


def test_traffic_of_what_stays_or_moves(tight: Balanced) -> None:
    """A frontend that a service leaves to another is served all the time, though what has no heir goes before."""
    stays, moves = tight.farm.many(2)
    kept = service("kept", f"{VIP}:80/tcp", stays)
    old = service("old", f"{VIP}:81/tcp", moves)
    heir = service("heir", f"{VIP}:81/tcp", moves)
    rest = SERVICES - 2
    apply(desired(kept, old, *many(1, rest)))
    asked = []
    again = applies._plan_again

    def between(*words: object) -> object:
        asked.append((tight.ask(VIP, 80), tight.ask(VIP, 81)))
        return again(*words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applies, "_plan_again", between)
        apply(desired(kept, heir, *many(101, rest - 1)))
    assert asked == [(stays, moves)]
    assert (tight.ask(VIP, 80), tight.ask(VIP, 81)) == (stays, moves)
    assert_is(kept, heir, *many(101, rest - 1))


def test_killed_in_between(tight: Balanced) -> None:
    """The same apply again does the rest."""
    apply(desired(*many(1)))
    child = os.fork()
    if child == 0:
        try:
            applies._plan_again = lambda *words: os.kill(os.getpid(), signal.SIGKILL)
            apply(desired(*many(101)))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert apply(desired(*many(101))).first is None
    assert_is(*many(101))


def maglev(*names: str) -> list[Service]:
    """Services with a table, each of backends of its own; of the same backends if they begin alike."""
    return [
        service(
            name,
            f"10.96.3.{ord(name[0])}:{n}/tcp",
            f"10.3.{ord(name[0])}.1:80 10.3.{ord(name[0])}.2:80",
            algorithm=1,
        )
        for n, name in enumerate(names, 1)
    ]


def test_no_room_for_tables(balanced: Balanced, tmp_path: Path) -> None:
    """Told before the first write; equal tables take one place, and tables that go make room."""
    apply(desired(*maglev("a")))
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets") as sets:
        largest = sets.info.max_entries
        mine = [LUT.unpack(value) for _, value in sets.items()]
        stuffed = [LUT_KEY.pack(LutKey(n.to_bytes(16, "big"))) for n in range(2, largest)]
        values = [LUT.pack(Lut(n, 251, 1)) for n in range(2, largest)]
        sets.update_many(b"".join(stuffed), b"".join(values), len(stuffed))
    assert [(one.place, one.refs) for one in mine] == [(0, 1)]
    file = tmp_path / "state.yaml"
    file.write_text(
        "version: 1\nservices:\n"
        + "".join(
            f"  - {{name: {name}, frontends: ['10.96.3.{n}:80/tcp'], backends: ['10.3.{n}.1:80'], algorithm: maglev}}\n"
            for n, name in enumerate(("d", "e"), 20)
        )
    )
    before = generation()
    ran = svc("apply", "-f", file, "--owner", "me", code=8)
    assert f"map 'lut' is full: {largest - 1} of {largest} used, 2 more wanted" in ran.err
    assert "hint: " in ran.err
    assert generation() == before
    apply(desired(*maglev("a", "b", "bb")))  # one place for two that are equal
    ran = svc(
        "service",
        "add",
        "c",
        "--frontend",
        f"{VIP}:1/tcp",
        "--backend",
        "10.3.7.7:1",
        "--algorithm",
        "maglev",
        code=8,
    )
    assert "map 'lut' is full" in ran.err
    apply(desired(*maglev("c", "d")))  # instead of those of a and b
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets") as sets:
        sets.delete_many(b"".join(stuffed), len(stuffed))
    assert_is(*maglev("c", "d"))


def test_tables_are_read_once_an_apply(balanced: Balanced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a service: thousands of them would take hours."""
    from svcctl.state import tables

    reads: list[int] = []
    read_sets = tables.read_sets

    def counted(state: State) -> dict[bytes, Lut]:
        reads.append(1)
        return read_sets(state)

    monkeypatch.setattr(tables, "read_sets", counted)
    names = [f"{letter}{n}" for letter in "abcdefgh" for n in range(2)]
    apply(desired(*maglev(*names[:8])))
    first = len(reads)
    reads.clear()
    apply(desired(*maglev(*names[8:])))
    assert (first, len(reads)) == (2, 3)  # to see whether there is room, to take, to give back
    assert_is(*maglev(*names[8:]))


def test_bindings_are_judged_before_services(world: World, tmp_path: Path) -> None:
    """And replaced where they fit in the end; whose they are, too."""
    with balanced_world(world, "--max-services", 64, "--max-backends", 256, "--max-sockets", 1024):
        svc("attach", "netns", "--max-bindings", 4, "--max-destinations", 3)

        def bindings(first: int, count: int, label: str = "web") -> list[Binding]:
            return [binding(label, TCP, f"10.0.{first}.{n}", 80) for n in range(count)]

        web = service("web", f"{VIP}:80/tcp", "10.1.0.1:80")
        apply(desired(bindings=bindings(1, 4)))
        before = generation()
        with pytest.raises(Full, match="'exact' is full: 4 of 4 used, 1 more wanted"):
            apply(desired(web, bindings=bindings(2, 5)))
        several = [binding(f"label{n}", UDP, "10.0.9.9", n) for n in range(1, 5)]
        with pytest.raises(Full, match="'destinations' is full"):
            apply(desired(web, bindings=several), prune=True)
        assert plain_services() == {}
        assert svc("check").out == "no problems found\n"
        apply(desired(web, bindings=bindings(2, 4)))
        assert generation() > before
        assert len(svc("bindings", "-o", "json").json["bindings"]) == 4
        prefixes = [binding("web", TCP, f"10.{n}.0.0/16", 80) for n in range(1, 5)]
        apply(desired(web, bindings=[*bindings(2, 4), *prefixes]))
        others = [binding("web", TCP, f"10.{n}.0.0/16", 80) for n in range(11, 15)]
        before = generation()
        with pytest.raises(Full, match="'binding_owners' is full: 8 of 8 used, 8 more wanted"):
            apply(desired(web, bindings=[*bindings(3, 4), *others]))
        assert generation() == before
        assert catalog.USAGE_OPTIONS["exact"] == "--max-bindings"
        assert svc("check").out == "no problems found\n"


def test_how_much_larger_it_has_to_be_is_told(tight: Balanced) -> None:
    apply(desired(*many(1, 2)))
    largest = entries_of("current")
    before = generation()
    with pytest.raises(Full, match=f"'current' is full: 4 of {largest} used, 36 more wanted"):
        apply(desired(*many(1, 20)))
    assert (generation(), problems()) == (before, [])


def entries_of(name: str) -> int:
    with open_reader(Place()) as reader:
        return reader.map(name).info.max_entries
