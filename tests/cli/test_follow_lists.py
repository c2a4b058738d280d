"""The follower against an API server and the real kubectl: what is applied, when, and what goes wrong in between."""

from __future__ import annotations

import itertools
import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.lib.api_server import (
    NODES,
    SERVICES,
    SLICES,
    ApiServer,
    api_server,
    cut_short,
    endpoint_slice,
    hang,
    node,
    page,
    refuse,
    service,
    stream,
)
from tests.lib.following import KUBECTL, following, gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

FIRST = ["EndpointSlice a-abc 1", "Node node-a", "Service a"]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        server.put(node(), service("a"), endpoint_slice("a", "10.0.0.1"))
        yield server


def test_lists_then_watches(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        one.wait("node")
        api.put(service("b"))
        one.wait_applied(*FIRST, "Service b")
        api.delete("Service", "b", "default")
        api.put(endpoint_slice("a", "10.0.0.1", "10.0.0.2"))
        one.wait_applied("EndpointSlice a-abc 2", "Node node-a", "Service a")
        for resource in (SERVICES, SLICES, NODES):
            assert len(api.asked("list", resource)) == 1
            (watch,) = api.asked("watch", resource)
            assert watch.parameters["allowWatchBookmarks"] == "true"


def test_pages(api: ApiServer, tmp_path: Path) -> None:
    api.put(*(service(f"s{number}") for number in range(7)))
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST, *(f"Service s{number}" for number in range(7)))
        asked = [request.parameters.get("continue") for request in api.asked("list", SERVICES)]
        assert asked == [None, "3", "6"]


def test_nothing_is_applied_before_all_have_listed(api: ApiServer, tmp_path: Path) -> None:
    refusals = [refuse(403, "Forbidden")] * 3
    api.fail("list", SLICES, *refusals)
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        assert len(api.asked("list", SLICES)) == 4
        assert one.said("apply") == [FIRST]
        # Said once, however often it is tried.
        said = [text for text in one.said("notice") if "Forbidden" in text]
        assert len(said) == 1
        assert said[0].startswith("endpointslices: Error from server (Forbidden): the test says so; trying")


def test_an_empty_cluster_is_applied_too(tmp_path: Path) -> None:
    with api_server() as api, following(api, tmp_path) as one:
        one.wait_applied()


def test_a_token_that_expires_is_a_new_list(api: ApiServer, tmp_path: Path) -> None:
    api.put(*(service(f"s{number}") for number in range(7)))
    api.tokens_expire = True
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST, *(f"Service s{number}" for number in range(7)))
        limits = [request.parameters["limit"] for request in api.asked("list", SERVICES)]
        assert limits == ["3", "3", "12"], "a page fetched, one refused, then fewer and larger ones"


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_watch_that_ends_goes_on_where_it_ended(api: ApiServer, tmp_path: Path, abrupt: bool) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.put(service("b"))
        one.wait_applied(*FIRST, "Service b")
        version = api.version
        api.end_watches(abrupt=abrupt)
        api.put(service("c"))
        one.wait_applied(*FIRST, "Service b", "Service c")
        assert api.asked("watch", SERVICES)[1].parameters["resourceVersion"] == str(version)
        assert len(api.asked("list", SERVICES)) == 1


def test_an_event_that_is_cut_short_is_not_lost(api: ApiServer, tmp_path: Path) -> None:
    api.fail("watch", SERVICES, stream(b'{"type":"ADDED","object":{"kind":"Service","metada', cut=True))
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.put(service("b"))
        one.wait_applied(*FIRST, "Service b")
        assert len(api.asked("list", SERVICES)) == 1


def test_the_server_ends_watches_in_time(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path, times={"watch": 1, "proof": 0.2}) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches(3)
        assert one.said("notice") == ["applied: 0 created, 1 changed, 0 deleted"]
        assert len(api.asked("list", SERVICES)) == 1


