"""What is followed of a cluster, where its API server has it, and how much of each object is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

LAST_CHANGE = "endpoints.kubernetes.io/last-change-trigger-time"
"""Annotation of an EndpointSlice: when the change of a pod or service that it shows happened."""

_NOISE = frozenset(("kubectl.kubernetes.io/last-applied-configuration", LAST_CHANGE))


class Resource(Record):
    """A kind of object.

    `selector` (of labels) leaves out at the server what a service proxy has to ignore anyway, `fields` what it
    can do without.
    """

    name: str
    path: str
    api_version: str
    kind: str
    selector: str
    fields: str = ""


SERVICES = Resource(
    "services", "/api/v1/services", "v1", "Service", "!service.kubernetes.io/service-proxy-name"
)
SLICES = Resource(
    "endpointslices",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "discovery.k8s.io/v1",
    "EndpointSlice",
    "!service.kubernetes.io/headless",
)
NODES = Resource("nodes", "/api/v1/nodes", "v1", "Node", "")
RESOURCES = (SERVICES, SLICES, NODES)


def only_node(name: str) -> tuple[Resource, ...]:
    """The same, but of the nodes only one: each of thousands tells every few minutes that it is well."""
    return SERVICES, SLICES, NODES._replace(fields=f"metadata.name={name}")


def list_path(resource: Resource, limit: int, token: str) -> str:
    """Of one page of a list; `token` is where the page before it said to go on, or empty."""
    return _path(resource, {"limit": str(limit), "continue": token})


def watch_path(resource: Resource, version: str, seconds: int) -> str:
    """Of a watch from a resource version on, which the server ends after so many seconds."""
    return _path(
        resource,
        {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        },
    )


def _path(resource: Resource, parameters: Mapping[str, str]) -> str:
    parameters = {"labelSelector": resource.selector, "fieldSelector": resource.fields, **parameters}
    pairs = (f"{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    return f"{resource.path}?{'&'.join(pairs)}"


def slim(resource: Resource, item: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of an object: nothing that changes with the clock only, and its kind, which lists leave out.

    A node reports its health every few seconds, and managedFields are most of what a server sends.
    """
    metadata = item["metadata"]
    kept: dict[str, Any] = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            name: metadata[name]
            for name in ("name", "namespace", "labels", "creationTimestamp", "deletionTimestamp")
            if name in metadata
        },
    }
    annotations = metadata.get("annotations")
    of_nodes = resource.kind == NODES.kind
    if not of_nodes and isinstance(annotations, dict):
        rest = {name: value for name, value in annotations.items() if name not in _NOISE}
        if rest:
            kept["metadata"]["annotations"] = rest
    for name, value in item.items():
        if name not in ("apiVersion", "kind", "metadata", "status"):
            kept[name] = value
    status = item.get("status")
    wanted = "addresses" if of_nodes else "loadBalancer"
    if isinstance(status, dict) and wanted in status:
        kept["status"] = {wanted: status[wanted]}
    return kept
