"""upgrade with the connect balancer: all programs under one mark, larger and smaller maps, under connects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.maps import catalog
from svcctl.maps.layouts import U64
from svcctl.maps.service_layouts import REVERSE
from svcctl.state import services, upgrade_maps
from tests.lib import inspect_state, older_services
from tests.lib.balanced import SMALL, VIP, VIP6, Balanced, balanced, cookie
from tests.lib.forge import forge
from tests.lib.servers import SLOWNESS
from tests.lib.sockets import writer
from tests.lib.svc import svc
from tests.lib.world import World

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def served(world: World) -> Iterator[Balanced]:
    """Both halves, a service of TCP and UDP with three backends, one with affinity, one of IPv6."""
    with balanced(world, *SMALL) as made:
        svc("attach", "netns", "--max-bindings", 100, "--max-destinations", 8)
        names = made.farm.many(3, "tcp udp")
        made.add("web", f"{VIP}:80/tcp", f"{VIP}:53/udp", backends=names)
        made.add("sticky", f"{VIP}:81/tcp", f"{VIP}:54/udp", backends=names, affinity=3600)
        made.add("six", f"[{VIP6}]:80/tcp", backends=[made.farm.open("::1", 8080)])
        yield made


def programs() -> dict[str, int]:
    """Ids of all programs, which are pinned, attached and recorded the same."""
    found = {}
    with writer() as state:
        for shape in (catalog.DISPATCH, *catalog.CONNECT):
            with Program.open_pinned(state.pin(shape.pin)) as program:
                found[shape.name] = program.info.id
            with Link.open_pinned(state.pin(shape.link_pin)) as link:
                assert link.info.program_id == found[shape.name], shape.name
            assert state.program_record(shape.number).id == found[shape.name]
    return found


def sizes() -> dict[str, int]:
    with writer() as state:
        return {name: state.map(name).info.max_entries for name in catalog.SERVICE_MAPS}


class Connects:
    """Connects in a thread of this process, which is in the cgroup: every one must be served."""

    def __init__(self, served: Balanced) -> None:
        self.served = served
        self.count = 0
        self.failed: list[str] = []
        self.misnamed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            for address, port in ((VIP, 80), (VIP, 81), (VIP6, 80)):
                try:
                    with self.served.client(address, port) as one:
                        self.misnamed += one.getpeername()[:2] != (address, port)
                    self.count += 1
                except OSError as error:
                    self.failed.append(f"{address}:{port}: {error!r}")
            self.served.farm.takers()
            time.sleep(0.001)

    def wait_for(self, more: int) -> None:
        """Let so many more be made."""
        goal, end = self.count + more, time.monotonic() + 60 * SLOWNESS
        while self.count < goal and not self.failed:
            assert time.monotonic() < end, "the connects have stopped"
            time.sleep(0.005)

    def __enter__(self) -> Connects:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def counted(served: Balanced) -> tuple[int, int]:
    """(connections of all services, picks of all backends)"""
    with writer() as state:
        _, values, _ = state.map("service_stats").read_all()
        connections = sum(U64.unpack_from(values, at)[0] for at in range(0, len(values), 64))
        picks = sum(U64.unpack_from(data, 32)[0] for _, data in state.map("backends").items())
    return connections, picks


def test_every_program_is_swapped(served: Balanced) -> None:
    before = programs()
    ran = svc("upgrade", "--force", "-o", "json")
    after = programs()
    assert not set(before.values()) & set(after.values())
    told = {one["name"]: (one["old_program"], one["new_program"]) for one in ran.json["changes"]}
    assert told == {name: (before[name], after[name]) for name in before}
    assert inspect_state.problems() == []
    assert "unchanged" in svc("upgrade").out
    assert programs() == after


def test_upgrades_under_connects(served: Balanced, capsys: pytest.CaptureFixture[str]) -> None:
    """No connect fails, none is counted twice or forgotten: the maps stay, only the programs go."""
    start = counted(served)
    with forge() as server, Connects(served) as load:
        for _ in range(5):
            server.ok("upgrade", "--force")
            load.wait_for(12)
    assert load.failed == []
    assert load.misnamed == 0
    connections, picks = counted(served)
    assert (connections - start[0], picks - start[1]) == (load.count, load.count)
    assert inspect_state.problems() == []
    with capsys.disabled():
        print(f"\n5 upgrades, {load.count} connects")


@pytest.mark.covers(
    "add_count: sk_lookup", "add_count: map array", "add_count: map hash", "add_count: helper map_lookup_elem"
)
def test_resized_under_connects(served: Balanced) -> None:
    """Every map is made anew while clients connect; counts are carried to the last one.

    Not so the name of a socket that connects in the very moment in which `reverse` is swapped: state/carry.py.
    """
    rounds = [(128, 512, 8192), (16, 32, 64), (64, 256, 4096)]
    with forge() as server, Connects(served) as load:
        for services, backends, sockets in rounds:
            server.ok("upgrade", "--max-services", str(services), "--max-backends", str(backends),
                      "--max-sockets", str(sockets))  # fmt: skip
            have = sizes()
            assert (have["services"], have["backends"], have["reverse"]) == (services, backends, sockets)
            assert {name: have[name] for name in catalog.service_sizes(1, 1, 1)} == catalog.service_sizes(
                services, backends, sockets
            )
            assert inspect_state.problems() == []
            load.wait_for(2)  # one may have been under way
            misnamed = load.misnamed
            load.wait_for(6)
            assert load.misnamed == misnamed
    assert load.failed == []
    assert counted(served) == (load.count, load.count)


def test_what_is_remembered_is_carried(served: Balanced) -> None:
    """A client keeps its backend, a UDP socket its backend and its frontend's name, whichever map is made anew."""
    first = served.ask(VIP, 81)
    with served.client(VIP, 53, "udp") as connected, served.socket("udp") as other:
        connected.send(b"?")
        told = served.farm.reply()
        assert connected.recv(64).decode() == told
        other.sendto(b"?", (VIP, 54))
        back = served.farm.reply()
        assert other.recvfrom(64)[1] == (VIP, 54)
        assert cookie(connected) in served.reverse()
        assert cookie(other) in served.reverse()
        before = served.reverse()
        for options in (("--max-sockets", 1000), ("--max-backends", 100), ("--max-services", 50)):
            svc("upgrade", *options)
            assert served.reverse() == before
            assert connected.getpeername() == (VIP, 53)
            connected.send(b"?")
            assert served.farm.reply() == told
            assert connected.recv(64).decode() == told
            other.sendto(b"?", (VIP, 54))
            assert served.farm.reply() == back
            assert other.recvfrom(64)[1] == (VIP, 54)
            assert served.ask_often(5, VIP, 81) == {first: 5}
    assert served.reverse() == {}
    assert inspect_state.problems() == []


