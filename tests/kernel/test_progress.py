"""What a long command shows meanwhile: words and a bar on a terminal, nothing elsewhere and nothing with -q."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.svc import process_env
from tests.lib.world import World

# At once instead of after half a second, and from four changes on as many are swapped in otherwise.
IMPATIENT = (
    "import sys; import svcctl.cli.progress as progress; import svcctl.state.bulk as bulk;"
    "progress.PATIENCE = -1; bulk.THRESHOLD = 3;"
    "from svcctl.cli.main import main; sys.exit(main())"
)


def shown(*words: str) -> tuple[str, str]:
    """(what a terminal got of stderr, stdout) of an impatient command."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", IMPATIENT, *words],
            stdout=subprocess.PIPE, stderr=theirs, env=process_env() | {"TERM": "xterm"}, timeout=60, check=True,
        )  # fmt: skip
    finally:
        os.close(theirs)
    got = b""
    # What was written comes in its own time; with nobody left to write, its end is EIO.
    with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while part := terminal.read(1 << 16):
            got += part
    return got.decode(), done.stdout.decode()


@pytest.fixture
def file(loaded: World, tmp_path: Path) -> str:
    rows = [{"label": "web", "protocol": "tcp", "prefix": f"10.0.0.{n}", "port": 80} for n in range(20)]
    (tmp_path / "bindings.json").write_text(json.dumps({"bindings": rows}))
    return str(tmp_path / "bindings.json")


def test_a_bar_on_a_terminal(file: str) -> None:
    terminal, out = shown("load-bindings", file)
    assert out == "20 added, 0 replaced, 0 removed, 0 unchanged\n"
    assert "load-bindings: comparing ...\r\x1b[K" in terminal  # gone again
    assert "100%" in terminal
    assert terminal.rfind("\x1b[?25h") > terminal.rfind("\x1b[?25l")  # the cursor is back


def test_quiet(file: str) -> None:
    assert shown("-q", "load-bindings", file)[0] == ""


def test_nothing_where_there_is_no_terminal(file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, "load-bindings", file],
        capture_output=True, text=True, env=process_env(), timeout=60, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("20 added, 0 replaced, 0 removed, 0 unchanged\n", "")
