"""upgrade and resizing under load; interrupted, conflicting, newer and older versions."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import svcctl
from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.maps import catalog, enums, layouts
from tests.lib import inspect_state, older, strace
from tests.lib.forge import Forge, forge
from tests.lib.servers import SLOWNESS, Server, ask, asking
from tests.lib.sk_lookup_programs import foreign
from tests.lib.sockets import writer
from tests.lib.svc import svc
from tests.lib.world import World

pytestmark = pytest.mark.timeout(300)
SMALL = ("--max-bindings", 1000, "--max-destinations", 64)
GROUP = ("blue", "green", "red")


@pytest.fixture
def served(world: World) -> Iterator[Server]:
    """A TCP label, a SO_REUSEPORT group and a UDP label, bound."""
    svc("load", *SMALL)
    with Server() as server:
        port = server.open("web").port
        svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", port)
        for name in GROUP:
            port = server.open(name, address="127.0.0.2", port=8000, reuseport=True).port
        svc("register-pid", server.pid, "group", "tcp", "127.0.0.2", port)
        port = server.open("dns", "udp").port
        svc("register-pid", server.pid, "dns", "udp", "127.0.0.1", port)
        svc("bind", "web", "tcp", "127.1.0.1", 80)
        svc("bind", "group", "tcp", "127.3.0.0/16", 80)
        svc("bind", "dns", "udp", "127.4.0.0/16", 53)
        yield server


def _program() -> int:
    """Id of the pinned program, which must be the one that runs, and be recorded."""
    with writer() as state:
        with Program.open_pinned(state.pin(catalog.DISPATCH.pin)) as program:
            number = program.info.id
        with Link.open_pinned(state.pin(catalog.DISPATCH.link_pin)) as link:
            assert link.info.program_id == number
        assert state.program_record(catalog.DISPATCH.number).id == number
    assert inspect_state.attached_programs() == [number]
    return number


def _meta() -> layouts.Meta:
    with writer() as state:
        return state.meta()


def _pins() -> dict[str, int]:
    (directory,) = inspect_state.directories()
    path = f"{inspect_state.BPFFS}/{directory}"
    return {name: os.stat(f"{path}/{name}").st_ino for name in sorted(os.listdir(path))}


def _all_answer() -> None:
    assert ask("tcp", "127.1.0.1", 80) == "web"
    assert ask("tcp", "127.3.0.1", 80) in GROUP
    assert ask("udp", "127.4.0.1", 53) == "dns"


@pytest.mark.quick
def test_200_upgrades_under_load(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    times = 200 if SLOWNESS == 1 else 5
    seen = {_program()}
    with (
        asking("tcp", "127.1.0.1", 80) as web,
        asking("tcp", "127.3.0.1", 80) as group,
        asking("udp", "127.4.0.1", 53) as dns,
    ):
        made = 0
        while made < times or min(len(one.heard) for one in (web, group, dns)) < times // 2:
            svc("upgrade", "--force")
            seen.add(_program())
            made += 1
        for one in (web, group, dns):
            one.wait_for(1)
    with capsys.disabled():
        print(f"\n{made} upgrades, requests: {len(web.heard)}, {len(group.heard)}, {len(dns.heard)}")
    assert len(seen) == made + 1
    assert set(web.heard) == {"web"}
    assert set(group.heard) <= set(GROUP)
    assert set(dns.heard) == {"dns"}
    assert inspect_state.problems() == []


def test_from_a_program_that_differs(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object with other code, as another version would have: without the flag nothing is to be done twice."""
    objects = _other_objects(tmp_path)
    before = _program()
    with asking("tcp", "127.1.0.1", 80) as web:
        monkeypatch.setenv("SVCCTL_OBJECTS", str(objects))
        ran = svc("upgrade", "-o", "json")
        other = _program()
        assert other != before
        assert ran.json["changes"][0]["old_program"] == before, ran.out
        assert ran.json["changes"][0]["new_program"] == other, ran.out
        assert "unchanged" in svc("upgrade", "-o", "json").out
        assert _program() == other
        monkeypatch.delenv("SVCCTL_OBJECTS")
        svc("upgrade")
        assert _program() not in (before, other)
        web.wait_for(3)
    assert set(web.heard) == {"web"}
    _all_answer()
    assert inspect_state.problems() == []


