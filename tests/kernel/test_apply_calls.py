"""What an apply costs in bpf() calls: none that writes when nothing changes, and only one service's when one changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.lib.balanced import balanced
from tests.lib.stranger import as_stranger
from tests.lib.svc import svc, svc_process
from tests.lib.world import World

COUNT = 300
_CALL = re.compile(r"bpf\((BPF_[A-Z_]+)")
WRITING = ("BPF_MAP_UPDATE_ELEM", "BPF_MAP_DELETE_ELEM", "BPF_MAP_UPDATE_BATCH", "BPF_MAP_DELETE_BATCH")
TAKING = (
    "BPF_MAP_LOOKUP_AND_DELETE_ELEM",
    "BPF_MAP_LOOKUP_AND_DELETE_BATCH",
    "BPF_MAP_CREATE",
    "BPF_OBJ_PIN",
)


def calls(tmp_path: Path, *words: object) -> Counter[str]:
    """bpf() calls of a command by name."""
    log = tmp_path / "calls"
    svc_process(*words, prefix=["strace", "-f", "-qq", "-e", "trace=bpf", "-o", str(log)])
    return Counter(match[1] for match in map(_CALL.search, log.read_text().splitlines()) if match)


def writes(found: Counter[str]) -> int:
    return sum(found[name] for name in (*WRITING, *TAKING))


def file_of(tmp_path: Path, count: int, changed: int | None = None) -> Path:
    services = []
    for number in range(count):
        high, low = divmod(number, 250)
        port = 8081 if number == changed else 8080
        backends = [f"10.{n}.{high}.{low}:{port if n == 1 else 8080}" for n in range(1, 5)]
        services.append(
            {"name": f"s{number}", "frontends": [f"10.96.{high}.{low + 1}:80/tcp"], "backends": backends}
        )
    path = tmp_path / "services.json"
    path.write_text(json.dumps({"version": 1, "services": services}))
    return path


@pytest.mark.timeout(600)
def test_writing_calls(world: World, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    with balanced(world, "--max-services", 2000, "--max-backends", 8000, "--max-sockets", 64):
        few = file_of(tmp_path, 10)
        cold_few = calls(tmp_path, "apply", "-f", few)
        one_of_few = calls(tmp_path, "apply", "-f", file_of(tmp_path, 10, 5))
        cold = calls(tmp_path, "apply", "-f", file_of(tmp_path, COUNT))
        again = calls(tmp_path, "apply", "-f", file_of(tmp_path, COUNT), "--prune")
        one_of_many = calls(tmp_path, "apply", "-f", file_of(tmp_path, COUNT, 5))
        print(f"bpf() calls: {cold.total()} for {COUNT} services, {again.total()} without a change")
        assert writes(again) == 0, again
        # One change is as many writes whatever else there is, and many changes are no more system calls.
        assert writes(one_of_many) == writes(one_of_few), (one_of_few, one_of_many)
        assert writes(cold) <= writes(cold_few) + 30, (cold_few, cold)


def test_check_of_a_file_takes_neither_kernel_nor_rights(tmp_path: Path) -> None:
    """As anybody, in a place where there is no state; not one bpf() call."""
    file = file_of(tmp_path, 10)
    if shutil.which("strace") is not None:
        assert not calls(tmp_path, "check", "-f", file)
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        copy, wrong = Path(open_to_all, "services"), Path(open_to_all, "wrong")
        copy.write_text(file.read_text())
        wrong.write_text(file.read_text().replace("8080", "80800"))
        for each in (copy, wrong):
            each.chmod(0o644)
        assert as_stranger(lambda: svc("check", "-f", copy).out) == "native: 10 services\n"
        assert "80800" in as_stranger(lambda: svc("check", "-f", wrong, code=2).err)
