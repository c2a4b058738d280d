"""svcctl's own file of bindings, services and nodes, in YAML or JSON: svcctl(5). `document` writes what `read` reads.

    version: 1
    settings: {tunnel_port: 4790}
    bindings:
      - {label: web, protocol: tcp, prefix: 192.0.2.0/24, port: 443}
    services:
      - name: shop
        frontends: ["10.96.0.10:80/tcp"]
        backends: ["10.1.0.1:8080", {address: "10.1.0.2:8080", weight: 3}]
    nodes:
      - {name: worker-2, addresses: [192.0.2.12], pod_prefixes: [10.244.2.0/24]}

An unknown key is an error, and so is whatever a command would refuse: half a file is worse than none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import show
from svcctl.model.desired import CONSUL, NATIVE, NOMAD, NOTE, Desired, Notice
from svcctl.model.label import MAX_OWNER_BYTES, check_name
from svcctl.model.prefix import parse_prefix
from svcctl.model.service_endpoint import format_frontend
from svcctl.model.sources.fields import Fields
from svcctl.model.sources.native_bindings import read_bindings
from svcctl.model.sources.native_nodes import read_nodes
from svcctl.model.sources.native_services import read_service
from svcctl.model.sources.native_settings import read_settings
from svcctl.model.sources.native_writing import document
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.binding import Binding
    from svcctl.model.desired import Node
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Frontend
    from svcctl.model.sources.document import Document
    from svcctl.model.sources.instances import Instances
    from svcctl.model.sources.options import Options

__all__ = ["VERSION", "document", "read"]

VERSION = 1
KEYS = ("version", "owner", "node_port_addresses", "settings", "bindings", "services", "nodes")
ONE_OF = ("services", "bindings", "nodes", "settings")
"""A document has one of them, or says nothing."""

MAX_FRONTENDS = 262_144
"""Of a file. A range of ports counts as all of its ports."""


def read(documents: Sequence[Document], registries: Mapping[str, Instances], options: Options) -> Desired:
    """What the documents ask for together. `registries`: what services may take backends from, by kind.

    Raises InputProblem.
    """
    owner = options.owner or _owner_of(documents)
    services: dict[str, Service] = {}
    owners_of: dict[Frontend, str] = {}
    bindings: dict[bytes, Binding] | None = None
    owners: dict[bytes, str] = {}
    node_port_addresses: tuple[Prefix, ...] | None = None
    settings: PacketSettings | None = None
    used: set[tuple[str, str]] = set()
    nodes: dict[str, Node] = {}
    no_services = True
    says_nodes = False
    for each in documents:
        fields = _document(each)
        if "node_port_addresses" in fields:
            node_port_addresses = _node_port_addresses(fields, node_port_addresses)
        if "settings" in fields:
            settings = read_settings(fields, settings)
        says_nodes = says_nodes or "nodes" in fields
        read_nodes(fields, owner, nodes, options.node if options.node_said else "")
        no_services = no_services and "services" not in fields
        if "bindings" in fields:
            bindings = {} if bindings is None else bindings
            read_bindings(fields, bindings, owners)
        for number, entry in enumerate(fields.array("services")):
            inside = Fields(each, ("services", number), entry)
            service = read_service(inside, owner, registries)
            used.update((kind, str(inside.raw(kind))) for kind in (CONSUL, NOMAD) if kind in inside)
            if service.name in services:
                raise inside.problem(f"there is a service {show(service.name)} already", "name")
            services[service.name] = service
            for frontend, _ in service.frontends:
                other = owners_of.setdefault(frontend, service.name)
                if other != service.name:
                    cause = f"{format_frontend(frontend)} is a frontend of {show(other)} already"
                    raise inside.problem(cause, "frontends")
            if len(owners_of) > MAX_FRONTENDS:
                raise inside.problem(f"more than {MAX_FRONTENDS} frontends in all", "frontends")
    return Desired(
        NATIVE,
        owner,
        tuple(services.values()),
        None if bindings is None else tuple(bindings.values()),
        node_port_addresses=node_port_addresses,
        notices=_notices(registries, used),
        blockers=_blockers(registries, used),
        no_services=no_services,
        binding_owners=owners,
        nodes=tuple(nodes.values()),
        says_nodes=says_nodes,
        settings=settings,
    )


def _owner_of(documents: Sequence[Document]) -> str:
    """Who the documents say their objects belong to. They have to agree: it is one state that is asked for."""
    found: str | None = None
    for each in documents:
        fields = _document(each)
        owner = NATIVE
        if "owner" in fields:
            owner = fields.text("owner")
            if owner:
                owner = fields.parsed(lambda text: check_name("owner", text, MAX_OWNER_BYTES), owner, "owner")
        if found is not None and owner != found:
            raise fields.problem(
                f"the objects are {show(owner)}'s, those of an earlier document {show(found)}'s"
            )
        found = owner
    return NATIVE if found is None else found


def _node_port_addresses(fields: Fields, before: tuple[Prefix, ...] | None) -> tuple[Prefix, ...]:
    """Where node ports are served; documents have to agree."""
    key = "node_port_addresses"
    found = tuple(
        sorted({fields.parsed(parse_prefix, text, key, n) for n, text in enumerate(fields.texts(key))})
    )
    if before is not None and before != found:
        raise fields.problem("an earlier document has others", key)
    return found


def _document(document: Document) -> Fields:
    for steps, text, value in document.odd_numbers:
        cause = f"{text} is {value} in YAML"
        raise document.problem(steps, cause, hint=f"write {value}, or {text!r} if it is a text")
    fields = Fields(document, (), document.value)
    fields.require("version")
    version = fields.raw("version")
    if type(version) is not int or version != VERSION:
        raise fields.problem(f"expected {VERSION}, got {shown(version)}", "version")
    fields.allow(KEYS)
    if not any(key in fields for key in ONE_OF):
        words = ", ".join(f'"{key}"' for key in ONE_OF[:-1])
        raise fields.problem(f'has no {words} or "{ONE_OF[-1]}"', hint="services: [] stands for none")
    return fields


def _notices(registries: Mapping[str, Instances], used: set[tuple[str, str]]) -> tuple[Notice, ...]:
    """What the registries' readers had to say, and which of their services nobody asked for."""
    found: list[Notice] = []
    for kind, instances in registries.items():
        found += instances.notices
        idle = [name for name in instances.members if (kind, name) not in used]
        if idle:
            some = ", ".join(idle[:5]) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
            found.append(Notice(NOTE, kind, f"no service takes its backends from {some}"))
    return tuple(found)


def _blockers(registries: Mapping[str, Instances], used: set[tuple[str, str]]) -> tuple[str, ...]:
    """A registry that knows no instance at all may have lost its own."""
    return tuple(
        f"{kind} knows no instance of {show(name)}: needs one at least"
        for kind, name in sorted(used)
        if not registries[kind].members[name]
    )
