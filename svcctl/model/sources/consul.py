"""Consul's answers: GET /v1/health/service/NAME, several of them keyed by name, or /v1/catalog/service/NAME.

Consul knows backends and no addresses that clients use: a service of svcctl's own file takes them with
`consul: NAME`. A check that is critical, and maintenance, which is a critical check, make a backend drain: no new
connections, while those it has may go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import show
from svcctl.model.constants import IPV6
from svcctl.model.desired import CONSUL, NOTE, WARNING, Notice
from svcctl.model.service import Member
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    DRAINING,
    MAX_WEIGHT,
    is_loopback,
    parse_backend,
)
from svcctl.model.sources.fields import Fields
from svcctl.model.sources.instances import Instances, merge
from svcctl.model.sources.ports import MAX_PORT
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcctl.model.sources.document import Document
    from svcctl.model.sources.options import Options

PASSING, WARN, CRITICAL, MAINTENANCE = "passing", "warning", "critical", "maintenance"


def looks_like(entry: object) -> bool:
    """Whether an entry of an answer is Consul's."""
    return isinstance(entry, dict) and (
        ("Node" in entry and "Service" in entry) or ("ServiceName" in entry and "ServicePort" in entry)
    )


def read(documents: Sequence[Document], options: Options) -> Instances:
    """All instances of all documents. Raises InputProblem."""
    found: dict[str, list[Member]] = {}
    notices: list[Notice] = []
    for document in documents:
        for known, entry in entries(document):
            is_health = "Service" in entry
            name, member = (_health if is_health else _catalog)(entry, options, notices)
            instances = found.setdefault(known or name, [])
            if member is not None:
                instances.append(member)
        for name in empty_names(document):
            found.setdefault(name, [])
    return Instances(
        CONSUL, documents[0].source, {name: merge(members) for name, members in found.items()}, tuple(notices)
    )


def entries(document: Document) -> Iterator[tuple[str, Fields]]:
    """(name it is keyed by or "", fields) of each entry of an answer, or of answers keyed by name."""
    value = document.value
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield "", Fields(document, (number,), entry)
    elif isinstance(value, dict):
        for name, answers in value.items():
            if not isinstance(answers, list):
                raise document.problem((name,), f"expected an array, got {shown(answers)}")
            for number, entry in enumerate(answers):
                yield name, Fields(document, (name, number), entry)


def empty_names(document: Document) -> list[str]:
    """The names of answers without an entry."""
    value = document.value
    return [name for name, answers in value.items() if not answers] if isinstance(value, dict) else []


def _health(entry: Fields, options: Options, notices: list[Notice]) -> tuple[str, Member | None]:
    node = Fields(entry.document, (*entry.steps, "Node"), entry.raw("Node") or {})
    service = Fields(entry.document, (*entry.steps, "Service"), entry.raw("Service"))
    name = service.text("Service")
    address, port, where = service.text("Address"), service.number("Port", MAX_PORT), "Service"
    if not address:
        address, where = node.text("Address"), "Node"
    if options.consul_address:
        tagged = service.raw("TaggedAddresses")
        chosen = tagged.get(options.consul_address) if isinstance(tagged, dict) else None
        if chosen is not None:
            steps = (*service.steps, "TaggedAddresses", options.consul_address)
            inside = Fields(entry.document, steps, chosen)
            address, port = inside.text("Address"), inside.number("Port", MAX_PORT)
    if not port:
        notices.append(Notice(NOTE, f"{CONSUL} {name}", f"an instance on {address} has no port: left out"))
        return name, None
    status = _status(entry)
    weights = Fields(entry.document, (*service.steps, "Weights"), service.raw("Weights") or {})
    weight = weights.number("Warning" if status == WARN else "Passing", MAX_WEIGHT, DEFAULT_WEIGHT)
    member = make_member(entry, address, port, where, node.text("Node"), options, f"{CONSUL} {name}", notices)
    if member is None:
        return name, None
    return name, member._replace(weight=weight, state=ACTIVE if status in (PASSING, WARN) else DRAINING)


def _catalog(entry: Fields, options: Options, notices: list[Notice]) -> tuple[str, Member | None]:
    name = entry.text("ServiceName")
    address, where = entry.text("ServiceAddress"), "ServiceAddress"
    if not address:
        address, where = entry.text("Address"), "Address"
    notice = Notice(
        WARNING, f"{CONSUL} {name}", "the catalog says nothing of health: all are taken as passing"
    )
    if notice not in notices:
        notices.append(notice)
    port = entry.number("ServicePort", MAX_PORT)
    if not port:
        notices.append(Notice(NOTE, f"{CONSUL} {name}", f"an instance on {address} has no port: left out"))
        return name, None
    place, node = f"{CONSUL} {name}", entry.text("Node")
    return name, make_member(entry, address, port, where, node, options, place, notices)


def make_member(
    entry: Fields,
    address: str,
    port: int,
    where: str,
    node: str,
    options: Options,
    subject: str,
    notices: list[Notice],
) -> Member | None:
    """The backend of an instance that runs on that node. Raises InputProblem.

    None: another node's loopback address, which is left out where a conversion may be partial.
    """
    text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    backend = entry.parsed(parse_backend, text, where)
    is_local = bool(options.node) and node == options.node
    if is_loopback(backend.family, backend.address) and not is_local:
        host = "::1" if backend.family == IPV6 else address
        whose = f"node {show(node)}" if node else "another node"
        if options.partial:
            text = f"left out: {host}:{port} is of {whose} alone"
            notices.append(Notice(WARNING, subject, text))
            return None
        raise entry.problem(f"{host} is of {whose} alone", where, hint=f"if that is here, say --node {node}")
    return Member(backend, local=is_local)


def _status(entry: Fields) -> str:
    """The worst of the checks."""
    worst = PASSING
    for number, check in enumerate(entry.array("Checks") if entry.raw("Checks") is not None else ()):
        inside = Fields(entry.document, (*entry.steps, "Checks", number), check)
        status = inside.text("Status")
        if status not in (PASSING, WARN, CRITICAL, MAINTENANCE):
            raise inside.problem(f"expected passing, warning or critical, got {shown(status)}", "Status")
        if inside.text("CheckID").startswith(("_node_maintenance", "_service_maintenance")):
            status = MAINTENANCE
        if status in (CRITICAL, MAINTENANCE):
            return CRITICAL
        if status == WARN:
            worst = WARN
    return worst
