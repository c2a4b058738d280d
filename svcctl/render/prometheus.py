"""A snapshot in the Prometheus text format, version 0.0.4.

The format is a few lines of rules; a client library would bring a registry of its own counters, 74 ms of
imports and nothing else. Tests hold the output against `promtool check metrics` and the library's parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcctl.model.snapshot import DestinationSample, ServiceSample, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(Record):
    """One value and its labels, in the order they are printed."""

    labels: tuple[tuple[str, str], ...]
    value: int | float


class Family(Record):
    """One metric: `type` is gauge or counter."""

    name: str
    type: str
    help: str
    samples: list[Sample]


def families(snapshot: Snapshot, build: Mapping[str, str], failures: int) -> list[Family]:
    """All metrics of a snapshot; `build` describes the running svcctl, `failures` are its failed scrapes."""
    return [
        _one("build_info", "gauge", "The svcctl that answers, always 1.", 1, build),
        _one(
            "state_info",
            "gauge",
            "The svcctl that loaded or last upgraded the state, and its layout, always 1.",
            1,
            {"version": snapshot.version, "schema": str(snapshot.schema)},
        ),
        *_of_destinations(snapshot.destinations),
        *_of_services(snapshot.services),
        Family(
            "svcctl_backend_picks_total",
            "counter",
            "Connections that were given to a backend, by all services.",
            [Sample((("backend", one.backend),), one.picks) for one in snapshot.backends],
        ),
        Family(
            "svcctl_drops_total",
            "counter",
            "Connections and datagrams refused, by reason.",
            [Sample((("reason", reason),), value) for reason, value in snapshot.drops],
        ),
        Family(
            "svcctl_packet_events_total",
            "counter",
            "What the packet path did with flows and packets, by event.",
            [Sample((("event", event),), value) for event, value in snapshot.packets],
        ),
        Family(
            "svcctl_map_entries",
            "gauge",
            "Entries in use in a map.",
            [Sample((("map", one.name),), one.used) for one in snapshot.maps],
        ),
        Family(
            "svcctl_map_max_entries",
            "gauge",
            "Entries a map has room for.",
            [Sample((("map", one.name),), one.max) for one in snapshot.maps],
        ),
        Family(
            "svcctl_attachment_up",
            "gauge",
            "Whether a program is attached where it should be; root sees the link, others its pin.",
            [
                Sample(
                    (
                        ("kind", one.kind),
                        ("target", str(one.target)),
                        ("hook", one.hook),
                        ("program", one.program),
                    ),
                    int(one.up),
                )
                for one in snapshot.attachments
            ],
        ),
        _one(
            "interrupted",
            "gauge",
            "A command is changing the state, or died at it and the next one will repair it.",
            int(snapshot.interrupted),
        ),
        _one(
            "snapshot_consistent",
            "gauge",
            "Whether no command changed the state while it was read for this answer.",
            int(snapshot.consistent),
        ),
        _one(
            "last_change_timestamp_seconds",
            "gauge",
            "When the last command began to change the state.",
            snapshot.last_change,
        ),
        _one(
            "lock_waits_total",
            "counter",
            "Changes that had to wait for the lock on the state.",
            snapshot.lock_waits,
        ),
        _one(
            "lock_wait_seconds_total",
            "counter",
            "Time that changes waited for the lock on the state.",
            snapshot.lock_wait_seconds,
        ),
        _one("collection_errors_total", "counter", "Failed scrapes since this process started.", failures),
    ]


def _one(
    name: str, type: str, help: str, value: int | float, labels: Mapping[str, str] | None = None
) -> Family:
    return Family(f"svcctl_{name}", type, help, [Sample(tuple((labels or {}).items()), value)])


def _of_destinations(destinations: Iterable[DestinationSample]) -> list[Family]:
    lookups, misses, errors, bindings, has_socket, sockets = (
        Family(f"svcctl_{name}", type, help, [])
        for name, type, help in (
            ("lookups_total", "counter", "Connections and datagrams that a binding gave to a label."),
            ("misses_total", "counter", "Of these, refused because the label had no live socket."),
            ("errors_total", "counter", "Sockets of a label that could not take a connection, by reason."),
            ("bindings", "gauge", "Bindings of a label."),
            ("destination_has_socket", "gauge", "Whether a label has a live socket."),
            ("destination_sockets", "gauge", "Live sockets of a label."),
        )
    )
    seen: set[tuple[tuple[str, str], ...]] = set()
    for one in destinations:
        labels = (
            ("label", one.label),
            ("domain", FAMILY_NAMES.get(one.family, str(one.family))),
            ("protocol", PROTOCOL_NAMES.get(one.protocol, str(one.protocol))),
        )
        # svcctl writes no label that is not UTF-8. One written past it is shown escaped, and may then look
        # like another: a series that comes twice would make the whole scrape invalid.
        while labels in seen:
            labels = (("label", labels[0][1] + "?"), *labels[1:])
        seen.add(labels)
        lookups.samples.append(Sample(labels, one.lookups))
        misses.samples.append(Sample(labels, one.no_socket))
        errors.samples.append(Sample((*labels, ("reason", "bad-socket")), one.errors))
        bindings.samples.append(Sample(labels, one.bindings))
        has_socket.samples.append(Sample(labels, int(one.sockets > 0)))
        sockets.samples.append(Sample(labels, one.sockets))
    return [lookups, misses, errors, bindings, has_socket, sockets]


def _of_services(services: Iterable[ServiceSample]) -> list[Family]:
    found = [
        Family(f"svcctl_service_{name}_total", "counter", help, [])
        for name, help in (
            ("connections", "Connections of a service that were given a backend."),
            ("no_backend", "Connections refused because a service had no backend."),
            ("dropped", "Connections refused because a rule of a service says so."),
            ("affinity", "Of the connections: given to the backend that the client had before."),
            ("remembered", "Of the connections: UDP sockets that kept their backend."),
            ("reverse_full", "Connections served although there was no room to remember them."),
        )
    ]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for one in services:
        labels = (("service", one.service), ("family", FAMILY_NAMES.get(one.family, str(one.family))))
        while labels in seen:  # as in _of_destinations: a name written past svcctl
            labels = (("service", labels[0][1] + "?"), *labels[1:])
        seen.add(labels)
        for family, value in zip(found, one[2:], strict=True):
            family.samples.append(Sample(labels, value))
    return found


def lines(metrics: Iterable[Family]) -> Iterator[str]:
    """Lines of the text format, without line ends."""
    for family in metrics:
        yield f"# HELP {family.name} {_escape_help(family.help)}"
        yield f"# TYPE {family.name} {family.type}"
        for labels, value in family.samples:
            if labels:
                inside = ",".join(f'{name}="{_escape_label(text)}"' for name, text in labels)
                yield f"{family.name}{{{inside}}} {value}"
            else:
                yield f"{family.name} {value}"


def text(metrics: Iterable[Family]) -> bytes:
    """The body of an answer: UTF-8, every line ended."""
    return "".join(f"{line}\n" for line in lines(metrics)).encode("utf-8", "backslashreplace")


def objects(metrics: Iterable[Family]) -> Iterator[dict[str, object]]:
    """One object a sample, for JSON and YAML."""
    for family in metrics:
        for labels, value in family.samples:
            yield {"name": family.name, "type": family.type, "labels": dict(labels), "value": value}


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape_label(text: str) -> str:
    """Backslash, quote and line feed are the three that the format escapes."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
