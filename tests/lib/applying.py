"""Desired states made in tests, applied by svcctl's own code without files and processes in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from svcctl.maps import catalog
from svcctl.model.binding import Binding
from svcctl.model.desired import NATIVE, Desired
from svcctl.model.prefix import parse_prefix
from svcctl.model.service import Member, Service, ServiceFrontend, node_port_frontends
from svcctl.model.service_endpoint import parse_backend_spec, parse_frontend
from svcctl.state import services
from svcctl.state.apply import Prepared, carry_out, prepare
from svcctl.state.audit import audit
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import lock_state, open_writer


def service(name: str, fronts: str = "", backends: str = "", **fields: Any) -> Service:
    """A service from texts: frontends `10.0.0.1:80/tcp` and backends `10.1.0.1:80,weight=3`, parted by blanks."""
    kind = fields.pop("kind", 0)
    frontends = [ServiceFrontend(parse_frontend(text), kind) for text in fronts.split()]
    if fields.get("node_port"):
        frontends += node_port_frontends(frontends, fields["node_port"])
    if "sources" in fields:
        fields["sources"] = tuple(parse_prefix(text) for text in fields["sources"].split())
    members = []
    for spec in map(parse_backend_spec, backends.split()):
        weight = 1 if spec.weight is None else spec.weight
        members.append(Member(spec.backend, weight, spec.state or 0, bool(spec.local)))
    fields.setdefault("owner", NATIVE)
    return Service(name, frontends=tuple(frontends), members=tuple(members), **fields)


def binding(label: str, protocol: int, prefix: str, port: int) -> Binding:
    """A binding from texts."""
    family, address, length = parse_prefix(prefix)
    return Binding(label, protocol, family, address, length, port)


def desired(
    *wanted: Service,
    bindings: Iterable[Binding] | None = None,
    owner: str = NATIVE,
    kind: str = NATIVE,
    **fields: Any,
) -> Desired:
    """What one source asks for."""
    return Desired(kind, owner, tuple(wanted), None if bindings is None else tuple(bindings), **fields)


def apply(*wanted: Desired, prune: bool = True, take_over: bool = False) -> Prepared:
    """Plan and carry out."""
    with open_writer(Place(), "test apply") as writer:
        prepared = prepare(writer, wanted, prune=prune, take_over=take_over)
        carry_out(writer, prepared)
    return prepared


def actions(prepared: Prepared) -> dict[str, str]:
    """Service -> what happened to it."""
    return {step.name: step.action for step in prepared.plan.services}


def stored() -> dict[str, services.Stored]:
    """The services there are."""
    with open_reader(Place()) as reader:
        return services.read_all(reader)


def plain(one: Service) -> Service:
    """Without what the state adds: ids, times, orders."""
    return one._replace(
        id=0,
        changed_ns=0,
        frontends=tuple(sorted(one.frontends)),
        members=tuple(sorted(member._replace(since_ns=0) for member in one.members)),
        sources=tuple(sorted(one.sources)),
    )


def plain_services() -> dict[str, Service]:
    """The services there are, to be compared."""
    return {name: plain(one.service) for name, one in stored().items()}


def problems() -> list[str]:
    """What a look at everything finds broken."""
    with lock_state(Place(), "test audit") as writer:
        return [f"{one.invariant}: {one.message}" for one in audit(writer, deep=True)]


def used() -> dict[str, int]:
    """Entries of each counted map."""
    with open_reader(Place()) as reader:
        return {
            name: reader.usage(name).used
            for name, shape in catalog.SERVICE_MAPS.items()
            if shape.usage is not None
        }


def maps(names: Sequence[str]) -> dict[str, dict[bytes, bytes]]:
    """The content of some maps."""
    with open_reader(Place()) as reader:
        return {name: dict(reader.map(name).items()) for name in names}
