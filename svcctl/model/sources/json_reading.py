"""JSON: one document or a stream of them, at the speed of the standard library, with nothing taken on trust.

The decoder does not tell repeated keys: of two it keeps the last. To see each object's pairs costs a call of
Python an object, more than all the rest. So keys are counted: those of the result, level by level, against the
colons behind quotes in the text. Only where the two differ objects are looked at one by one.

Even that costs as much again as the decoder. In a document of more than `LARGE` it is left to whoever knows
what kind of document it is: a large one of Kubernetes is the output of a program, which has no repeated keys.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from svcctl.model.bad_value import show
from svcctl.model.sources.document import JSON, Document
from svcctl.model.sources.problem import InputProblem, format_path, refuse_dense

if TYPE_CHECKING:
    from svcctl.model.sources.problem import Steps

LARGE = 1 << 20
"""Characters."""

MAX_DEPTH = 200
"""Of objects and arrays in each other. Kubernetes' own stay below 20."""

_space = re.compile(r"[ \t\n\r]*").match
_token = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL).finditer
_spaced_colon = re.compile(r'"[ \t\n\r]+:').search
_scan_string = json.decoder.scanstring  # type: ignore[attr-defined]


class NotJson(InputProblem):
    """The text breaks the grammar: it may be YAML that looks like JSON."""


class _Constant(Exception):
    """NaN or Infinity: the argument is its name."""


class _Repeated(Exception):
    """Some object has a key twice: the argument."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def read_json(source: str, data: bytes, text: str) -> list[Document]:
    """The documents of `text`, which is `data` decoded.

    Raises NotJson, and InputProblem for what is JSON but nothing to work with.
    """
    refuse_dense(source, text, ",[{")
    found: list[tuple[int, object]] = []
    at = skip_space(text, 0)
    while at < len(text):
        start = at
        try:
            value, at = _decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _syntax(source, text, error) from None
        except _Constant as constant:
            raise _refused_constant(source, text, str(constant)) from None
        except RecursionError:
            raise InputProblem(source, "nested too deep", path="$") from None
        except ValueError:  # int() takes no more than sys.get_int_max_str_digits() digits
            raise InputProblem(source, "a number with too many digits", path="$") from None
        found.append((start, value))
        at = skip_space(text, at)
    values = [value for _, value in found]
    documents = [_document(source, data, start, value) for start, value in found]
    if len(text) <= LARGE:
        _check(source, text, values)
        return documents
    made: list[bool] = []

    def check() -> None:
        """It is about all documents of the text: whoever asks first has it made."""
        if not made:
            made.append(True)
            _check(source, data.decode(), values)

    for document in documents:
        document.check = check
    return documents


def _document(source: str, data: bytes, start: int, value: object) -> Document:
    return Document(source, value, JSON, lambda steps: line_of(data.decode(), start, steps))


def _check(source: str, text: str, values: list[object]) -> None:
    """Raises InputProblem for a repeated key, and for too deep a nesting."""
    keys = _count_keys(source, values)
    # `":` inside a string is `\":` in the text; a key that ends in a backslash would look like it.
    colons = text.count('":') - text.count('\\":')
    if keys == colons and '\\\\":' not in text and not _spaced_colon(text):
        return
    try:
        at = skip_space(text, 0)
        while at < len(text):
            _, at = _strict_decoder.raw_decode(text, at)
            at = skip_space(text, at)
    except _Repeated as repeated:
        place = find_token(text, None) if len(text) <= LARGE else None
        raise _at(source, text, place, f"the key {show(str(repeated))} is there twice") from None


def _keys_once(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Repeated(next(key for number, key in enumerate(keys) if key in keys[:number]))


_strict_decoder = json.JSONDecoder(object_pairs_hook=_keys_once)


def _count_keys(source: str, values: list[object]) -> int:
    """Keys of all objects, by levels: the loops are C's."""
    keys = depth = 0
    level = values
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InputProblem(source, f"nested deeper than {MAX_DEPTH}", path="$")
        objects = [value for value in level if type(value) is dict]
        arrays = [value for value in level if type(value) is list]
        keys += sum(map(len, objects))
        inside = map(dict.values, objects)
        level = [*chain.from_iterable(inside), *chain.from_iterable(arrays)]
    return keys


def _refused_constant(source: str, text: str, name: str) -> InputProblem:
    place = find_token(text, name) if len(text) <= LARGE else None
    return _at(source, text, place, f"{name} is not a number that JSON knows")


def _at(source: str, text: str, place: tuple[Steps, int] | None, cause: str) -> InputProblem:
    if place is None:
        return InputProblem(source, cause, path="$")
    steps, offset = place
    return InputProblem(source, cause, path=format_path(steps), line=text.count("\n", 0, offset) + 1)


def find_token(text: str, word: str | None) -> tuple[Steps, int] | None:
    """(path, offset) of the first value that is written `word`; with None, of the first object with a repeated
    key, and where that is repeated. Token by token: slow."""
    keys: list[set[str] | None] = []  # of each open object; None: an array
    steps: list[str | int] = []
    is_key = False
    for match in _token(text):
        token = match[0]
        if token in "{[":
            is_key = token == "{"
            keys.append(set() if is_key else None)
            steps.append(0)
        elif token in "}]":
            keys.pop()
            steps.pop()
        elif token == ",":
            is_key = keys[-1] is not None
            last = steps[-1]
            if isinstance(last, int):
                steps[-1] = last + 1
        elif is_key and token != ":":
            is_key = False
            key, _ = _scan_string(text, match.start() + 1)
            seen = keys[-1]
            if seen is not None and word is None:
                if key in seen:
                    return tuple(steps[:-1]), match.start()
                seen.add(key)
            steps[-1] = key
        elif token == word:
            return tuple(steps), match.start()
    return None


def line_of(text: str, start: int, steps: Steps) -> int:
    """The line of the value that the steps lead to, in the document that starts at that offset."""
    at = start
    for step in steps:
        found = _item(text, at, step) if isinstance(step, int) else _field(text, at, step)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _field(text: str, at: int, wanted: str) -> int | None:
    """Where the value of a key starts in the object at `at`."""
    if text[at] != "{":
        return None
    at = skip_space(text, at + 1)
    while text[at] == '"':
        key, at = _scan_string(text, at + 1)
        at = skip_space(text, skip_space(text, at) + 1)
        if key == wanted:
            return at
        _, at = _decoder.raw_decode(text, at)
        at = skip_space(text, skip_space(text, at) + 1)
    return None


def _item(text: str, at: int, wanted: int) -> int | None:
    """Where an item of the array at `at` starts."""
    if text[at] != "[":
        return None
    at = skip_space(text, at + 1)
    number = 0
    while text[at] != "]":
        if number == wanted:
            return at
        _, at = _decoder.raw_decode(text, at)
        at = skip_space(text, at)
        if text[at] == "]":
            break
        at = skip_space(text, at + 1)
        number += 1
    return None


def skip_space(text: str, at: int) -> int:
    """Where the next character is that is no white space of JSON."""
    found = _space(text, at)
    return found.end() if found else at


def _syntax(source: str, text: str, error: json.JSONDecodeError) -> NotJson:
    end = " where the file ends" if error.pos >= len(text) else ""
    cause = f"column {error.colno}{end}: not JSON: {error.msg}"
    return NotJson(source, cause, path="$", line=error.lineno)
