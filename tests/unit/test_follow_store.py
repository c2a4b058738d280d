"""What lists and events make of the objects that are known, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcctl.follow.resources import LAST_CHANGE, NODES, SERVICES, SLICES, Resource, list_path, watch_path
from svcctl.follow.store import BadAnswer, Expired, Store, all_objects
from tests.lib import api_server
from tests.lib.api_server import endpoint_slice, node, service, status


def page(resource: Resource, *items: dict[str, Any], version: str = "7", token: str = "") -> bytes:
    document = {
        "kind": f"{resource.kind}List",
        "metadata": {"resourceVersion": version, "continue": token},
        "items": list(items),
    }
    return json.dumps(document).encode()


def event(kind: str, item: dict[str, Any], version: str = "8") -> bytes:
    item = {**item, "metadata": {**item.get("metadata", {}), "resourceVersion": version}}
    return json.dumps({"type": kind, "object": item}).encode()


def listed(resource: Resource, *items: dict[str, Any]) -> Store:
    store = Store(resource)
    store.begin()
    assert store.page(page(resource, *items)) == ""
    store.changed = 0
    return store


def names(store: Store) -> list[str]:
    return sorted(item["metadata"]["name"] for item in store.objects.values())


def test_a_list_counts_once_its_last_page_is_in() -> None:
    store = listed(SERVICES, service("a"), service("b"))
    store.begin()
    assert store.page(page(SERVICES, service("c"), version="9", token="more")) == "more"
    assert (names(store), store.version, store.changed) == (["a", "b"], "7", 0)
    assert store.page(page(SERVICES, service("a"), version="9")) == ""
    assert (names(store), store.version, store.changed) == (["a", "c"], "9", 2)


def test_a_list_that_is_begun_again_forgets_the_pages_it_had() -> None:
    store = listed(SERVICES, service("a"))
    store.begin()
    store.page(page(SERVICES, service("b"), token="more"))
    store.begin()
    store.page(page(SERVICES, service("c")))
    assert names(store) == ["c"]


def test_no_items() -> None:
    store = Store(SERVICES)
    store.begin()
    document = {"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": None}
    assert store.page(json.dumps(document).encode()) == ""
    assert store.listed
    assert store.changed == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty answer"),
        (b"<html>Bad gateway</html>", "not JSON: '<html>"),
        (page(SERVICES, service("a"))[:-2], "not JSON"),
        (b"[]", "not an object"),
        (json.dumps(status(403, "Forbidden", "you may not")).encode(), "got a Status: you may not"),
        (page(NODES), "expected a ServiceList, got a NodeList"),
        (b'{"kind": "ServiceList", "metadata": {}, "items": []}', "without a resourceVersion"),
        (b'{"kind": "ServiceList", "items": []}', "without a resourceVersion"),
        (b'{"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": {}}', "no list"),
        (page(SERVICES, {"metadata": {}}), "without a name"),
        (page(SERVICES, {}), "without a name"),
        (b'{"a":' * 100_000, "not JSON"),
    ],
)
def test_what_is_no_list_changes_nothing(data: bytes, words: str) -> None:
    store = listed(SERVICES, service("a"))
    store.begin()
    with pytest.raises(BadAnswer, match=words):
        store.page(data)
    assert (names(store), store.version, store.changed) == (["a"], "7", 0)


def test_events() -> None:
    store = listed(SLICES, endpoint_slice("a", "10.0.0.1"))
    store.event(event("ADDED", endpoint_slice("b", "10.0.0.2"), "8"))
    store.event(event("MODIFIED", endpoint_slice("a", "10.0.0.1", "10.0.0.3"), "9"))
    assert (names(store), store.changed, store.version) == (["a-abc", "b-abc"], 2, "9")
    store.event(event("DELETED", endpoint_slice("a"), "10"))
    store.event(event("DELETED", endpoint_slice("a"), "11"))
    assert (names(store), store.changed, store.version) == (["b-abc"], 3, "11")
    store.event(event("BOOKMARK", {}, "12"))
    assert (store.changed, store.version) == (3, "12")


def test_what_changes_with_the_clock_is_no_change() -> None:
    nodes = listed(NODES, node())
    beat = node()
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "later"
    beat["metadata"]["annotations"] = {"volumes.kubernetes.io/attached": "true"}
    beat["metadata"]["managedFields"] = [{"time": "now"}]
    nodes.event(event("MODIFIED", beat))
    assert nodes.changed == 0
    slices = listed(SLICES, endpoint_slice("a", "10.0.0.1"))
    slices.event(event("MODIFIED", endpoint_slice("a", "10.0.0.1", annotations={LAST_CHANGE: "x"})))
    assert (slices.changed, slices.triggers) == (0, {})
    slices.event(event("MODIFIED", endpoint_slice("a", "10.0.0.2", annotations={LAST_CHANGE: "y"})))
    assert (slices.changed, list(slices.triggers.values())) == (1, ["y"])


def test_what_the_rules_need_is_kept() -> None:
    item = service("a", loadBalancerSourceRanges=["10.0.0.0/8"])
    item["status"]["loadBalancer"] = {"ingress": [{"ip": "192.0.2.1"}]}
    item["metadata"]["annotations"] = {
        "kept": "yes",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    here = node()
    here["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = all_objects([listed(SERVICES, item), listed(NODES, here)])
    assert found[0]["spec"] == item["spec"]
    assert found[0]["status"] == item["status"]
    assert found[0]["kind"] == "Service"
    assert found[0]["metadata"]["annotations"] == {"kept": "yes"}
    assert found[1]["status"] == {"addresses": here["status"]["addresses"]}
    assert found[1]["metadata"] == here["metadata"]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}', Expired, "too old"),
        (b'{"type": "ERROR", "object": {"reason": "Expired"}}', Expired, "Expired"),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}', BadAnswer, "etcd"),
        (json.dumps(status(410, "Expired", "x")).encode(), BadAnswer, "a Status: x"),
        (b'{"type": "ADDED"}', BadAnswer, "without an object"),
        (b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}', BadAnswer, "resourceVersion"),
        (b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "8"}}}', BadAnswer, "name"),
        (b'{"type": "MOVED", "object": {"metadata": {"resourceVersion": "8"}}}', BadAnswer, "MOVED"),
        (b"<html>", BadAnswer, "not JSON"),
    ],
)
def test_what_is_no_event_changes_nothing(data: bytes, error: type[Exception], words: str) -> None:
    store = listed(SERVICES, service("a"))
    with pytest.raises(error, match=words):
        store.event(data)
    assert (names(store), store.version, store.changed) == (["a"], "7", 0)


def test_paths() -> None:
    assert list_path(NODES, 500, "") == "/api/v1/nodes?limit=500"
    assert list_path(NODES, 500, "a+b/=&") == "/api/v1/nodes?limit=500&continue=a%2Bb%2F%3D%26"
    assert watch_path(SLICES, "7", 300) == (
        "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless"
        "&watch=1&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=300"
    )


def test_the_tests_server_has_the_same_paths() -> None:
    assert set(api_server.PATHS) == {one.path for one in (SERVICES, SLICES, NODES)}
