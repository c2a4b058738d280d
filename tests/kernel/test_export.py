"""export, save, and completion from the live state."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from unittest import mock

import pytest
import yaml

from svcctl.cli import live
from svcctl.cli.env import Env
from svcctl.cli.shell import candidates
from svcctl.errors import NotLoaded
from svcctl.model.bindings_file import read_bindings
from svcctl.state import destinations
from tests.lib.run import ok, svcctl
from tests.lib.sockets import find, writer
from tests.lib.svc import svc_process
from tests.lib.world import World

BINDINGS = (
    ("web", "tcp", "127.0.0.1", "80"),
    ("web", "tcp", "192.0.2.0/24", "0"),
    ("dns", "udp", "2001:db8::/32", "53"),
    ("dns", "udp", "::1", "53"),
    ('a "b" #ü', "tcp", "0.0.0.0/0", "443"),
)


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "20")
    for binding in BINDINGS:
        ok("bind", *binding)
    return world


def generation() -> int:
    with writer() as state:
        return state.meta().generation


def test_export_and_load_again_writes_nothing(loaded: World) -> None:
    text = ok("export").out
    before = generation()
    done = ok("load-bindings", "-", input=text)
    assert done.out == "0 added, 0 replaced, 0 removed, 5 unchanged\n"
    assert generation() == before
    assert ok("export").out == text == ok("export", "-o", "json").out


def test_export_is_the_whole_state(loaded: World) -> None:
    text = ok("export").out
    ok("unload", "--yes")
    ok("load", "--max-bindings", "100")
    ok("load-bindings", "-", input=text)
    assert ok("export").out == text
    assert len(read_bindings(text)) == len(BINDINGS)


def test_export_as_yaml(loaded: World) -> None:
    assert yaml.safe_load(ok("export", "-o", "yaml").out) == json.loads(ok("export").out)


def test_export_of_nothing(world: World) -> None:
    assert svcctl("export").code == 3
    ok("load", "--no-dispatcher")
    assert ok("export").json == {"schema": 1, "bindings": []}


def test_bindings_without_a_label_are_left_out(loaded: World) -> None:
    with writer() as state:
        state.map("destinations").delete(destinations.encode_key(find(state, "dns", 6, 17).key))
    done = ok("export")
    assert {row["label"] for row in done.json["bindings"]} == {"web", 'a "b" #ü'}
    assert "2 bindings have no label" in done.err


# save


def test_save(loaded: World, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    old = os.umask(0)
    try:
        assert ok("save", str(path)).out == f"saved {path} (5 bindings)\n"
    finally:
        os.umask(old)
    assert path.read_text() == ok("export").out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.stat()
    assert ok("save", str(path)).out == f"unchanged {path} (5 bindings)\n"
    assert path.stat().st_ino == first.st_ino
    ok("unbind", *BINDINGS[0])
    before = path.read_text()
    assert ok("save", str(path), "--dry-run").out == f"would save {path} (4 bindings)\n"
    assert path.read_text() == before
    (change,) = ok("save", str(path), "-o", "json").json["changes"]
    assert change["action"] == "changed"
    assert path.read_text() == ok("export").out
    assert os.listdir(tmp_path) == ["state.json"]
    ok("load-bindings", str(path))


def test_save_to_the_default_file(loaded: World) -> None:
    loaded.sh("mount -t tmpfs svcctl-test /var/lib")
    ok("save")
    assert stat.S_IMODE(os.stat("/var/lib/svcctl").st_mode) == 0o700
    assert Path("/var/lib/svcctl/state.json").read_text() == ok("export").out


def test_save_replaces_a_link_and_not_what_it_points_to(loaded: World, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "state.json").symlink_to(tmp_path / "target")
    ok("save", str(tmp_path / "state.json"))
    assert (tmp_path / "target").read_text() == "precious"
    assert not (tmp_path / "state.json").is_symlink()


def test_save_that_fails_leaves_the_old_file(loaded: World, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    for call in ("fsync", "rename", "write"):
        with mock.patch.object(os, call, side_effect=OSError(28, "No space left on device")):
            assert svcctl("save", str(path)).code == 1
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["state.json"]


def test_save_killed_at_the_rename(loaded: World, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    command = ["strace", "-f", "-o", "/dev/null", "-e", "trace=rename,renameat,renameat2"]
    command += ["-e", "inject=rename,renameat,renameat2:signal=KILL:when=1"]
    ran = svc_process("save", path, prefix=command, code=None)
    assert ran.code in (-9, 137)
    assert path.read_text() == "old"
    ok("save", str(path))
    assert path.read_text() == ok("export").out


@pytest.mark.parametrize(("name", "code"), [("none/state.json", 5), (".", 1), ("file/x", 5)])
def test_save_where_nothing_can_be(loaded: World, tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "file").write_text("")
    done = svcctl("save", str(tmp_path / name))
    assert done.code == code
    assert done.err.startswith("svcctl: error: ")
    assert os.listdir(tmp_path) == ["file"]


# completion


def completed(*words: str) -> list[str]:
    return [line.split("\t")[1] for line in candidates("zsh", ["--", *words])]


def test_completion(loaded: World) -> None:
    assert completed("bind", "") == ['a "b" #ü', "dns", "web"]
    assert completed("bind", "w") == ["web"]
    assert completed("unbind", "web", "tcp", "19") == ["192.0.2.0/24"]
    assert completed("unbind", "web", "tcp", "") == [
        "127.0.0.1/32",
        "192.0.2.0/24",
        "0.0.0.0/0",
        "::1/128",
        "2001:db8::/32",
    ]
    assert completed("bind", "web", "tcp", "::1", "") == ["0", "53", "80", "443"]
    assert completed("explain", "") == ["127.0.0.1:80/tcp", "[::1]:53/udp"]
    assert completed("explain", "127.0.0.1:80/tcp", "--from", "") == ["127.0.0.1", "::1"]
    assert completed("status", "d") == ["dns"]
    assert "netns" in completed("attach", "")
    assert completed("load-bindings", "/tmp/x") == ["/tmp/x"]


def test_completion_does_not_wait_and_changes_nothing(loaded: World) -> None:
    before = generation()
    with writer():
        assert completed("bind", "w") == ["web"]
    assert generation() == before


def test_completion_without_state(world: World) -> None:
    assert completed("bind", "") == []
    with pytest.raises(NotLoaded):
        list(live.candidates("label", Env()))
    assert list(live.candidates("nonsense", Env())) == []
    ok("load", "--no-dispatcher")
    assert completed("bind", "") == []


def test_completion_by_a_shell(loaded: World) -> None:
    """Through the process that a shell starts: nothing on stderr, whatever happens."""
    from tests.lib.svc import installed, process_env

    environment = process_env() | {"_SVCCTL_COMPLETE": "bash"}
    line = "svcctl unbind web tcp 127"
    done = subprocess.run(
        [*installed(), line], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("plain\t127.0.0.1/32\t\n", "")
