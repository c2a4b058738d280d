"""Bytes of an input to documents: JSON, a stream of JSON, or YAML, whichever it is.

Whatever the bytes are, the outcome is documents or an InputProblem, and within a time and memory that go with
their number: see the limits in json_reading.py and yaml_reading.py.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from svcctl.model.sources.json_reading import NotJson, read_json, skip_space
from svcctl.model.sources.problem import InputProblem
from svcctl.model.sources.yaml_reading import NotYaml, read_yaml

if TYPE_CHECKING:
    from svcctl.model.sources.document import Document

MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

_FLOW_YAML = 1 << 20
"""Up to here, what starts like JSON and is none may be YAML in braces."""


def decode(source: str, data: bytes) -> str:
    """The text of an input. Raises InputProblem for what is no UTF-8 text, or empty."""
    if data.startswith(MARKS):
        hint = "save the file as UTF-8 without one"
        raise InputProblem(source, "starts with a byte order mark", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputProblem(source, f"not UTF-8 at byte {error.start}", line=line) from None
    at = text.find("\0")
    if at >= 0:
        raise InputProblem(source, "has a zero byte: no text", line=text.count("\n", 0, at) + 1)
    if skip_space(text, 0) == len(text):
        raise InputProblem(source, "is empty", hint="an empty input changes nothing: say what is wanted")
    return text


def read_documents(source: str, data: bytes) -> list[Document]:
    """The documents of an input, one at least. `source` is its name, for messages. Raises InputProblem.

    The garbage collector is off meanwhile: it would walk the growing result again and again.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return parse_documents(source, data, decode(source, data))
    except MemoryError:
        raise InputProblem(source, "too large for the memory of this machine") from None
    finally:
        if collecting:
            gc.enable()


def parse_documents(source: str, data: bytes, text: str) -> list[Document]:
    """As `read_documents`, for data that has been decoded, with the collector as it is."""
    if text[skip_space(text, 0)] in "{[":
        try:
            return read_json(source, data, text)
        except NotJson as problem:
            if len(data) > _FLOW_YAML:
                raise
            try:
                documents = read_yaml(source, data, text)
            except NotYaml:
                raise problem from None
    else:
        documents = read_yaml(source, data, text)
    if not documents:
        raise InputProblem(source, "is empty", hint="an empty input changes nothing: say what is wanted")
    return documents
