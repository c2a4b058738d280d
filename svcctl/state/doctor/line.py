"""One line of doctor's report."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"
UNSEEN = "not looked at: "


class Line(NamedTuple):
    """What was looked at, how it is, and what to do about it."""

    name: str
    status: str
    message: str
    hint: str | None = None


def unseen(name: str, why: str, hint: str | None = "run 'svcctl doctor' as root") -> Line:
    """A line about what could not be looked at."""
    return Line(name, WARN, f"{UNSEEN}{why}", hint)
