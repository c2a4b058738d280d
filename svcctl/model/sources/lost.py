"""What a source says that cannot be kept: refused by line, or named where the caller wants the rest all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.desired import NOTE, WARNING, Notice
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from svcctl.model.sources.options import Options

MOST = 10
"""Lines that one message names."""


class Lost:
    """Collects what is not converted while an input is read.

    A refusal changes where traffic goes, and is an error unless the caller asked for a partial conversion. The
    rest (health checks, thresholds, schedulers that come near) is told and no more.
    """

    def __init__(self, source: str, options: Options) -> None:
        self.source = source
        self.partial = options.partial
        self._refused: list[tuple[int, str]] = []
        self._told: dict[tuple[str, str], list[int]] = {}

    def refuse(self, line: int, what: str) -> None:
        """Something without which the result would not be what the source asks for."""
        self._refused.append((line, what))

    def tell(self, line: int, text: str, *, level: str = WARNING) -> None:
        """Something to know. Equal texts become one notice that names all their lines."""
        self._told.setdefault((level, text), []).append(line)

    def note(self, line: int, text: str) -> None:
        """Something to know that nobody has to do anything about."""
        self.tell(line, text, level=NOTE)

    def notices(self) -> tuple[Notice, ...]:
        """What there is to know. Raises InputProblem for refusals, unless the conversion may be partial."""
        if self._refused and not self.partial:
            listed = "; ".join(f"line {line}: {what}" for line, what in self._refused[:MOST])
            more = f"; and {len(self._refused) - MOST} more" if len(self._refused) > MOST else ""
            raise InputProblem(
                self.source,
                f"cannot be converted as a whole: {listed}{more}",
                hint="--partial leaves these out and converts the rest",
            )
        found = [
            Notice(WARNING, self.source, f"line {line}: left out: {what}") for line, what in self._refused
        ]
        for (level, text), lines in self._told.items():
            listed = ", ".join(map(str, lines[:MOST])) + (" ..." if len(lines) > MOST else "")
            found.append(Notice(level, self.source, f"line{'s' if len(lines) > 1 else ''} {listed}: {text}"))
        return tuple(found)
