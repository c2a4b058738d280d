"""What health checks are answered, as kube-proxy answers them."""

from __future__ import annotations

import json

import pytest

from svcctl.model.health import (
    Health,
    ServiceHealth,
    is_healthy,
    kubernetes_name,
    node_answer,
    ports_of,
    service_answer,
)

NOW = 1_800_000_000.25
GOOD = Health({}, True, 0.0, NOW - 1000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default/web:http/tcp", ("default", "web")),
        ("default/web:/tcp", ("default", "web")),
        ("web", ("", "web")),
    ],
)
def test_names(name: str, expected: tuple[str, str]) -> None:
    assert kubernetes_name(name) == expected


def test_the_ports_of_a_service_are_one() -> None:
    rows = [
        ("b/x:y/tcp", 30100, 9),
        ("a/web:http/tcp", 30100, 2),
        ("a/web:https/tcp", 30100, 2),
        ("c/n:/udp", 0, 1),
    ]
    assert ports_of(rows) == {30100: ServiceHealth("a", "web", 2)}
    assert ports_of(reversed(rows)) == ports_of(rows)


@pytest.mark.parametrize(
    ("ready", "healthy", "status"), [(2, True, 200), (0, True, 503), (2, False, 503), (0, False, 503)]
)
def test_of_a_service(ready: int, healthy: bool, status: int) -> None:
    answer = service_answer(ServiceHealth("default", "web", ready), healthy)
    assert answer.status == status
    assert answer.headers == (("X-Load-Balancing-Endpoint-Weight", str(ready)),)
    assert json.loads(answer.body) == {
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": ready,
        "serviceProxyHealthy": healthy,
    }


@pytest.mark.parametrize(
    ("health", "healthz", "livez"),
    [
        (GOOD, 200, 200),
        (GOOD._replace(eligible=False), 503, 200),
        (GOOD._replace(pending=NOW - 59), 200, 200),
        (GOOD._replace(pending=NOW - 61), 503, 503),
        (GOOD._replace(fault="not attached: connect4"), 503, 503),
    ],
)
def test_of_the_node(health: Health, healthz: int, livez: int) -> None:
    first = node_answer(health, NOW, 60, eligibility=True)
    second = node_answer(health, NOW, 60, eligibility=False)
    assert (first.status, second.status) == (healthz, livez)
    body = json.loads(first.body)
    assert body["currentTime"] == "2027-01-15T08:00:00.250000Z"
    assert body["nodeEligible"] == health.eligible
    well = is_healthy(health, NOW, 60)
    assert body["lastUpdated"] == (body["currentTime"] if well else "2027-01-15T07:43:20.250000Z")
    assert "nodeEligible" not in json.loads(second.body)
