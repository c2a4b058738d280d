"""The objects of one kind as the last list and the events since have them. Pure: no process, no clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcctl.follow.resources import LAST_CHANGE, slim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.follow.resources import Resource

Key = tuple[str, str]
_GONE = 410


class BadAnswer(Exception):
    """What came is not what was asked for: an error page, something cut short, another kind of object."""


class Expired(Exception):
    """The version, or the place in a list, is too old for the server: list again."""


class Store:
    """Objects by namespace and name.

    `version` is where a watch goes on; `changed` counts the changes since it was last set to 0. A list takes
    the place of what there was only once its last page is in: what it lacks is gone then, and not before.
    `triggers` are the times, as RFC 3339 texts, at which the changes began that came since `triggers` was
    last emptied.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.listed = False
        self.version = ""
        self.changed = 0
        self.objects: dict[Key, dict[str, Any]] = {}
        self.triggers: dict[Key, str] = {}
        self._incoming: dict[Key, dict[str, Any]] = {}

    def begin(self) -> None:
        """Before the first page of a list."""
        self._incoming = {}

    def page(self, data: bytes) -> str:
        """Take one page. Returns where the next one begins; empty: that was the last, and the list counts now.

        Raises BadAnswer, and then nothing has changed.
        """
        document = _parse(data)
        expected = f"{self.resource.kind}List"
        if document.get("kind") != expected:
            raise BadAnswer(f"expected a {expected}, got {_what(document)}")
        metadata = document.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not version:
            raise BadAnswer(f"a {expected} without a resourceVersion")
        items = document.get("items")
        if not isinstance(items, list | None):
            raise BadAnswer(f"a {expected} whose items are no list")
        for item in items or ():
            key = _key(item)
            self._incoming[key] = slim(self.resource, item)
        token = metadata.get("continue") if isinstance(metadata, dict) else None
        if token:
            return str(token)
        self._replace(version)
        return ""

    def _replace(self, version: str) -> None:
        new, self._incoming = self._incoming, {}
        for key in self.objects.keys() | new.keys():
            self._note(self.objects.get(key), new.get(key))
        self.objects = new
        self.version = version
        self.listed = True

    def event(self, line: bytes) -> None:
        """Take one event of a watch. Raises Expired or BadAnswer."""
        event = _parse(line)
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise BadAnswer(f"an event without an object: {_what(event)}")
        if kind == "ERROR":
            message = str(item.get("message") or item.get("reason") or "no reason given")
            if item.get("code") == _GONE or item.get("reason") in ("Expired", "Gone"):
                raise Expired(message)
            raise BadAnswer(message)
        metadata = item.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not version:
            raise BadAnswer(f"{kind}: an object without a resourceVersion")
        if kind in ("ADDED", "MODIFIED"):
            self._put(item)
        elif kind == "DELETED":
            self._note(self.objects.pop(_key(item), None), None)
        elif kind != "BOOKMARK":
            raise BadAnswer(f"an event of the unknown type {kind!r}")
        self.version = version

    def _put(self, item: dict[str, Any]) -> None:
        key, kept = _key(item), slim(self.resource, item)
        if not self._note(self.objects.get(key), kept):
            return
        self.objects[key] = kept
        annotations = item["metadata"].get("annotations")
        trigger = annotations.get(LAST_CHANGE) if isinstance(annotations, dict) else None
        if isinstance(trigger, str):
            self.triggers.setdefault(key, trigger)

    def _note(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> bool:
        """Take note of a change, if it is one."""
        if old == new:
            return False
        self.changed += 1
        return True


def all_objects(stores: Iterable[Store]) -> list[dict[str, Any]]:
    """The objects of all kinds, as a List has them."""
    return [item for store in stores for item in store.objects.values()]


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BadAnswer(f"not JSON: {_excerpt(data)}" if data.strip() else "an empty answer") from None
    if not isinstance(document, dict):
        raise BadAnswer(f"not an object: {_excerpt(data)}")
    return document


def _key(item: Any) -> Key:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise BadAnswer("an object without a name")
    return str(metadata.get("namespace") or ""), name  # type: ignore[union-attr]


def _what(document: dict[str, Any]) -> str:
    if document.get("kind") == "Status":
        return f"a Status: {document.get('message') or document.get('reason') or 'without a message'}"
    kind = document.get("kind")
    return f"a {kind}" if isinstance(kind, str) else "something without a kind"


def _excerpt(data: bytes) -> str:
    text = data[:60].decode("utf-8", "backslashreplace").strip()
    return repr(text + ("..." if len(data) > 60 else ""))