def test_bookmarks_move_the_version(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.bookmark(SERVICES)
        version = api.version
        api.end_watches()
        api.wait(lambda: len(api.asked("watch", SERVICES)) >= 2, "a second watch")
        assert api.asked("watch", SERVICES)[1].parameters["resourceVersion"] == str(version)
        assert len(one.said("apply")) == 1


@pytest.mark.parametrize("how", ["event at the beginning", "status", "event in between"])
def test_what_a_list_after_410_lacks_is_gone(api: ApiServer, tmp_path: Path, how: str) -> None:
    api.put(service("b"))
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST, "Service b")
        api.wait_for_watches()
        if how == "event in between":
            with api.changed:  # the deletion itself is never seen
                api.objects[SERVICES].pop(("default", "b"))
            api.error_event(SERVICES, 410, "Expired")
        else:
            if how == "status":
                api.fail("watch", SERVICES, refuse(410, "Expired", "too old resource version"))
            with api.changed:
                api.objects[SERVICES].pop(("default", "b"))
                api.put(service("c"))
                api.compact()
                api.end_watches()
        one.wait("apply", lambda found: "Service b" not in found)
        assert len(api.asked("list", SERVICES)) == 2


def test_an_error_event_that_is_not_410(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.error_event(NODES, 500, "InternalError")
        api.put(node("node-b"))
        one.wait_applied(*FIRST, "Node node-b")


LIST = json.dumps({"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refuse(500, "InternalError"), "(InternalError)"),
        (page(b"<html>Bad gateway</html>"), "not JSON: '<html>Bad gateway</html>'"),
        (page(b""), "an empty answer"),
        (cut_short(LIST[:-10]), "unexpected EOF"),
    ],
    ids=["500", "html", "empty", "cut"],
)
def test_nothing_is_taken_from_a_list_that_failed(api: ApiServer, tmp_path: Path, fault, words: str) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.fail("list", SERVICES, fault)
        api.error_event(SERVICES, 410, "Expired")
        api.wait(lambda: len(api.asked("list", SERVICES)) == 3, "lists")
        api.put(service("b"))
        one.wait_applied(*FIRST, "Service b")
        assert all("Service a" in found for found in one.said("apply"))
        assert [text for text in one.said("notice") if words in text]
        one.wait("notice", lambda text: text == "services: following again")


def test_a_hanging_list_has_an_end(api: ApiServer, tmp_path: Path) -> None:
    api.fail("list", SLICES, hang)
    with following(api, tmp_path, times={"answer": 4}) as one:
        one.wait_applied(*FIRST)
        assert [text for text in one.said("notice") if text.startswith("endpointslices: the list is not")]


def test_a_hanging_watch_has_an_end(api: ApiServer, tmp_path: Path) -> None:
    api.fail("watch", SLICES, hang)
    with following(api, tmp_path, times={"watch": 1, "grace": 0.2}) as one:
        one.wait_applied(*FIRST)
        api.put(endpoint_slice("a", "10.0.0.1", "10.0.0.2"))
        one.wait_applied("EndpointSlice a-abc 2", "Node node-a", "Service a")


def test_watches_that_fail_lead_to_a_list(api: ApiServer, tmp_path: Path) -> None:
    api.fail("watch", SERVICES, *[refuse(500, "InternalError")] * 3)
    # One that a slow kubectl takes its time to fail must not count as one that has lasted.
    with following(api, tmp_path, times={"proof": 60}) as one:
        one.wait_applied(*FIRST)
        api.wait(lambda: api.watching[SERVICES] == 1, "a watch")
        assert len(api.asked("list", SERVICES)) == 2
        assert len(api.asked("watch", SERVICES)) == 4
        api.put(service("b"))
        one.wait("notice", lambda text: text == "services: following again")


def test_churn_is_applied_together(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path, times={"apart": 1.0}) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        for number in range(200):
            api.put(service(f"s{number:03}"))
        one.wait("apply", lambda found: "Service s199" in found)
        times = [line["at"] for line in one.lines if "apply" in line]
        assert all(second - first >= 0.99 for first, second in itertools.pairwise(times))


def test_nothing_is_applied_when_only_the_clock_moves(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.put(node())  # a heartbeat
        api.put(service("b"))
        one.wait_applied(*FIRST, "Service b")
        assert len(one.said("apply")) == 2


def test_a_failed_apply_is_tried_again(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path, fail=3) as one:
        one.wait("notice", lambda text: text == "apply: works again")
        assert len(one.said("apply")) == 4
        assert [text for text in one.said("notice") if text.startswith("apply: the test says no; trying")]
        assert len([text for text in one.said("notice") if "says no" in text]) == 1
        figures = one.wait("figures", lambda found: found["syncs"])
        assert figures["failures"] == 3


def test_figures(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        trigger = {"endpoints.kubernetes.io/last-change-trigger-time": "2099-01-01T00:00:00.123456789Z"}
        api.put(endpoint_slice("a", "10.0.0.7", annotations=trigger))
        figures = one.wait("figures", lambda found: found["syncs"] == 2)
        assert figures["services_total"] == 1
        assert figures["endpoints_total"] == 2
        assert figures["endpoints_pending"] == figures["services_pending"] == 0
        assert figures["programmed"] == 1
        assert figures["last_sync"] >= figures["last_queued"] > 0
        assert figures["up"] == [True, True, True]


def test_other_nodes_may_be_left_out(api: ApiServer, tmp_path: Path) -> None:
    api.put(node("node-b"))
    with following(api, tmp_path, node="node-a") as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        api.put(node("node-c"), node("node-a", "192.0.2.11"))
        one.wait("apply", after=1)
        assert one.said("apply") == [FIRST, FIRST]


def test_once(api: ApiServer, tmp_path: Path) -> None:
    api.fail("list", NODES, refuse(500, "InternalError"))
    with following(api, tmp_path, once=True) as one:
        assert one.wait("ended") == 0
        assert one.said("apply") == [FIRST]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_and_its_children(api: ApiServer, tmp_path: Path, number: int) -> None:
    with following(api, tmp_path) as one:
        one.wait_applied(*FIRST)
        api.wait_for_watches()
        children = one.children()
        assert len(children) == 3
        assert one.stop(number) == 0
        assert one.said("ended") == [number]
        assert all(gone(pid) for pid in children)


def test_signals_end_it_in_the_middle_of_a_list(api: ApiServer, tmp_path: Path) -> None:
    api.fail("list", SLICES, hang)
    with following(api, tmp_path):
        api.wait(lambda: api.asked("list", SLICES), "a list")


def test_its_children_end_when_it_is_killed(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path) as one:
        api.wait_for_watches()
        children = one.children()
        assert len(children) == 3
        one.process.kill()
        assert all(gone(pid) for pid in children)
        assert one.stop() == -signal.SIGKILL
        one.process.returncode = 0


def test_a_kubectl_that_is_not_there(api: ApiServer, tmp_path: Path) -> None:
    with following(api, tmp_path, kubectl=["/no/such/kubectl"]) as one:
        one.wait("notice", lambda text: text.startswith("services: /no/such/kubectl: No such file"))


def test_a_kubectl_that_says_a_lot_on_stderr(api: ApiServer, tmp_path: Path) -> None:
    """More than a pipe holds."""
    script = tmp_path / "kubectl"
    script.write_text(f'#!/bin/sh\nhead -c 300000 /dev/zero | tr "\\0" "x" >&2\nexec {KUBECTL} "$@"\n')
    script.chmod(0o755)
    config = str(api.kubeconfig(tmp_path))
    with following(api, tmp_path, kubectl=[str(script), "--kubeconfig", config]) as one:
        one.wait_applied(*FIRST)
