"""The error for an input, with its place: file, path in the document, line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.errors import UsageProblem
from svcctl.model.bad_value import show
from svcctl.model.bindings_file import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    Steps = tuple[str | int, ...]
    """A path taken apart: keys and indices from the root of a document on."""


MAX_STEPS = 20

_SUSPECT = 8 << 20
_PIECE = 1 << 14
_FEWEST = 6
"""Characters that a value takes at least, on the average, in anything that large which could be meant: a
hundred megabytes of `[1,1,1` would become gigabytes."""


class InputProblem(FileProblem):
    """An input that cannot be used: `web.yaml: $.services[3].port: line 12: expected 1-65535, got 'http'`.

    `path` is empty in sources that are made of lines, `line` is 0 where no line has the fault.
    """

    def __init__(
        self, source: str, cause: str, *, path: str = "", line: int = 0, hint: str | None = None
    ) -> None:
        parts = (source, path, f"line {line}" if line else "", cause)
        UsageProblem.__init__(self, ": ".join(part for part in parts if part), hint=hint)
        self.source = source
        self.path = path
        self.line = line
        self.cause = cause


def format_path(steps: Iterable[str | int]) -> str:
    """`$.services[3].port`; a key that is no plain word is quoted, what is deep inside is shortened."""
    text = "$"
    for number, step in enumerate(steps):
        if number == MAX_STEPS:
            return text + "..."
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "a").replace("-", "a").isalnum():
            text += f".{step}"
        else:
            text += f"[{show(step)}]"
    return text


def find_steps(value: object, path: str) -> Steps:
    """The steps of a path's text in the value it is about, as far as they lead somewhere.

    Keys may have dots, as labels of Kubernetes do: the longest key that fits is taken.
    """
    steps: list[str | int] = []
    rest = path.removeprefix("$")
    while rest:
        step: str | int
        if rest[0] == "[" and isinstance(value, list):
            digits, _, rest = rest[1:].partition("]")
            step = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
            if not 0 <= step < len(value):
                break
            value = value[step]
        elif rest[0] == "." and isinstance(value, dict):
            fits = [
                key
                for key in value
                if rest.startswith(key, 1) and rest[len(key) + 1 : len(key) + 2] in ("", ".", "[")
            ]
            if not fits:
                break
            key = step = max(fits, key=len)
            rest = rest[len(key) + 1 :]
            value = value[key]
        else:
            break
        steps.append(step)
    return tuple(steps)


def shown(value: object) -> str:
    """A value in the words of JSON, short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return show(value)


def refuse_large(
    source: str, data: bytes | str, line_limit: int, limit: int, *, hint: str | None = None
) -> None:
    """Raises InputProblem for an input, or a line of it, that is longer than a reader can take in a second."""
    if len(data) > limit:
        raise InputProblem(source, f"has a length of {len(data)}, {limit} at most", hint=hint)
    newline: Any = "\n" if isinstance(data, str) else b"\n"
    start, line = 0, 1
    while len(data) - start > line_limit:
        end = data.rfind(newline, start, start + line_limit)
        if end < 0:
            raise InputProblem(source, f"is longer than {line_limit}", line=line, hint=hint)
        line += data.count(newline, start, end + 1)
        start = end + 1


def refuse_dense(source: str, text: str, separators: str) -> None:
    """Raises InputProblem for a large text of nearly nothing but separators; looks at one piece in a hundred."""
    if len(text) < _SUSPECT:
        return
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), 100 * _PIECE)]
    values = sum(piece.count(separator) for piece in pieces for separator in separators)
    if values * _FEWEST > sum(map(len, pieces)):
        cause = f"{len(text)} characters, most of them brackets, commas or ends of lines: no manifest looks like that"
        raise InputProblem(source, cause)
