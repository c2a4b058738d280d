"""Takes documents apart: lists flattened, objects by kind, doubles told, and signs that something is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from svcctl.model.sources.kubernetes.fields import (
    MAX_LABEL,
    MAX_NAME,
    ObjectProblem,
    Place,
    mapping,
    name,
    shown,
    text,
)
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcctl.model.sources.kubernetes.notices import Notices

CORE = "v1"
SLICES = "discovery.k8s.io/v1"
OLD_SLICES = "discovery.k8s.io/v1beta1"
DEFAULT_NAMESPACE = "default"
MAX_NESTING = 4
"""Lists in lists: kubectl makes none, hands have made two."""


class Item(Record):
    """An object, where it stands, and the name by which it is one object and no other.

    `version` is what it says itself, or the list that it is an item of.
    """

    kind: str
    version: str
    namespace: str
    name: str
    content: Mapping[str, object]
    metadata: Mapping[str, object]
    place: Place

    @property
    def subject(self) -> str:
        """As notices call it: `Service default/web`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Intake(Record):
    """The objects of an input by kind, in the order of their names, each once.

    `any_objects`, `any_slices`: whether there were any, used or not. `gaps` are the signs that the input is
    not all that there is.
    """

    services: tuple[Item, ...]
    slices: tuple[Item, ...]
    nodes: tuple[Item, ...]
    any_objects: bool
    any_slices: bool
    gaps: tuple[str, ...]
    errors: tuple[str, ...] = ()


def take_in(documents: Iterable[Mapping[str, object]], notices: Notices) -> Intake:
    """Sorts out parsed documents. Raises ObjectProblem for what is no Kubernetes object.

    Objects of other kinds are counted and told, not looked at.
    """
    found: dict[str, list[Item]] = {"Service": [], "EndpointSlice": [], "Node": []}
    others: dict[str, int] = {}
    gaps: list[str] = []
    errors: list[str] = []
    any_slices = False
    for kind, version, content, place in _flatten(documents, gaps):
        if kind == "Status" and version in (CORE, ""):
            errors.append(_status(content))
        elif kind == "EndpointSlice" and version in (SLICES, OLD_SLICES, ""):
            any_slices = True
            item = _item(kind, version, content, place, MAX_NAME)
            if item.name:
                found[kind].append(item)
            else:
                notices.warn(kind, f"left out, as it has no name (one in namespace {item.namespace})")
        elif kind in ("Service", "Node") and version in (CORE, ""):
            item = _item(kind, version, content, place, MAX_LABEL if kind == "Service" else MAX_NAME)
            if not item.name:
                raise ObjectProblem(place.under("metadata").under("name"), "is missing")
            found[kind].append(item)
        else:
            label = kind if version in (CORE, "") else f"{kind} ({version})"
            others[label] = others.get(label, 0) + 1
    _tell_others(others, any_slices, notices)
    known = {kind: _each_once(items, notices) for kind, items in found.items()}
    return Intake(
        known["Service"],
        known["EndpointSlice"],
        known["Node"],
        bool(any_slices or others or found["Service"] or found["Node"]),
        any_slices,
        (*errors, *gaps),
        tuple(errors),
    )


def _flatten(
    documents: Iterable[Mapping[str, object]], gaps: list[str]
) -> Iterator[tuple[str, str, Mapping[str, object], Place]]:
    """(kind, apiVersion, object, place) of everything that is not a list."""
    for number, document in enumerate(documents):
        if document is not None:  # an empty document of YAML
            yield from _walk(document, "", "", Place(number, "$"), MAX_NESTING, gaps)


def _walk(
    content: object, kind: str, version: str, place: Place, depth: int, gaps: list[str]
) -> Iterator[tuple[str, str, Mapping[str, object], Place]]:
    """`kind` and `version` are what the list says of an item that does not say it: lists of one kind do."""
    if not isinstance(content, dict):
        raise ObjectProblem(place, f"expected an object, got {shown(content)}")
    kind = name(content, "kind", place, MAX_NAME) or kind
    version = text(content, "apiVersion", place) or version
    if not kind:
        raise ObjectProblem(place.under("kind"), "is missing", hint="every Kubernetes object has a kind")
    if len(version) > MAX_NAME or not version.isprintable():
        raise ObjectProblem(place.under("apiVersion"), f"expected a version, got {shown(version)}")
    if not kind.endswith("List") or "items" not in content:
        yield kind, version, content, place
        return
    if not depth:
        raise ObjectProblem(place, "a list in a list in a list: nested too deep")
    if mapping(content, "metadata", place).get("continue"):
        gaps.append(f"{kind} at {place.path} is only the first part of a list; the rest of it is needed")
    items = content["items"]
    if items is None:
        return
    if not isinstance(items, list):
        raise ObjectProblem(place.under("items"), f"expected an array, got {shown(items)}")
    document, path = place
    of_kind, of_version = (kind[:-4], version) if kind != "List" else ("", "")
    for number, item in enumerate(items):
        yield from _walk(
            item, of_kind, of_version, Place(document, f"{path}.items[{number}]"), depth - 1, gaps
        )


def _item(kind: str, version: str, content: Mapping[str, object], place: Place, most: int) -> Item:
    metadata = mapping(content, "metadata", place)
    inside = Place(place.document, f"{place.path}.metadata")
    space = ""
    if kind != "Node":
        space = name(metadata, "namespace", inside, MAX_LABEL) or DEFAULT_NAMESPACE
    return Item(kind, version, space, name(metadata, "name", inside, most), content, metadata, place)


def _each_once(items: list[Item], notices: Notices) -> tuple[Item, ...]:
    """Of several objects of one name the one with the highest resource version, as files are saved at
    different times; then one that does not depend on their order."""
    chosen: dict[tuple[str, str], Item] = {}
    for item in items:
        key = (item.namespace, item.name)
        known = chosen.setdefault(key, item)
        if known is item:
            continue
        ranks = [_rank(known), _rank(item)]
        if ranks[0] != ranks[1]:
            notices.warn(item.subject, "is there more than once; the newest is taken")
        if ranks[1] > ranks[0]:
            chosen[key] = item
    return tuple(chosen[key] for key in sorted(chosen))


def _rank(item: Item) -> tuple[int, str]:
    version = str(item.metadata.get("resourceVersion") or "")
    number = int(version) if version.isascii() and version.isdigit() and len(version) < 20 else -1
    try:
        return number, json.dumps(item.content, sort_keys=True, default=str)
    except (RecursionError, TypeError, ValueError):
        raise ObjectProblem(item.place, "is there more than once, and cannot be compared") from None


def _status(content: Mapping[str, object]) -> str:
    message = content.get("message") or content.get("reason") or "no reason given"
    return f"the API server answered with an error in place of objects: {shown(message)}"


def _tell_others(others: dict[str, int], any_slices: bool, notices: Notices) -> None:
    for label, count in others.items():
        if label == "Endpoints":
            text = f"{count} legacy Endpoints left out: backends are read from EndpointSlices"
            if any_slices:
                notices.note("Endpoints", text)
            else:
                notices.warn("Endpoints", f"{text}, of which there are none (kubectl get endpointslices)")
        else:
            notices.note(label, f"{count} left out: objects of this kind say nothing of services")
