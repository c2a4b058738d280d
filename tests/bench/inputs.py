"""Reading what a cluster says: JSON of 10,000 services with ten endpoints each, beside json.loads of the same bytes."""

from __future__ import annotations

import gc
import json
import time
from typing import TYPE_CHECKING, Any

from svcctl.model.sources.reading import read_documents
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.figures import Report

SERVICES = 10_000
ENDPOINTS = 10
ROUNDS = 5
MARGIN = 1.1
"""Two runs of the same differ by as much."""


def measure(report: Report) -> None:
    """All figures of this part."""
    report.section("inputs", f"{SERVICES:,} services (least of {ROUNDS}, in turns), the collector off")
    whole = objects()
    for name, indent in (("as kubectl prints it", 4), ("in one line", None)):
        data = json.dumps(whole, indent=indent).encode()
        gc.collect()
        gc.disable()
        try:
            ours, peer = _in_turns(lambda: read_documents("-", data), lambda: json.loads(data))  # noqa: B023
        finally:
            gc.enable()
        report.add(
            Figure(
                f"parse {len(data) >> 20} MB, {name}",
                ours / peer,
                "x",
                f"{ours * 1000:.0f} ms",
                f"json.loads {peer * 1000:.0f} ms",
                goal=MARGIN,
            )
        )


def _in_turns(*works: Callable[[], Any]) -> list[float]:
    """Seconds of processor time of each, the least of all rounds."""
    least = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for number, work in enumerate(works):
            start = time.process_time()
            made = work()
            least[number] = min(least[number], time.process_time() - start)
            del made
    return least


def objects() -> dict[str, Any]:
    """What `kubectl get services,endpointslices -A -o json` says of such a cluster."""
    items: list[dict[str, Any]] = []
    for number in range(SERVICES):
        names = {"name": f"service-{number}", "namespace": f"space-{number % 50}"}
        address = f"10.96.{number >> 8}.{number & 255}"
        items.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {**names, "labels": {"app": names["name"]}, "uid": f"{number:036}"},
                "spec": {
                    "clusterIP": address,
                    "clusterIPs": [address],
                    "ipFamilies": ["IPv4"],
                    "internalTrafficPolicy": "Cluster",
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
                    "selector": {"app": names["name"]},
                    "sessionAffinity": "None",
                    "type": "ClusterIP",
                },
                "status": {"loadBalancer": {}},
            }
        )
        items.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "addressType": "IPv4",
                "metadata": {**names, "labels": {"kubernetes.io/service-name": names["name"]}},
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [
                    {
                        "addresses": [f"10.{number >> 8}.{number & 255}.{one}"],
                        "conditions": {"ready": True, "serving": True, "terminating": False},
                        "nodeName": f"node-{one}",
                        "targetRef": {"kind": "Pod", "name": f"pod-{number}-{one}", "uid": f"{number:036}"},
                    }
                    for one in range(ENDPOINTS)
                ],
            }
        )
    return {"apiVersion": "v1", "kind": "List", "items": items}
