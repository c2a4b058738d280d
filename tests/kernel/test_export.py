"""`svcctl export` and `save`: what they write, load-bindings and apply read back without writing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from svcctl.maps import layouts
from svcctl.maps.layouts import U32
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import open_writer
from tests.kernel.test_precedence import bind, binding_sets, unbind
from tests.lib.svc import svc, svc_process
from tests.lib.world import World

EMPTY = {"version": 1, "owner": "", "bindings": [], "services": []}


def generation() -> int:
    with open_reader(Place()) as reader:
        return reader.generation()


def some() -> None:
    svc("bind", "web", "tcp", "192.0.2.0/24", 443)
    svc("bind", "web", "tcp", "192.0.2.1", 0)
    svc("bind", "?1", "udp", "::/0", 53)
    svc("bind", 'é \\ " two', "udp", "2001:db8::1", 53)


def test_the_document(loaded: World) -> None:
    assert svc("export").json == EMPTY
    some()
    text = svc("export").out
    assert json.loads(text) == EMPTY | {
        "bindings": [
            {"label": "web", "protocol": "tcp", "prefix": "192.0.2.1/32", "port": 0},
            {"label": "web", "protocol": "tcp", "prefix": "192.0.2.0/24", "port": 443},
            {"label": 'é \\ " two', "protocol": "udp", "prefix": "2001:db8::1/128", "port": 53},
            {"label": "?1", "protocol": "udp", "prefix": "::/0", "port": 53},
        ],
    }
    assert svc("-o", "json", "export").out == svc("export", "-o", "wide").out == text
    for bad in ("name", "jsonl"):
        svc("export", "-o", bad, code=2)


def test_yaml_says_the_same(loaded: World) -> None:
    yaml = pytest.importorskip("yaml")
    some()
    assert yaml.safe_load(svc("export", "-o", "yaml").out) == svc("export").json


def test_loading_it_back_writes_nothing(loaded: World, tmp_path: Path) -> None:
    file = tmp_path / "bindings.json"
    some()
    before = generation()
    file.write_text(svc("export").out)
    assert "4 unchanged" in svc("load-bindings", file).out
    assert "4 unchanged" in svc_process("load-bindings", "-", input=svc_process("export").out).out
    assert "0 created, 0 changed, 0 deleted, 4 unchanged" in svc("apply", "-f", file, "--prune").out
    assert generation() == before


def test_any_set_goes_out_and_in_again(loaded: World, tmp_path: Path) -> None:
    file, empty = tmp_path / "bindings.json", tmp_path / "empty.json"
    empty.write_text('{"bindings":[]}')

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(binding_sets())
    def run(bindings):
        for binding in bindings:
            bind(binding)
        text = svc("export").out
        file.write_text(text)
        before = generation()
        svc("load-bindings", file)
        assert generation() == before
        svc("load-bindings", empty)
        svc("load-bindings", file)
        assert svc("export").out == text
        for binding in bindings:
            unbind(binding)

    run()


def test_a_binding_without_a_destination_is_not_exported_under_an_invented_label(
    loaded: World, tmp_path: Path
) -> None:
    some()
    with open_writer(Place(), "test") as writer:
        keys, _, _ = writer.map("exact").read_all()
        value = writer.map("exact").lookup(keys[:20])
        assert value is not None
        writer.map("exact").update(keys[:20], layouts.EXACT.struct.pack(900, U32.unpack_from(value, 4)[0]))
    assert "destination 900 does not exist" in svc("export", code=7).err
    svc("save", tmp_path / "state.json", code=7)
    assert os.listdir(tmp_path) == []


def test_save_is_the_export_and_rests_when_nothing_changed(loaded: World, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    some()
    before = generation()
    assert svc("save", file, "--dry-run").out == f"would save {file} (4 bindings, 0 services)\n"
    assert os.listdir(tmp_path) == []
    old = os.umask(0o777)
    try:
        assert svc("save", file).out == f"saved {file} (4 bindings, 0 services)\n"
    finally:
        os.umask(old)
    assert file.read_text() == svc("export").out
    first = file.stat()
    assert stat.S_IMODE(first.st_mode) == 0o600
    assert svc("save", file).out == f"unchanged {file} (4 bindings, 0 services)\n"
    assert svc("save", file, "--dry-run", "-o", "json").json["changes"][0]["action"] == "unchanged"
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert generation() == before
    svc("unbind", "web", "tcp", "192.0.2.1", 0)
    assert svc("save", file, "--dry-run").out == f"would save {file} (3 bindings, 0 services)\n"
    assert file.stat().st_ino == first.st_ino
    assert svc("save", file, "-o", "json").json["changes"] == [
        {"action": "changed", "kind": "file", "name": str(file)}
        | {"note": "3 bindings, 0 services", "bindings": 3, "services": 0}
    ]
    assert file.stat().st_ino != first.st_ino
    assert file.read_text() == svc("export").out
    assert os.listdir(tmp_path) == ["state.json"]
    assert "3 unchanged" in svc("load-bindings", file).out


def test_save_refuses_what_is_no_file(loaded: World, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(real)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (link, fifo, tmp_path, "/dev/null"):
        assert "not a regular file" in svc("save", path, code=2).err
    assert real.read_text() == "mine"
    assert "save /proc/none/state.json: No such file" in svc("save", "/proc/none/state.json", code=1).err
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link", "real"]


def test_save_leaves_the_old_file_when_it_cannot_write(loaded: World, tmp_path: Path) -> None:
    """A file system without room: the old file stays, nothing is left beside it."""
    loaded.sh(f"mount -t tmpfs -o size=16k none {tmp_path}")
    try:
        file = tmp_path / "state.json"
        some()
        svc("save", file)
        before = file.read_bytes()
        (tmp_path / "filler").write_bytes(bytes(8192))
        for n in range(80):
            svc("bind", "l" * 200, "tcp", f"10.0.0.{n}", 80)
        assert f"save {file}: No space left on device" in svc("save", file, code=1).err
        assert file.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["filler", "state.json"]
    finally:
        loaded.sh(f"umount {tmp_path}")


def test_save_syncs_the_file_before_the_rename_and_the_directory_after(loaded: World, tmp_path: Path) -> None:
    log = tmp_path / "log"
    svc_process(
        "save",
        tmp_path / "state.json",
        prefix=("strace", "-f", "-y", "-e", "trace=fsync,rename,renameat,renameat2", "-o", str(log)),
    )
    calls = [
        line.split(maxsplit=1)[1]
        for line in log.read_text().splitlines()
        if "(" in line and str(tmp_path) in line
    ]
    assert [call.partition("(")[0].rstrip("2").removesuffix("at") for call in calls] == [
        "fsync",
        "rename",
        "fsync",
    ]
    assert "/.state.json." in calls[0]
    assert f"<{tmp_path}>" in calls[2]


def test_save_waits_for_a_writer_instead_of_keeping_half_a_change(loaded: World, tmp_path: Path) -> None:
    """A writer that died at it: the reader would only say so, save has it repaired first."""
    some()
    with open_writer(Place(), "test") as writer:
        meta = writer.meta()
        writer.put_meta(meta._replace(generation=meta.generation | 1))
    assert "inconsistent" in svc("export").err
    ran = svc("save", tmp_path / "state.json")
    assert "repairing after" in ran.err
    assert "4 bindings" in ran.out
    assert generation() & 1 == 0


def test_the_default_place(loaded: World) -> None:
    """Its directory is made; nothing of the host is touched: /var/lib is covered here."""
    loaded.sh("mount -t tmpfs none /var/lib")
    try:
        assert svc("save").out == "saved /var/lib/svcctl/state.json (0 bindings, 0 services)\n"
        assert stat.S_IMODE(os.stat("/var/lib/svcctl").st_mode) == 0o700
        assert svc("save").out == "unchanged /var/lib/svcctl/state.json (0 bindings, 0 services)\n"
    finally:
        loaded.sh("umount /var/lib")


def test_not_loaded(world: World, tmp_path: Path) -> None:
    svc("export", code=3)
    svc("save", tmp_path / "state.json", code=3)
    svc("load", "--no-dispatcher")
    assert svc("export").json == EMPTY