def _other_objects(tmp_path: Path) -> Path:
    """All objects, with a dispatcher that does something else in a place that does not matter here."""
    root = tmp_path / "other"
    shutil.copytree(older.ROOT / "bpf", root / "bpf")
    source = root / "bpf" / older.PROGRAM
    text, count = re.subn(r"#define MAX_READS 4\b", "#define MAX_READS 3", source.read_text())
    assert count == 1
    source.write_text(text)
    return older.compile_objects(root, tmp_path / "objects", ("state", "dispatch", "copy"))


def test_nothing_to_do_writes_nothing(served: Server) -> None:
    pins, meta = _pins(), _meta()
    ran = svc("upgrade")
    assert ran.code == 0
    assert (_pins(), _meta()) == (pins, meta)


@pytest.mark.quick
def test_resized_under_load(served: Server) -> None:
    rounds = [(200, 64), (5, 3), (100_000, 300), (1000, 64)]
    with (
        asking("tcp", "127.1.0.1", 80) as web,
        asking("tcp", "127.3.0.1", 80) as group,
        asking("udp", "127.4.0.1", 53) as dns,
    ):
        for bindings, destinations in rounds:
            svc("upgrade", "--max-bindings", bindings, "--max-destinations", destinations)
            with writer() as state:
                assert state.map("exact").info.max_entries == bindings
                assert state.map("bindings").info.max_entries == bindings
                assert state.map("sockets").info.max_entries == 16 * destinations
                assert state.usage("exact").max == bindings
                assert state.usage("destinations").max == destinations
            assert inspect_state.problems() == []
            for one in (web, group, dns):
                one.wait_for(2)
    assert set(web.heard) == {"web"}
    assert set(group.heard) <= set(GROUP)
    assert set(dns.heard) == {"dns"}
    members = {
        one["label"]: len(one["members"])
        for one in json.loads(svc("destinations", "-o", "json").out)["destinations"]
    }
    assert members == {"web": 1, "group": 3, "dns": 1}


def test_resizing_keeps_count(served: Server) -> None:
    """Not one look-up is lost or counted twice while nobody asks; hardly one while somebody does."""
    for _ in range(5):
        ask("tcp", "127.1.0.1", 80)
    svc("upgrade", "--max-destinations", 10)
    assert _lookups("web") == 5
    asked, wrong = 5, []
    for size in range(11, 31):
        before = _lookups("web") - asked
        with asking("tcp", "127.1.0.1", 80) as web:
            web.wait_for(1)
            svc("upgrade", "--max-destinations", size)
            web.wait_for(1)
        asked += len(web.heard)
        wrong.append(abs(_lookups("web") - asked - before))
    # A writer that has to wait for a processor in the very moment loses what is asked meanwhile, which may be more.
    assert sorted(wrong)[len(wrong) // 2] <= 1, wrong


def _lookups(label: str) -> int:
    (one,) = json.loads(svc("destinations", label, "-o", "json").out)["destinations"]
    found: int = one["lookups"]
    return found


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--max-bindings", 1), "bindings holds 2 entries, more than 1"),
        (("--max-destinations", 2), "destinations holds 3 entries, more than 2"),
    ],
)
def test_smaller_than_what_is_in_use(served: Server, words: tuple[object, ...], cause: str) -> None:
    pins, meta = _pins(), _meta()
    assert cause in svc("upgrade", *words, code=8).err
    assert (_pins(), _meta()) == (pins, meta)
    _all_answer()


