"""64 writers of services at once: each is served, nothing is lost, counted twice or mixed up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import BACKEND_ID
from svcctl.state import services
from svcctl.state.services import Stored
from tests.lib import inspect_state
from tests.lib.forge import Done, Forge, forge
from tests.lib.own_cgroup import own_cgroup
from tests.lib.sockets import writer
from tests.lib.world import World

pytestmark = pytest.mark.timeout(300)
WRITERS = 64 if float(os.environ.get("SVCCTL_SLOWNESS", "1")) == 1 else 16
SIZES = ("--max-services", "256", "--max-backends", "512", "--max-sockets", "64")


@pytest.fixture
def svcctl(world: World) -> Iterator[Forge]:
    with forge() as server, own_cgroup() as path:
        server.ok("load", "--no-dispatcher")
        server.ok("attach", "cgroup", path, *SIZES)
        yield server
        server.ok("unload", "--yes")


def all_at_once(svcctl: Forge, *lines: tuple[str, ...]) -> list[Done]:
    started = [svcctl.start("--lock-timeout", "120", *line) for line in lines]
    return [svcctl.wait(pid) for pid in started]


def all_served(svcctl: Forge, *lines: tuple[str, ...]) -> None:
    ended = all_at_once(svcctl, *lines)
    assert [one.code for one in ended] == [0] * len(lines), [one.all for one in ended if one.code]
    assert not [one.err for one in ended if "repairing" in one.err]


def everything() -> dict[str, Stored]:
    with writer() as state:
        return services.read_all(state)


def references() -> list[int]:
    """How often each backend is said to be used."""
    with writer() as state:
        return sorted(BACKEND_ID.unpack(data).refs for _, data in state.map("backend_ids").items())


def test_64_services_made_and_deleted_at_once(svcctl: Forge) -> None:
    """All with one backend in common and one of their own."""
    adds = [
        ("service", "add", f"s{n}", "--frontend", f"10.7.0.{n}:80/tcp", "--frontend", f"[fd07::{n:x}]:80/tcp",
         "--backend", "127.0.0.1:8080", "--backend", f"127.0.1.{n}:8080,weight={n + 1}")
        for n in range(WRITERS)
    ]  # fmt: skip
    all_served(svcctl, *adds)
    found = everything()
    assert set(found) == {f"s{n}" for n in range(WRITERS)}
    assert len({one.service.id for one in found.values()}) == WRITERS
    assert len({lane for one in found.values() for lane in one.lanes.values()}) == 2 * WRITERS
    assert references() == [1] * WRITERS + [WRITERS]
    assert inspect_state.problems() == []
    all_served(svcctl, *(("service", "delete", f"s{n}") for n in range(WRITERS)))
    assert everything() == {}
    assert references() == []
    with writer() as state:
        for name in (
            "frontends",
            "blocks",
            "slots",
            "members",
            "backends",
            "service_fronts",
            "service_members",
        ):
            assert list(state.map(name).items()) == [], name
            assert state.usage(name).used == 0, name
        assert not state.map("current").read_all()[1].strip(b"\0")
    assert inspect_state.problems() == []


def test_64_writers_of_one_service(svcctl: Forge) -> None:
    """Each adds its backend and its frontend to what the others have made of it."""
    svcctl.ok("service", "add", "one", "--frontend", "10.7.0.1:80/tcp")
    half = WRITERS // 2
    lines: list[tuple[str, ...]] = [("backend", "add", "one", f"127.0.1.{n}:8080") for n in range(half)]
    lines += [("service", "set", "one", "--frontend", f"10.7.1.{n}:80/tcp") for n in range(half)]
    all_served(svcctl, *lines)
    one = everything()["one"]
    assert len(one.service.members) == half
    assert len(one.service.frontends) == half + 1
    assert inspect_state.problems() == []
    lines = [("backend", "delete", "one", f"127.0.1.{n}:8080") for n in range(half)]
    lines += [("backend", "add", "one", f"127.0.2.{n}:8080") for n in range(half)]
    all_served(svcctl, *lines)
    one = everything()["one"]
    assert {member.backend.address[-2:] for member in one.service.members} == {
        bytes((2, n)) for n in range(half)
    }
    with writer() as state:
        cluster, _ = services.current_blocks(state, one.lanes[4])
        assert state.map("blocks").lookup(U32.pack(cluster)) is not None
        assert len(list(state.map("slots").items())) == half
    assert inspect_state.problems() == []


def test_one_frontend_for_64(svcctl: Forge) -> None:
    """Exactly one gets it; the others are told whose it is and have changed nothing."""
    ended = all_at_once(
        svcctl,
        *(
            ("service", "add", f"s{n}", "--frontend", "10.7.0.1:80/tcp", "--backend", f"127.0.1.{n}:80")
            for n in range(WRITERS)
        ),
    )
    assert sorted(one.code for one in ended) == [0] + [6] * (WRITERS - 1)
    (name,) = everything()
    assert all(f"belongs to service '{name}'" in one.err for one in ended if one.code)
    assert references() == [1]
    assert inspect_state.problems() == []
