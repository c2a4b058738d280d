"""What a Service object says: which of its fields count, with the defaults that the API server fills in.

R1, R2, R6, R8 to R10, R13, R25, R27, R28 and R31 of a kube-proxy; `spec.ports[].targetPort` and
`spec.loadBalancerIP` are never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.service import DEFAULT_AFFINITY_SECONDS
from svcctl.model.sources.kubernetes.addresses import LINK_LOCAL, read_range, special
from svcctl.model.sources.kubernetes.fields import (
    ObjectProblem,
    choice,
    integer,
    mapping,
    objects,
    port_name,
    port_number,
    shown,
    text,
    texts,
)
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.model.sources.kubernetes.addresses import Address, Addresses
    from svcctl.model.sources.kubernetes.fields import Place
    from svcctl.model.sources.kubernetes.intake import Item
    from svcctl.model.sources.kubernetes.notices import Notices

PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"

FAMILIES = {"IPv4": IPV4, "IPv6": IPV6}
PROTOCOLS = {"TCP": TCP, "UDP": UDP}
SCTP = "SCTP"
MAX_AFFINITY_SECONDS = 86400

CLUSTER_IP, LOAD_BALANCER = "ClusterIP", "LoadBalancer"
_TYPES = (CLUSTER_IP, "NodePort", LOAD_BALANCER, "ExternalName")
_POLICIES = ("Cluster", "Local")


class ServicePort(Record):
    """A port: `name` as the slices have it ("" too), `label` as svcctl's name has it, `node_port` 0: none."""

    name: str
    label: str
    protocol: int
    port: int
    node_port: int


class Facts(Record):
    """A Service that has frontends, whatever may take some of them away.

    `age` sorts the oldest first, those without a time last. `cluster` has an address for each family that
    the Service has. `ranges` are its source ranges; `unread_ranges`: some could not be read, and who knows
    what they allow. `health_port` is 0 unless the Service needs one.
    """

    item: Item
    age: tuple[bool, str]
    ports: tuple[ServicePort, ...]
    cluster: dict[int, bytes]
    external: tuple[Address, ...]
    balancer: tuple[Address, ...]
    ranges: tuple[tuple[int, bytes, int], ...]
    unread_ranges: bool
    affinity_seconds: int
    internal_local: bool
    external_local: bool
    health_port: int

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.item.namespace, self.item.name


def read_service(item: Item, addresses: Addresses, notices: Notices, *, old_headless: bool) -> Facts | None:
    """What the Service asks for; None for one that a service proxy leaves alone.

    `old_headless`: one that carries the label of headless slices is left alone, as up to Kubernetes 1.34.
    Raises ObjectProblem for what no API server would have taken.
    """
    place = item.place.under("spec")
    spec = mapping(item.content, "spec", item.place)
    labels = mapping(item.metadata, "labels", item.place.under("metadata"))
    kind = choice(spec, "type", place, _TYPES)
    primary = text(spec, "clusterIP", place)
    if PROXY_LABEL in labels:
        notices.note(item.subject, f"is another proxy's: it has the label {PROXY_LABEL}")
        return None
    if old_headless and HEADLESS_LABEL in labels:
        notices.note(
            item.subject, f"left out, as kube-proxy did up to 1.34: it has the label {HEADLESS_LABEL}"
        )
        return None
    if kind == "ExternalName" or primary == "None":
        return None
    if not primary:
        notices.note(item.subject, "has no cluster IP yet: nothing to serve")
        return None
    cluster = _cluster_addresses(item, spec, place, addresses, notices)
    ports = _ports(item, spec, place, kind, notices)
    if not cluster or not ports:
        return None
    balancer = _balancer(item, addresses, notices)
    policy = choice(spec, "externalTrafficPolicy", place, _POLICIES)
    ranges, unread = _ranges(item, spec, place, notices)
    external = _listed(item, "externalIPs", texts(spec, "externalIPs", place), addresses, notices)
    return Facts(
        item,
        _age(item.metadata),
        ports,
        cluster,
        tuple(each for each in external if each[0] in cluster),
        tuple(each for each in balancer if each[0] in cluster),
        ranges,
        unread,
        _affinity(item, spec, place, notices),
        choice(spec, "internalTrafficPolicy", place, _POLICIES) == "Local",
        policy == "Local",
        _health_port(item, spec, place, notices) if kind == LOAD_BALANCER and policy == "Local" else 0,
    )


def has_all_said(item: Item) -> bool:
    """Whether a Service that was read has no other ports than those it was read to have, be it none.

    A manifest without a cluster address does not say what the API server has made of it.
    """
    spec = mapping(item.content, "spec", item.place)
    labels = mapping(item.metadata, "labels", item.place.under("metadata"))
    return bool(spec.get("clusterIP")) or spec.get("type") == "ExternalName" or PROXY_LABEL in labels


def _age(metadata: Mapping[str, object]) -> tuple[bool, str]:
    """Times of an API server sort as text. A loader of YAML may have made one a datetime."""
    created = metadata.get("creationTimestamp")
    value = created.isoformat() if hasattr(created, "isoformat") else str(created or "")
    return not value, value.replace("+00:00", "Z")


