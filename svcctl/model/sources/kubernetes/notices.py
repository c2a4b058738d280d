"""Collects what is worth saying about an input, in an order that does not depend on the order of its objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.desired import NOTE, WARNING, Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMED = 3
"""Of several things that one notice is about, so many are named."""

MOST = 20
"""Notices of each level on one object: whoever writes it can make many, and hide the others' among them."""


def some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    rest = len(texts) - NAMED
    return ", ".join(texts) if rest <= 1 else f"{', '.join(texts[:NAMED])} and {rest} more"


class Notices:
    """Notices, each once."""

    def __init__(self) -> None:
        self._found: set[Notice] = set()

    def note(self, subject: str, text: str) -> None:
        """Something to know."""
        self._found.add(Notice(NOTE, subject, text))

    def warn(self, subject: str, text: str) -> None:
        """Something that is probably not as its author wants it."""
        self._found.add(Notice(WARNING, subject, text))

    def sorted(self) -> tuple[Notice, ...]:
        """All of them, by subject; of more than MOST the first ones, and how many there are beside them."""
        found: list[Notice] = []
        counts: dict[tuple[str, str], int] = {}
        for each in sorted(self._found, key=lambda each: (each.subject, each.level, each.text)):
            key = each.subject, each.level
            counts[key] = number = counts.get(key, 0) + 1
            if number <= MOST or not each.subject:
                found.append(each)
        for (subject, level), number in counts.items():
            if subject and number > MOST:
                found.append(Notice(level, subject, f"and {number - MOST} more such"))
        return tuple(sorted(found, key=lambda each: (each.subject, each.level)))
