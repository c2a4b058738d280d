"""How connections are spread: by weight, exactly; and what a reader sees while writers change everything."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svcctl.model.service import Service, ServiceFrontend
from svcctl.model.service_edit import add_backends, add_service
from svcctl.model.service_endpoint import parse_backend_spec, parse_frontend
from svcctl.state import services
from svcctl.state.place import Place
from svcctl.state.service_change import apply_change, plan_change
from svcctl.state.writer import Writer, open_writer
from tests.lib.balanced import VIP, Balanced
from tests.lib.draws import ABSENT, FOUND, MISSED, RETRIES, RUNS, TARGETS, WRONG, Draws, draws
from tests.lib.svc import svc

SETS = 300
READS, FLIPS, REMADE = 50_000_000, 100, 30
SEED = int(os.environ.get("SVCCTL_SEED", "20240229"))


@pytest.fixture
def drawing(balanced: Balanced, tmp_path: Path) -> Iterator[Draws]:
    with draws(balanced.state_dir, tmp_path) as made:
        yield made


def chi_square(found: dict[int, int], weights: dict[int, int]) -> float:
    """How many standard deviations chi-square is above its mean (Wilson and Hilferty); 0 for what cannot vary."""
    total, draws_made = sum(weights.values()), sum(found.values())
    assert set(found) <= {key for key, weight in weights.items() if weight}, (
        "somebody without weight was drawn"
    )
    expected = {key: draws_made * weight / total for key, weight in weights.items() if weight}
    value: float = sum((found.get(key, 0) - share) ** 2 / share for key, share in expected.items())
    freedom = len(expected) - 1
    if not freedom:
        return 0.0
    return float(((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))


def assert_spread(draw: Callable[[], dict[int, int]], weights: dict[int, int], most: float = 4.5) -> None:
    """Chi-square stays below so many deviations, which chance passes once in 300,000 draws: then draw once more."""
    found = draw()
    if chi_square(found, weights) >= most:
        again = draw()
        assert chi_square(again, weights) < most, (found, again)


def put(balanced: Balanced, weights: dict[int, int]) -> None:
    """Give the service web the backends 127.0.1.1:PORT with these weights, at one stroke."""
    svc("service", "delete", "web", code=None)
    balanced.add(
        "web", f"{VIP}:80/tcp", backends=[f"127.0.1.1:{port},weight={w}" for port, w in weights.items()]
    )


def replace(writer: Writer, service: str, backends: list[str]) -> None:
    """Give a service these backends instead of those it has, at one stroke, by the writers' own code."""
    have = services.get(writer, service, "replace")
    bare = have.service._replace(members=())
    want = add_backends(bare, [parse_backend_spec(one) for one in backends], 0)
    apply_change(writer, plan_change(writer, have, want))


@pytest.mark.parametrize(
    "weights", [(1, 65535), (1, 1, 1, 2), (1, 2), (2, 13, 111, 10), (1, 100), (7,), (5, 0, 5), (1,) * 200],
    ids=lambda weights: "-".join(map(str, weights[:4])),
)  # fmt: skip
def test_weights_are_exact(balanced: Balanced, drawing: Draws, weights: tuple[int, ...]) -> None:
    """A million draws each, by the program's own code."""
    by_port = dict(enumerate(weights, 1000))
    put(balanced, by_port)
    drawing.aim(0, f"{VIP}:80/tcp")
    assert_spread(lambda: drawn(drawing), by_port)


def drawn(drawing: Draws) -> dict[int, int]:
    """Who got how many of a million draws."""
    found = drawing.draw(1_000_000)
    assert sum(found.values()) == 1_000_000
    return found


@pytest.mark.timeout(900)
def test_random_weights(balanced: Balanced, drawing: Draws) -> None:
    """300 sets of a million draws."""
    chosen = random.Random(SEED)
    balanced.add("web", f"{VIP}:80/tcp")
    drawing.aim(0, f"{VIP}:80/tcp")
    with open_writer(Place(), "test") as writer:
        for _ in range(SETS):
            most = chosen.choice([3, 1000, 65535])
            by_port = {1000 + n: chosen.randint(1, most) for n in range(chosen.randint(2, 30))}
            replace(writer, "web", [f"127.0.1.1:{port},weight={weight}" for port, weight in by_port.items()])
            assert_spread(lambda: drawn(drawing), by_port, 5.5)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_sockets_are_spread(balanced: Balanced, kind: str) -> None:
    """1,000 real sockets over 5 backends by their weights. T7."""
    weights = (1, 1, 2, 3, 3)
    backends = balanced.farm.many(5, kind)
    balanced.add(
        "web",
        f"{VIP}:80/{kind}",
        backends=[f"{b},weight={w}" for b, w in zip(backends, weights, strict=True)],
    )
    picked = [0] * len(backends)

    def connect() -> dict[int, int]:
        found = dict.fromkeys(backends, 0)
        for number in range(1000):
            with balanced.client(VIP, 80, kind) as one:
                if kind == "udp":
                    one.send(b"?")
            if number % 100 == 99:
                for backend, count in balanced.farm.takers(kind, 100).items():
                    found[backend] += count
        assert sum(found.values()) == 1000
        for number, count in enumerate(found.values()):
            picked[number] += count
        return dict(enumerate(found.values()))

    assert_spread(connect, dict(enumerate(weights)))
    assert [balanced.picks(backend) for backend in backends] == picked


