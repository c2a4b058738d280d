"""Manifests of people and clusters in the maps: the same whatever the order, and nothing written the second time."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from svcctl.maps import catalog
from svcctl.model.service import Service
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.options import Options
from tests.kernel.test_apply_calls import calls, writes
from tests.lib import applying
from tests.lib.applying import plain, plain_services, problems
from tests.lib.balanced import Balanced
from tests.lib.inspect_state import generation
from tests.lib.svc import svc
from tests.unit.kubernetes_objects import DATA, documents, endpoint_slice, node, service

NOT_KUBERNETES = "45-cilium-lb-state-file.yaml"
FILES = sorted(path.name for path in DATA.iterdir() if path.name not in (NOT_KUBERNETES, "SOURCES.tsv"))
HERE = ("--node", "node-a", "--prune", "--force")
SERVED = {
    "30-terminating-one-of-two.yaml": 1,
    "32-traffic-policy-local-both.yaml": 1,
    "34-dualstack-nodeport-tcp-udp.yaml": 2,
    "35-zone-hints-two-slices.yaml": 1,
    "38-source-ranges-externalips.yaml": 1,
    "40-same-slice-name-two-namespaces.yaml": 2,
    "48-kubectl-get-all-three-kinds.json": 2,
}
"""Files with services that have an address -> how many services of one port."""
LATER = 40 * 24 * 3600 * 10**9


def items(name: str) -> list[Any]:
    """A file's objects, taken out of its lists."""
    found: list[Any] = []
    for each in documents(name):
        if each is not None:
            found += each["items"] if str(each.get("kind", "")).endswith("List") else [each]
    return found


def wanted(name: str) -> dict[str, Service]:
    """What the rules make of a file, which the unit tests hold against what is known of it."""
    return {each.name: plain(each) for each in desired(documents(name), Options(node="node-a")).services}


def everything() -> dict[str, dict[bytes, bytes]]:
    """What writers write of services, arrays that are mostly zero left out, and what is noted of writers."""
    small = [name for name, shape in catalog.SERVICE_MAPS.items() if shape.usage is not None]
    return applying.maps([*small, "config", "meta", "writers"])


def test_every_file_in_any_order(balanced: Balanced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all files one after the other on one state: each leaves what it asks for, and nothing of those before."""
    file, now = tmp_path / "objects.json", time.time_ns
    served = {}
    draw = random.Random(4)
    for name in draw.sample(FILES, len(FILES)):
        objects, want = items(name), wanted(name)
        turned = draw.sample(objects, len(objects))
        file.write_text("\n".join(json.dumps(each, default=str) for each in turned))
        svc("apply", "-f", file, *HERE)
        assert plain_services() == want, name
        before, stood = generation(), everything()
        for again in (DATA / name, file):
            # Only the clock has moved, far enough for whatever looks at it.
            with monkeypatch.context() as moved:
                moved.setattr("time.time_ns", lambda: now() + LATER)
                counts = svc("apply", "-f", again, *HERE, "-o", "json").json["counts"]
            assert counts == {"created": 0, "changed": 0, "deleted": 0, "unchanged": len(want)}, name
            assert generation() == before, name
        assert everything() == stood, name
        if want:
            served[name] = len(want)
    assert problems() == []
    assert served == SERVED


def test_a_clusters_objects_again_are_no_writing_call(balanced: Balanced, tmp_path: Path) -> None:
    """What the node is noted for is part of it."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    words = ("apply", "-f", DATA / "48-kubectl-get-all-three-kinds.json", "--node", "node-b", "--prune")
    assert writes(calls(tmp_path, *words))
    found = calls(tmp_path, *words)
    assert found
    assert not writes(found), found


def hostile() -> dict[str, str]:
    """Manifests that nobody should apply, each beside a service that is as it was."""
    many = [
        endpoint_slice(*(f"10.{244 + n // 250}.{n % 250}.{m}" for m in range(1, 251)), name=f"web-{n}")
        for n in range(40)
    ]
    service_text = json.dumps(service())
    listed = '{"apiVersion": "v1", "kind": "List", "items": [%s]}'
    return {
        "more endpoints than there is room for": json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [service(), *many, node("node-a")]}
        ),
        "a name with control characters": listed % service_text.replace('"web"', '"web\\u001b[31m"'),
        "a port that is no number": listed % service_text.replace(": 80", ": NaN"),
        "a key twice": listed % service_text.replace('"spec": {', '"spec": {}, "spec": {'),
        "depth": listed % ("[" * 5000 + "]" * 5000),
        "cut short": (listed % service_text)[:-20],
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_manifests_change_nothing(balanced: Balanced, tmp_path: Path, name: str) -> None:
    file = tmp_path / "objects"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [service(), endpoint_slice("10.244.1.1"), node("node-a")],
            }
        )
    )
    svc("apply", "-f", file, "--node", "node-a", "--prune")
    before, stood = generation(), everything()
    file.write_text(hostile()[name])
    ran = svc("apply", "-f", file, *HERE, code=None)
    assert ran.code != 0
    assert len([line for line in ran.err.splitlines() if line.startswith("svcctl: error: ")]) == 1
    assert "\033" not in ran.err
    assert (generation(), everything()) == (before, stood)
