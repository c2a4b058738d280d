"""The one schema of a listing: a column says how a value is called, shown and aligned, in every format.

Text and JSON are made from the same rows, so they cannot drift apart. A row is a sequence with one value per
column, in order; None means the value is absent ("-" in text, no key in JSON).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any


class Column(Record):
    """One column: `header` in text, `key` in JSON.

    `format` makes the text of a value that is not None (default: str). `align` is "<" or ">" (numbers).
    `wide` columns appear in text only with `-o wide`; JSON always has them.
    """

    header: str
    key: str
    format: Callable[[Any], str] | None = None
    align: str = "<"
    wide: bool = False


FORMATS = ("text", "wide", "json", "jsonl", "yaml", "name")


def render(
    output: str,
    noun: str,
    rows: Iterable[Sequence[Any]],
    columns: Sequence[Column],
    *,
    headers: bool = True,
    name: Callable[[Sequence[Any]], str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Iterable[str]:
    """Lines of a listing in one of FORMATS."""
    if output in ("text", "wide"):
        from svcctl.render import text

        return text.table(columns, rows, headers=headers, wide=output == "wide")
    if output == "name":
        from svcctl.render import name as names

        return names.lines(rows, columns, name)
    return _structured(output, noun, _objects(rows, columns), extra)


def render_objects(
    output: str,
    noun: str,
    objects: Iterable[Mapping[str, Any]],
    lines: Callable[[], Iterable[str]],
    *,
    name: str = "name",
    extra: Mapping[str, Any] | None = None,
) -> Iterable[str]:
    """Lines of nested objects; `lines` makes the text form. None is an absent key at every depth."""
    if output in ("text", "wide"):
        return lines()
    present = (_present(one) for one in objects)
    if output == "name":
        from svcctl.render.text import escape

        return (escape(str(one[name])) for one in present)
    return _structured(output, noun, present, extra)


def _objects(rows: Iterable[Sequence[Any]], columns: Sequence[Column]) -> Iterable[dict[str, Any]]:
    keys = tuple(column.key for column in columns)
    nested = [i for i, column in enumerate(columns) if column.format is not None]
    for row in rows:
        if nested:  # only a value with a format of its own can be a list or an object
            row = list(row)
            for i in nested:
                row[i] = _present(row[i])
        if None in row:
            yield {k: v for k, v in zip(keys, row, strict=True) if v is not None}
        else:
            yield dict(zip(keys, row, strict=True))


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(one) for key, one in value.items() if one is not None}
    if isinstance(value, (list, tuple)):
        return [_present(one) for one in value]
    return value


def _structured(
    output: str, noun: str, objects: Iterable[Mapping[str, Any]], extra: Mapping[str, Any] | None
) -> Iterable[str]:
    if output == "json":
        from svcctl.render import json

        return json.document(noun, objects, extra)
    if output == "jsonl":
        from svcctl.render import json

        return json.stream(objects)
    if output == "yaml":
        from svcctl.render import yaml

        return yaml.document(noun, objects, extra)
    raise UsageProblem(f"output format {output!r}: not available here")
