"""Collects what is worth saying about an input, in an order that does not depend on the order of its objects."""

from __future__ import annotations

from svcctl.model.desired import NOTE, WARNING, Notice


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
        """All of them, by subject."""
        return tuple(sorted(self._found, key=lambda each: (each.subject, each.level, each.text)))
