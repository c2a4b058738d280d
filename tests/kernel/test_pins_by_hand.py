"""Pins deleted, or replaced by something else, by hand: named by every command, nothing made in their place.

tubular's readers made a fresh empty map where one was missing, listed that, and `bind` wrote to it with success
and no effect (tubular.md 6.2, 8).
"""

from __future__ import annotations

import os
import shutil

import pytest

from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.maps import catalog
from tests.lib.servers import REFUSED, Server, ask
from tests.lib.svc import Ran, assert_one_error, svc
from tests.lib.until import lose_link
from tests.lib.world import World

AT = "127.0.0.53"
CHANGES = (
    ("bind", "new", "tcp", "127.0.7.7", 80),
    ("bind", "new", "tcp", "127.7.0.0/16", 80),
    ("unbind", "web", "tcp", AT, 80),
    ("unregister", "web", "ipv4", "tcp"),
)
READS = (("bindings",), ("destinations",))
NEEDED = {
    "bindings": {"meta", "programs", "exact", "bindings", "destinations"},
    "destinations": {"meta", "programs", "destinations", "sockets", "dispatch_stats"},
}


@pytest.fixture
def serving(loaded: World, server: Server) -> World:
    """One label with a binding and a socket that answers."""
    opened = server.open("it")
    svc("bind", "web", "tcp", AT, 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    assert ask("tcp", AT, 80) == "it"
    return loaded


def names(world: World) -> list[str]:
    return sorted(os.listdir(world.state_dir))


@pytest.mark.parametrize("name", catalog.STATE_MAPS | catalog.DISPATCH_MAPS)
def test_map_pin_deleted(serving: World, name: str) -> None:
    """Exit 7 and its path, or the command does not need it; a change needs all. Nothing is made in its place."""
    os.unlink(f"{serving.state_dir}/{name}")
    left = names(serving)
    for words in (*READS, *CHANGES):
        ran = svc(*words, code=None)
        assert ran.code in (0, 7), ran
        if ran.code:
            assert_one_error(ran, codes=(7,))
            assert f"{serving.state_dir}/{name}: the pin is missing" in ran.err
        needed = name in NEEDED.get(str(words[0]), catalog.MAPS)
        assert ran.code == (7 if needed else 0), (words, ran)
        assert names(serving) == left, words
    assert name != "meta" or svc("bind", "new", "tcp", AT, 81, code=7)
    svc("load", code=None)
    assert names(serving) == left
    svc("unload", "--yes")
    assert not os.path.exists(serving.state_dir)
    svc("load", "--max-bindings", 1000)
    assert svc("bindings", "-o", "json").json["bindings"] == []


def test_every_map_is_needed_to_bind(serving: World) -> None:
    """What `bind` writes it asks for: none of these can be missing unnoticed."""
    for name in ("meta", "usage", "writers", "exact", "ports", "destinations"):
        os.rename(f"{serving.state_dir}/{name}", f"{serving.state_dir}/aside")
        ran = svc("bind", "new", "tcp", "127.0.7.7", 80, code=7)
        assert name in ran.err
        os.rename(f"{serving.state_dir}/aside", f"{serving.state_dir}/{name}")
    assert ask("tcp", AT, 80) == "it"


@pytest.mark.parametrize("name", ["prog_dispatch", "link_netns"])
def test_program_or_link_pin_deleted(serving: World, name: str) -> None:
    """Without its link the dispatcher is off; no command may say 'bound' to that."""
    path = f"{serving.state_dir}/{name}"
    lose_link(path) if name == "link_netns" else os.unlink(path)
    left = names(serving)
    ran = svc("bind", "new", "tcp", "127.0.7.7", 80, code=None)
    if name == "link_netns":
        assert ask("tcp", AT, 80) == REFUSED
        assert_one_error(ran, codes=(6, 7))
        assert "link_netns" in ran.err
    else:
        assert ask("tcp", AT, 80) == "it"
        assert ran.code in (0, 7)
    assert names(serving) == left
    svc("unload", "--yes")
    svc("load", "--max-bindings", 1000)


def test_any_pin_deleted_then_unload(serving: World) -> None:
    """The peer's TestUnloadDispatcher: unload works whatever is missing."""
    for name in names(serving):
        svc("unload", "--yes")
        svc("load", "--max-bindings", 1000)
        os.unlink(f"{serving.state_dir}/{name}")
        svc("unload", "--yes")
        assert not os.path.exists(serving.state_dir)
        svc("load", "--max-bindings", 1000)


def replace_with(world: World, name: str, kind: str) -> None:
    """Put something else under a pin's name."""
    path = f"{world.state_dir}/{name}"
    os.unlink(path)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "program":
        with Program.open_pinned(f"{world.state_dir}/prog_dispatch") as program:
            program.pin(path)
    elif kind == "symlink":
        os.symlink("meta", path)
    else:
        shape = catalog.MAPS[name]
        sizes = (shape.key_size, shape.value_size)
        if kind == "other size":
            sizes = (shape.key_size, shape.value_size + 8)
        type = shape.type if kind == "other size" and shape.type != catalog.SOCKMAP else catalog.HASH
        if kind == "other type" and shape.type == catalog.HASH:
            type = catalog.ARRAY
            sizes = (4, shape.value_size)
        flags = 1 if type == catalog.LPM_TRIE else 0
        with Map.create(type, "other", *sizes, 16, flags) as made:
            made.pin(path)


@pytest.mark.parametrize("kind", ["other type", "other size", "program", "directory"])
@pytest.mark.parametrize("name", ["meta", "bindings", "exact", "sockets", "destinations"])
def test_pin_of_the_wrong_kind(serving: World, name: str, kind: str) -> None:
    replace_with(serving, name, kind)
    left = names(serving)
    failed = 0
    for words in (*READS, *CHANGES):
        ran = svc(*words, code=None)
        if ran.code:
            assert_one_error(ran, codes=(7,))
            assert name in ran.err
            failed += 1
        assert names(serving) == left
    assert failed, "no command looked at it"
    if kind == "directory":
        os.rmdir(f"{serving.state_dir}/{name}")  # unload removes what svcctl could have made
    svc("unload", "--yes")
    assert not os.path.exists(serving.state_dir)


@pytest.mark.parametrize("name", ["bindings", "exact", "ports", "sockets", "hints", "dispatch_stats"])
def test_pin_of_another_map_of_the_right_shape(serving: World, name: str) -> None:
    """Looks right, but no packet ever meets it: refused by whoever would read or write it."""
    path = f"{serving.state_dir}/{name}"
    with Map.open_pinned(path) as real:
        os.unlink(path)
        with Map.create(
            real.info.type, real.info.name, real.info.key_size, real.info.value_size,
            real.info.max_entries, real.info.flags,
        ) as other:  # fmt: skip
            other.pin(path)
        number = other.info.id
    users: dict[str, list[tuple[object, ...]]] = {
        "bindings": [("bindings",), *CHANGES[:2]],
        "exact": [("bindings",), *CHANGES[:3]],
        "ports": [*CHANGES[:3]],
        "sockets": [("destinations",), ("unregister", "web", "ipv4", "tcp")],
        "hints": [],
        "dispatch_stats": [("destinations",)],
    }
    for words in users[name]:
        ran = svc(*words, code=7)
        assert_one_error(ran, codes=(7,))
        assert name in ran.err
        assert str(number) in ran.err
    assert ask("tcp", AT, 80) == "it"
    svc("unload", "--yes")


def foul(ran: Ran) -> None:
    assert_one_error(ran, codes=(4, 7))


@pytest.mark.parametrize("what", ["file in its place", "owner", "mode", "symlink"])
def test_directory_that_is_not_as_it_should_be(serving: World, what: str) -> None:
    path = serving.state_dir
    if what == "owner":
        os.chown(path, 12345, -1)
    elif what == "mode":
        os.chmod(path, 0o2777)
    else:
        os.rename(path, f"{serving.bpffs}/aside")
        if what == "symlink":
            os.symlink(f"{serving.bpffs}/aside", path)
        else:
            with Map.create(catalog.ARRAY, "file", 4, 4, 1) as made:
                made.pin(path)
    for words in (*READS, *CHANGES):
        foul(svc(*words, code=None))
    shutil.rmtree(f"{serving.bpffs}/aside", ignore_errors=True)


def test_commands_without_a_dispatcher(world: World, server: Server) -> None:
    """`load --no-dispatcher` leaves nothing to bind to: said so, and not as if something were broken."""
    svc("load", "--no-dispatcher")
    left = names(world)
    opened = server.open("it")
    words: tuple[object, ...]
    for words in (*CHANGES, ("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)):
        ran = svc(*words, code=3)
        assert_one_error(ran, codes=(3,))
        assert "attach netns" in ran.err
    for words in READS:
        assert svc(*words, "-o", "json").json[words[0]] == []
    assert names(world) == left


def test_pin_that_others_may_write(serving: World) -> None:
    os.chmod(f"{serving.state_dir}/exact", 0o666)
    for words in (("bindings",), CHANGES[0], ("upgrade", "--max-bindings", 5000)):
        ran = svc(*words, code=4)
        assert "exact" in ran.err
        assert "0666" in ran.err
