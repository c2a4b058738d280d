"""Applying 1,000, 10,000 and 60,000 services of ten endpoints from JSON: cold, with no change, with one endpoint changed.

As Kubernetes has them: a Service and an EndpointSlice each, in one List, beside json.load of the same file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from tests.bench.figures import Figure
from tests.bench.processes import SVCCTL, run
from tests.bench.services import balancer
from tests.bench.startup import bpf_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.figures import Report

COUNTS = (1_000, 10_000, 60_000)
GOALS = {10_000: 10.0}
ENDPOINTS = 10
PEER = "import gc, json, sys; gc.disable(); json.load(open(sys.argv[1], encoding='utf-8'))"
NODE = "node-a"
GIB = 1 << 30


def measure(report: Report) -> None:
    """All figures of this part."""
    report.section(
        "apply", f"services of {ENDPOINTS} endpoints from JSON, whole processes, beside json.load of it"
    )
    for count in COUNTS:
        with (
            tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file,
            tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as changed,
            balancer("--max-backends", str(max(COUNTS) * ENDPOINTS + 1)),
        ):
            write(file.name, count)
            write(changed.name, count, changed=count // 2)
            _measure(report, count, file.name, changed.name)


def _measure(report: Report, count: int, path: str, changed: str) -> None:
    command = (SVCCTL, "apply", "--node", NODE, "--prune", "-f")
    peer = run((sys.executable, "-c", PEER, path)).wall
    cold = run((*command, path))
    beside = f"json.load {peer:.1f} s: {cold.wall / peer:.1f} times that"
    goal = GOALS.get(count)
    title = f"{count:,} services"
    report.add(Figure(f"{title}, cold", cold.wall, "s", f"{cold.wall:.1f} s", beside, goal=goal))
    again = run((*command, path))
    beside = f"json.load {peer:.1f} s: {again.wall / peer:.1f} times that"
    report.add(Figure(f"{title}, no change", again.wall, "s", f"{again.wall:.1f} s", beside))
    writes = bpf_calls((*command, path), writing=True)
    report.add(Figure(f"{title}, no change, writing bpf() calls", writes, "", f"{writes}", goal=0))
    writes = bpf_calls((*command, changed), writing=True)
    report.add(
        Figure(f"{title}, one endpoint changed, writing bpf() calls", writes, "", f"{writes}", goal=60)
    )
    one = run((*command, path))
    report.add(Figure(f"{title}, one endpoint changed", one.wall, "s", f"{one.wall:.1f} s", "and back again"))
    memory = cold.memory / GIB
    report.add(Figure(f"{title}, most memory", memory, "GiB", f"{memory:.2f} GiB"))


def write(path: str, count: int, changed: int | None = None) -> None:
    """A List of `count` Services and their EndpointSlices, and the node; one service has another last endpoint."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"kind":"List","apiVersion":"v1","items":[\n')
        file.write(",\n".join(json.dumps(one) for one in _objects(count, changed)))
        file.write("\n]}\n")


def _objects(count: int, changed: int | None) -> Iterator[dict[str, Any]]:
    yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    for number in range(count):
        meta = {"name": f"service-{number}", "namespace": f"team-{number % 50}"}
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "clusterIP": _address(96, number),
                "clusterIPs": [_address(96, number)],
                "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
                "type": "ClusterIP",
            },
        }
        first = number * ENDPOINTS
        places = [_address(128, first + n) for n in range(ENDPOINTS)]
        if number == changed:
            places[-1] = _address(160, number)
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta | {"labels": {"kubernetes.io/service-name": meta["name"]}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [place],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "nodeName": f"node-{n}",
                }
                for n, place in enumerate(places)
            ],
        }


def _address(block: int, number: int) -> str:
    """The number-th address from 10.BLOCK.0.1 on."""
    number += 1
    return f"10.{block + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
