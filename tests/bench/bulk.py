"""A million bindings from a JSON file: time, memory, and the same file again; beside json.load of that file."""

from __future__ import annotations

import random
import sys
import tempfile
from struct import Struct
from typing import TYPE_CHECKING

from svcctl.model.prefix import MAPPED, format_prefix, mask_address
from tests.bench import loaded
from tests.bench.figures import Figure
from tests.bench.processes import SVCCTL, run
from tests.bench.startup import bpf_calls

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from tests.bench.figures import Report
    from tests.bench.processes import Ran

COUNT = 1_000_000
ROUNDS = 2
PEER = "import gc, json, sys; gc.disable(); json.load(open(sys.argv[1], encoding='utf-8'))"
GIB = 1 << 30

_U32, _U64 = Struct(">I"), Struct(">QQ")


def measure(report: Report) -> None:
    """All figures of this part."""
    report.section(
        "bulk", f"{COUNT:,} bindings, whole processes (least of {ROUNDS}), beside json.load of the file"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        write(file, COUNT)
        file.flush()
        _measure(report, file.name)


def _measure(report: Report, path: str) -> None:
    runs: dict[str, list[Ran]] = {}
    for turn in range(ROUNDS):
        runs.setdefault("peer", []).append(run((sys.executable, "-c", PEER, path)))
        with loaded.state(COUNT) as state:
            runs.setdefault("load", []).append(run((SVCCTL, "load-bindings", path)))
            before = state.generation
            runs.setdefault("again", []).append(run((SVCCTL, "load-bindings", path)))
            marks = state.generation - before
            runs.setdefault("text", []).append(run((SVCCTL, "bindings")))
            runs.setdefault("json", []).append(run((SVCCTL, "bindings", "-o", "json")))
            if turn == 0:
                writes = bpf_calls((SVCCTL, "load-bindings", path), writing=True)

    def least(name: str, what: Callable[[Ran], float]) -> float:
        return min(what(ran) for ran in runs[name])

    peer = least("peer", lambda ran: ran.wall)

    def seconds(title: str, name: str, goal: float | None) -> Figure:
        took = least(name, lambda ran: ran.wall)
        beside = f"json.load {peer:.1f} s: {took / peer:.1f} times that"
        return Figure(title, took, "s", f"{took:.1f} s", beside, goal=goal)

    def memory(title: str, name: str, goal: float | None) -> Figure:
        most = max(ran.memory for ran in runs[name]) / GIB
        theirs = max(ran.memory for ran in runs["peer"]) / GIB
        return Figure(title, most, "GiB", f"{most:.2f} GiB", f"json.load {theirs:.2f} GiB", goal=goal)

    report.add(seconds("load-bindings", "load", 8.0))
    report.add(memory("load-bindings, most memory", "load", 1.0))
    report.add(seconds("the same file again", "again", 5.0))
    report.add(memory("the same file again, most memory", "again", 1.0))
    report.add(
        Figure("the same file again, writing bpf() calls", writes + marks, "", f"{writes}", "itself", goal=0)
    )
    report.add(seconds("bindings", "text", None))
    report.add(seconds("bindings -o json", "json", None))


def write(file: IO[str], count: int) -> None:
    """A file of bindings: 70 % IPv4 addresses, 15 % IPv6 ones, 10 % IPv4 prefixes, 5 % IPv6 ones."""
    source = random.Random(7)
    seen: set[tuple[str, str, int]] = set()
    file.write('{"schema":1,"bindings":[\n')
    while len(seen) < count:
        kind = source.random()
        if kind < 0.8:
            address, length = (
                MAPPED + _U32.pack(source.getrandbits(32)),
                32 if kind < 0.7 else source.randint(16, 28),
            )
            prefix = format_prefix(4, mask_address(address, 96 + length), length)
        else:
            address = _U64.pack(0x2001_0DB8_0000_0000 | source.getrandbits(24), source.getrandbits(64))
            length = 128 if kind < 0.95 else source.randint(80, 120)
            prefix = format_prefix(6, mask_address(address, length), length)
        protocol = "tcp" if source.random() < 0.8 else "udp"
        binding = protocol, prefix, source.choice((0, 53, 80, 443, 8443))
        if binding in seen:
            continue
        line = '{"label":"service-%d","protocol":"%s","prefix":"%s","port":%d}'
        text = line % (source.randrange(200), *binding)
        file.write(f",\n{text}" if seen else text)
        seen.add(binding)
    file.write("\n]}\n")
