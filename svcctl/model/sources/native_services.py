"""One service of svcctl's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.model.bad_value import BadValue, show
from svcctl.model.desired import CONSUL, NOMAD
from svcctl.model.label import MAX_OWNER_BYTES, check_name
from svcctl.model.maglev import SIZES
from svcctl.model.prefix import parse_prefix
from svcctl.model.service import (
    ALGORITHM_NUMBERS,
    IN_BOTH,
    IN_CLUSTER,
    IN_LOCAL,
    MAX_AFFINITY_SECONDS,
    RANDOM,
    Member,
    Service,
    ServiceFrontend,
    check_service,
    check_service_name,
    node_port_frontends,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    KIND_CLUSTER,
    KIND_NODE_PORT,
    KIND_NUMBERS,
    MAX_WEIGHT,
    STATE_NUMBERS,
    parse_backend,
    parse_backend_spec,
)
from svcctl.model.sources.fields import Fields
from svcctl.model.sources.ports import MAX_PORT, parse_frontends
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.model.sources.instances import Instances

KEYS = frozenset(
    """name frontends kind backends consul nomad affinity algorithm internal_policy external_policy external_mode
    sources node_port block drop owner health_port local_ready table_size""".split()
)
FRONTEND_KEYS = frozenset({"address", "kind"})
BACKEND_KEYS = frozenset({"address", "weight", "state", "local", "sets"})

POLICIES = {"cluster": False, "local": True}
MODES = {"tunnel": False, "dsr": True}
SET_BITS = {"cluster": IN_CLUSTER, "local": IN_LOCAL}
MAX_LOCAL_READY = 0xFFFFFFFF

_REGISTRIES = {
    CONSUL: "/v1/health/service/{}",
    NOMAD: "/v1/service/{}",
}
"""Where each tells the instances of a service."""


def read_service(fields: Fields, owner: str, registries: Mapping[str, Instances]) -> Service:
    """The service of one entry; `owner` unless it names its own. Raises InputProblem."""
    fields.allow(KEYS)
    fields.require("name", "frontends")
    name = fields.parsed(check_service_name, fields.text("name"), "name")
    if "owner" in fields:
        owner = fields.text("owner")
        if owner:
            owner = fields.parsed(lambda text: check_name("owner", text, MAX_OWNER_BYTES), owner, "owner")
    node_port = fields.number("node_port", MAX_PORT)
    service = Service(
        name,
        affinity_seconds=fields.number("affinity", MAX_AFFINITY_SECONDS),
        algorithm=fields.word("algorithm", ALGORITHM_NUMBERS, RANDOM),
        internal_local=fields.word("internal_policy", POLICIES, False),
        external_local=fields.word("external_policy", POLICIES, False),
        dsr=fields.word("external_mode", MODES, False),
        block=fields.switch("block"),
        drop=fields.switch("drop"),
        node_port=node_port,
        owner=owner,
        sources=tuple(
            sorted(
                {
                    fields.parsed(parse_prefix, text, "sources", number)
                    for number, text in enumerate(fields.texts("sources"))
                }
            )
        ),
        frontends=_frontends(fields, node_port),
        members=_members(fields, registries),
        health_port=fields.number("health_port", MAX_PORT),
        local_ready=fields.number("local_ready", MAX_LOCAL_READY),
        table_size=fields.number("table_size", SIZES[-1]),
    )
    try:
        return check_service(service)
    except UsageProblem as problem:
        raise fields.problem(problem.message, hint=problem.hint) from None


def _frontends(fields: Fields, node_port: int) -> tuple[ServiceFrontend, ...]:
    usual = fields.word("kind", KIND_NUMBERS, KIND_CLUSTER)
    found: list[ServiceFrontend] = []
    has_node_port = not node_port
    for number, entry in enumerate(fields.array("frontends")):
        kind = usual
        steps: tuple[str | int, ...] = ("frontends", number)
        if isinstance(entry, str):
            text = entry
        else:
            inside = Fields(fields.document, (*fields.steps, *steps), entry)
            inside.allow(FRONTEND_KEYS)
            inside.require("address")
            text = inside.text("address")
            kind = inside.word("kind", KIND_NUMBERS, usual)
            steps = (*steps, "address")
        parsed = fields.parsed(parse_frontends, text, *steps)
        found += [ServiceFrontend(frontend, kind) for frontend in parsed]
        if kind == KIND_NODE_PORT and any(frontend.port == node_port for frontend in parsed):
            has_node_port = True
    if not has_node_port:
        # As commands do. A file that names those it wants has said all there is to say.
        others = [each for each in found if each.kind != KIND_NODE_PORT]
        found += node_port_frontends(others, node_port)
    return tuple(found)


def _members(fields: Fields, registries: Mapping[str, Instances]) -> tuple[Member, ...]:
    members = [_member(fields, number, entry) for number, entry in enumerate(fields.array("backends"))]
    known = {member.backend for member in members}
    for kind in _REGISTRIES:
        if kind in fields:
            for member in _instances(fields, kind, registries):
                if member.backend not in known:  # what the file says itself comes first
                    known.add(member.backend)
                    members.append(member)
    return tuple(members)


def _member(fields: Fields, number: int, entry: object) -> Member:
    if isinstance(entry, str):
        try:
            backend, weight, state, local = parse_backend_spec(entry)
        except BadValue as problem:
            raise fields.problem(problem.message, "backends", number, hint=problem.hint) from None
        return Member(
            backend,
            DEFAULT_WEIGHT if weight is None else weight,
            ACTIVE if state is None else state,
            local,
        )
    inside = Fields(fields.document, (*fields.steps, "backends", number), entry)
    inside.allow(BACKEND_KEYS)
    inside.require("address")
    return Member(
        inside.parsed(parse_backend, inside.text("address"), "address"),
        inside.number("weight", MAX_WEIGHT, DEFAULT_WEIGHT),
        inside.word("state", STATE_NUMBERS, ACTIVE),
        inside.switch("local") if "local" in inside else None,
        sets=_sets(inside),
    )


def _sets(inside: Fields) -> int:
    if "sets" not in inside:
        return IN_BOTH
    sets = 0
    for number, text in enumerate(inside.texts("sets")):
        if text not in SET_BITS:
            raise inside.problem(f"expected cluster or local, got {shown(text)}", "sets", number)
        sets |= SET_BITS[text]
    return sets


def _instances(fields: Fields, kind: str, registries: Mapping[str, Instances]) -> tuple[Member, ...]:
    name = fields.text(kind)
    instances = registries.get(kind)
    if instances is None or name not in instances.members:
        where = _REGISTRIES[kind].format(name or "NAME")
        cause = f"needs what {kind.capitalize()} knows of {show(name)}"
        raise fields.problem(cause, kind, hint=f"give the answer to GET {where} with another -f")
    return instances.members[name]
