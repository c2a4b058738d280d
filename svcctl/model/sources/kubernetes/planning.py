"""From Kubernetes objects to the desired state: the order in which the rules are asked.

The rules are those of kube-proxy in Kubernetes 1.36; each module says which of them it has. Everything an API
server guarantees and a file does not is checked: what cannot have come from one (a wrong type, a port of
99999, a name with a control character) refuses the whole input, with its path, as leaving out an object would
take a Service away from its clients. What one may well have (an address that is none, of the wrong family or
of somebody else, ports claimed twice, a port of a slice that is none) costs that address or port alone, and is told.
A Service that asks for too much is left out, and told: whoever may write one must not stop all others.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from svcctl.model.constants import IPV4, IPV6, PROTOCOL_NAMES
from svcctl.model.desired import KUBERNETES, Desired
from svcctl.model.service import Service
from svcctl.model.service_endpoint import KIND_NODE_PORT
from svcctl.model.sources.kubernetes.addresses import Addresses
from svcctl.model.sources.kubernetes.claims import settle_frontends, settle_health_ports
from svcctl.model.sources.kubernetes.doubts import blockers
from svcctl.model.sources.kubernetes.fields import ObjectProblem, Place, object_at
from svcctl.model.sources.kubernetes.frontends import admit_external, external_reach, frontends_of, sources_of
from svcctl.model.sources.kubernetes.intake import take_in
from svcctl.model.sources.kubernetes.members import choose, count, gather
from svcctl.model.sources.kubernetes.node_ports import node_port_prefixes
from svcctl.model.sources.kubernetes.nodes import node_name, read_node
from svcctl.model.sources.kubernetes.notices import Notices
from svcctl.model.sources.kubernetes.services import has_all_said, read_service
from svcctl.model.sources.kubernetes.slices import read_slice, service_of
from svcctl.model.sources.options import HEADLESS_LABEL
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Member, ServiceFrontend
    from svcctl.model.sources.kubernetes.addresses import Address
    from svcctl.model.sources.kubernetes.intake import Intake
    from svcctl.model.sources.kubernetes.services import Facts, ServicePort
    from svcctl.model.sources.kubernetes.slices import SliceOf
    from svcctl.model.sources.options import Options

    Key = tuple[str, str]
    """Namespace and name of a Service."""


class Where(Record):
    """The node that is planned for, and its zone; "": not known."""

    node: str
    zone: str


class _Port(Record):
    """A port of a Service on its way to a service of svcctl's."""

    service: Facts
    port: ServicePort
    name: str
    frontends: list[ServiceFrontend]
    members: list[Member]
    external_local: bool
    ready_here: set[Address]
    matched: bool


def desired(documents: Iterable[Mapping[str, object]], options: Options) -> Desired:
    """What the objects ask of the node `options.node`. `documents` are parsed objects, lists and lists of lists.

    The order of documents and items means nothing. Raises ObjectProblem (a UsageProblem) as said above, whose cause
    names the object; what may be an outage of the source is in `blockers`, and the rest is planned all the same.
    """
    collecting = gc.isenabled()
    gc.disable()  # it would walk all that was parsed again and again: a third of the time
    known = list(documents)
    try:
        return _desired(known, options)
    except ObjectProblem as problem:
        name = object_at(known[problem.document], problem.path)
        if not name:
            raise
        place = Place(problem.document, problem.path)
        raise ObjectProblem(place, f"{name}: {problem.cause}", hint=problem.hint) from None
    finally:
        if collecting:
            gc.enable()


def _desired(documents: Iterable[Mapping[str, object]], options: Options) -> Desired:
    notices = Notices()
    addresses = Addresses()
    node = node_name(options.node)
    intake = take_in(documents, notices)
    nodes = [read_node(item, node, addresses, notices) for item in intake.nodes]
    own = next((each for each in nodes if each.node.own), None)
    where = Where(node, own.node.zone if own and own.node.zone else options.zone)
    old = HEADLESS_LABEL in options.compat
    services = _services(intake, addresses, notices, old_headless=old)
    wanted = {each.key for each in services}
    slices = _slices(intake, wanted, node, addresses, notices, old_headless=old)
    services = [each for each in services if not _asks_too_much(each, slices.get(each.key, ()), notices)]
    kept = frozenset("/".join(key) for key in wanted - {each.key for each in services})
    external = admit_external(services, [each.node for each in nodes], options.external_ips, notices)
    ports: list[_Port] = []
    for service in services:
        mine = slices.get(service.key, [])
        made = [_port(service, port, external[service.key], mine, where, notices) for port in service.ports]
        _tell_mismatch(service, [each.port for each in made if not each.matched], mine, notices)
        ports += made
    claimants = [(each.service, each.name, each.frontends) for each in ports]
    settle_frontends(claimants, notices)
    health = settle_health_ports(services, claimants, notices)
    ready = _ready_here(ports)
    found = []
    for each in ports:
        if each.frontends:
            key = each.service.key
            sources = sources_of(each.service, each.frontends, own.internal if own else (), notices)
            health_port = health.get(key, 0)
            found.append(_made(each, options.owner, sources, health_port, ready[key] if health_port else 0))
    _tell_nobody_here(found, bool(nodes), node, notices)
    prefixes, unknown = node_port_prefixes(options.node_port_addresses, own, notices)
    return Desired(
        KUBERNETES,
        options.owner or KUBERNETES,
        services=tuple(sorted(found, key=lambda each: each.name)),
        nodes=tuple(each.node for each in nodes),
        says_nodes=options.other_nodes and bool(nodes),
        node_port_addresses=prefixes,
        notices=notices.sorted(),
        errors=intake.errors,
        namespaces=frozenset(item.namespace for item in (*intake.services, *intake.slices)),
        blockers=(
            *blockers(intake, [each.node for each in nodes], node, asked_for_own=not options.other_nodes),
            *unknown,
        ),
        objects=frozenset(f"{each.namespace}/{each.name}" for each in intake.services if has_all_said(each))
        - kept,
        kept=kept,
    )


