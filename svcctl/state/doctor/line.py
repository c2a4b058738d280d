"""One line of doctor's report."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class Line(NamedTuple):
    """What was looked at, how it is, and what to do about it."""

    name: str
    status: str
    message: str
    hint: str | None = None


def unseen(name: str, why: str) -> Line:
    """A line about what could not be looked at."""
    return Line(name, WARN, f"not looked at: {why}", "run 'svcctl doctor' as root")