def test_smaller_than_an_id_in_use(served: Server) -> None:
    """Ids are places in arrays: the largest one in use is the limit, however few there are."""
    svc("unbind", "web", "tcp", "127.1.0.1", 80)
    svc("unregister", "web", "ipv4", "tcp")
    pins, meta = _pins(), _meta()
    ran = svc("upgrade", "--max-destinations", 2, code=8)
    assert "destination id 2 is in use, so --max-destinations must be at least 3" in ran.err
    assert (_pins(), _meta()) == (pins, meta)
    svc("upgrade", "--max-destinations", 3)
    svc("bind", "web", "tcp", "127.1.0.1", 80)
    assert "full" in svc("bind", "one-more", "tcp", "127.1.0.2", 80, code=8).err
    assert inspect_state.problems() == []


NEWER = [
    ("load",),
    ("bind", "x", "tcp", "10.0.0.1", 80),
    ("unbind", "web", "tcp", "127.1.0.1", 80),
    ("bindings",),
    ("destinations",),
    ("unregister", "web", "ipv4", "tcp"),
    ("upgrade",),
    ("upgrade", "--force"),
    ("attachments",),
    ("attach", "netns"),
    ("detach", "netns"),
    ("metrics",),
]


@pytest.mark.quick
def test_newer_layout(served: Server, tmp_path: Path) -> None:
    """Refused by every command with a line that says why; traffic goes on; unload works all the same."""
    with writer() as state:
        state.put_meta(state.meta()._replace(schema=layouts.SCHEMA + 1, version=b"9.1.0"))
    pins = _pins()
    file = tmp_path / "none"
    file.write_text('{"bindings": []}')
    for words in (
        *NEWER,
        ("register-pid", served.pid, "web", "tcp", "127.0.0.2", 8000),
        ("load-bindings", file),
    ):
        ran = svc(*words, code=7)
        assert f"layout {layouts.SCHEMA + 1}" in ran.err, (words, ran)
        assert "9.1.0" in ran.err, (words, ran)
        assert "hint: use the newer svcctl" in ran.err, (words, ran)
        assert ran.out == "", (words, ran)
    ran = svc("check", code=None)
    assert ran.code in (7, 10)
    assert _pins() == pins
    _all_answer()
    svc("unload", "--yes")
    assert inspect_state.directories() == []
    assert inspect_state.attached_programs() == []


@pytest.mark.parametrize(("was", "now", "down"), [("9.10.0", "9.9.1", True), ("0.9.3", "0.10.0", False)])
def test_other_version(
    served: Server, monkeypatch: pytest.MonkeyPatch, was: str, now: str, down: bool
) -> None:
    monkeypatch.setattr(svcctl, "__version__", was)
    svc("upgrade")
    assert layouts.text(_meta().version) == was
    before = _program()
    monkeypatch.setattr(svcctl, "__version__", now)
    ran = svc("upgrade")
    assert (f"downgrade from {was} to {now}" in ran.err) == down
    assert was in ran.out
    assert now in ran.out
    assert str(before) in ran.out
    assert str(_program()) in ran.out
    assert layouts.text(_meta().version) == now
    _all_answer()


def _swap_in_foreign(tmp_path: Path) -> int:
    """Put somebody else's program under our link; its id."""
    with writer() as state, foreign(tmp_path) as (built, _), built.program("pass") as program:
        with Link.open_pinned(state.pin(catalog.DISPATCH.link_pin)) as link:
            link.update(program)
        return program.info.id


def test_foreign_program_under_the_link(served: Server, tmp_path: Path) -> None:
    mine = _program()
    theirs = _swap_in_foreign(tmp_path)
    pins, meta = _pins(), _meta()
    for words in (("bind", "x", "tcp", "10.0.0.1", 80), ("upgrade",), ("upgrade", "--max-bindings", 7)):
        ran = svc(*words, code=6)
        assert f"runs program {theirs}, svcctl loaded {mine}" in ran.err, ran
        assert "svcctl upgrade --force" in ran.err, ran
        assert (_pins(), _meta()) == (pins, meta)
    svc("upgrade", "--force")
    assert _program() not in (mine, theirs)
    _all_answer()
    assert inspect_state.problems() == []


