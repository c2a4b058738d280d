"""Takes the fields out of one object of a document; whatever is wrong is an error at its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from svcctl.model.bad_value import BadValue
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from svcctl.model.sources.document import Document
    from svcctl.model.sources.problem import InputProblem, Steps

Value = TypeVar("Value")


class Fields:
    """The fields of the object at `steps`. Every method raises InputProblem.

    A field that is absent has the default; null is no value and is refused.
    """

    __slots__ = ("_object", "document", "steps")

    def __init__(self, document: Document, steps: Steps, value: object) -> None:
        self.document = document
        self.steps = steps
        if not isinstance(value, dict):
            raise document.problem(steps, f"expected an object, got {shown(value)}")
        self._object: Mapping[str, object] = value

    def __contains__(self, key: str) -> bool:
        return key in self._object

    def problem(self, cause: str, *steps: str | int, hint: str | None = None) -> InputProblem:
        """The error for a place inside of the object, or for all of it."""
        return self.document.problem((*self.steps, *steps), cause, hint=hint)

    def allow(self, known: Collection[str]) -> None:
        """Refuses every other key."""
        for key in self._object:
            if key not in known:
                raise self.problem("unknown key", key, hint=f"known keys: {', '.join(sorted(known))}")

    def require(self, *keys: str) -> None:
        """Refuses an object that lacks one of the keys."""
        for key in keys:
            if key not in self._object:
                raise self.problem(f'the key "{key}" is missing')

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self._object.get(key, default)
        if not isinstance(value, str):
            raise self.problem(f"expected a string, got {shown(value)}", key)
        return value

    def number(self, key: str, most: int, default: int = 0) -> int:
        """A whole number from 0 to `most`."""
        value = self._object.get(key, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.problem(f"expected 0-{most}, got {shown(value)}", key)
        return value

    def switch(self, key: str) -> bool:
        """true or false, which is the default."""
        value = self._object.get(key, False)
        if not isinstance(value, bool):
            raise self.problem(f"expected true or false, got {shown(value)}", key)
        return value

    def word(self, key: str, words: Mapping[str, Value], default: Value) -> Value:
        """One of a few words; what it stands for."""
        if key not in self._object:
            return default
        value = self._object[key]
        if not isinstance(value, str) or value not in words:
            raise self.problem(f"expected one of {', '.join(words)}, got {shown(value)}", key)
        return words[value]

    def array(self, key: str) -> list[object]:
        """An array; an empty one if there is none."""
        value = self._object.get(key, [])
        if not isinstance(value, list):
            raise self.problem(f"expected an array, got {shown(value)}", key)
        return value

    def texts(self, key: str) -> list[str]:
        """An array of strings."""
        found = []
        for number, value in enumerate(self.array(key)):
            if not isinstance(value, str):
                raise self.problem(f"expected a string, got {shown(value)}", key, number)
            found.append(value)
        return found

    def raw(self, key: str) -> object:
        """The value as it is, None if there is none."""
        return self._object.get(key)

    def parsed(self, parse: Callable[[str], Value], text: str, *steps: str | int) -> Value:
        """What a parser of the model makes of a text from that place."""
        try:
            return parse(text)
        except BadValue as problem:
            raise self.problem(problem.message, *steps, hint=problem.hint) from None
