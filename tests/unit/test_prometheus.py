"""The text format: what promtool and the client library's parser make of it, with labels of any kind."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from svcctl.model.snapshot import AttachmentSample, DestinationSample, MapSample, Snapshot
from svcctl.render import prometheus

BUILD = {"version": "1.2.3", "kernel": "6.18.0"}


def snapshot(destinations: list[DestinationSample]) -> Snapshot:
    return Snapshot(
        version="1.2.2",
        schema=1,
        interrupted=False,
        last_change=1_700_000_000.25,
        lock_waits=3,
        lock_wait_seconds=0.5,
        destinations=tuple(destinations),
        maps=(MapSample("exact", 3, 1_000_000),),
        attachments=(AttachmentSample("netns", "sk_lookup", 4026531840, "dispatch", True),),
        drops=(("no_socket", 2**63), ("unstable", 0)),
    )


def parsed(body: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def render(destinations: list[DestinationSample], failures: int = 0) -> bytes:
    return prometheus.text(prometheus.families(snapshot(destinations), BUILD, failures))


def test_names_labels_and_values() -> None:
    body = render([DestinationSample("web", 6, 17, 4, 2, 10, 3, 1)], failures=7)
    found = parsed(body)
    web = {"label": "web", "domain": "ipv6", "protocol": "udp"}
    assert found["svcctl_lookups_total"] == [(web, 10)]
    assert found["svcctl_misses_total"] == [(web, 3)]
    assert found["svcctl_errors_total"] == [({**web, "reason": "bad-socket"}, 1)]
    assert found["svcctl_bindings"] == [(web, 4)]
    assert found["svcctl_destination_has_socket"] == [(web, 1)]
    assert found["svcctl_destination_sockets"] == [(web, 2)]
    assert found["svcctl_build_info"] == [(BUILD, 1)]
    assert found["svcctl_state_info"] == [({"version": "1.2.2", "schema": "1"}, 1)]
    assert found["svcctl_map_entries"] == [({"map": "exact"}, 3)]
    assert found["svcctl_map_max_entries"] == [({"map": "exact"}, 1_000_000)]
    assert found["svcctl_attachment_up"][0][1] == 1
    assert found["svcctl_drops_total"][0] == ({"reason": "no_socket"}, 2.0**63)
    assert found["svcctl_lock_waits_total"] == [({}, 3)]
    assert found["svcctl_lock_wait_seconds_total"] == [({}, 0.5)]
    assert found["svcctl_last_change_timestamp_seconds"] == [({}, 1_700_000_000.25)]
    assert found["svcctl_collection_errors_total"] == [({}, 7)]
    assert b'\nsvcctl_drops_total{reason="no_socket"} 9223372036854775808\n' in body


def test_every_line_has_an_end_and_every_family_its_help() -> None:
    body = render([])
    assert body.endswith(b"\n")
    assert body.count(b"# HELP ") == body.count(b"# TYPE ") == len(prometheus.families(snapshot([]), {}, 0))


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=5, unique=True))
def test_any_label_comes_back(labels: list[str]) -> None:
    body = render([DestinationSample(label, 4, 6, 1, 0, 0, 0, 0) for label in labels])
    back = [sample[0]["label"] for sample in parsed(body)["svcctl_bindings"]]
    assert back == [label.encode("utf-8", "backslashreplace").decode() for label in labels]


def test_labels_that_look_alike_are_two_series() -> None:
    body = render([DestinationSample("same", 4, 6, n, 0, 0, 0, 0) for n in range(3)])
    assert [s[0]["label"] for s in parsed(body)["svcctl_bindings"]] == ["same", "same?", "same??"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say() -> None:
    labels = ['quote " backslash \\ end', "line\nfeed", "tab\tand\rreturn", "naïve 名 🙂", "{}=,#", " "]
    body = render([DestinationSample(label, 4, 6, 1, 1, 5, 1, 0) for label in labels])
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_objects_for_json_have_the_same_samples() -> None:
    families = prometheus.families(snapshot([DestinationSample("web", 4, 6, 1, 0, 0, 0, 0)]), BUILD, 0)
    objects = list(prometheus.objects(families))
    assert len(objects) == sum(len(family.samples) for family in families)
    assert objects[0] == {"name": "svcctl_build_info", "type": "gauge", "labels": BUILD, "value": 1}
