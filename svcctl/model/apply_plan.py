"""Desired state against what is there: which services and bindings are made, changed, left alone and removed.

Each object has an owner: who asked for it in a desired state, "" for what was made by hand.

* What is as wanted is left alone, whosever it is, which is told; with `take_over` it becomes the asker's.
* What was made by hand and differs becomes the asker's; what another owner made is a conflict, unless taken over.
* Without `prune` nothing is removed; with it, what an owner made and no longer asks for. Ports of a Service of
  Kubernetes are no objects of their own: those that one in the input no longer has go in any case, all of them when it
  has become headless, an ExternalName or another proxy's. What is there of a Service that could not be taken stays.
* A frontend or binding that somebody else holds is a conflict, or taken away there with `take_over`.
* The state of a backend comes from the input. Only the API server of Kubernetes keeps its last backends when the input
  has none for it: whoever asks for the cluster's state may need it to get there. With `force` it goes with a prune.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import UsageProblem
from svcctl.model.apply_doubts import partial_input
from svcctl.model.binding import Binding, format_binding
from svcctl.model.desired import KUBERNETES, NOTE, WARNING, Notice
from svcctl.model.node_plan import NodePlan, refuse_others
from svcctl.model.plan import Plan
from svcctl.model.plan import plan as plan_bindings
from svcctl.model.service import Member, Service, check_service, eligible
from svcctl.model.service_endpoint import KIND_LOAD_BALANCER, KIND_NODE_PORT, format_frontend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from svcctl.model.desired import Desired
    from svcctl.model.prefix import Prefix
    from svcctl.model.service_endpoint import Frontend

CREATED, CHANGED, UNCHANGED, DELETED = "created", "changed", "unchanged", "deleted"

API_SERVER = "default/kubernetes:https/tcp"
"""The service through which Kubernetes is reached, in small letters."""

_essence = itemgetter(*(n for n, field in enumerate(Member._fields) if field not in ("since_ns", "until_ns")))
"""All that an input says of a member."""

_APART = ("name", "id", "owner", "sources", "frontends", "members", "changed_ns")
_options = itemgetter(*(n for n, field in enumerate(Service._fields) if field not in _APART))
"""All that is said of a service, but for what has no order and what the state adds."""

BY_HAND = "made by hand"
BROKEN = "its ids were broken"


class Step(NamedTuple):
    """What happens to a service: `have` is what it is (None: it is created), `want` what it becomes.

    `anew`: its ids are broken, so it gets others. `note` is a remark on the decision, or empty.
    """

    action: str
    name: str
    have: Service | None
    want: Service | None
    anew: bool = False
    note: str = ""


class BindingSteps(NamedTuple):
    """The plan of the bindings and who they belong to afterwards: owners to note, by key, and keys without one.

    `adopted` are (key, label, owner before) of those whose owner is all that changes, `holders` the owners there are.
    """

    plan: Plan
    unchanged: tuple[tuple[bytes, str], ...]
    owners: dict[bytes, str]
    disowned: tuple[bytes, ...]
    adopted: tuple[tuple[bytes, str, str], ...] = ()
    holders: Mapping[bytes, str] = {}


class ApplyPlan(NamedTuple):
    """Everything, services by name. `notices` are the plan's own; `doubts` are reasons not to prune by this input.

    `settings` are (name, remark) of settings of the state that change; who reads the state adds them.
    """

    services: tuple[Step, ...]
    bindings: BindingSteps
    notices: tuple[Notice, ...]
    doubts: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    nodes: NodePlan = NodePlan()

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        bindings = self.bindings
        return (
            any(step.action != UNCHANGED for step in self.services)
            or not bindings.plan.is_empty
            or bool(bindings.owners or bindings.disowned or self.settings)
            or self.nodes.changes
        )


class Have(NamedTuple):
    """What is there. `broken` are names of services whose ids are not to be used again, `shared` those of them whose
    ids are another's too, and get others whoever asks; keys of bindings are those of `Binding.key`; a binding that
    was made by hand is not in `owners`."""

    services: Mapping[str, Service]
    broken: Collection[str] = ()
    shared: Collection[str] = ()
    bindings: Mapping[bytes, str] = {}
    owners: Mapping[bytes, str] = {}


def plan_apply(
    desired: Sequence[Desired],
    have: Have,
    *,
    prune: bool = False,
    force: bool = False,
    take_over: bool = False,
    now_ns: int = 0,
    nodes: NodePlan = NodePlan(),  # noqa: B008
) -> ApplyPlan:
    """What turns `have` into what is desired. `now_ns` (CLOCK_REALTIME) is since when new states are; `nodes` is what
    is planned of those.

    `force`: the input is certain, so what keeps the API server's service does not. `take_over`: what it asks for
    becomes the asker's, whosever it is.

    Raises Conflict naming the objects of others that are in the way, UsageProblem for desires that exclude each other
    or a service that cannot be.
    """
    notices: list[Notice] = []
    steps = _services(desired, have, prune, force, take_over, now_ns, notices)
    # Whoever may make a Service of Kubernetes must not stop everybody else's from being applied.
    yielding = {one.name for each in desired if each.kind == KUBERNETES for one in each.services}
    steps = _settle_frontends(steps, have, frozenset() if take_over else yielding, take_over, notices)
    return ApplyPlan(
        tuple(sorted(steps.values(), key=lambda step: step.name)),
        _bindings(desired, have, prune, take_over, notices),
        tuple(notices),
        _doubts(desired, have) if prune else (),
        nodes=nodes,
    )


def node_port_addresses(desired: Sequence[Desired]) -> tuple[Prefix, ...] | None:
    """Where node ports are to be served, by those who have a say about it; None: nobody has.

    Raises UsageProblem where they do not agree.
    """
    asked = {each.node_port_addresses for each in desired if each.node_port_addresses is not None}
    if len(asked) > 1:
        raise UsageProblem("the inputs do not agree on where node ports are served")
    return next(iter(asked), None)


def _doubts(desired: Sequence[Desired], have: Have) -> tuple[str, ...]:
    asked = {one.name for each in desired for one in each.services}
    kept = _kept(desired)
    return tuple(
        doubt
        for each in desired
        for doubt in partial_input(
            each,
            [
                name
                for name, old in have.services.items()
                if old.owner == each.owner and name not in asked and (old.owner, _object(old)) not in kept
            ],
        )
    )


def _services(
    desired: Sequence[Desired],
    have: Have,
    prune: bool,
    force: bool,
    take_over: bool,
    now_ns: int,
    notices: list[Notice],
) -> dict[str, Step]:
    steps: dict[str, Step] = {}
    taken: list[str] = []
    others: list[tuple[str, str]] = []
    for each in desired:
        for want in each.services:
            if want.name in steps:
                raise UsageProblem(f"service {want.name!r} is asked for twice")
            old = have.services.get(want.name)
            broken = want.name in have.broken
            step = _service(want, old, broken, now_ns, notices, alike=not take_over)
            if old is not None and old.owner != want.owner:
                if step.action == UNCHANGED:
                    others.append((f"{want.name!r}", old.owner))
                elif old.owner:
                    if not take_over:
                        taken.append(f"service {want.name!r} belongs to {old.owner}")
                    step = step._replace(note=f"was {old.owner}'s")
            steps[want.name] = step
    refuse_others(taken)
    notices += _not_adopted("service", sorted(others))
    owners = {each.owner for each in desired if each.owner and not each.no_services} if prune else set()
    of_clusters = [each for each in desired if each.kind == KUBERNETES]
    asked = {(one.owner, _object(one)) for each in of_clusters for one in each.services}
    asked |= {(each.owner, object) for each in of_clusters for object in each.objects}
    kept = _kept(desired)
    for name, old in have.services.items():
        if (
            not old.owner
            or name in steps
            or (old.owner, _object(old)) in kept
            or (old.owner not in owners and (old.owner, _object(old)) not in asked)
        ):
            continue
        if name.lower() == API_SERVER and not force:
            notices.append(Notice(WARNING, f"service {name}", "kept: the input has no such service"))
            continue
        steps[name] = Step(DELETED, name, old, None, name in have.broken)
    for name in have.shared:
        if name not in steps:
            old = have.services[name]
            steps[name] = Step(CHANGED, name, old, old, True, BROKEN)
    return steps


def _kept(desired: Sequence[Desired]) -> set[tuple[str, str]]:
    """Owner, and `namespace/name`, of Services that could not be taken."""
    return {(each.owner, object) for each in desired for object in each.kept}


def _object(service: Service) -> str:
    """`namespace/name` of the Service of Kubernetes that it is a port of; "" if its name is no port's."""
    return service.name.rpartition(":")[0]


