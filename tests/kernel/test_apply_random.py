"""Random edits: after each apply the maps are what the last one asked for alone, and clients were served throughout."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from svcctl.model.maglev import SIZES
from svcctl.model.service import MAGLEV, RANDOM, Service, eligible
from svcctl.model.service_endpoint import Backend, parse_backend, parse_frontend
from tests.kernel.test_connect_changes import clients, heard, wait_for_more
from tests.lib import applying
from tests.lib.applying import apply, desired, plain, plain_services, problems, service, used
from tests.lib.balanced import VIP, Balanced
from tests.lib.child import Child
from tests.lib.servers import Server

LONG = os.environ.get("SVCCTL_LONG") == "1"
EXAMPLES, STEPS = (60, 60) if LONG else (10, 40)


def place(address: str, port: int) -> str:
    """A frontend's text."""
    return f"[{address}]:{port}/tcp" if ":" in address else f"{address}:{port}/tcp"


PLACES = ((VIP, 80), (VIP, 81), (VIP, 82), ("10.96.0.20", 443), ("fd00::10", 80))
"""Where clients connect all the time."""
NAMES = ("one", "two", "three")
NAMED = ("a", "b", "c", "d")
LISTENING = [f"127.0.2.{n}:8080" for n in range(1, 4)]
LISTENING.append("[fd00::1]:8080")
FRONTS = [place(*each) for each in PLACES] + [f"{VIP}:80/udp"]
BACKENDS = [*LISTENING, "[fd00::2]:80"]


class Edits(RuleBasedStateMachine):
    """A desired state that is edited at random, a few edits at a time, and applied."""

    balanced: Balanced
    clients: list[Child]

    @initialize()
    def nothing(self) -> None:
        self.services: dict[str, Service] = {}
        self.applied: dict[str, Service] = {}
        apply(desired(), prune=True)

    @rule(name=st.sampled_from(NAMES), backends=st.lists(st.sampled_from(BACKENDS), unique=True))
    def put(self, name: str, backends: list[str]) -> None:
        have = self.services.get(name, service(name))
        self.services[name] = have._replace(members=service(name, "", " ".join(backends)).members)

    @rule(name=st.sampled_from(NAMES), front=st.sampled_from(FRONTS))
    def give(self, name: str, front: str) -> None:
        """A frontend to a service, from whoever has it."""
        (one,) = service(name, front).frontends
        for other, have in self.services.items():
            self.services[other] = have._replace(
                frontends=tuple(each for each in have.frontends if each.frontend != one.frontend)
            )
        have = self.services.get(name, service(name))
        self.services[name] = have._replace(frontends=(*have.frontends, one))

    @rule(one=st.sampled_from(NAMES), other=st.sampled_from(NAMES))
    def exchange(self, one: str, other: str) -> None:
        """All frontends of two services."""
        if one in self.services and other in self.services:
            first, second = self.services[one], self.services[other]
            self.services[one] = first._replace(frontends=second.frontends)
            self.services[other] = second._replace(frontends=first.frontends)

    @rule(
        name=st.sampled_from(NAMES),
        number=st.integers(0, 3),
        weight=st.sampled_from([0, 1, 5]),
        state=st.integers(0, 2),
    )
    def member(self, name: str, number: int, weight: int, state: int) -> None:
        have = self.services.get(name)
        if have is not None and number < len(have.members):
            members = list(have.members)
            members[number] = members[number]._replace(weight=weight, state=state, local=weight == 5)
            self.services[name] = have._replace(members=tuple(members))

    @rule(
        name=st.sampled_from(NAMES),
        affinity=st.sampled_from([0, 60]),
        local=st.booleans(),
        drop=st.booleans(),
        maglev=st.booleans(),
    )
    def policy(self, name: str, affinity: int, local: bool, drop: bool, maglev: bool) -> None:
        have = self.services.get(name)
        if have is not None:
            self.services[name] = have._replace(
                affinity_seconds=affinity,
                external_local=local,
                drop=drop,
                algorithm=MAGLEV if maglev else RANDOM,
                table_size=SIZES[0] if maglev else 0,
            )

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.services.pop(name, None)

    @rule(again=st.booleans())
    def apply(self, again: bool) -> None:
        """Clients of a frontend whose old and new set share a backend must not notice."""
        kept = [
            (where, one)
            for where, one in zip(FRONTS, self.clients, strict=False)
            if served(self.applied, where) & served(self.services, where)
        ]
        before = []
        for _, one in kept:
            wait_for_more(one, 2)  # whoever began before the last apply has come to an end
            before.append(heard(one))
        apply(desired(*self.services.values()))
        self.applied = dict(self.services)
        for (where, one), old in zip(kept, before, strict=True):
            wait_for_more(one, 2)
            new = heard(one)
            failed = {
                text: count for text, count in new.items() if text not in NAMED and count != old.get(text)
            }
            assert not failed, f"{where}: {failed}"
        if again:
            assert not apply(desired(*reversed(self.services.values()))).writes
        self.is_what_was_asked_for()

    def is_what_was_asked_for(self) -> None:
        """And nothing else: nothing is left of earlier ones."""
        assert problems() == []
        assert plain_services() == {name: plain(one) for name, one in self.applied.items()}
        backends = {member.backend for one in self.applied.values() for member in one.members}
        counts = used()
        assert counts["backends"] == len(backends)
        assert counts["service_names"] == len(self.applied)
        assert counts["service_members"] == sum(len(one.members) for one in self.applied.values())


def served(services: dict[str, Service], where: str) -> set[Backend]:
    """Backends that new connections to a frontend may get; none if one of them does not listen."""
    frontend = parse_frontend(where)
    listening = set(map(parse_backend, LISTENING))
    for one in services.values():
        if any(each.frontend == frontend for each in one.frontends):
            found = {member.backend for member in eligible(one.members, frontend.family)}
            return found if found <= listening else set()
    return set()


@pytest.mark.timeout(900)
def test_random_edits(balanced: Balanced, server: Server) -> None:
    balanced.world.sh("ip addr add fd00::1/128 dev lo nodad")
    for name, backend in zip(NAMED, LISTENING, strict=True):
        address = backend.rpartition(":")[0].strip("[]")
        server.open(name, address=address, port=8080, family=6 if ":" in address else 4)
    with contextlib.ExitStack() as stack:
        Edits.balanced = balanced
        Edits.clients = [stack.enter_context(clients(*each, 1)) for each in PLACES]
        run_state_machine_as_test(
            Edits,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert applying.problems() == []
