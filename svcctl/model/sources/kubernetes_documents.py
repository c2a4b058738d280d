"""Hands documents to the reader of Kubernetes' objects, and gives its errors their file and line.

The state file of Cilium (`--lb-state-file`) is read by the same rules: Services and EndpointSlices in two lists,
cut down to what matters, where a Service may do without a cluster address of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.model.prefix import format_address, parse_prefix
from svcctl.model.sources.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.desired import Desired
    from svcctl.model.sources.document import Document
    from svcctl.model.sources.options import Options

    Place = tuple[Document, str, str]
    """A document, the path in it that an object has, and the path that the object's reader takes it for."""

STATE_FILE = "cilium"
"""Kind and owner of what a state file asks for."""

_STAND_INS = (parse_prefix("198.18.0.0/15"), parse_prefix("2001:2::/48"))
"""Where Services without a cluster address get them while they are read: nobody's (RFC 2544, RFC 5180)."""


def read_kubernetes(documents: Sequence[Document], options: Options) -> Desired:
    """What the objects of all documents ask for. Raises InputProblem."""
    objects: list[Mapping[str, Any]] = []
    places: list[Place] = []
    for document in documents:
        value = document.value
        if isinstance(value, list):  # what `jq .items` leaves of a list
            objects.append({"apiVersion": "v1", "kind": "List", "items": value})
            places.append((document, "$", "$.items"))
        elif isinstance(value, dict):
            objects.append(value)
            places.append((document, "$", "$"))
    return _desired(objects, places, options)


def looks_like_state_file(value: object) -> bool:
    """Whether a document is Cilium's state file."""
    return (
        isinstance(value, dict)
        and value.keys() <= {"services", "endpoints"}
        and any(
            isinstance(each, dict) and "metadata" in each
            for entries in value.values()
            if isinstance(entries, list)
            for each in entries[:1]
        )
    )


def read_state_files(documents: Sequence[Document], options: Options) -> Desired:
    """What Cilium's state files ask for. Raises InputProblem."""
    objects: list[Mapping[str, Any]] = []
    places: list[Place] = []
    made_up: set[tuple[int, bytes]] = set()
    for document in documents:
        fields = Fields(document, (), document.value)
        for number, entry in enumerate(fields.array("services")):
            service = {"apiVersion": "v1", "kind": "Service", **_object(document, "services", number, entry)}
            _give_address(service, made_up)
            objects.append(service)
            places.append((document, f"$.services[{number}]", "$"))
        for number, entry in enumerate(fields.array("endpoints")):
            found = _object(document, "endpoints", number, entry)
            objects.append({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **found})
            places.append((document, f"$.endpoints[{number}]", "$"))
    desired = _desired(objects, places, options._replace(owner=options.owner or STATE_FILE))
    services = []
    for each in desired.services:
        frontends = tuple(one for one in each.frontends if one.frontend[:2] not in made_up)
        if frontends:
            services.append(each._replace(frontends=frontends))
    return desired._replace(kind=STATE_FILE, services=tuple(services), namespaces=None)


def _object(document: Document, key: str, number: int, entry: object) -> Mapping[str, Any]:
    Fields(document, (key, number), entry)  # refuses what is none
    return entry if isinstance(entry, dict) else {}


def _give_address(service: dict[str, Any], made_up: set[tuple[int, bytes]]) -> None:
    """Stand-ins for the cluster addresses that the rules ask for."""
    spec = service.get("spec")
    if not isinstance(spec, dict) or spec.get("clusterIP") or spec.get("type") == "ExternalName":
        return
    number = len(made_up) // len(_STAND_INS) + 1
    found = [
        (family, (int.from_bytes(base, "big") + number).to_bytes(16, "big")) for family, base, _ in _STAND_INS
    ]
    made_up.update(found)
    texts = [format_address(*each) for each in found]
    service["spec"] = {**spec, "clusterIP": texts[0], "clusterIPs": texts, "ipFamilies": ["IPv4", "IPv6"]}


def _desired(objects: Sequence[Mapping[str, Any]], places: Sequence[Place], options: Options) -> Desired:
    from svcctl.model.sources.kubernetes import desired
    from svcctl.model.sources.kubernetes.fields import ObjectProblem

    try:
        return desired(objects, options)
    except ObjectProblem as problem:
        document, here, there = places[problem.document]
        path = here + problem.path.removeprefix(there)
        raise document.problem_at(path, problem.cause, hint=problem.hint) from None