def _service(
    want: Service, old: Service | None, broken: bool, now_ns: int, notices: list[Notice], *, alike: bool
) -> Step:
    """`alike`: what is the same but for its owner is unchanged."""
    if (
        old is not None
        and want.name.lower() == API_SERVER
        and not _usable(want.members)
        and _usable(old.members)
    ):
        notices.append(
            Notice(WARNING, f"service {want.name}", "keeps its backends: the input has none that can be used")
        )
        want = want._replace(members=old.members, local_ready=old.local_ready)
    same_owner = alike or old is None or old.owner == want.owner
    if old is not None and not broken and same_owner and is_same(old, want):
        return Step(UNCHANGED, want.name, old, old)
    want = check_service(want._replace(members=_since(want.members, old, now_ns), changed_ns=0))
    if old is None:
        return Step(CREATED, want.name, None, want)
    note = ""
    if broken:
        note = BROKEN
    elif not old.owner and want.owner:
        note = f"was {BY_HAND}"
    return Step(CHANGED, want.name, old, want, broken, note)


def is_same(one: Service, other: Service) -> bool:
    """Whether nothing is to be written to make one the other. Owner, times, ids and orders are no difference."""
    return (
        _options(one) == _options(other)
        and len(one.frontends) == len(other.frontends)
        and len(one.members) == len(other.members)
        and (one.frontends == other.frontends or set(one.frontends) == set(other.frontends))
        and _same_members(one.members, other.members)
        and (one.sources == other.sources or set(one.sources) == set(other.sources))
    )


