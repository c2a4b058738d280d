"""What commands do to a service, as functions from the old value to the new one.

Each gives the very same object back when there is nothing to do. The result has been checked. Times are
CLOCK_REALTIME in nanoseconds; a member's `since_ns` changes with its state only.
"""

from __future__ import annotations

from svcctl.errors import Conflict, NotFound, UsageProblem
from svcctl.model.prefix import Prefix
from svcctl.model.service import (
    ALGORITHM_NUMBERS,
    MAGLEV,
    MAGLEV_STABLE,
    RANDOM,
    Member,
    ServiceFrontend,
    check_service,
    node_port_frontends,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    DOWN,
    DRAINING,
    KIND_NODE_PORT,
    format_backend,
    format_frontend,
    is_zero,
)
from svcctl.model.service_plan import diff, differences, is_empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Backend, BackendSpec, Frontend


def add_service(have: Service | None, want: Service) -> Service:
    """What `service add` makes: `want`, or the one there is if it is the same.

    Raises Conflict that says what differs, UsageProblem if `want` cannot be.
    """
    want = check_service(_with_node_port(want, want.node_port))
    if have is None:
        return want
    plan = diff(have, want)
    if is_empty(plan):
        return have
    first, *more = differences(plan, want.name)
    raise Conflict(
        f"service add {want.name}: there is one of that name, and it differs: {first}"
        + (f" (and {len(more)} more)" if more else ""),
        hint="'svcctl service set' and 'svcctl backend add' change a service",
    )


def add_backends(service: Service, specs: Iterable[BackendSpec], now_ns: int) -> Service:
    """`backend add`: afterwards each is a member as its spec says, what it leaves out being the default.

    A backend that is a member with other values is changed. New ones come last.
    """
    members = list(service.members)
    places = _places(members)
    for backend, weight, state, local in _each_once(specs):
        wanted = Member(
            backend,
            DEFAULT_WEIGHT if weight is None else weight,
            ACTIVE if state is None else state,
            bool(local),
            now_ns,
        )
        number = places.get(backend)
        if number is None:
            members.append(wanted)
        else:
            members[number] = _update(members[number], wanted)
    return _with_members(service, members)


def set_backends(service: Service, specs: Iterable[BackendSpec], now_ns: int) -> Service:
    """`backend set`: what a spec says is changed, what it leaves out stays.

    Raises NotFound for a backend that is no member, UsageProblem for a spec that says nothing.
    """
    members = list(service.members)
    places = _places(members)
    for backend, weight, state, local in _each_once(specs):
        number = places.get(backend)
        if number is None:
            raise _no_member(service, "backend set", backend)
        if weight is None and state is None and local is None:
            hint = "say --weight, --state, or both"
            raise UsageProblem(f"backend set {_of(service, backend)}: nothing to set", hint=hint)
        have = members[number]
        wanted = Member(
            backend,
            have.weight if weight is None else weight,
            have.state if state is None else state,
            have.local if local is None else local,
            now_ns,
            sets=have.sets,
        )
        members[number] = _update(have, wanted)
    return _with_members(service, members)


def drain_backends(
    service: Service, backends: Iterable[Backend], now_ns: int, after_ns: int | None = None
) -> Service:
    """`backend drain`: no new connections; with `after_ns`, the end of the old ones that much later.

    Of a backend that drains already the end becomes this one, or none: the last command counts. Raises NotFound
    for one that is no member.
    """
    members = list(service.members)
    places = _places(members)
    until_ns = now_ns + after_ns if after_ns is not None else 0
    for backend in backends:
        number = places.get(backend)
        if number is None:
            raise _no_member(service, "backend drain", backend)
        have = members[number]
        since_ns = have.since_ns if have.state == DRAINING else now_ns
        members[number] = have._replace(state=DRAINING, since_ns=since_ns, until_ns=until_ns)
    return _with_members(service, members)


def end_drains(service: Service, now_ns: int) -> Service:
    """Sets members whose drain has ended down: what was left of their connections is ended now."""
    members = [
        member._replace(state=DOWN, since_ns=now_ns, until_ns=0)
        if member.until_ns and member.until_ns <= now_ns
        else member
        for member in service.members
    ]
    return _with_members(service, members)


def delete_backends(service: Service, backends: Iterable[Backend], *, missing_ok: bool = False) -> Service:
    """`backend delete`: the last member takes the place of one that goes, so that few entries move.

    Raises NotFound for a backend that is no member, unless `missing_ok`.
    """
    members = list(service.members)
    places = _places(members)
    for backend in dict.fromkeys(backends):
        number = places.pop(backend, None)
        if number is None:
            if missing_ok:
                continue
            raise _no_member(service, "backend delete", backend)
        last = members.pop()
        if number < len(members):
            members[number] = last
            places[last.backend] = number
    return _with_members(service, members)


def add_frontends(service: Service, frontends: Iterable[ServiceFrontend]) -> Service:
    """Adds frontends; one that is there with another kind changes it. Node ports follow."""
    wanted = {each.frontend: each for each in service.frontends}
    for each in frontends:
        wanted[each.frontend] = each
    changed = service._replace(frontends=tuple(wanted.values()))
    return _checked(service, _with_node_port(changed, service.node_port))