def test_what_happens_between_copy_and_swap(served: Balanced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets and clients that come and go when their maps were copied already, and counts, are brought after."""
    sockets = [served.client(VIP, 53, "udp") for _ in range(3)]
    closed, kept, late = sockets[0], sockets[1], []
    start = counted(served)

    def meanwhile(
        real: Callable[..., list[upgrade_maps.Follower]] = upgrade_maps.copy_half,
    ) -> Callable[..., object]:
        def copy(writer: object, half: object, *rest: object) -> object:
            done = real(writer, half, *rest)
            if half is catalog.BALANCER:
                closed.close()
                late.append(served.client(VIP, 53, "udp"))
                for _ in range(4):
                    served.ask(VIP, 81)
            return done

        return copy

    monkeypatch.setattr("svcctl.state.upgrade.copy_half", meanwhile())
    svc("upgrade", "--max-sockets", 1000, "--max-services", 50, "--max-backends", 100)
    assert sizes()["reverse"] == 1000
    assert set(served.reverse()) == {cookie(kept), cookie(sockets[2]), cookie(late[0])}
    assert late[0].getpeername() == (VIP, 53)
    connections, picks = counted(served)
    assert (connections - start[0], picks - start[1]) == (5, 5)
    with Map.open_pinned(f"{served.state_dir}/affinity", read_only=True) as opened:
        assert len(list(opened.items())) == 1
    for one in (*sockets, *late):
        one.close()
    assert served.reverse() == {}


def test_too_small_for_what_is_there(served: Balanced) -> None:
    before = sizes()
    ran = svc("upgrade", "--max-services", 2, code=8)
    assert "holds 3 entries, more than 2" in ran.err
    assert "--max-services" in ran.err
    ran = svc("upgrade", "--max-backends", 3, code=8)
    assert "backends holds 4 entries, more than 3" in ran.err
    with served.client(VIP, 80), served.client(VIP, 80):
        ran = svc("upgrade", "--max-sockets", 1, code=8)
        assert "reverse holds 2 entries, more than 1" in ran.err
    assert sizes() == before
    assert inspect_state.problems() == []


def test_grown_when_full(served: Balanced) -> None:
    """The command that finds a map full names the option, and after it there is room."""
    svc("upgrade", "--max-services", 3)
    ran = svc("service", "add", "four", "--frontend", "10.96.0.44:1/tcp", code=8)
    assert "--max-services" in ran.err
    svc("upgrade", "--max-services", 4)
    svc("service", "add", "four", "--frontend", "10.96.0.44:1/tcp", "--backend", "127.0.1.1:8080")
    assert served.ask("10.96.0.44", 1) == "127.0.1.1:8080"
    assert inspect_state.problems() == []


def test_lanes_that_are_too_high(served: Balanced) -> None:
    for number in range(6):
        served.add(f"more{number}", f"10.96.1.{number}:80/tcp")
    for number in range(5):
        svc("service", "delete", f"more{number}")
    ran = svc("upgrade", "--max-services", 4, code=8)
    assert "lane 9 is in use, so --max-services must be at least 5" in ran.err
    svc("upgrade", "--max-services", 5)
    served.add("again", "10.96.2.1:80/tcp", backends=["127.0.1.1:8080"])
    assert served.ask("10.96.2.1", 80) == "127.0.1.1:8080"
    assert inspect_state.problems() == []


def test_sizes_without_a_balancer(world: World) -> None:
    svc("load", "--max-bindings", 10, "--max-destinations", 8)
    for option in ("--max-services", "--max-backends", "--max-sockets"):
        assert "never attached" in svc("upgrade", option, 5, code=5).err


@pytest.mark.parametrize("name", ["connect4", "recvmsg6", "sock_release"])
def test_swapped_by_someone_else(served: Balanced, name: str) -> None:
    """Each link is compared before anything is swapped; --force puts ours back."""
    (shape,) = (one for one in catalog.CONNECT if one.name == name)
    before = programs()
    svc("upgrade", "--force")
    kept = programs()
    assert kept != before
    with writer() as state:
        from svcctl.state.balancer import program_name
        from svcctl.state.programs import load_object

        reuse = {each: state.map(each) for each in (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS)}
        with (
            load_object("connect", {}, reuse, (program_name(shape),)) as loaded,
            loaded.program(program_name(shape)) as theirs,
            Link.open_pinned(state.pin(shape.link_pin)) as link,
        ):
            link.update(theirs)
    ran = svc("upgrade", "--max-services", 100, code=6)
    assert "upgrade --force" in ran.err
    assert f"{shape.link_pin}: runs program" in ran.err
    svc("upgrade", "--force")
    programs()
    assert served.ask(VIP, 80)
    assert inspect_state.problems() == []


def test_link_detached_by_hand(served: Balanced) -> None:
    with writer() as state, Link.open_pinned(state.pin("link_connect4")) as link:
        link.detach()
    svc("upgrade", "--force")
    programs()
    assert served.ask(VIP, 80)
    assert inspect_state.problems() == []


def test_udp_left_out_and_detached(served: Balanced) -> None:
    """Programs without a link are swapped all the same, and attached again later as what they are now."""
    svc("attach", "cgroup", served.cgroup, "--exclude-udp")
    svc("upgrade", "--force")
    assert inspect_state.problems() == []
    svc("detach", "cgroup")
    svc("upgrade", "--force")
    assert inspect_state.problems() == []
    svc("attach", "cgroup", served.cgroup, "--include-udp")
    programs()
    assert served.ask(VIP, 53, "udp")
    assert inspect_state.problems() == []


def test_reverse_locks_are_not_copied(served: Balanced) -> None:
    with served.client(VIP, 80):
        svc("upgrade", "--max-sockets", 1000)
        with Map.open_pinned(f"{served.state_dir}/reverse", read_only=True) as opened:
            assert [REVERSE.unpack(data).lock for _, data in opened.items()] == [0]


def test_from_an_older_layout(served: Balanced, tmp_path: Path) -> None:
    """Fields by name, new ones zero; nobody who connects notices, and counts go on."""
    svc("backend", "set", "web", "127.0.1.2:8080", "--weight", 7)
    first = served.ask(VIP, 81)
    before = {name: one._replace(base=0) for name, one in everything().items()}
    start = counted(served)
    older_services.make_older(older_services.build(tmp_path))
    assert counted_by_older(served) == start
    ran = svc("service", "delete", "web", code=7)
    assert "svcctl upgrade" in ran.err
    with forge() as server, Connects(served) as load:
        server.ok("upgrade")
    assert load.failed == []
    assert {name: one._replace(base=0) for name, one in everything().items()} == before
    connections, picks = counted(served)
    assert (connections - start[0], picks - start[1]) == (load.count, load.count)
    assert served.ask_often(3, VIP, 81) == {first: 3}
    programs()
    assert inspect_state.problems() == []
    svc("check")
    svc("backend", "set", "web", "127.0.1.2:8080", "--weight", 1)
    assert inspect_state.problems() == []


def everything() -> dict[str, services.Stored]:
    with writer() as state:
        return services.read_all(state)


def counted_by_older(served: Balanced) -> tuple[int, int]:
    """As `counted`, of the narrower values."""
    with (
        Map.open_pinned(f"{served.state_dir}/service_stats", read_only=True) as stats,
        Map.open_pinned(f"{served.state_dir}/backends", read_only=True) as backends,
    ):
        connections = sum(U64.unpack_from(data, 0)[0] for _, data in stats.items())
        return connections, sum(U64.unpack_from(data, 24)[0] for _, data in backends.items())
