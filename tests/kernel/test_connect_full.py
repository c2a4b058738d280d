"""Full maps of services, and what a change costs: found before the first write; the same however many there are."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from svcctl.maps import catalog
from svcctl.model.service import Member, Service, ServiceFrontend
from svcctl.model.service_endpoint import parse_backend, parse_frontend
from svcctl.state.picture import read_fill
from svcctl.state.place import Place
from svcctl.state.service_change import apply_change, plan_change
from svcctl.state.session import open_reader
from svcctl.state.writer import open_writer
from tests.lib.balanced import VIP, Balanced, balanced, name
from tests.lib.pins import dump
from tests.lib.svc import svc, svc_process
from tests.lib.world import World

MANY, BACKENDS = 60_000, 250_000
MOVING = ("drop_stats", "service_stats", "affinity", "reverse")


def refused(made: Balanced, table: str, *words: object) -> str:
    """A command that must find the map full: exit 8, map, size and option named, nothing written."""
    before = dump(made.state_dir, but=MOVING)
    ran = svc(*words, code=8)
    assert dump(made.state_dir, but=MOVING) == before
    assert f"map '{table}'" in ran.err, ran.err
    assert catalog.USAGE_OPTIONS[table] in ran.err, ran.err
    assert "Traceback" not in ran.err
    return ran.err


def test_backends(world: World) -> None:
    """Room for 8, 7 used: a service with three more is refused whole; with room made, it goes in. T17."""
    with balanced(world, "--max-services", 8, "--max-backends", 8, "--max-sockets", 64) as made:
        kept = made.farm.open("127.0.1.1", 8080)
        made.add("first", f"{VIP}:80/tcp", backends=[kept, *(f"127.0.3.{n}:1" for n in range(6))])
        more = [f"127.0.4.{n}:1" for n in range(3)]
        words: list[object] = ["service", "add", "second", "--frontend", f"{VIP}:81/tcp"]
        for one in more:
            words += ["--backend", one]
        text = refused(made, "backends", *words)
        assert "7 of 8" in text
        assert made.error(VIP, 81) == errno.ENETUNREACH
        # One that is there already takes no room; so does the last one.
        made.add("shared", f"{VIP}:82/tcp", backends=[kept])
        assert made.ask(VIP, 82) == kept
        svc("backend", "delete", "first", "127.0.3.0:1", "127.0.3.1:1")
        svc(*words)
        refused(made, "backends", "backend", "add", "second", "127.0.5.1:1")
        svc("check")


def test_services(world: World) -> None:
    with balanced(world, "--max-services", 3, "--max-backends", 64, "--max-sockets", 64) as made:
        backend = made.farm.open("127.0.1.1", 8080)
        for number in range(3):
            made.add(f"s{number}", f"{VIP}:{80 + number}/tcp", backends=[backend])
        refused(made, "service_names", "service", "add", "s3", "--frontend", f"{VIP}:83/tcp")
        # A change of one that is there needs no room in that map.
        svc("service", "set", "s0", "--affinity", 5)
        svc("service", "delete", "s1")
        for _ in range(8):  # ids and lanes do not run out with the room
            made.add("s3", f"{VIP}:83/tcp", "[2001:db8::1]:83/tcp", backends=[backend])
            assert made.ask(VIP, 83) == backend
            svc("service", "delete", "s3")
        svc("check")


def test_frontends(world: World) -> None:
    with balanced(world, "--max-services", 2, "--max-backends", 64, "--max-sockets", 64) as made:
        backend = made.farm.open("127.0.1.1", 8080)
        room = catalog.service_sizes(2, 64, 64)["frontends"]
        fronts = [f"{VIP}:{80 + n}/tcp" for n in range(room // 2)]
        made.add("web", *fronts, backends=[backend])
        more: list[object] = []
        for number in range(room):
            more += ["--frontend", f"10.96.0.99:{80 + number}/tcp"]
        before = dump(made.state_dir, but=MOVING)
        ran = svc("service", "add", "big", *more, code=8)
        assert dump(made.state_dir, but=MOVING) == before
        assert "--max-services" in ran.err
        assert all(made.ask(VIP, 80 + n) == backend for n in range(room // 2))


@pytest.mark.parametrize("table", ["slots", "service_members", "blocks", "frontends", "backends", "members"])
def test_every_map_is_looked_at(balanced: Balanced, table: str) -> None:
    """Whatever map has no room, the command says which, before it writes."""
    from svcctl.bpf.map import Map
    from svcctl.maps import layouts

    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    index = catalog.MAPS[table].usage
    assert index is not None
    with (
        Map.open_pinned(f"{balanced.state_dir}/usage") as usage,
        Map.open_pinned(f"{balanced.state_dir}/{table}") as full,
    ):
        data = usage.lookup(layouts.U32.pack(index))
        assert data is not None
        value = layouts.USAGE.unpack(data)
        usage.update(layouts.U32.pack(index), layouts.USAGE.pack(value._replace(used=full.info.max_entries)))
    refused(
        balanced, table, "service", "add", "more", "--frontend", f"{VIP}:81/tcp", "--backend", "127.0.1.2:1"
    )
    assert balanced.ask(VIP, 80) == backend


@pytest.mark.parametrize("counter", ["next_service", "next_backend", "next_block"])
def test_ids(balanced: Balanced, counter: str) -> None:
    """They have 32 bits; the last one is as good as any, and after it the command fails before it writes. T16."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    with open_writer(Place(), "test") as writer, writer.changing():
        last: dict[str, Any] = {counter: 0xFFFFFFFE}
        writer.put_meta(writer.meta()._replace(**last))
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    with balanced.client(VIP, 80) as one:
        assert name(one.getpeername()) == (VIP, 80)
        assert balanced.farm.taker() == backend
    svc("service", "delete", "web")
    assert balanced.error(VIP, 80) == errno.ENETUNREACH
    before = dump(balanced.state_dir, but=MOVING)
    ran = svc("service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--backend", backend, code=8)
    assert "no free id" in ran.err
    assert dump(balanced.state_dir, but=MOVING) == before
    svc("check")