def _same_members(some: Sequence[Member], others: Sequence[Member]) -> bool:
    """They mostly have one order, and nothing is hashed then."""
    one, other = [_essence(each) for each in some], [_essence(each) for each in others]
    return one == other or set(one) == set(other)


def _since(members: Iterable[Member], old: Service | None, now_ns: int) -> tuple[Member, ...]:
    """Each with the time since when it has its state, and when a drain ends: no input says that."""
    known = {each.backend: each for each in old.members} if old else {}
    found = []
    for member in members:
        before = known.get(member.backend)
        same = before is not None and before.state == member.state
        if before is not None and same:
            found.append(member._replace(since_ns=before.since_ns, until_ns=before.until_ns))
        else:
            found.append(member._replace(since_ns=now_ns))
    return tuple(found)


def _usable(members: Iterable[Member]) -> bool:
    every = list(members)
    return any(eligible(every, family) for family in {each.backend.family for each in every})


def _not_adopted(kind: str, others: Sequence[tuple[str, str]]) -> list[Notice]:
    """For (object, owner) that are as wanted and somebody else's: what is not adopted."""
    if not others:
        return []
    shown = ", ".join(f"{name} ({f'{owner}' if owner else BY_HAND})" for name, owner in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    plural = "s" if len(others) > 1 else ""
    text = f"unchanged, and still of another owner: {shown}{more}; --take-over makes them yours"
    return [Notice(NOTE, f"{len(others)} {kind}{plural}", text)]


def _settle_frontends(
    steps: dict[str, Step], have: Have, yielding: Collection[str], take_over: bool, notices: list[Notice]
) -> dict[str, Step]:
    """Each frontend is one service's afterwards.

    Services of `yielding` go without what a service that stays has. For others: raises Conflict, or with `take_over`
    takes it from the one that stays.
    """
    holders: dict[Frontend, str] = {}
    for step in steps.values():
        if step.want is None:
            continue
        for each in step.want.frontends:
            other = holders.setdefault(each.frontend, step.name)
            if other != step.name:
                raise UsageProblem(
                    f"frontend {format_frontend(each.frontend)} is asked for by {other!r} and {step.name!r}"
                )
    taken: list[str] = []
    losers: dict[str, list[Frontend]] = {}
    left_out: dict[str, list[tuple[Frontend, str]]] = {}
    for name, old in have.services.items():
        if name in steps:
            continue
        for each in old.frontends:
            if each.frontend in holders:
                shown = format_frontend(each.frontend)
                if holders[each.frontend] in yielding:
                    left_out.setdefault(holders[each.frontend], []).append((each.frontend, name))
                    continue
                taken.append(
                    f"frontend {shown} of {holders[each.frontend]!r} belongs to service {name!r}{_whose(old)}"
                )
                losers.setdefault(name, []).append(each.frontend)
    if not take_over:
        refuse_others(taken)
    found = dict(steps)
    for name, others in left_out.items():
        for frontend, other in others:
            text = f"goes without {format_frontend(frontend)}: service {other!r}{_whose(have.services[other])} has it"
            notices.append(Notice(WARNING, f"service {name}", text))
        _yield_frontends(found, name, [frontend for frontend, _ in others])
    for name, lost in losers.items():
        old = have.services[name]
        want = _without(old, lost)
        shown = ", ".join(format_frontend(each) for each in lost)
        notices.append(Notice(NOTE, f"service {name}", f"loses {shown}"))
        found[name] = Step(CHANGED, name, old, want, name in have.broken, f"loses {shown}")
    return found


def _yield_frontends(steps: dict[str, Step], name: str, lost: Collection[Frontend]) -> None:
    """Change what is asked of a service to what is left of it."""
    step = steps[name]
    assert step.want is not None
    want = _without(step.want, lost)
    if want.frontends:
        if step.have is not None and not step.anew and is_same(step.have, want):
            steps[name] = Step(UNCHANGED, name, step.have, step.have)
        else:
            steps[name] = step._replace(want=want)
    elif step.have is None:
        del steps[name]
    else:
        steps[name] = Step(DELETED, name, step.have, None, step.anew)


def _whose(service: Service) -> str:
    return f" ({service.owner}'s)" if service.owner else f" ({BY_HAND})"


def _without(service: Service, lost: Collection[Frontend]) -> Service:
    """The service less some of its frontends, and what only they allowed it to say."""
    kept = tuple(each for each in service.frontends if each.frontend not in lost)
    kinds = {each.kind for each in kept}
    return service._replace(
        frontends=kept,
        node_port=service.node_port if KIND_NODE_PORT in kinds else 0,
        sources=service.sources if KIND_LOAD_BALANCER in kinds else (),
    )


def _bindings(
    desired: Sequence[Desired], have: Have, prune: bool, take_over: bool, notices: list[Notice]
) -> BindingSteps:
    wanted: dict[bytes, str] = {}
    owner_of: dict[bytes, str] = {}
    deciding = set()
    for each in desired:
        if each.bindings is None:
            continue
        deciding.add(each.owner)
        for binding in each.bindings:
            key = binding.key()
            if wanted.setdefault(key, binding.label) != binding.label:
                raise UsageProblem(
                    f"binding {format_binding(binding)} is asked for with label {wanted[key]!r} too"
                )
            owner_of[key] = each.binding_owners.get(key, each.owner)
    if not wanted and not (prune and deciding):
        return BindingSteps(Plan([], [], [], 0), (), {}, ())
    scope: dict[bytes, str] = {}
    taken = []
    others: list[tuple[str, str]] = []
    owners: dict[bytes, str] = {}
    disowned: list[bytes] = []
    adopted: dict[bytes, tuple[bytes, str, str]] = {}
    for key, label in wanted.items():
        old = have.bindings.get(key)
        if old is None:
            if owner_of[key]:
                owners[key] = owner_of[key]
            continue
        scope[key] = old
        holder = have.owners.get(key, "")
        if holder == owner_of[key]:
            continue
        if old == label and not take_over:
            others.append((format_binding(Binding.from_key(key, old)), holder))
            continue
        if old == label:
            adopted[key] = (key, label, holder)
        elif holder and not take_over:
            shown = format_binding(Binding.from_key(key, old))
            taken.append(f"binding {shown} belongs to {holder}")
        if owner_of[key]:
            owners[key] = owner_of[key]
        else:
            disowned.append(key)
    refuse_others(taken)
    notices += _not_adopted("binding", others)
    if prune:
        for key, holder in have.owners.items():
            if holder in deciding and key not in wanted and key in have.bindings:
                scope[key] = have.bindings[key]
                disowned.append(key)
    made = plan_bindings(scope, wanted)
    unchanged = tuple(
        (key, label) for key, label in wanted.items() if scope.get(key) == label and key not in adopted
    )
    return BindingSteps(made, unchanged, owners, tuple(disowned), tuple(adopted.values()), have.owners)
