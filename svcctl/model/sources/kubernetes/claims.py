"""Who gets what two Services claim: a frontend, or a health-check port (R9, R31, R33; the order of objects is nothing).

A cluster IP goes before what a load balancer was given, that before an external IP, which anybody can write down;
then the oldest Service wins, then the first by namespace and name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.constants import TCP
from svcctl.model.service_endpoint import (
    KIND_CLUSTER,
    KIND_EXTERNAL,
    KIND_LOAD_BALANCER,
    KIND_NODE_PORT,
    format_frontend,
)
from svcctl.model.sources.kubernetes.notices import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcctl.model.service import ServiceFrontend
    from svcctl.model.service_endpoint import Frontend
    from svcctl.model.sources.kubernetes.notices import Notices
    from svcctl.model.sources.kubernetes.services import Facts

    Claimant = tuple[Facts, str, list[ServiceFrontend]]
    """A Service, the name of one of its ports as a service of svcctl's, and that one's frontends."""

_RANK = {KIND_CLUSTER: 0, KIND_NODE_PORT: 0, KIND_LOAD_BALANCER: 1, KIND_EXTERNAL: 2}


def settle_frontends(claimants: Sequence[Claimant], notices: Notices) -> None:
    """Takes frontends that another claimant has a better right to out of the lists, and tells of each.

    `claimants` come oldest first, then by name.
    """
    owners: dict[Frontend, tuple[int, int, Claimant]] = {}
    lost: list[tuple[Frontend, Claimant]] = []
    for number, claimant in enumerate(claimants):
        for frontend, kind in claimant[2]:
            claim = (_RANK[kind], number, claimant)
            known = owners.setdefault(frontend, claim)
            if known is claim:
                continue
            if claim[:2] < known[:2]:
                owners[frontend] = claim
                claim = known
            lost.append((frontend, claim[2]))
    taken: dict[str, set[Frontend]] = {}
    told: dict[tuple[str, str, str], list[Frontend]] = {}
    for frontend, (service, name, _) in lost:
        taken.setdefault(name, set()).add(frontend)
        told.setdefault((service.item.subject, name, owners[frontend][2][1]), []).append(frontend)
    for (subject, name, winner), those in told.items():
        texts = [format_frontend(each) for each in sorted(those)]
        what = "they are" if len(texts) > 1 else "it is"
        notices.warn(subject, f"{name} does not get {some(texts)}: {what} {winner}'s")
    for _, name, frontends in claimants:
        if name in taken:
            frontends[:] = [each for each in frontends if each.frontend not in taken[name]]


def settle_health_ports(
    services: Iterable[Facts], claimants: Iterable[Claimant], notices: Notices
) -> dict[tuple[str, str], int]:
    """Health-check port of each Service that has one, by namespace and name.

    One that is a node port of TCP would take its connections, and is refused. `services` come oldest first.
    """
    node_ports = {
        each.frontend.port: name
        for _, name, frontends in claimants
        for each in frontends
        if each.kind == KIND_NODE_PORT and each.frontend.protocol == TCP
    }
    found: dict[tuple[str, str], int] = {}
    owners: dict[int, str] = {}
    for service in services:
        port = service.health_port
        if not port:
            continue
        subject = service.item.subject
        owner = node_ports.get(port) or owners.setdefault(port, subject)
        if owner == subject:
            found[service.key] = port
        else:
            notices.warn(subject, f"health-check port {port} is not answered: it is {owner}'s")
    return found