CALLS: tuple[tuple[object, ...], ...] = (
    ("service", "add", "new", "--frontend", "10.97.0.1:80/tcp", "--backend", "10.1.0.1:80", "--backend", "10.1.0.2:80"),
    ("service", "add", "new", "--frontend", "10.97.0.1:80/tcp", "--backend", "10.1.0.1:80", "--backend", "10.1.0.2:80"),
    ("backend", "add", "new", "10.1.0.3:80"),
    ("backend", "set", "new", "10.1.0.3:80", "--weight", 5),
    ("backend", "drain", "new", "10.1.0.3:80"),
    ("backend", "delete", "new", "10.1.0.3:80"),
    ("service", "set", "new", "--affinity", 60),
    ("service", "delete", "new"),
)  # fmt: skip


def calls(tmp_path: Path, words: tuple[object, ...]) -> int:
    """bpf() calls of a command, as strace counts them."""
    log = tmp_path / "calls"
    svc_process(*words, prefix=["strace", "-f", "-qq", "-e", "trace=bpf", "-o", str(log)])
    return sum("bpf(" in line for line in log.read_text().splitlines())


@pytest.mark.timeout(900)
def test_changes_cost_the_same_with_many_services(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """bpf() calls with 10 services, and with 60,000 of 250,000 backends in one state, are the same numbers."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    began = time.monotonic()
    sizes = ("--max-services", MANY + 1, "--max-backends", BACKENDS + 3, "--max-sockets", 64)
    with balanced(world, *sizes) as made:
        here = made.farm.open("127.0.1.1", 8080)
        make(0, 10)
        few = [calls(tmp_path, words) for words in CALLS]
        make(10, MANY)
        assert used() == {"service_names": MANY, "frontends": MANY, "backends": BACKENDS}
        many = [calls(tmp_path, words) for words in CALLS]
        assert many == few
        assert max(few) < 175
        # The last of them are served, and there is room for one more, not for two.
        for number in (0, 1, MANY // 2, MANY - 1):
            svc("backend", "add", f"s{number}", f"{here},weight=65535")
            svc("backend", "set", f"s{number}", *backends_of(number), "--state", "down")
            assert made.ask(where(number), 80) == here
            svc("backend", "delete", f"s{number}", here)
        svc("service", "add", "last", "--frontend", "10.99.0.1:80/tcp", "--backend", here)
        assert made.ask("10.99.0.1", 80) == here
        ran = svc("service", "add", "more", "--frontend", "10.99.0.1:81/tcp", code=8)
        assert "map 'service_names'" in ran.err
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{MANY:,} services, {BACKENDS:,} backends ({took:.0f} s); bpf() calls of changes: {many}")


def used() -> dict[str, int]:
    """How many entries the maps have that are counted here."""
    with open_reader(Place()) as reader:
        fill = {one.name: one.used for one in read_fill(reader)}
    return {name: fill[name] for name in ("service_names", "frontends", "backends")}


def where(number: int) -> str:
    """The address of a service."""
    return f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def backends_of(number: int) -> list[str]:
    """Its backends, which no other has: four, or one more so that all together they are as many as there shall be."""
    return [
        f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}:{port}"
        for port in range(1, 5 + (number < BACKENDS - 4 * MANY))
    ]


def make(first: int, last: int) -> None:
    """Services by the writers' own code, in one process and under one mark."""
    with open_writer(Place(), "test") as writer, writer.changing():
        for number in range(first, last):
            one = Service(
                f"s{number}",
                frontends=(ServiceFrontend(parse_frontend(f"{where(number)}:80/tcp"), 0),),
                members=tuple(Member(parse_backend(backend)) for backend in backends_of(number)),
            )
            apply_change(writer, plan_change(writer, None, one))
