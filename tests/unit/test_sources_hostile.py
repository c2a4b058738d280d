"""Inputs that want to hurt: each gives an error, soon and within bounds, whatever it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

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
