"""Objects -> JSON: one document with schema and list, or one object a line. UTF-8, keys in column order.

The document has one object a line, so that diff and grep work on it and it is written as it is made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

SCHEMA = 1
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def document(
    noun: str, objects: Iterable[Mapping[str, Any]], extra: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Lines of `{"schema":1, ...extra, "<noun>":[...]}`.

    Everything is encoded before the first line is given out: a reader gets a whole document or none.
    """
    lines = [_encode(one) for one in objects]
    head = {"schema": SCHEMA, **(extra or {})}
    start = _encode(head)[:-1] + f",{_encode(noun)}:["
    if not lines:
        yield start + "]}"
        return
    yield start
    for line in lines[:-1]:
        yield line + ","
    yield lines[-1]
    yield "]}"


def lists(head: Mapping[str, Any], lists: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Lines of an object with several lists behind `head`; as `document` otherwise."""
    encoded = [(_encode(key), [_encode(one) for one in objects]) for key, objects in lists.items()]
    start = _encode(head)[:-1]
    for key, lines in encoded:
        start += f",{key}:["
        if lines:
            yield start
            for line in lines[:-1]:
                yield line + ","
            yield lines[-1]
            start = ""
        start += "]"
    yield start + "}"


def stream(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One line of JSON for each object, as they come."""
    return map(_encode, objects)


def one_line(value: Mapping[str, Any]) -> str:
    """A single object on a single line."""
    return _encode(value)