def delete_frontends(service: Service, frontends: Iterable[Frontend], *, missing_ok: bool = False) -> Service:
    """Takes frontends away; node ports follow.

    Raises NotFound for one that the service has not, unless `missing_ok`; UsageProblem for one that its node
    port asks for.
    """
    left = {each.frontend: each for each in service.frontends}
    gone = list(frontends)
    for frontend in gone:
        if left.pop(frontend, None) is None and not missing_ok:
            raise NotFound(
                f"service set {service.name}: {format_frontend(frontend)}: no frontend of this service",
                hint=f"'svcctl frontends {service.name}' lists them",
            )
    changed = _with_node_port(service._replace(frontends=tuple(left.values())), service.node_port)
    for each in changed.frontends:
        if each.frontend in gone:
            raise UsageProblem(
                f"service set {service.name}: {format_frontend(each.frontend)}: belongs to the node port",
                hint="--node-port 0 takes it away",
            )
    return _checked(service, changed)


def add_sources(service: Service, sources: Iterable[Prefix]) -> Service:
    """Admits clients with these addresses, too. Raises UsageProblem without a load-balancer frontend."""
    return set_options(service, sources={*service.sources, *sources})


def delete_sources(service: Service, sources: Iterable[Prefix]) -> Service:
    """Takes source ranges away; without any left everybody is admitted. Raises NotFound for one that there is not."""
    left = set(service.sources)
    for each in sources:
        if each not in left:
            raise NotFound(
                f"service set {service.name}: {each}: no source range of this service",
                hint=f"'svcctl services {service.name} -o json' has them",
            )
    return set_options(service, sources=left - set(sources))


def set_options(
    service: Service,
    *,
    affinity_seconds: int | None = None,
    algorithm: int | None = None,
    table_size: int | None = None,
    internal_local: bool | None = None,
    external_local: bool | None = None,
    dsr: bool | None = None,
    block: bool | None = None,
    drop: bool | None = None,
    node_port: int | None = None,
    owner: str | None = None,
    sources: Iterable[tuple[int, bytes, int]] | None = None,
) -> Service:
    """`service set`: what is given (not None) is changed. Raises UsageProblem if the result cannot be."""
    given: dict[str, Any] = {
        "affinity_seconds": affinity_seconds,
        "algorithm": algorithm,
        "table_size": table_size,
        "internal_local": internal_local,
        "external_local": external_local,
        "dsr": dsr,
        "block": block,
        "drop": drop,
        "node_port": node_port,
        "owner": owner,
        "sources": None if sources is None else tuple(sorted({Prefix(*each) for each in sources})),
    }
    changed = service._replace(**{name: value for name, value in given.items() if value is not None})
    return _checked(service, _with_node_port(changed, service.node_port))


def algorithm_number(have: int, word: str | None, stable: bool | None) -> int | None:
    """What `--algorithm` and `--stable` ask for; None: nothing. Raises UsageProblem for --stable without maglev."""
    if word is None and stable is None:
        return None
    base = have if word is None else ALGORITHM_NUMBERS[word]
    if base == RANDOM:
        if stable:
            raise UsageProblem("--stable: is for the algorithm maglev")
        return RANDOM
    if stable is None:
        return have if have != RANDOM else base
    return MAGLEV_STABLE if stable else MAGLEV


def _checked(old: Service, new: Service) -> Service:
    """The new service, or the very old one if the two are the same."""
    return old if is_empty(diff(old, new)) else check_service(new)


def _with_node_port(service: Service, old_port: int) -> Service:
    """The service with the wildcard frontends that its node port asks for, instead of those of `old_port`."""
    ports = {service.node_port, old_port} - {0}
    others: list[ServiceFrontend] = []
    follow: list[ServiceFrontend] = []
    for each in service.frontends:
        family, address, port, _ = each.frontend
        is_followed = each.kind == KIND_NODE_PORT and port in ports and is_zero(family, address)
        (follow if is_followed else others).append(each)
    if not ports or not others:
        return service
    wanted = node_port_frontends(others, service.node_port) if service.node_port else []
    if set(follow) == set(wanted):
        return service
    return service._replace(frontends=(*others, *wanted))


def _with_members(service: Service, members: list[Member]) -> Service:
    changed = tuple(members)
    return service if changed == service.members else check_service(service._replace(members=changed))


def _update(have: Member, wanted: Member) -> Member:
    """`wanted`, with the times of `have` where its state is the same."""
    if have.state == wanted.state:
        return wanted._replace(since_ns=have.since_ns, until_ns=have.until_ns)
    return wanted


def _each_once(specs: Iterable[BackendSpec]) -> Iterable[BackendSpec]:
    """The specs, a repeated one left out. Raises UsageProblem for one backend with two specs."""
    seen: dict[Backend, BackendSpec] = {}
    for spec in specs:
        if seen.setdefault(spec.backend, spec) != spec:
            raise UsageProblem(f"backend {format_backend(spec.backend)}: named twice with different values")
    return seen.values()


def _places(members: list[Member]) -> dict[Backend, int]:
    """Where each backend's membership is."""
    return {member.backend: number for number, member in enumerate(members)}


def _no_member(service: Service, action: str, backend: Backend) -> NotFound:
    return NotFound(
        f"{action} {_of(service, backend)}: no backend of this service",
        hint=f"'svcctl backends {service.name}' lists them",
    )


def _of(service: Service, backend: Backend) -> str:
    return f"{service.name}: {format_backend(backend)}"
