"""A screen of several parts: titles with facts or tables, as plain text. `panel` draws the same with rich."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING

from svcctl.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, NamedTuple

    from svcctl.render.records import Column

    class Section(NamedTuple):
        """A table under a title. Without columns its rows are facts: (name, value) each."""

        title: str
        columns: Sequence[Column]
        rows: Sequence[Sequence[Any]]
else:
    Section = namedtuple("Section", "title columns rows")


def lines(sections: Sequence[Section], *, headers: bool = True, wide: bool = False) -> Iterator[str]:
    """Plain text: an empty line and a title before each part but the first."""
    for number, section in enumerate(sections):
        if number:
            yield ""
        if section.columns:
            yield f"{section.title}:"
            for line in text.table(section.columns, section.rows, headers=headers, wide=wide):
                yield f"  {line}"
            continue
        width = max((len(name) for name, _ in section.rows), default=0)
        for name, value in section.rows:
            yield text.escape(f"{name:{width}}  {value}")
