"""Records -> one name a line, for loops in shells (`-o name`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.render.text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from svcctl.render.records import Column


def lines(
    rows: Iterable[Sequence[Any]],
    columns: Sequence[Column],
    name: Callable[[Sequence[Any]], str] | None = None,
) -> Iterator[str]:
    """The name of each row: what `name` says, else its first column."""
    if name is None:
        form = columns[0].format or str
        return (escape(form(row[0])) for row in rows)
    return (escape(name(row)) for row in rows)