MAX_MEMBERS = 1 << 18
"""Backends of all ports of a Service: a few slices can ask for millions."""

MAX_BALANCED = 1 << 16
"""Frontends of a Service's load balancers: each address at each port."""


def _asks_too_much(service: Facts, slices: Sequence[SliceOf], notices: Notices) -> bool:
    backends = sum(count(slices, family, port) for family in service.cluster for port in service.ports)
    frontends = len(service.balancer) * len(service.ports)
    for number, most, what in (
        (backends, MAX_MEMBERS, "backends"),
        (frontends, MAX_BALANCED, "frontends of load balancers"),
    ):
        if number > most:
            cause = f"its ports have {number} {what} in all, {most} at most"
            notices.warn(service.item.subject, f"left out, and what is there of it stays as it is: {cause}")
            return True
    return False


def _tell_nobody_here(services: Sequence[Service], any_nodes: bool, node: str, notices: Notices) -> None:
    """A name that is not this node's makes every Local policy serve nobody; without Nodes nothing else tells."""
    if any_nodes or not any(each.internal_local or each.external_local for each in services):
        return
    members = [member for each in services for member in each.members]
    if members and not any(member.local for member in members):
        notices.warn(
            f"node {node}",
            "the input has no Node object and no endpoint on a node of this name: a policy of Local serves nobody here",
        )


def _services(intake: Intake, addresses: Addresses, notices: Notices, *, old_headless: bool) -> list[Facts]:
    """Those that have something to serve, oldest first, then by namespace and name."""
    found = []
    for item in intake.services:
        facts = read_service(item, addresses, notices, old_headless=old_headless)
        if facts is not None:
            found.append(facts)
    return sorted(found, key=lambda each: (each.age, each.key))


def _slices(
    intake: Intake, wanted: set[Key], node: str, addresses: Addresses, notices: Notices, *, old_headless: bool
) -> dict[Key, list[SliceOf]]:
    """The slices of each Service that is wanted, by their names. Those of others are nobody's business."""
    found: dict[Key, list[SliceOf]] = {}
    for item in intake.slices:
        key = (item.namespace, service_of(item, notices, old_headless=old_headless))
        if key in wanted:
            one = read_slice(item, node, addresses, notices)
            if one is not None:
                found.setdefault(key, []).append(one)
    return found


def _port(
    service: Facts,
    port: ServicePort,
    external: tuple[Address, ...],
    slices: list[SliceOf],
    where: Where,
    notices: Notices,
) -> _Port:
    """One port with what may be taken from it later."""
    name = f"{service.item.namespace}/{service.item.name}:{port.label}/{PROTOCOL_NAMES[port.protocol]}"
    frontends = frontends_of(service, port, external)
    external_local = service.external_local and external_reach(frontends)
    members: list[Member] = []
    ready_here: set[Address] = set()
    matched = False
    for family in sorted(service.cluster):  # so that the members are in order
        found, match = gather(slices, family, port)
        matched = matched or match
        members += choose(found, where.node, where.zone, local_set=service.internal_local or external_local)
        ready_here.update(backend[:2] for backend, said in found.items() if said[0] and said[3])
        if not where.zone and any(said[5] for said in found.values()):
            notices.note(
                "", "zone hints are not followed: our zone is not known (a Node object's label, or --zone)"
            )
    return _Port(service, port, name, frontends, members, external_local, ready_here, matched)


def _tell_mismatch(service: Facts, lost: list[ServicePort], slices: list[SliceOf], notices: Notices) -> None:
    """Names that do not meet are the usual fault of slices made by hand."""
    there = sorted({key for one in slices for key in one.ports}) if lost else []
    if not there:
        return  # no pods: the controller's slice has no ports then
    words = ", ".join(_port_words(*key) for key in there[:5])
    for port in lost:
        text = (
            f"port {_port_words(port.name, port.protocol)} has no backends: its EndpointSlices have {words}"
        )
        notices.note(service.item.subject, text)


def _port_words(name: str, protocol: int) -> str:
    return f"{name!r}/{PROTOCOL_NAMES[protocol].upper()}"


def _ready_here(ports: Iterable[_Port]) -> dict[Key, int]:
    """How many endpoints of each Service are ready on this node, over all its ports.

    Of the two families of a Service the larger number counts: they are the same pods, and a kube-proxy
    answers each family with its own.
    """
    found: dict[Key, set[Address]] = {}
    for each in ports:
        found.setdefault(each.service.key, set()).update(each.ready_here)
    return {
        key: max(sum(each[0] == family for each in those) for family in (IPV4, IPV6))
        for key, those in found.items()
    }


def _made(port: _Port, owner: str, sources: tuple[Prefix, ...], health_port: int, ready: int) -> Service:
    facts = port.service
    return Service(
        name=port.name,
        affinity_seconds=facts.affinity_seconds,
        internal_local=facts.internal_local,
        external_local=port.external_local,
        node_port=port.port.node_port if any(each.kind == KIND_NODE_PORT for each in port.frontends) else 0,
        owner=owner or KUBERNETES,
        sources=sources,
        frontends=tuple(sorted(port.frontends)),
        members=tuple(port.members),
        health_port=health_port,
        local_ready=ready,
    )
