"""Frontends that move between services in one apply: at every moment each leads to its old or its new backends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from svcctl.state import change_write
from tests.kernel.test_connect_changes import clients, heard, wait_for_more
from tests.lib.applying import apply, desired, plain_services, problems, service, stored
from tests.lib.balanced import VIP, Balanced
from tests.lib.child import Child
from tests.lib.servers import Server

A, B, C = "127.0.2.1:8080", "127.0.2.2:8080", "127.0.2.3:8080"


@pytest.fixture
def three(balanced: Balanced, server: Server) -> Balanced:
    for name, backend in (("a", A), ("b", B), ("c", C)):
        server.open(name, address=backend.partition(":")[0], port=8080)
    return balanced


@contextlib.contextmanager
def all_served(*ports: int) -> Iterator[list[Child]]:
    """Clients on ports of VIP; no connection may have failed."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(clients(VIP, port, 1)) for port in ports]
        yield found
        for port, one in zip(ports, found, strict=True):
            wait_for_more(one, 10)
            answers = heard(one)
            assert set(answers) <= {"a", "b", "c"}, f"port {port}: {answers}"


@pytest.mark.timeout(300)
def test_from_one_to_another_and_back(three: Balanced) -> None:
    """The loser goes, or keeps nothing but another frontend and no backend at all."""
    front, rest = f"{VIP}:80/tcp", f"{VIP}:81/tcp"
    states = [
        [service("one", f"{front} {rest}", f"{A} {B}"), service("two", f"{VIP}:82/tcp", C)],
        [service("one", rest), service("two", f"{VIP}:82/tcp {front}", f"{B} {C}")],
        [service("one", f"{front} {rest}", A)],
        [service("new", f"{front} {VIP}:82/tcp", f"{A} {B}")],
    ]
    apply(desired(*states[0]))
    with all_served(80):
        for number in range(1, 41):
            apply(desired(*states[number % 4]))
        apply(desired(*states[0]))
    assert problems() == []


@pytest.mark.timeout(300)
def test_exchanged_in_a_circle(three: Balanced) -> None:
    """Three services pass their frontends round while two of them lose every backend they had."""
    fronts = [f"{VIP}:{port}/tcp" for port in (80, 81, 82)]
    sets = [f"{A} {B}", f"{B} {C}", f"{C} {A}"]

    def turned(by: int) -> list[str]:
        return fronts[by:] + fronts[:by]

    names = ("one", "two", "three")
    # Whoever has a frontend has its backends: what a client of it meets never changes.
    rounds = [
        [service(name, fronts[(n + by) % 3], sets[(n + by) % 3]) for n, name in enumerate(names)]
        for by in range(3)
    ]
    apply(desired(*rounds[0]))
    ids = {name: one.service.id for name, one in stored().items()}
    with all_served(80, 81, 82) as found:
        for number in range(1, 31):
            apply(desired(*rounds[number % 3]))
        apply(desired(*rounds[0]))
        for one, allowed in zip(found, ("ab", "bc", "ca"), strict=True):
            wait_for_more(one, 10)
            assert set(heard(one)) <= set(allowed), heard(one)
    assert {name: one.service.id for name, one in stored().items()} == ids
    assert problems() == []


@pytest.mark.timeout(300)
def test_a_chain(three: Balanced) -> None:
    """one -> two -> three, each with other backends afterwards: the last in line is switched first."""
    fronts = [f"{VIP}:{port}/tcp" for port in (80, 81, 82)]
    states = [
        [service("one", f"{fronts[0]}", A), service("two", fronts[1], B), service("three", fronts[2], C)],
        [
            service("one", f"{VIP}:90/tcp"),
            service("two", fronts[0], A),
            service("three", f"{fronts[1]} {fronts[2]}", f"{B} {C}"),
        ],
    ]
    apply(desired(*states[0]))
    with all_served(80, 81, 82) as found:
        for number in range(1, 31):
            apply(desired(*states[number % 2]))
        wait_for_more(found[0], 10)
        assert set(heard(found[0])) == {"a"}
        assert set(heard(found[1])) <= {"b", "c"}
    assert problems() == []


def test_each_between_any_two_writes(three: Balanced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at from within: before and after each batch of writes that programs can see."""
    fronts = [f"{VIP}:{port}/tcp" for port in (80, 81)]
    before = [service("one", fronts[0], A), service("two", fronts[1], B)]
    after = [service("one", fronts[1], B), service("two", f"{fronts[0]} {VIP}:82/tcp", f"{A}")]
    apply(desired(*before))
    real, seen = change_write.put, []

    def put(writer: object, name: str, entries: object) -> None:
        real(writer, name, entries)  # type: ignore[arg-type]
        if name in ("current", "frontends", "services", "blocks"):
            seen.append((name, answer(80), answer(81)))

    def answer(port: int) -> str:
        from tests.lib.servers import ask

        return ask("tcp", VIP, port)

    monkeypatch.setattr(change_write, "put", put)
    apply(desired(*after))
    assert len(seen) >= 5
    assert {row[1:] for row in seen} == {("a", "b")}
    assert plain_services()["two"].frontends[0].frontend.port == 80
