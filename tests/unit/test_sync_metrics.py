"""The textfile of `svcctl follow`: valid, and under kube-proxy's names."""

from __future__ import annotations

import shutil
import subprocess

from prometheus_client.parser import text_string_to_metric_families

from svcctl.model.service import Member, Service, ServiceFrontend
from svcctl.model.service_endpoint import (
    KIND_CLUSTER,
    KIND_LOAD_BALANCER,
    parse_backend,
    parse_frontend,
)
from svcctl.model.sync_figures import (
    PROGRAMMING_BUCKETS,
    SYNC_BUCKETS,
    Figures,
    Followed,
    count_no_local,
)
from svcctl.render.sync_metrics import body


def filled() -> Figures:
    figures = Figures()
    for value in (0.0005, 0.001, 0.3, 100.0):
        figures.sync_seconds.observe(value)
    figures.programming_seconds.observe(0.25)
    figures.last_sync, figures.last_queued = 1000.5, 1000.25
    figures.endpoints_total, figures.failures, figures.no_local_external = 7, 2, 1
    figures.followed = [Followed("services", 3, 1, 2, 0, True), Followed("nodes", 1, 1, 1, 4, False)]
    return figures


def samples(figures: Figures) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(body(figures).decode())
        for one in family.samples
    }


def test_values() -> None:
    found = samples(filled())
    name = "kubeproxy_sync_proxy_rules_duration_seconds"
    assert found[f"{name}_bucket", "0.001"] == 2
    assert found[f"{name}_bucket", "0.256"] == 2
    assert found[f"{name}_bucket", "0.512"] == 3
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count",] == 4
    assert found[f"{name}_sum",] == 100.3015
    assert found["kubeproxy_network_programming_duration_seconds_bucket", "0.25"] == 1
    assert found["kubeproxy_sync_proxy_rules_last_timestamp_seconds",] == 1000.5
    assert found["kubeproxy_sync_proxy_rules_endpoint_changes_total",] == 7
    assert found["kubeproxy_sync_proxy_rules_no_local_endpoints_total", "external"] == 1
    assert found["svcctl_follow_up", "nodes"] == 0
    assert found["svcctl_follow_objects", "services"] == 3


def test_nothing_has_happened_yet() -> None:
    assert samples(Figures())["kubeproxy_sync_proxy_rules_duration_seconds_count",] == 0


def test_buckets_are_kube_proxys() -> None:
    assert (SYNC_BUCKETS[0], SYNC_BUCKETS[-1], len(SYNC_BUCKETS)) == (0.001, 16.384, 15)
    assert PROGRAMMING_BUCKETS[:4] == (0.25, 0.5, 1, 2)
    assert PROGRAMMING_BUCKETS[-3:] == (240, 270, 300)
    assert list(PROGRAMMING_BUCKETS) == sorted(set(PROGRAMMING_BUCKETS))


def test_who_drops_here_though_others_have_backends() -> None:
    inside = ServiceFrontend(parse_frontend("10.96.0.1:80/tcp"), KIND_CLUSTER)
    outside = ServiceFrontend(parse_frontend("192.0.2.1:80/tcp"), KIND_LOAD_BALANCER)
    far = (Member(parse_backend("10.0.0.1:80")),)
    near = (*far, Member(parse_backend("10.0.0.2:80"), local=True))
    both = Service("a", internal_local=True, external_local=True, frontends=(inside, outside))
    assert count_no_local([both._replace(members=far)]) == (1, 1)
    assert count_no_local([both._replace(members=near), both._replace(members=())]) == (0, 0)
    assert count_no_local([both._replace(members=far, frontends=(inside,))]) == (1, 0)
    assert count_no_local([both._replace(members=far, internal_local=False)]) == (0, 1)
    assert count_no_local([Service("b", frontends=(inside,), members=far)]) == (0, 0)


def test_promtool_takes_it() -> None:
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=body(filled()), capture_output=True, check=False
        )
        # Its advice on names is for who may choose them: these are kube-proxy's.
        complaints = [
            line
            for line in done.stdout.decode().splitlines() + done.stderr.decode().splitlines()
            if "no_local_endpoints_total" not in line
        ]
        assert complaints == []
