"""What a command costs in bpf(2) calls: the same number however many bindings there are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.lib.svc import svc, svc_process
from tests.lib.world import World

COMMANDS: tuple[tuple[object, ...], ...] = (
    ("bind", "new", "tcp", "198.51.100.1", 443),  # a new destination, full length
    ("bind", "new", "tcp", "198.51.100.0/24", 443),  # the same destination, a prefix
    ("bind", "new", "tcp", "198.51.100.1", 443),  # there already
    ("bind", "other", "tcp", "198.51.100.0/24", 443, "--replace"),
    ("unbind", "other", "tcp", "198.51.100.0/24", 443),
    ("unbind", "new", "tcp", "198.51.100.1", 443),  # the destination goes
)
MOST = 60


def calls(tmp_path: Path, words: tuple[object, ...]) -> int:
    """bpf() calls of a command, as strace counts them."""
    log = tmp_path / "calls"
    svc_process(*words, prefix=["strace", "-f", "-qq", "-e", "trace=bpf", "-o", str(log)])
    return sum("bpf(" in line for line in log.read_text().splitlines())


def file_of(tmp_path: Path, count: int) -> str:
    """Half of them of full length, half /24 and so in the trie, of ten labels."""
    entries = []
    for number in range(count // 2):
        high, low = divmod(number, 256)
        one = {"label": f"label{number % 10}", "protocol": "tcp", "port": 443}
        entries.append(one | {"prefix": f"10.{high}.{low}.1/32"})
        entries.append(one | {"prefix": f"10.{high}.{low}.0/24"})
    path = tmp_path / "bindings.json"
    path.write_text(json.dumps({"bindings": entries}))
    return str(path)


def test_bind_and_unbind_cost_the_same_with_100_000_bindings(world: World, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    svc("load", "--max-bindings", 100_000)
    few = [calls(tmp_path, words) for words in COMMANDS]
    svc("load-bindings", file_of(tmp_path, 100_000))
    many = [calls(tmp_path, words) for words in COMMANDS]
    print(f"bpf() calls: {few}")
    assert many == few
    assert max(few) <= MOST
