"""load-bindings where the old and the new set do not fit beside each other."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lib.svc import svc
from tests.lib.world import World


def _file(path: Path, first: int, count: int) -> Path:
    entries = [
        {"label": "web", "protocol": "tcp", "prefix": f"10.0.{first}.{n}/32", "port": 80}
        for n in range(count)
    ]
    path.write_text(json.dumps({"bindings": entries}))
    return path


def test_what_fits_in_the_end_is_swapped_in(world: World, tmp_path: Path) -> None:
    """A full map is replaced by another set of its size; one more entry is refused before the first write."""
    svc("load", "--max-bindings", 100)
    svc("load-bindings", _file(tmp_path / "a", 1, 100))
    ran = svc("load-bindings", _file(tmp_path / "b", 2, 100))
    assert "100 added, 0 replaced, 100 removed" in ran.out
    assert "no problems" in svc("check").out
    before = svc("export").out
    ran = svc("load-bindings", _file(tmp_path / "c", 3, 101), code=8)
    assert "'exact' is full" in ran.err
    assert "--max-bindings" in ran.err
    assert svc("export").out == before


def test_a_root_that_members_can_write_is_named(world: World) -> None:
    """A map that members may read could be pinned again there, and then be written."""
    svc("load", "--group", "nogroup")
    assert "no problems" in svc("check").out
    world.sh("chmod 0777 /sys/fs/bpf")
    ran = svc("check", code=1)
    assert "modes" in ran.out
    assert "chmod go-w /sys/fs/bpf" in ran.out
    world.sh("chmod 0711 /sys/fs/bpf")
    assert "no problems" in svc("check").out
