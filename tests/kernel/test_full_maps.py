"""A full map is found before the first write, and named with what makes it larger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svcctl.maps import layouts
from tests.lib import inspect_state
from tests.lib.sockets import writer
from tests.lib.svc import svc
from tests.lib.world import World


def _meta() -> layouts.Meta:
    with writer() as state:
        return state.meta()


@pytest.mark.parametrize(
    ("lines", "name", "option"),
    [
        ([("bind", "a", "tcp", f"10.0.0.{n}", 80) for n in range(1, 4)], "exact", "--max-bindings"),
        ([("bind", "a", "tcp", f"10.0.{n}.0/24", 80) for n in range(1, 4)], "bindings", "--max-bindings"),
        (
            [("bind", f"label{n}", "tcp", f"10.0.{n}.0/24", 80) for n in range(1, 4)],
            "destinations",
            "--max-destinations",
        ),
    ],
    ids=["exact", "bindings", "destinations"],
)
def test_full_map(world: World, lines: list[tuple[object, ...]], name: str, option: str) -> None:
    """Found before the first write; named with its size and the option that makes it larger, which does."""
    svc("load", *(("--max-bindings", 2) if "bindings" in option else ("--max-destinations", 2)))
    svc(*lines[0])
    svc(*lines[1])
    meta = _meta()
    ran = svc(*lines[2], code=8)
    assert f"map '{name}' is full: 2 of 2 used, 1 more wanted" in ran.err
    assert f"hint: 'svcctl upgrade {option} N'" in ran.err
    assert _meta() == meta
    svc("upgrade", option, 3)
    svc(*lines[2])
    assert len(json.loads(svc("bindings", "-o", "json").out)["bindings"]) == 3
    assert inspect_state.problems() == []


def test_full_map_in_bulk(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcctl.state.bulk.THRESHOLD", 1)
    svc("load", "--max-bindings", 2)
    file = tmp_path / "bindings"
    rows = [{"label": "a", "protocol": "tcp", "prefix": f"10.0.0.{n}/32", "port": 80} for n in range(3)]
    file.write_text(json.dumps({"bindings": rows}))
    meta = _meta()
    ran = svc("load-bindings", file, code=8)
    assert "map 'exact' is full" in ran.err
    assert "--max-bindings" in ran.err
    assert _meta() == meta
    svc("upgrade", "--max-bindings", 3)
    svc("load-bindings", file)
    assert inspect_state.problems() == []