def _points(server: Forge, *words: str) -> list[strace.Point]:
    return strace.trace(server, *words).changing


def _kill_after_mark(server: Forge) -> None:
    """An upgrade that grows `destinations`, killed when its mark was set and nothing else done."""
    size = inspect_state.max_entries("destinations")
    words = ("upgrade", "--max-destinations", str(size + 1))
    points = _points(server, *words)
    first = next(point for point in points if point.name == "rename")
    number = next(n for n in range(points.index(first), 0, -1) if points[n].name == "bpf")
    words = ("upgrade", "--max-destinations", str(size + 2))
    for point in reversed([point for point in points[: number + 1] if point.name == "bpf"]):
        assert strace.kill_at(server, point, *words).code == -9
        meta = _meta()
        assert meta.swap_phase == enums.SWAP_FORWARD
        with writer() as state:
            with Program.open_pinned(state.pin(catalog.DISPATCH.pin)) as program:
                mine = program.info.id
            with Link.open_pinned(state.pin(catalog.DISPATCH.link_pin)) as link:
                if link.info.program_id == mine:
                    return
        # Finished by the next writer; once more, and die a call earlier.
        svc("bind", "spare", "tcp", "127.9.9.9", 9)
        size = inspect_state.max_entries("destinations")
        words = ("upgrade", "--max-destinations", str(size + 1))
    raise AssertionError("no call between mark and link")


def test_foreign_program_comes_in_between(served: Server, tmp_path: Path) -> None:
    """Swapped after an upgrade of ours had set its mark and died: named, and taken back when told to."""
    with forge() as server:
        _kill_after_mark(server)
    size = inspect_state.max_entries("destinations")
    theirs = _swap_in_foreign(tmp_path)
    for words in (("bind", "x", "tcp", "10.0.0.1", 80), ("upgrade",), ("upgrade", "--max-bindings", 7)):
        ran = svc(*words, code=6)
        assert f"runs program {theirs}" in ran.err, ran
        assert "svcctl upgrade --force" in ran.err, ran
    svc("upgrade", "--force")
    _program()
    assert inspect_state.max_entries("destinations") == size + 1
    _all_answer()
    assert inspect_state.problems() == []


@pytest.mark.parametrize("marked", [False, True])
def test_link_detached_by_hand(served: Server, marked: bool) -> None:
    """Such a link is of no use any more; another one is made."""
    if marked:
        with forge() as server:
            _kill_after_mark(server)
    with writer() as state, Link.open_pinned(state.pin(catalog.DISPATCH.link_pin)) as link:
        link.detach()
    assert inspect_state.attached_programs() == []
    svc("upgrade", "--force")
    _program()
    _all_answer()
    assert inspect_state.problems() == []


