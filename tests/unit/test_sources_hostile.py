"""Inputs that want to hurt: each gives an error, or costs itself alone, soon and within bounds, whatever it is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import UsageProblem
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from tests.lib.cli import ROOT
from tests.lib.hostile_inputs import CASES, MEMORY_LIMIT_MB

SECONDS = 10
"""Of processor time; the aim is 2 on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    """What became of each case."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lib.hostile_inputs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_an_error_and_nothing_else(name: str, told: dict[str, dict[str, Any]]) -> None:
    row = told[name]  # not there: a traceback, or killed for its time
    assert row["message"], "it was read as if it were something"
    assert len(row["message"]) < 1000
    assert row["message"].isprintable()
    assert row["seconds"] < SECONDS
    assert row["mb"] < MEMORY_LIMIT_MB


DATA = Path(ROOT) / "tests" / "data"
SAMPLES = [path.read_bytes() for path in sorted((DATA / "sources").iterdir())]
SAMPLES += [path.read_bytes() for path in sorted((DATA / "kubernetes").glob("[345]*.[jy]*"))]
REGISTRIES = [("r", (DATA / "sources" / name).read_bytes()) for name in ("consul.json", "nomad.json")]
TOKENS = rb"{ } [ ] : , \" ' - ! # & * | > % @ 0 1 -1 1e999 null true ~ [] {} << a: 65536 .nan".split(b" ")
TOKENS += [b"\n", b" ", b"\t", b"\x00", b"\xff", b"\xc3\xa4", b"\xf0\x9f\x90\x9d", b"  ", b"\r\n"]


def damage(data: bytes, draw: random.Random) -> bytes:
    """The sample with a few places changed."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice([0, 1, 1, 3, 20]))
        other = draw.randrange(len(data) + 1)
        new = draw.choice([b"", draw.choice(TOKENS), draw.choice(TOKENS), data[other : other + 12]])
        data = data[:start] + new + data[end:]
    return data


@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False), st.booleans())
def test_whatever_is_damaged_there_is_no_other_error(
    sample: bytes, draw: random.Random, partial: bool
) -> None:
    inputs = [("sample", damage(sample, draw))]
    try:
        read_inputs(
            inputs if draw.random() < 0.5 else [*inputs, *REGISTRIES], Options("node-a", partial=partial)
        )
    except UsageProblem as problem:
        found = problem.message
    else:
        return
    assert found.isprintable()
