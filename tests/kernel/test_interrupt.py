"""Ctrl-C in the middle of load-bindings: the bindings are the old ones or the new ones, not some of each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svcctl.bpf.map import Map
from svcctl.state.bulk import THRESHOLD
from tests.lib.svc import svc_process
from tests.lib.world import World

ENTRIES = THRESHOLD - 1000  # so many are written one by one


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_load_bindings_writes_all_or_nothing(loaded: World, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "many.json"
    entries = [
        {"label": "web", "prefix": f"10.0.{index >> 8}.{index & 255}", "port": 80, "protocol": "tcp"}
        for index in range(ENTRIES)
    ]
    file.write_text(json.dumps({"bindings": entries}))
    run = [sys.executable, "-m", "svcctl", "load-bindings", str(file)]
    (directory,) = Path("/sys/fs/bpf").glob("*_svcctl")
    for _ in range(5):
        svc_process("load-bindings", "-", input='{"bindings": []}')
        with Map.open_pinned(str(directory / "exact"), read_only=True) as exact:
            child = subprocess.Popen(
                run,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            while exact.next_key(None) is None:  # until the first is written
                assert child.poll() is None
                time.sleep(0.001)
        child.send_signal(number)
        assert child.wait(60) in (0, 130, -number)
        count = len(svc_process("bindings", "--no-headers").out.splitlines())
        assert count == ENTRIES
    assert svc_process("check").out == "no problems found\n"
