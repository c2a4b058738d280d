"""YAML: streams of documents, built straight from libyaml's events. PyYAML is imported here and in render/yaml.py.

PyYAML's own loaders resolve what no manifest means (1:30 is 90), keep the last of two equal keys, and recurse.
Here nothing recurses, every limit is checked as the events come, and an alias counts as all that it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.model.bad_value import show
from svcctl.model.sources.document import YAML, Document
from svcctl.model.sources.problem import InputProblem, format_path, refuse_dense, refuse_large
from svcctl.model.sources.yaml_scalars import (
    BOOLEAN_KEYS,
    TEXT_KEYS,
    TEXT_MAPS,
    NotFinite,
    resolve,
    resolve_boolean,
    resolve_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.model.sources.problem import Steps

MAX_DEPTH = 100
MAX_EXPANDED = 250_000
"""Values that all aliases and merges of a document may stand for together: a bomb has millions."""
MAX_LINE = 4 << 20
MAX_SIZE = 64 << 20
"""Bytes. libyaml reads some megabytes a second."""

_MERGE = "<<"
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"})
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null"))
_COLLECTION_TAGS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class NotYaml(InputProblem):
    """The bytes break the grammar."""


class _Frame:
    """An object or array that is being built. `key`: of the value that comes next; `weight`: values inside."""

    __slots__ = ("anchor", "is_text", "key", "merged", "merges", "value", "wants_key", "weight")

    def __init__(self, value: dict[str, Any] | list[Any], anchor: str | None, *, is_text: bool) -> None:
        self.value = value
        self.anchor = anchor
        self.is_text = is_text
        self.key: str = ""
        self.wants_key = isinstance(value, dict)
        self.merges = False  # the value that comes next is that of a merge key
        self.merged: list[dict[str, Any]] | None = None
        self.weight = 1


class _Fault(Exception):
    """What is wrong, and at which event."""

    def __init__(self, event: Any, cause: str, hint: str | None = None) -> None:
        super().__init__(cause)
        self.event = event
        self.cause = cause
        self.hint = hint


class _Found(Exception):
    """The line that was looked for: the argument."""


class _Builder:
    """Builds the documents of one stream.

    With `wanted`, the path of a value in document number `wanted_in`, it goes no further than there and raises
    _Found with its line, or that of the last part of the path that is there.
    """

    def __init__(self, data: bytes, wanted: Steps | None = None, wanted_in: int = 0) -> None:
        import yaml

        self.yaml = yaml
        self.data = data
        self.frames: list[_Frame] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.expanded = 0
        self.odd: list[tuple[Steps, str, object]] = []
        self.wanted = wanted
        self.wanted_in = wanted_in
        # How many objects and arrays are open where the next step of `wanted` may be; -1: not in this document.
        self.at = -1
        self.line = 0

    def documents(self) -> Iterator[Any]:
        """The value of each document. Raises _Fault, YAMLError."""
        self.get = get = _parser(self.yaml, self.data).get_event
        events = self.yaml.events
        number = 0
        while type(event := get()) is not events.StreamEndEvent:
            if type(event) is events.DocumentStartEvent:
                self.anchors.clear()
                self.odd = []
                self.expanded = 0
                first = get()
                if self.wanted is not None and number == self.wanted_in:
                    self.at, self.line = 1, _line(first)
                    if not self.wanted:
                        raise _Found(self.line)
                yield self._build(first)
                number += 1

    def path(self) -> Steps:
        """Where the building is."""
        steps: list[str | int] = []
        for frame in self.frames:
            if isinstance(frame.value, list):
                steps.append(len(frame.value))
            elif not frame.wants_key:
                steps.append(frame.key)
        return tuple(steps)

    def _build(self, event: Any) -> Any:
        """The value that starts with the event."""
        events = self.yaml.events
        scalar_event, alias_event = events.ScalarEvent, events.AliasEvent
        get = self.get
        frames = self.frames
        frames.clear()
        while True:
            kind = type(event)
            weight = 1
            if kind is scalar_event:
                if frames and frames[-1].wants_key:
                    self._take_key(frames[-1], event)
                    event = get()
                    continue
                if self.at >= 0:
                    self._follow_leaf(event)
                value = self._scalar(event)
                if event.anchor:
                    self.anchors[event.anchor] = (value, 1)
            elif kind is alias_event:
                if self.at >= 0:
                    self._follow_leaf(event)
                value, weight = self._alias(event)
            elif kind is events.MappingStartEvent or kind is events.SequenceStartEvent:
                self._open(event, {} if kind is events.MappingStartEvent else [])
                event = get()
                continue
            else:  # the end of an object or array
                frame = frames.pop()
                value, weight = frame.value, frame.weight
                if frame.merged and isinstance(value, dict):
                    for other in frame.merged:
                        value.update({key: one for key, one in other.items() if key not in value})
                if frame.anchor:
                    self.anchors[frame.anchor] = (value, weight)
                if len(frames) < self.at:
                    raise _Found(self.line)  # the rest of the path is not there
            if not frames:
                return value
            self._put(frames[-1], value, weight, event)
            event = get()

    def _put(self, frame: _Frame, value: Any, weight: int, event: Any) -> None:
        """A value that is whole goes where it belongs."""
        frame.weight += weight
        if isinstance(frame.value, list):
            frame.value.append(value)
            return
        if frame.merges and frame.merged is not None:
            given = value if isinstance(value, list) else [value]
            for one in given:
                if not isinstance(one, dict):
                    raise _Fault(event, "only objects can be merged with <<")
                self._count(len(one), event)
            frame.merged += given
        else:
            frame.value[frame.key] = value
        frame.wants_key = True

    def _take_key(self, frame: _Frame, event: Any) -> None:
        key: str = event.value
        if len(self.frames) == self.at:
            self._follow(event)
        if event.anchor:
            self.anchors[event.anchor] = (key, 1)
        is_merge = key == _MERGE and event.implicit[0]
        if frame.merged is not None if is_merge else key in frame.value:
            raise _Fault(event, f"the key {show(key)} is there twice")
        if is_merge:
            frame.merged = []
        frame.key = key
        frame.merges = is_merge
        frame.wants_key = False

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        frames = self.frames
        if event.tag not in _COLLECTION_TAGS:
            raise _Fault(event, f"the tag {show(event.tag)} means nothing here")
        if len(frames) >= MAX_DEPTH:
            raise _Fault(event, f"nested deeper than {MAX_DEPTH}")
        is_text = False
        if frames:
            above = frames[-1]
            if above.wants_key:
                raise _Fault(event, "a key has to be a word, not an object or an array")
            if isinstance(above.value, dict):
                is_text = above.key in (TEXT_KEYS if isinstance(value, list) else TEXT_MAPS)
            if len(frames) == self.at:
                self._follow(event)
        if event.anchor:
            self.anchors.pop(event.anchor, None)  # inside itself it is not there yet
        frames.append(_Frame(value, event.anchor, is_text=is_text))

    def _follow(self, event: Any) -> None:
        """A key, or an item of an array: is it the next step of the path that is wanted? Raises _Found."""
        value = self.frames[-1].value
        step = len(value) if isinstance(value, list) else event.value if self.frames[-1].wants_key else None
        if self.wanted is not None and step == self.wanted[self.at - 1]:
            self.line = _line(event)
            if self.at == len(self.wanted):
                raise _Found(self.line)
            self.at += 1

    def _follow_leaf(self, event: Any) -> None:
        """A value without values inside. Raises _Found if the path has led to it: there is no more to follow."""
        if len(self.frames) == self.at:
            self._follow(event)
        if len(self.frames) == self.at - 1:
            raise _Found(self.line)

    def _alias(self, event: Any) -> tuple[Any, int]:
        if self.frames and self.frames[-1].wants_key:
            raise _Fault(event, "an alias cannot be a key")
        found = self.anchors.get(event.anchor)
        if found is None:
            cause = f"*{event.anchor} has no anchor before it"
            if any(frame.anchor == event.anchor for frame in self.frames):
                cause = f"*{event.anchor} stands inside of what it stands for"
            raise _Fault(event, cause)
        self._count(found[1], event)
        return found

    def _count(self, values: int, event: Any) -> None:
        self.expanded += values
        if self.expanded > MAX_EXPANDED:
            raise _Fault(event, f"aliases stand for more than {MAX_EXPANDED} values")

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        tag = event.tag
        if tag is not None:
            if tag in _TEXT_TAGS:
                return text
            if tag not in _PLAIN_TAGS:
                raise _Fault(event, f"the tag {show(tag)} means nothing here")
        elif not event.implicit[0]:
            return text
        frame = self.frames[-1] if self.frames else None
        is_boolean = False
        if frame is not None and tag is None:
            key = frame.key if isinstance(frame.value, dict) else None
            if frame.is_text or key in TEXT_KEYS:
                return resolve_text(text)
            is_boolean = key in BOOLEAN_KEYS
        try:
            value, is_plain = resolve_boolean(text) if is_boolean else resolve(text)
        except NotFinite:
            raise _Fault(event, f"{text} is not a number that JSON knows") from None
        if not is_plain:
            self.odd.append((self.path(), text, value))
        return value


def read_yaml(source: str, data: bytes, text: str) -> list[Document]:
    """The documents of a stream; empty ones are left out. Raises InputProblem.

    `text` is `data` decoded: valid UTF-8 without NUL and byte order mark.
    """
    hint = "give JSON: it is read a hundred times as fast"
    refuse_large(source, data, MAX_LINE, MAX_SIZE, hint=hint)
    refuse_dense(source, text, "\n,[{")
    try:
        builder = _Builder(data)
    except ModuleNotFoundError:
        hint = "install python3-yaml, or give JSON"
        raise InputProblem(source, "is YAML, and PyYAML is not installed", hint=hint) from None
    documents = []
    number = 0
    try:
        for value in builder.documents():
            if value is not None:
                documents.append(_document(source, data, number, value, builder.odd))
            number += 1
    except _Fault as fault:
        path = format_path(builder.path())
        line = _line(fault.event)
        raise InputProblem(source, fault.cause, path=path, line=line, hint=fault.hint) from None
    except builder.yaml.YAMLError as error:
        raise _syntax(source, data, error) from None
    return documents


def line_of(data: bytes, number: int, steps: Steps) -> int:
    """The line of the value that the steps lead to in a document; the stream is read again up to there."""
    try:
        for _ in _Builder(data, steps, number).documents():
            pass
    except _Found as found:
        return int(found.args[0])
    return 0


def _document(
    source: str, data: bytes, number: int, value: object, odd: list[tuple[Steps, str, object]]
) -> Document:
    return Document(source, value, YAML, lambda steps: line_of(data, number, steps), odd)


def _parser(yaml: Any, data: bytes) -> Any:
    """libyaml's parser, or the one in Python where PyYAML was built without."""
    if yaml.__with_libyaml__:
        from yaml import cyaml

        return cyaml.CParser(data)  # type: ignore[attr-defined]
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class PlainParser(Reader, Scanner, Parser):
        def __init__(self) -> None:
            Reader.__init__(self, data)
            Scanner.__init__(self)
            Parser.__init__(self)

    return PlainParser()


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _syntax(source: str, data: bytes, error: Any) -> NotYaml:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        what = ", ".join(text for text in (error.context, error.problem) if text)
        return NotYaml(source, f"column {mark.column + 1}: not YAML: {what}", line=mark.line + 1)
    position = getattr(error, "position", None)
    if position is None:
        return NotYaml(source, f"not YAML: {str(error).splitlines()[0]}")
    # libyaml counts bytes, the parser in Python characters: near enough for a line.
    character = getattr(error, "character", 0)
    code = character if isinstance(character, int) else ord(str(character)[:1] or "\0")
    cause = f"not YAML: the character U+{code:04X} is not allowed"
    return NotYaml(source, cause, line=data.count(b"\n", 0, position) + 1)
