"""Kubernetes objects for tests, what is planned from them, and what a client of that plan can reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import yaml

from svcctl.model.desired import Desired
from svcctl.model.prefix import covers, parse_address
from svcctl.model.service import (
    DROP,
    FRONTEND_FILTERED,
    FRONTEND_LOCAL,
    Service,
    ServiceFrontend,
    blocks_of,
    check_service,
    frontend_flags,
)
from svcctl.model.service_endpoint import KIND_CLUSTER, format_backend, format_frontend, parse_frontend
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.options import Options

DATA = Path(__file__).parent.parent / "data" / "kubernetes"
Object = dict[str, Any]

OUTSIDE, POD, NODE = "outside", "pod", "node"
"""Kinds of clients. A pod and a process of the node are inside: both policies' short circuits are theirs."""


def documents(name: str) -> list[Object]:
    """A file of tests/data/kubernetes. JSON is YAML."""
    return list(yaml.load_all((DATA / name).read_text(), Loader=yaml.CSafeLoader))


def service(
    name: str = "web",
    ports: list[Object] | None = None,
    *,
    namespace: str = "test",
    created: str = "",
    **spec: Any,
) -> Object:
    """A Service with 10.96.0.20, and TCP 80 by default; `spec` is added to its spec, `status` to itself."""
    metadata = {"name": name, "namespace": namespace, "labels": spec.pop("labels", {})}
    if created:
        metadata["creationTimestamp"] = created
    status = spec.pop("status", {})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "10.96.0.20", "ports": ports or [{"port": 80}], **spec},
        "status": status,
    }


def balanced(name: str = "web", *addresses: str, **spec: Any) -> Object:
    """A Service of the type LoadBalancer, with these addresses."""
    status = {"loadBalancer": {"ingress": [{"ip": each} for each in addresses]}}
    return service(name, **{"type": "LoadBalancer", "status": status, **spec})


def endpoint(
    address: str,
    node: str | None = None,
    *,
    ready: bool | None = None,
    serving: bool | None = None,
    terminating: bool | None = None,
    zones: Iterable[str] | None = None,
    nodes: Iterable[str] | None = None,
) -> Object:
    """An endpoint of a slice; what is None is not written."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    found: Object = {"addresses": [address]}
    if any(each is not None for each in conditions.values()):
        found["conditions"] = {key: value for key, value in conditions.items() if value is not None}
    if node is not None:
        found["nodeName"] = node
    hints = {"forZones": zones, "forNodes": nodes}
    if any(each is not None for each in hints.values()):
        found["hints"] = {
            key: [{"name": each} for each in names] for key, names in hints.items() if names is not None
        }
    return found


def endpoint_slice(
    *endpoints: Object | str,
    of: str = "web",
    name: str = "",
    namespace: str = "test",
    ports: list[Object] | None = None,
    family: str = "IPv4",
) -> Object:
    """An EndpointSlice, of port 8080 without a name by default."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{of}-1",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": of},
        },
        "addressType": family,
        "endpoints": [endpoint(each) if isinstance(each, str) else each for each in endpoints],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}] if ports is None else ports,
    }


def node(name: str, *addresses: str, zone: str = "", **spec: Any) -> Object:
    """A Node with internal addresses."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone} if zone else {}},
        "spec": spec,
        "status": {"addresses": [{"type": "InternalIP", "address": each} for each in addresses]},
    }


def plan(*objects: Mapping[str, Any] | None, node: str = "node-a", **options: Any) -> Desired:
    """The desired state, which is the same in other orders and in a list, and all of which can be."""
    wanted = Options(node=node, **options)
    found = desired(objects, wanted)  # type: ignore[arg-type]
    for seed in range(2):
        turned = list(objects)
        Random(seed).shuffle(turned)
        assert desired(turned, wanted) == found  # type: ignore[arg-type]
    if all(each is not None for each in objects):
        assert desired([{"apiVersion": "v1", "kind": "List", "items": list(objects)[::-1]}], wanted) == found
    for each in found.services:
        check_service(each)
        assert list(each.members) == sorted(each.members)
        assert list(each.frontends) == sorted(each.frontends)
    assert len({each.name for each in found.services}) == len(found.services)
    return found


def planned(*objects: Object, **options: Any) -> Service:
    """The only service of the plan."""
    (only,) = plan(*objects, **options).services
    return only


def fronts(found: Desired) -> dict[str, str]:
    """Frontend -> service."""
    pairs = [(format_frontend(each.frontend), one.name) for one in found.services for each in one.frontends]
    assert len(dict(pairs)) == len(pairs), "a frontend of two services"
    return dict(pairs)


def table(found: Desired) -> dict[str, set[str] | str]:
    """Frontend -> what a client of the node reaches there."""
    return {front: reach(found, front, NODE) for front in fronts(found)}


def reach(found: Desired, front: str, client: str = POD, address: str = "") -> set[str] | str:
    """The backends that a new connection may get, or REJECT or DROP, by the rules that the programs follow.

    `address` is the client's, where source ranges ask.
    """
    wanted = parse_frontend(front)
    for one in found.services:
        for each in one.frontends:
            if each.frontend == wanted:
                return _reach(one, each, client, address)
    return "NOTHING"


def _reach(one: Service, front: ServiceFrontend, client: str, address: str) -> set[str] | str:
    flags = frontend_flags(one, front)
    lane = next(each for each in blocks_of(one) if each.family == front.frontend.family)
    if flags & FRONTEND_FILTERED:
        source = parse_address(address)
        if not any(covers(each, *source) for each in lane.cluster.sources):
            return "DROP"
    local = bool(flags & FRONTEND_LOCAL)
    if front.kind != KIND_CLUSTER:
        local = one.external_local and client == OUTSIDE
    chosen = lane.local if local else lane.cluster
    assert chosen is not None
    if chosen.members:
        return {format_backend(backend) for backend, _ in chosen.members}
    return "DROP" if chosen.verdict == DROP else "REJECT"


def told(found: Desired, *words: str) -> bool:
    """Whether one notice has all the words."""
    return any(
        all(word in f"{each.level} {each.subject} {each.text}" for word in words) for each in found.notices
    )