@pytest.mark.crash
def test_interrupted_goes_back_or_forward(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed before its mark a resize has not happened, after that it has: told from the mark alone."""
    with forge() as server:
        size = inspect_state.max_entries("destinations")
        points = _points(server, "upgrade", "--max-destinations", str(size + 1))
        chosen = [one for n, one in enumerate(points) if one.name in ("rename", "chmod") or n % 16 == 0]
        went = {"back": 0, "forward": 0}
        for point in chosen:
            size, old = inspect_state.max_entries("destinations"), _program()
            done = strace.kill_at(server, point, "upgrade", "--max-destinations", str(size + 1))
            assert done.code == -9, done.all
            meta = _meta()
            forward = meta.swap_phase == enums.SWAP_FORWARD
            if not meta.generation & 1:
                continue
            done = server.ok("bind", "spare", "tcp", "127.9.9.9", "9")
            assert "repairing after 'upgrade --max-destinations" in done.err
            now = inspect_state.max_entries("destinations")
            if forward:
                assert (now, _program() != old) == (size + 1, True), point
            else:
                # Behind the swap it is done as well, and only the counts are not settled.
                assert (now - size, _program() != old) in ((0, False), (1, True)), point
            assert not [name for name in _pins() if name.startswith(catalog.NEXT)]
            assert inspect_state.problems() == []
            _all_answer()
            went["forward" if now > size else "back"] += 1
    with capsys.disabled():
        print(f"\ninterrupted upgrades: {went}")
    assert went["back"] > 2
    assert went["forward"] > 2


def test_lost_pins(served: Server) -> None:
    """A pin that is missing is named; nothing is made in its place."""
    with writer() as state:
        path = state.pin("hints")
        os.rename(path, f"{state.path}_hints")
    try:
        ran = svc("upgrade", "--force", code=7)
        assert f"{path}: the pin is missing" in ran.err
        assert not os.path.exists(path)
    finally:
        os.rename(f"{path.removesuffix('/hints')}_hints", path)
    svc("upgrade", "--force")
    _all_answer()


def test_program_pin_lost(served: Server) -> None:
    """Replaced, whatever runs: the link goes on meanwhile."""
    with writer() as state:
        os.unlink(state.pin(catalog.DISPATCH.pin))
    _all_answer()
    svc("upgrade", "--force")
    _program()
    _all_answer()
    assert inspect_state.problems() == []


def test_without_dispatcher(world: World) -> None:
    svc("load", "--no-dispatcher")
    assert svc("upgrade", "--max-bindings", 5, code=5).err.startswith(
        "svcctl: error: upgrade: the dispatcher was never"
    )
    svc("upgrade")
    svc("upgrade", "--force")
    assert inspect_state.problems() == []


def test_sockets_that_were_shut_down(served: Server) -> None:
    """Such a socket is in the map and takes nothing. It cannot be copied, which is said and harms nobody."""
    served.ask("shutdown", name="web")
    assert ask("tcp", "127.1.0.1", 80) == "refused"
    ran = svc("upgrade", "--max-destinations", 70)
    assert "1 sockets that no longer listen were not carried over" in ran.err
    assert ask("tcp", "127.3.0.1", 80) in GROUP
    assert inspect_state.problems() == []


def test_no_write_before_the_verifier_agrees(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that does not load leaves everything as it is."""
    root = tmp_path / "bad"
    shutil.copytree(older.ROOT / "bpf", root / "bpf")
    source = root / "bpf" / older.PROGRAM
    source.write_text(
        source.read_text().replace(
            "int dispatch(struct bpf_sk_lookup *ctx)\n{",
            "int dispatch(struct bpf_sk_lookup *ctx)\n{\n\t*(volatile __u64 *)0 = 1;\n",
        )
    )
    objects = older.compile_objects(root, tmp_path / "objects", ("state", "dispatch", "copy"))
    before = _program()
    monkeypatch.setenv("SVCCTL_OBJECTS", str(objects))
    ran = svc("upgrade", code=1)
    assert "rejected by the verifier" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.delenv("SVCCTL_OBJECTS")
    assert _program() == before
    _all_answer()
    assert inspect_state.problems() == []


def test_memory_refused(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has no memory for the new maps: nothing has changed."""

    def no_memory(self: Object) -> None:
        raise BpfError(12, "load", self.path)

    monkeypatch.setattr(Object, "load", no_memory)
    before, pins = _program(), _pins()
    ran = svc("upgrade", "--max-bindings", 5000, code=1)
    assert "Cannot allocate memory" in ran.err
    monkeypatch.undo()
    assert (_program(), _pins()) == (before, pins)
    _all_answer()
    assert inspect_state.problems() == []
