"""What turns one service into another: the difference, for the writer as values, for people as lines.

It says which sets give new connections something else, which frontends are to be written and which members
changed; whatever is not in the plan is not touched. Times (`since_ns`, `changed_ns`), ids and the order of
frontends and members are no difference.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.model.service import (
    ALGORITHM_NAMES,
    CLUSTER_SET,
    LOCAL_SET,
    Member,
    Service,
    ServiceFrontend,
    blocks_of,
    frontend_flags,
    same_choice,
)
from svcctl.model.service_endpoint import KIND_NAMES, STATE_NAMES, format_backend, format_frontend

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.model.prefix import Prefix
    from svcctl.model.service import BackendSet

ADDED = "added"
CHANGED = "changed"
DELETED = "deleted"

SET_NAMES = ("none", "cluster", "local", "both")
"""By `Member.sets`."""

Step = NamedTuple("Step", [("action", str), ("kind", str), ("name", str), ("note", str)])  # noqa: UP014
"""One line: `action` (ADDED, CHANGED, DELETED) happens to the `kind` (service, frontend, backend) `name`.

`note` says what of it changes, or is empty.
"""

Option = NamedTuple("Option", [("name", str), ("old", str), ("new", str)])  # noqa: UP014
"""A policy that changes, as text of the command line."""

FrontendChange = NamedTuple(  # noqa: UP014
    "FrontendChange",
    [("old", ServiceFrontend), ("new", ServiceFrontend), ("old_flags", int), ("new_flags", int)],
)
"""A frontend that stays, with another kind or other flags."""

MemberChange = NamedTuple("MemberChange", [("old", Member), ("new", Member)])  # noqa: UP014
"""A member that stays, with another weight, state, place or end of its drain."""

if TYPE_CHECKING:

    class ServicePlan(NamedTuple):
        """What changes; all of it empty: nothing does.

        `sets` are (family, CLUSTER_SET or LOCAL_SET) that are made, changed or dropped: new connections get
        something else. One that is not there may get a new block all the same, for members that rest.
        `lanes_added` and `lanes_removed` are families.
        """

        created: bool
        deleted: bool
        options: tuple[Option, ...]
        frontends_added: tuple[ServiceFrontend, ...]
        frontends_changed: tuple[FrontendChange, ...]
        frontends_removed: tuple[ServiceFrontend, ...]
        members_added: tuple[Member, ...]
        members_changed: tuple[MemberChange, ...]
        members_removed: tuple[Member, ...]
        sets: tuple[tuple[int, str], ...]
        lanes_added: tuple[int, ...]
        lanes_removed: tuple[int, ...]

else:
    from collections import namedtuple

    ServicePlan = namedtuple(
        "ServicePlan",
        "created deleted options frontends_added frontends_changed frontends_removed members_added"
        " members_changed members_removed sets lanes_added lanes_removed",
    )


def diff(have: Service | None, want: Service | None) -> ServicePlan:
    """What turns `have` into `want`; None: there is no such service. Linear in what the two hold."""
    old = have or Service("")
    new = want or Service("")
    old_frontends = {each.frontend: each for each in old.frontends}
    new_frontends = {each.frontend: each for each in new.frontends}
    frontends_changed = []
    for frontend, after in new_frontends.items():
        before = old_frontends.get(frontend)
        if before is not None:
            change = FrontendChange(before, after, frontend_flags(old, before), frontend_flags(new, after))
            if before != after or change.old_flags != change.new_flags:
                frontends_changed.append(change)
    old_members = {each.backend: each for each in old.members}
    new_members = {each.backend: each for each in new.members}
    old_sets = _sets(old)
    new_sets = _sets(new)
    old_lanes = {family for family, _ in old_sets}
    new_lanes = {family for family, _ in new_sets}
    return ServicePlan(
        have is None and want is not None,
        want is None and have is not None,
        _options(old, new) if have is not None and want is not None else (),
        tuple(each for frontend, each in new_frontends.items() if frontend not in old_frontends),
        tuple(frontends_changed),
        tuple(each for frontend, each in old_frontends.items() if frontend not in new_frontends),
        tuple(each for backend, each in new_members.items() if backend not in old_members),
        tuple(
            MemberChange(old_members[backend], each)
            for backend, each in new_members.items()
            if backend in old_members and _essence(old_members[backend]) != _essence(each)
        ),
        tuple(each for backend, each in old_members.items() if backend not in new_members),
        tuple(
            key
            for key in sorted({*old_sets, *new_sets})
            if not same_choice(old_sets.get(key), new_sets.get(key))
        ),
        tuple(sorted(new_lanes - old_lanes)),
        tuple(sorted(old_lanes - new_lanes)),
    )


def is_empty(plan: ServicePlan) -> bool:
    """Whether nothing changes: nothing is to be written."""
    return not any(plan)


def steps(plan: ServicePlan, name: str) -> list[Step]:
    """The plan for people: the service `name` first, then frontends, then backends."""
    found = []
    if plan.created or plan.deleted:
        found.append(Step(ADDED if plan.created else DELETED, "service", name, ""))
    elif plan.options:
        found.append(Step(CHANGED, "service", name, ", ".join(_text(*each) for each in plan.options)))
    for action, frontends in ((ADDED, plan.frontends_added), (DELETED, plan.frontends_removed)):
        found += [Step(action, "frontend", format_frontend(each.frontend), "") for each in frontends]
    for frontend in plan.frontends_changed:
        # Flags follow from the policy, which has been named.
        if frontend.old.kind != frontend.new.kind:
            note = _text("kind", KIND_NAMES[frontend.old.kind], KIND_NAMES[frontend.new.kind])
            found.append(Step(CHANGED, "frontend", format_frontend(frontend.new.frontend), note))
    for action, members in ((ADDED, plan.members_added), (DELETED, plan.members_removed)):
        found += [Step(action, "backend", format_backend(each.backend), "") for each in members]
    for member in plan.members_changed:
        note = _member_note(*member)
        found.append(Step(CHANGED, "backend", format_backend(member.new.backend), note))
    return found


def lines(plan: ServicePlan, name: str) -> list[str]:
    """`backend 10.1.2.3:8080 changed: weight 1 -> 3`, one line a step."""
    return [
        f"{step.kind} {step.name} {step.action}" + (f": {step.note}" if step.note else "")
        for step in steps(plan, name)
    ]


def differences(plan: ServicePlan, name: str) -> list[str]:
    """How what is there differs from what was asked for, one text a step: the plan told from the other side."""
    words = {ADDED: "is missing there", DELETED: "is there too"}
    return [
        f"{step.kind} {step.name} {words[step.action]}"
        if step.action in words
        else f"{step.kind} {step.name}: {step.note.replace(' -> ', ' there, asked for ')}"
        for step in steps(plan, name)
    ]


def _sets(service: Service) -> dict[tuple[int, str], BackendSet]:
    found = {}
    for lane in blocks_of(service):
        found[lane.family, CLUSTER_SET] = lane.cluster
        if lane.local is not None:
            found[lane.family, LOCAL_SET] = lane.local
    return found


def _essence(member: Member) -> tuple[int, int, bool, int, int]:
    return member.weight, member.state, bool(member.local), member.until_ns, member.sets


def _member_note(old: Member, new: Member) -> str:
    parts = []
    if old.weight != new.weight:
        parts.append(_text("weight", str(old.weight), str(new.weight)))
    if old.state != new.state:
        parts.append(_text("state", STATE_NAMES[old.state], STATE_NAMES[new.state]))
    if old.local != new.local:
        parts.append(_text("local", _yes(bool(old.local)), _yes(bool(new.local))))
    if old.sets != new.sets:
        parts.append(_text("sets", SET_NAMES[old.sets], SET_NAMES[new.sets]))
    if new.until_ns and old.until_ns != new.until_ns:
        parts.append(f"what is left ends at {_when(new.until_ns)}")
    elif old.until_ns and old.state == new.state and not new.until_ns:
        parts.append(f"what is left goes on, no longer ends at {_when(old.until_ns)}")
    return ", ".join(parts)


def _options(old: Service, new: Service) -> tuple[Option, ...]:
    found = []
    for field, name, text in _OPTIONS:
        before, after = getattr(old, field), getattr(new, field)
        if field == "sources":
            before, after = tuple(sorted(before)), tuple(sorted(after))
        if before != after:
            found.append(Option(name, text(before), text(after)))
    return tuple(found)


def _text(name: str, old: str, new: str) -> str:
    return f"{name} {old} -> {new}"


def _when(ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // 1_000_000_000))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _policy(local: bool) -> str:
    return "local" if local else "cluster"


def _mode(dsr: bool) -> str:
    return "dsr" if dsr else "tunnel"


def _or_none(value: object) -> str:
    return str(value) if value else "none"


def _seconds(value: int) -> str:
    return f"{value}s" if value else "none"


def _prefixes(value: tuple[Prefix, ...]) -> str:
    return ",".join(str(each) for each in value) or "none"


_OPTIONS: tuple[tuple[str, str, Callable[..., str]], ...] = (
    ("affinity_seconds", "affinity", _seconds),
    ("algorithm", "algorithm", ALGORITHM_NAMES.__getitem__),
    ("internal_local", "internal-policy", _policy),
    ("external_local", "external-policy", _policy),
    ("block", "block", _yes),
    ("drop", "drop", _yes),
    ("node_port", "node-port", _or_none),
    ("owner", "owner", _or_none),
    ("sources", "sources", _prefixes),
    ("table_size", "table-size", _or_none),
    ("health_port", "health-port", _or_none),
    ("local_ready", "local-ready", str),
    ("dsr", "external-mode", _mode),
)
"""Field, name on the command line, its text."""
