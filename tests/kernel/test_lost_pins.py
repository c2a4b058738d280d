"""Pins of services that are lost: named by every command, nothing made in their place.

tests/kernel/test_pins_by_hand.py asks the same of bindings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from svcctl.maps import catalog
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from tests.lib.outgoing import balancer
from tests.lib.run import ok, svcctl

NOUNS = (
    ("services",), ("frontends",), ("backends",), ("nat",), ("affinity",), ("reverse",),
    ("status",), ("status", "--all"), ("explain", "10.96.0.10:80/tcp"), ("metrics",), ("attachments",),
    ("check",), ("doctor",), ("export",), ("gc", "--dry-run"), ("upgrade", "--dry-run"),
)  # fmt: skip
NEED_ALL = {"status", "explain", "metrics"}
NEED_SERVICES = {"services", "frontends", "backends", "nat", "affinity", "reverse", "gc"}
MAPS = (*catalog.STATE_MAPS, *catalog.DISPATCH_MAPS, *catalog.SERVICE_MAPS)
OTHERS = tuple(pin for one in (catalog.DISPATCH, catalog.CONNECT[0]) for pin in (one.pin, one.link_pin))


@pytest.fixture(scope="module")
def attached() -> Iterator[tuple[str, str]]:
    """The state directory and the cgroup of a balancer with a service."""
    with balancer() as path, open_reader(Place()) as reader:
        ok("service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--backend", "127.0.0.1:8081")
        yield reader.path, path


@pytest.mark.parametrize("name", [*MAPS, *OTHERS])
def test_every_command_names_it(attached: tuple[str, str], name: str) -> None:
    """Exit 7 and the path of the pin, or the command does not need it. It is never a bug, nor mended by reading."""
    state, _ = attached
    path, aside = f"{state}/{name}", f"{os.path.dirname(state)}/aside"
    os.rename(path, aside)
    try:
        for words in NOUNS:
            ran = svcctl(*words)
            if words[0] in ("check", "doctor"):
                assert ran.code in (0, 1), (words, ran)
                assert name not in MAPS or (ran.code == 1 and name in ran.out), (words, ran)
                continue
            if words == ("status", "--all"):
                assert ran.code == 0, ran
                assert name not in MAPS or "the pin is missing" in ran.out, ran
                continue
            assert ran.code in (0, 7), (words, ran)
            assert not ran.code or f"{name}: the pin is missing" in ran.err, (words, ran)
            needed = words[0] in NEED_ALL or (
                words[0] in NEED_SERVICES and name in (*catalog.SERVICE_MAPS, "meta", "programs")
            )
            assert ran.code == 7 or name not in MAPS or not needed, (words, ran)
        assert not os.path.lexists(path)
    finally:
        os.rename(aside, path)


@pytest.mark.parametrize("lost", [("services",), catalog.SERVICE_MAPS])
def test_attach_makes_no_map_in_their_place(attached: tuple[str, str], lost: tuple[str, ...]) -> None:
    state, cgroup = attached
    root = os.path.dirname(state)
    for name in lost:
        os.rename(f"{state}/{name}", f"{root}/aside_{name}")
    try:
        for words in (
            ("attach", "cgroup", cgroup),
            ("services",),
            ("service", "add", "x", "--frontend", "10.96.0.11:80/tcp"),
        ):
            ran = svcctl(*words)
            assert (ran.code, ran.out) == (7, ""), (words, ran)
            assert f"{state}/{next(iter(lost))}: the pin is missing" in ran.err or len(lost) > 1
            assert "check --repair" in ran.err
        assert not any(os.path.lexists(f"{state}/{name}") for name in lost)
    finally:
        for name in lost:
            os.rename(f"{root}/aside_{name}", f"{state}/{name}")
    assert ok("services", "-o", "name").out == "web\n"


def test_what_is_recorded_is_missed_without_any_pin(attached: tuple[str, str]) -> None:
    state, cgroup = attached
    root = os.path.dirname(state)
    half = catalog.BALANCER
    pins = [*half.maps, *(one.pin for one in half.programs), *(one.link_pin for one in half.programs)]
    for name in pins:
        os.rename(f"{state}/{name}", f"{root}/aside_{name}")
    try:
        for words in (("services",), ("attach", "cgroup", cgroup), ("status",)):
            ran = svcctl(*words)
            assert ran.code == 7, (words, ran)
        assert "'services' is missing" in svcctl("check").out
    finally:
        for name in pins:
            os.rename(f"{root}/aside_{name}", f"{state}/{name}")
    assert ok("check").code == 0
