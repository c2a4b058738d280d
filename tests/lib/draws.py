"""tests/bpf/select.bpf.c on the maps of a live state: draws and reads by the balancer's own code, test-run."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.maps import catalog
from svcctl.maps import service_codec as codec
from svcctl.model.service_endpoint import parse_frontend
from tests.lib.bpf_source import compile_program

TARGETS = 256
DRAWS = 16
RUNS, FOUND, ABSENT, MISSED, WRONG, RETRIES = range(6)
_PACKET = bytes(64)
_TARGET = struct.Struct("=20sII")


class Draws:
    """The loaded programs and their own maps."""

    def __init__(self, draw: Program, read: Program, targets: Map, outcomes: Map, tally: Map) -> None:
        self._draw, self._read = draw, read
        self._targets, self._outcomes, self._tally = targets, outcomes, tally

    def aim(self, number: int, frontend: str, tag: int = 0, *, always: bool = True) -> None:
        """Say which frontend is target `number`, and by what its backends are known."""
        key = codec.frontend_key(parse_frontend(frontend))
        self._targets.update(struct.pack("=I", number), _TARGET.pack(key, tag, always))

    def draw(self, times: int) -> dict[int, int]:
        """Draw a backend of target 0 so many times, on two CPUs if there are; port of a backend -> how often."""
        runs, rest = divmod(times, DRAWS)
        assert not rest, f"a multiple of {DRAWS}"
        before = self._tallied()
        halves = [threading.Thread(target=self._run, args=(part,)) for part in (runs // 2, runs - runs // 2)]
        for one in halves:
            one.start()
        for one in halves:
            one.join()
        after = self._tallied()
        return {
            port: now - then for port, (then, now) in enumerate(zip(before, after, strict=True)) if now > then
        }

    def _run(self, runs: int) -> None:
        while runs > 0:
            self._draw.test_run(data=_PACKET, repeat=min(runs, 10_000))
            runs -= 10_000

    def _tallied(self) -> list[int]:
        """The tally so far, of all CPUs. Backends have the ports from 1000 on, and not many."""
        found = []
        for port in range(1300):
            values = self._tally.lookup(struct.pack("=I", port)) or b""
            found.append(sum(struct.unpack(f"={len(values) // 8}Q", values)))
        return found

    def read(self, times: int) -> None:
        """Read targets at random so many times."""
        self._read.test_run(data=_PACKET, repeat=times)

    @contextlib.contextmanager
    def reading(self, cpu: int) -> Iterator[None]:
        """A process that does nothing but read targets on one CPU. Fails if it came to an end by itself."""
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.sched_setaffinity(0, {cpu})
                while os.getppid() == parent:
                    self.read(20_000)
            finally:
                os._exit(code)
        try:
            yield
        finally:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        assert not ended, f"the reader came to an end: {status}"

    def outcomes(self) -> list[int]:
        """RUNS, FOUND, ABSENT, MISSED, WRONG, RETRIES so far."""
        _, values, count = self._outcomes.read_all()
        return list(struct.unpack(f"={count}Q", values))[:6]


@contextlib.contextmanager
def draws(state_dir: str, directory: Path) -> Iterator[Draws]:
    """Load the programs on the pinned maps of a state directory."""
    with contextlib.ExitStack() as stack:
        built = stack.enter_context(Object.open(compile_program("select", directory)))
        for name in built.map_specs:
            if name in catalog.SERVICE_MAPS or name == "drop_stats":
                built.reuse(name, stack.enter_context(Map.open_pinned(f"{state_dir}/{name}")))
        built.load()
        programs = [stack.enter_context(built.program(name)) for name in ("draw", "read_random")]
        maps = [stack.enter_context(built.map(name)) for name in ("targets", "outcomes", "tally")]
        yield Draws(programs[0], programs[1], maps[0], maps[1], maps[2])
