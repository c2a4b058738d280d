"""Takes fields out of parsed objects; one of the wrong type is an error that names its place.

An absent field and a null one are the same, as they are to the API server, except where a caller says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bindings_file import FileProblem
from svcctl.model.sources import problem
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
MAX_NAME = 253
MAX_LABEL = 63
HUGE = 10**18
_new = tuple.__new__  # of a record, at a fraction of the cost: each object has a dozen places


class Place(Record):
    """Where a value stands: number of the document, from 0, and the path in it (`$.items[3].spec`)."""

    document: int
    path: str

    def under(self, key: str | int) -> Place:
        """The place of a field or an item of the value here."""
        document, path = self
        return _new(Place, (document, f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"))


class ObjectProblem(FileProblem):
    """An object that no API server could have given: nothing of the input is used.

    `document` is its number among the documents, from 0; `path` and `cause` as in FileProblem.
    """

    def __init__(self, place: Place, cause: str, *, hint: str | None = None) -> None:
        source = f"document {place.document + 1}" if place.document else ""
        super().__init__(place.path, cause, hint=hint, source=source)
        self.document = place.document


def object_at(content: object, path: str) -> str:
    """The object that a path of a document leads into, by kind, namespace and name; "" if it does not say them.

    What was wrong may be the name itself: only names that could be one are said.
    """
    found = ""
    listed = ""
    for step in (None, *problem.find_steps(content, path)):
        if step is not None:
            content = content[step]  # type: ignore[index]
        if not isinstance(content, dict):
            continue
        kind = content.get("kind") or listed
        if isinstance(kind, str) and kind.endswith("List") and kind != "List":
            listed = kind[:-4]
        metadata = content.get("metadata")
        if isinstance(metadata, dict):
            words = [kind, metadata.get("namespace") or "", metadata.get("name")]
            if all(isinstance(word, str) and NAME_CHARACTERS.issuperset(word) for word in words) and words[2]:
                kind, space, own = (str(word)[:MAX_NAME] for word in words)
                found = f"{kind} {space}/{own}" if space else f"{kind} {own}".strip()
    return found


def shown(value: object) -> str:
    """A value in the words of JSON, short."""
    if isinstance(value, int) and not -HUGE < value < HUGE:
        return "a huge number"  # some have more digits than Python wants to write
    return problem.shown(value)


def mapping(parent: Mapping[str, object], key: str, place: Place) -> Mapping[str, object]:
    """The object at `key`, an empty one if there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ObjectProblem(place.under(key), f"expected an object, got {shown(value)}")
    return value


def entries(parent: Mapping[str, object], key: str, place: Place) -> list[object]:
    """The array at `key`, an empty one if there is none."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ObjectProblem(place.under(key), f"expected an array, got {shown(value)}")
    return value


def objects(parent: Mapping[str, object], key: str, place: Place) -> list[Mapping[str, object]]:
    """The array of objects at `key`."""
    found: list[Mapping[str, object]] = []
    for number, value in enumerate(entries(parent, key, place)):
        if not isinstance(value, dict):
            raise ObjectProblem(place.under(key).under(number), f"expected an object, got {shown(value)}")
        found.append(value)
    return found


def texts(parent: Mapping[str, object], key: str, place: Place) -> list[str]:
    """The array of strings at `key`."""
    found: list[str] = []
    for number, value in enumerate(entries(parent, key, place)):
        if not isinstance(value, str):
            raise ObjectProblem(place.under(key).under(number), f"expected a string, got {shown(value)}")
        found.append(value)
    return found


def text(parent: Mapping[str, object], key: str, place: Place) -> str:
    """The string at `key`, "" if there is none."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ObjectProblem(
            place.under(key), f"expected a string, got {shown(value)}", hint=_quote_hint(value)
        )
    return value


def integer(parent: Mapping[str, object], key: str, place: Place) -> int | None:
    """The whole number at `key`; None if there is none."""
    value = parent.get(key)
    if value is None:
        return None
    if type(value) is not int or not -HUGE < value < HUGE:
        raise ObjectProblem(place.under(key), f"expected a whole number, got {shown(value)}")
    return value


def port_number(parent: Mapping[str, object], key: str, place: Place) -> int:
    """The port at `key`, 0 if there is none. Raises ObjectProblem outside 0..65535."""
    value = integer(parent, key, place) or 0
    if not 0 <= value <= 65535:
        raise ObjectProblem(place.under(key), f"expected 1-65535, got {value}")
    return value


def choice(parent: Mapping[str, object], key: str, place: Place, known: tuple[str, ...]) -> str:
    """One of the words `known`; the first of them if there is none."""
    value = text(parent, key, place)
    if value and value not in known:
        raise ObjectProblem(place.under(key), f"expected {', '.join(known)}, got {shown(value)}")
    return value or known[0]


def name(parent: Mapping[str, object], key: str, place: Place, most: int) -> str:
    """A name of letters, digits, '-', '_' and '.', "" if there is none.

    Wider than what the API server takes, and still without anything that would make the name of a service
    (`namespace/name:port/protocol`) mean two things or a listing lie.
    """
    value = text(parent, key, place)
    if len(value) > most:
        raise ObjectProblem(place.under(key), f"is {len(value)} characters long, {most} at most")
    if not NAME_CHARACTERS.issuperset(value):
        raise ObjectProblem(
            place.under(key), f"expected letters, digits, '-', '_' and '.', got {shown(value)}"
        )
    return value


def port_name(parent: Mapping[str, object], key: str, place: Place) -> str:
    """The name of a port. A number is taken for its digits: YAML reads `name: 80` as one."""
    value = parent.get(key)
    if type(value) is int and 0 <= value < HUGE:
        return str(value)
    return name(parent, key, place, MAX_LABEL)


def _quote_hint(value: object) -> str | None:
    return "put it in quotes: without them it is no text" if isinstance(value, int | float) else None