def test_unconnected_sockets_are_spread(balanced: Balanced) -> None:
    backends = balanced.farm.many(5, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=backends)

    def send() -> dict[int, int]:
        for _ in range(1000):
            with balanced.socket("udp") as one:
                one.sendto(b"?", (VIP, 53))
        found = balanced.farm.takers("udp", 1000)
        assert found.total() == 1000
        return {number: found[backend] for number, backend in enumerate(backends)}

    assert_spread(send, dict.fromkeys(range(5), 1))


class Churn:
    """Services with backends that tell whose they are: 10.TAG.TAG.n. Written by svcctl's own writers."""

    def __init__(self, writer: Writer, drawing: Draws) -> None:
        self.writer, self.chosen = writer, random.Random(SEED)
        self.flips = self.remade = 0
        for tag in range(TARGETS):
            drawing.aim(tag, frontend(tag), tag, always=tag % 4 != 0)

    def make(self, tag: int) -> None:
        want = Service(name(tag), frontends=(ServiceFrontend(parse_frontend(frontend(tag)), 0),))
        members = [parse_backend_spec(one) for one in specs(tag, self.chosen)]
        self._change(tag, add_service(None, add_backends(want, members, 0)))

    def flip(self, tag: int) -> None:
        """Other backends, all at once."""
        replace(self.writer, name(tag), specs(tag, self.chosen))
        self.flips += 1

    def remake(self, tag: int) -> None:
        self._change(tag, None)
        self.make(tag)
        self.remade += 1

    def _change(self, tag: int, want: Service | None) -> None:
        apply_change(self.writer, plan_change(self.writer, services.find(self.writer, name(tag)), want))


def name(tag: int) -> str:
    return f"s{tag}"


def frontend(tag: int) -> str:
    return f"10.96.{tag // 16}.{tag % 16}:{80 + tag}/{'udp' if tag % 3 else 'tcp'}"


def specs(tag: int, chosen: random.Random) -> list[str]:
    return [
        f"10.{tag >> 8}.{tag & 255}.{n}:{chosen.randint(1, 65535)},weight={chosen.randint(1, 9)}"
        for n in range(chosen.randint(1, 4))
    ]  # fmt: skip


@pytest.mark.timeout(1200)
def test_readers_while_writers_change_everything(world_for_churn: Balanced, tmp_path: Path) -> None:
    """Random frontends read on one CPU while the writers' code flips, deletes and re-makes on the other.

    None reads the backend of another service, none misses a service that is there: 50 million reads at least, and
    as many changes as there are to be, however slow either side is.
    """
    cpus = sorted(os.sched_getaffinity(0))
    with (
        draws(world_for_churn.state_dir, tmp_path) as drawing,
        open_writer(Place(), "test") as writer,
    ):
        churn = Churn(writer, drawing)
        for tag in range(TARGETS):
            churn.make(tag)
        end = time.monotonic() + 900
        with drawing.reading(cpus[0]):
            os.sched_setaffinity(0, {cpus[-1]})
            try:
                while (
                    churn.flips < FLIPS or churn.remade < REMADE or drawing.outcomes()[RUNS] < READS
                ) and time.monotonic() < end:
                    tag = churn.chosen.randrange(TARGETS)
                    (churn.flip if tag % 4 else churn.remake)(tag)
            finally:
                os.sched_setaffinity(0, set(cpus))
        found = drawing.outcomes()
    print(f"{found}: {churn.flips} flips, {churn.remade} made again")
    assert found[RUNS] >= READS
    assert found[WRONG] == 0
    assert found[MISSED] == 0
    assert found[FOUND] + found[ABSENT] == found[RUNS]
    assert found[RETRIES] < found[RUNS] / 1000
    assert churn.flips >= FLIPS
    assert churn.remade >= REMADE


@pytest.fixture
def world_for_churn(balanced: Balanced) -> Balanced:
    """Room for the services of the test."""
    svc("unload", "--yes")
    svc("load", "--no-dispatcher")
    svc(
        "attach",
        "cgroup",
        balanced.cgroup,
        "--max-services",
        512,
        "--max-backends",
        4096,
        "--max-sockets",
        1024,
    )
    return balanced
