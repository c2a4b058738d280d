"""What ipvsadm and keepalived have in common: the words of IPVS and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.model.bad_value import BadValue, show
from svcctl.model.service import (
    MAGLEV,
    MAX_AFFINITY_SECONDS,
    RANDOM,
    Member,
    Service,
    ServiceFrontend,
    check_service,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    DRAINING,
    KIND_CLUSTER,
    MAX_WEIGHT,
    Backend,
    parse_backend,
)
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.service_endpoint import Frontend
    from svcctl.model.sources.lost import Lost

RANDOM_ONES = frozenset("rr wrr lc wlc sed nq twos".split())
HASHES = frozenset({"sh", "mh"})
REFUSED = frozenset("dh lblc lblcr fo ovf".split())

DEFAULT_PERSISTENCE = 300
"""Seconds, as ipvsadm(8) says of -p without a number."""


class Virtual:
    """A virtual service while it is read. `line` is where it was made."""

    def __init__(self, name: str, line: int, frontends: Sequence[Frontend]) -> None:
        self.name = name
        self.line = line
        self.frontends = list(frontends)
        self.scheduler = "wlc"
        self.affinity_seconds = 0
        self.members: dict[Backend, Member] = {}

    def service(self, owner: str, lost: Lost) -> Service | None:
        """The service of it; None, and a refusal, if its scheduler cannot be kept. Raises InputProblem."""
        algorithm = convert_scheduler(self.scheduler, self.line, lost)
        if algorithm is None:
            return None
        service = Service(
            self.name,
            affinity_seconds=self.affinity_seconds,
            algorithm=algorithm,
            owner=owner,
            frontends=tuple(ServiceFrontend(each, KIND_CLUSTER) for each in self.frontends),
            members=tuple(self.members.values()),
        )
        try:
            return check_service(service)
        except UsageProblem as problem:
            raise InputProblem(lost.source, problem.message, line=self.line, hint=problem.hint) from None


def convert_scheduler(name: str, line: int, lost: Lost) -> int | None:
    """RANDOM or MAGLEV; None for one that has no counterpart, which is refused. Raises InputProblem."""
    if name in RANDOM_ONES:
        if name not in ("rr", "wrr"):
            text = f"the scheduler {name} looks at connections; backends are drawn by weight instead"
            lost.tell(line, text)
        return RANDOM
    if name in HASHES:
        lost.note(line, f"the scheduler {name} becomes maglev: the same client gets the same backend")
        return MAGLEV
    if name in REFUSED:
        lost.refuse(line, f"the scheduler {name} has no counterpart")
        return None
    raise InputProblem(lost.source, f"unknown scheduler {show(name)}", line=line)


def convert_weight(text: str, backend: Backend, line: int, lost: Lost) -> Member:
    """A backend with that weight; with 0 it drains: IPVS sends it no new connections. Raises InputProblem."""
    weight = number(text, MAX_WEIGHT, "weight", line, lost)
    return Member(backend, weight or DEFAULT_WEIGHT, ACTIVE if weight else DRAINING)


def convert_persistence(text: str, line: int, lost: Lost) -> int:
    """Seconds. Raises InputProblem."""
    seconds = number(text, MAX_AFFINITY_SECONDS, "persistence", line, lost)
    if not seconds:
        raise InputProblem(lost.source, "persistence: expected at least 1 second", line=line)
    return seconds


def read_backend(text: str, line: int, lost: Lost) -> Backend:
    """`10.0.0.1:80`. Raises InputProblem."""
    try:
        return parse_backend(text)
    except BadValue as problem:
        raise InputProblem(lost.source, problem.message, line=line, hint=problem.hint) from None


def number(text: str, most: int, what: str, line: int, lost: Lost) -> int:
    """ASCII digits, up to `most`. Raises InputProblem."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= most):
        raise InputProblem(lost.source, f"{what}: expected 0-{most}, got {show(text)}", line=line)
    return int(text)
