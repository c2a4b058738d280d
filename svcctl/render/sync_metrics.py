"""What `svcctl follow` counts of itself, as Prometheus metrics under the names that kube-proxy gave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.render.prometheus import Family, Sample, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.model.sync_figures import Figures, Histogram

_SYNC = "kubeproxy_sync_proxy_rules"


def families(figures: Figures) -> list[Family]:
    """All but the histograms."""
    return [
        _one(
            f"{_SYNC}_last_timestamp_seconds",
            "gauge",
            "When the last apply that went well ended.",
            figures.last_sync,
        ),
        _one(
            f"{_SYNC}_last_queued_timestamp_seconds",
            "gauge",
            "When an apply was last asked for.",
            figures.last_queued,
        ),
        _one(
            f"{_SYNC}_service_changes_pending",
            "gauge",
            "Changes of Services that are not applied yet.",
            figures.services_pending,
        ),
        _one(
            f"{_SYNC}_service_changes_total", "counter", "Changes of Services so far.", figures.services_total
        ),
        _one(
            f"{_SYNC}_endpoint_changes_pending",
            "gauge",
            "Changes of EndpointSlices that are not applied yet.",
            figures.endpoints_pending,
        ),
        _one(
            f"{_SYNC}_endpoint_changes_total",
            "counter",
            "Changes of EndpointSlices so far.",
            figures.endpoints_total,
        ),
        Family(
            f"{_SYNC}_no_local_endpoints_total",
            "gauge",
            "Service ports that drop here, as their policy is Local and only other nodes have endpoints.",
            [
                Sample((("traffic_policy", "internal"),), figures.no_local_internal),
                Sample((("traffic_policy", "external"),), figures.no_local_external),
            ],
        ),
        _one(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "counter",
            "UDP flows that were ended since their endpoint had gone.",
            figures.ended_flows,
        ),
        _one(
            "svcctl_follow_apply_failures_total",
            "counter",
            "Applies that failed and were tried again.",
            figures.failures,
        ),
        *_of_resources(figures),
    ]


def _of_resources(figures: Figures) -> list[Family]:
    rows = [((("resource", one.name),), one) for one in figures.followed]
    return [
        Family(
            "svcctl_follow_objects",
            "gauge",
            "Objects of the cluster that are known.",
            [Sample(labels, one.objects) for labels, one in rows],
        ),
        Family(
            "svcctl_follow_up",
            "gauge",
            "Whether they are listed and watched without trouble.",
            [Sample(labels, int(one.up)) for labels, one in rows],
        ),
        Family(
            "svcctl_follow_lists_total",
            "counter",
            "Lists that were begun.",
            [Sample(labels, one.lists) for labels, one in rows],
        ),
        Family(
            "svcctl_follow_watches_total",
            "counter",
            "Watches that were begun.",
            [Sample(labels, one.watches) for labels, one in rows],
        ),
        Family(
            "svcctl_follow_failures_total",
            "counter",
            "Lists and watches that failed.",
            [Sample(labels, one.failures) for labels, one in rows],
        ),
    ]


def _one(name: str, type: str, help: str, value: int | float) -> Family:
    return Family(name, type, help, [Sample((), value)])


def _histogram(name: str, help: str, values: Histogram) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} histogram"
    rows = values.cumulative()
    for bound, count in rows:
        yield f'{name}_bucket{{le="{bound}"}} {count}'
    yield f"{name}_sum {values.sum}"
    yield f"{name}_count {rows[-1][1]}"


def body(figures: Figures) -> bytes:
    """The file that node_exporter's textfile collector reads."""
    histograms = [
        *_histogram(
            f"{_SYNC}_duration_seconds", "How long an apply that went well took.", figures.sync_seconds
        ),
        *_histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of a pod or service until it was applied here.",
            figures.programming_seconds,
        ),
    ]
    return "".join(f"{line}\n" for line in histograms).encode() + text(families(figures))
