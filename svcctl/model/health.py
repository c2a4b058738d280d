"""What `svcctl health` is asked and answers: kube-proxy's health of a node and of its services. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

OK, UNAVAILABLE = 200, 503


class ServiceHealth(Record):
    """A service that has a health-check port, and how many ready endpoints this node has for it."""

    namespace: str
    name: str
    ready: int


class Health(Record):
    """A look at the state: services by health-check port, and what is said of the node.

    `eligible`: load balancers may send it traffic. `pending` is since when a change could not be applied and
    `changed` when the state was last changed, in seconds since 1970; 0: never. `fault` says what keeps the node
    from serving, or is empty. `addresses` are those where health-check ports are answered; None: all of them.
    """

    ports: dict[int, ServiceHealth]
    eligible: bool
    pending: float
    changed: float
    fault: str = ""
    addresses: tuple[str, ...] | None = None


class Answer(Record):
    """Status, headers beyond Content-Type and the usual ones, body (JSON)."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def kubernetes_name(service: str) -> tuple[str, str]:
    """Namespace and name of the Service that `namespace/name:port/protocol` is a port of.

    A service that nobody in Kubernetes made has no namespace, and its own name.
    """
    namespace, slash, rest = service.partition("/")
    if not slash:
        return "", service
    return namespace, rest.partition(":")[0]


def ports_of(rows: Iterable[tuple[str, int, int]]) -> dict[int, ServiceHealth]:
    """Services by health-check port, from (name, port, ready endpoints) of each port of a service.

    The ports of one Service all say the same. Of two that claim one port the first by name has it.
    """
    found: dict[int, ServiceHealth] = {}
    for name, port, ready in sorted(rows):
        if not port:
            continue
        one = ServiceHealth(*kubernetes_name(name), ready)
        known = found.setdefault(port, one)
        if known[:2] == one[:2] and known.ready < ready:
            found[port] = one
    return found


def is_healthy(health: Health, now: float, late: float) -> bool:
    """Whether the node serves what it should: no change has waited for longer than `late` seconds."""
    return not health.fault and not (health.pending and now - health.pending > late)


def service_answer(service: ServiceHealth, healthy: bool) -> Answer:
    """What a health-check port says: 200 while there is a ready endpoint here."""
    body = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": service.ready,
        "serviceProxyHealthy": healthy,
    }
    return Answer(
        OK if service.ready and healthy else UNAVAILABLE,
        (("X-Load-Balancing-Endpoint-Weight", str(service.ready)),),
        json.dumps(body, indent="\t").encode(),
    )


def node_answer(health: Health, now: float, late: float, *, eligibility: bool) -> Answer:
    """What /healthz (with `eligibility`) and /livez (without: for decisions on restarts) say.

    `lastUpdated` of a healthy node is now, as kube-proxy has it; of one that is not, when it last changed.
    """
    healthy = is_healthy(health, now, late)
    body = {
        "lastUpdated": _time(now if healthy else health.changed),
        "currentTime": _time(now),
        **({"nodeEligible": health.eligible} if eligibility else {}),
        **({"reason": health.fault} if health.fault else {}),
    }
    good = healthy and (health.eligible or not eligibility)
    return Answer(OK if good else UNAVAILABLE, (), json.dumps(body).encode())


def _time(seconds: float) -> str:
    """RFC 3339 in UTC."""
    import time

    whole = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{int((seconds - whole) * 1e6):06}Z"


def faults(attachments: Iterable[tuple[str, bool]]) -> str:
    """A line about programs (name, whether it is attached) that should be attached and are not."""
    lost = [name for name, up in attachments if not up]
    return f"not attached: {', '.join(lost)}" if lost else ""