def _cluster_addresses(
    item: Item, spec: Mapping[str, object], place: Place, addresses: Addresses, notices: Notices
) -> dict[int, bytes]:
    """Family -> cluster IP. Without ipFamilies that of `clusterIP` alone, as kube-proxy has it."""
    primary = text(spec, "clusterIP", place)
    wanted = texts(spec, "ipFamilies", place)
    given = texts(spec, "clusterIPs", place) or [primary]
    paths = [place.under("clusterIPs").under(number) for number in range(len(given))]
    if not wanted or not spec.get("clusterIPs"):
        given, paths = [primary], [place.under("clusterIP")]
    found: dict[int, bytes] = {}
    for number, (value, path) in enumerate(zip(given, paths, strict=True)):
        address = addresses.read(value)
        fault = special(*address) if address else "no address"
        if address is None or (fault and fault != LINK_LOCAL):
            raise ObjectProblem(path, f"expected a cluster IP, got {shown(value)} ({fault})")
        if not wanted:
            found[address[0]] = address[1]
        elif number < len(wanted):
            if FAMILIES.get(wanted[number]) == address[0]:
                found.setdefault(*address)
            else:
                notices.warn(item.subject, f"cluster IP {value} is not of the family {shown(wanted[number])}")
    return found


def _ports(
    item: Item, spec: Mapping[str, object], place: Place, kind: str, notices: Notices
) -> tuple[ServicePort, ...]:
    found: list[ServicePort] = []
    seen: set[tuple[str, int, object]] = set()
    given = objects(spec, "ports", place)
    if not given:
        notices.warn(item.subject, "has no ports: nothing to serve")
    for number, one in enumerate(given):
        path = place.under("ports").under(number)
        named = port_name(one, "name", path)
        port = port_number(one, "port", path)
        if not port:
            raise ObjectProblem(
                path.under("port"), "expected 1-65535, got 0" if "port" in one else "is missing"
            )
        transport = choice(one, "protocol", path, ("TCP", "UDP", SCTP))
        label = named or str(port)
        if transport == SCTP:
            notices.warn(item.subject, f"port {label} is not served: SCTP is not balanced here")
            continue
        protocol = PROTOCOLS[transport]
        doubles = {("port", protocol, port), ("name", protocol, named), ("label", protocol, label)}
        if doubles & seen:
            cause = "an earlier port has its name or its number, or has no name either"
            notices.warn(item.subject, f"port {label}/{transport} is left out: {cause}")
            continue
        seen |= doubles
        found.append(
            ServicePort(named, label, protocol, port, _node_port(item, one, path, kind, label, notices))
        )
    return tuple(found)


def _node_port(
    item: Item, one: Mapping[str, object], path: Place, kind: str, label: str, notices: Notices
) -> int:
    value = integer(one, "nodePort", path) or 0
    if not value:
        return 0
    if not 0 < value <= 65535:
        notices.warn(item.subject, f"port {label} has no node port: {value} is not in 1-65535")
        return 0
    if kind == CLUSTER_IP:
        notices.warn(item.subject, f"port {label} has no node port: the type ClusterIP has none")
        return 0
    return value


def _listed(item: Item, what: str, given: list[str], addresses: Addresses, notices: Notices) -> list[Address]:
    """Addresses that others than the API server chose: what cannot be one is left out and told."""
    found: dict[Address, None] = {}
    for value in given:
        address = addresses.read(value.strip())
        fault = special(*address) if address else "no address"
        if address is not None and fault == LINK_LOCAL and address[0] == IPV4 and what != "externalIPs":
            fault = ""  # some clouds have balancers there
        if address is None or fault:
            notices.warn(item.subject, f"{shown(value)} in {what} is left out: {fault}")
        else:
            found[address] = None
    return list(found)


def _balancer(item: Item, addresses: Addresses, notices: Notices) -> list[Address]:
    """Addresses of load balancers whose packets arrive with that address as destination (ipMode VIP)."""
    place = item.place.under("status")
    status = mapping(item.content, "status", item.place)
    balancer = mapping(status, "loadBalancer", place)
    given: list[str] = []
    inside = place.under("loadBalancer")
    for number, entry in enumerate(objects(balancer, "ingress", inside)):
        path = inside.under("ingress").under(number)
        value = text(entry, "ip", path)
        if value and (text(entry, "ipMode", path) or "VIP") == "VIP":
            given.append(value)
    return _listed(item, "status.loadBalancer.ingress", given, addresses, notices)


def _ranges(
    item: Item, spec: Mapping[str, object], place: Place, notices: Notices
) -> tuple[tuple[tuple[int, bytes, int], ...], bool]:
    found: set[tuple[int, bytes, int]] = set()
    unread = False
    for value in texts(spec, "loadBalancerSourceRanges", place):
        known = read_range(value)
        if known is None:
            unread = True
            notices.warn(
                item.subject, f"{shown(value)} in loadBalancerSourceRanges is no prefix: it admits nobody"
            )
        else:
            found.add(known)
    return tuple(sorted(found)), unread


def _affinity(item: Item, spec: Mapping[str, object], place: Place, notices: Notices) -> int:
    """Seconds, 0 without affinity."""
    if choice(spec, "sessionAffinity", place, ("None", "ClientIP")) == "None":
        return 0
    inside = place.under("sessionAffinityConfig")
    client = mapping(mapping(spec, "sessionAffinityConfig", place), "clientIP", inside)
    seconds = integer(client, "timeoutSeconds", inside.under("clientIP"))
    if seconds is None:
        return DEFAULT_AFFINITY_SECONDS
    if not 1 <= seconds <= MAX_AFFINITY_SECONDS:
        took = f"{DEFAULT_AFFINITY_SECONDS} are taken"
        notices.warn(
            item.subject, f"affinity of {seconds} seconds is not in 1-{MAX_AFFINITY_SECONDS}: {took}"
        )
        return DEFAULT_AFFINITY_SECONDS
    return seconds


def _health_port(item: Item, spec: Mapping[str, object], place: Place, notices: Notices) -> int:
    value = integer(spec, "healthCheckNodePort", place) or 0
    if not 0 <= value <= 65535:
        notices.warn(item.subject, f"has no health-check port: {value} is not in 1-65535")
        return 0
    return value
