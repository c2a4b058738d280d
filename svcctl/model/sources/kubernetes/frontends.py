"""The frontends of one port of a Service, the source ranges of its load balancers, and who may take which address.

R7 to R11, R27 and CVE-2020-8554 (externalIPs are a Service author's own choice).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import Prefix, covers, format_address
from svcctl.model.service import ServiceFrontend, is_filtered, node_port_frontends
from svcctl.model.service_endpoint import (
    KIND_CLUSTER,
    KIND_EXTERNAL,
    KIND_LOAD_BALANCER,
    Frontend,
    zero_address,
)
from svcctl.model.sources.kubernetes.notices import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcctl.model.desired import Node
    from svcctl.model.sources.kubernetes.addresses import Address
    from svcctl.model.sources.kubernetes.notices import Notices
    from svcctl.model.sources.kubernetes.services import Facts, ServicePort

_FAMILY_WORDS = {IPV4: "IPv4", IPV6: "IPv6"}


MAX_EXTERNAL, MAX_EXTERNAL_IN_ALL = 1 << 14, 1 << 18
"""Frontends of a Service's external IPs, and of all: each is one at each port, and anybody can write down many."""


def admit_external(
    services: Sequence[Facts], nodes: Iterable[Node], allowed: Sequence[Prefix] | None, notices: Notices
) -> dict[tuple[str, str], tuple[Address, ...]]:
    """The external addresses of each Service, by namespace and name, that the policy lets it have.

    `allowed`: the prefixes they may be in; None: any. One that is somebody else's is told: whoever may
    write a Service can claim any address with it.
    """
    owners: dict[Address, str] = {}
    for node in nodes:
        for address in node.addresses:
            owners.setdefault(address, f"node {node.name}")
    for each in services:
        for address in each.balancer:
            owners[address] = _subject(each)
    for each in services:
        for address in each.cluster.items():
            owners[address] = _subject(each)
    found = {}
    left = MAX_EXTERNAL_IN_ALL
    for each in services:
        kept: list[Address] = []
        refused: list[Address] = []
        others: dict[str, list[Address]] = {}
        for address in each.external:
            if allowed is not None and not any(covers(prefix, *address) for prefix in allowed):
                refused.append(address)
                continue
            owner = owners.get(address)
            if owner is not None and owner != _subject(each):
                others.setdefault(owner, []).append(address)
            kept.append(address)
        subject = each.item.subject
        if refused:
            notices.warn(subject, f"{_external(refused)} not served: --external-ips does not allow it")
        for owner, addresses in others.items():
            what = "the addresses" if len(addresses) > 1 else "the address"
            notices.warn(subject, f"{_external(addresses)} {what} of {owner}")
        frontends = len(kept) * len(each.ports)
        if frontends > min(MAX_EXTERNAL, left):
            kept = []
            notices.warn(
                subject, f"its external IPs are not served: with its ports they are {frontends} frontends"
            )
        else:
            left -= frontends
        found[each.key] = tuple(kept)
    return found


def _external(addresses: Sequence[Address]) -> str:
    """`external IP 192.0.2.1 is`, or of more `external IPs ... are`."""
    texts = [format_address(*each) for each in addresses]
    return f"external IPs {some(texts)} are" if len(texts) > 1 else f"external IP {texts[0]} is"


def frontends_of(service: Facts, port: ServicePort, external: Iterable[Address]) -> list[ServiceFrontend]:
    """All that the port may be reached at. An address that is there in two ways counts once.

    As cluster IP before anything else; as load balancer before external IP if there are source ranges, so
    that listing it twice opens nothing.
    """
    kinds: dict[Address, int] = dict.fromkeys(service.cluster.items(), KIND_CLUSTER)
    shut = {each for each in service.balancer if _shut(service, each[0])}
    others = [(each, KIND_EXTERNAL) for each in external if each not in shut]
    balancer = [(each, KIND_LOAD_BALANCER) for each in service.balancer if each not in shut]
    for address, kind in balancer + others if service.ranges else others + balancer:
        kinds.setdefault(address, kind)
    found = [
        ServiceFrontend(Frontend(family, address, port.port, port.protocol), kind)
        for (family, address), kind in kinds.items()
    ]
    if port.node_port:
        found += node_port_frontends(found, port.node_port)
    return found


def sources_of(
    service: Facts, frontends: Iterable[ServiceFrontend], own_addresses: Sequence[Address], notices: Notices
) -> tuple[Prefix, ...]:
    """The source ranges for these frontends, none if they filter nobody.

    As kube-proxy: a family without a range of its own is not filtered; and where a range has this node's
    address, the balancer's own address is one that the node may send from. A range written in a way that
    cannot be read admits nobody.
    """
    balancer = sorted({each.frontend[:2] for each in frontends if each.kind == KIND_LOAD_BALANCER})
    if not balancer or not service.ranges:
        return ()
    families = {family for family, _ in balancer}
    found = {Prefix(*each) for each in service.ranges if each[0] in families}
    opened = families - {each.family for each in found}
    found |= {Prefix(family, zero_address(family), 0) for family in opened}
    if not any(is_filtered(found, family) for family in families):
        return ()
    for word in (_FAMILY_WORDS[family] for family in opened):
        text = f"no source range is {word}: its {word} load balancer admits everybody"
        notices.note(service.item.subject, text)
    for family, address in balancer:
        if any(covers(each, *own) for each in service.ranges for own in own_addresses if own[0] == family):
            found.add(Prefix(family, address, 32 if family == IPV4 else 128))
    return tuple(sorted(found))


def external_reach(frontends: Iterable[ServiceFrontend]) -> bool:
    """Whether the external policy has anything to say: some frontend is not the cluster's own."""
    return any(each.kind != KIND_CLUSTER for each in frontends)


def _shut(service: Facts, family: int) -> bool:
    """Whether load balancers of the family are left out: who may use them could not be read."""
    return service.unread_ranges and not any(each[0] == family for each in service.ranges)


def _subject(service: Facts) -> str:
    return service.item.subject
