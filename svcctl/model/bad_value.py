"""The error for one value that breaks a rule, with its parts kept apart for readers of whole files."""

from __future__ import annotations

from svcctl.errors import UsageProblem

SHOWN = 60
"""Characters of a refused value that a message repeats at most."""


def show(value: object) -> str:
    """The value as a message may repeat it: quoted, escaped, not longer than `SHOWN` characters within."""
    if isinstance(value, str):
        piece = value[:SHOWN]
        while len(repr(piece)) > SHOWN + 2:
            piece = piece[:-1]
        return repr(piece) if piece == value else f"{piece!r}..."
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class BadValue(UsageProblem):
    """`what` (port, prefix, label ...) got `value`, which is wrong because of `cause`."""

    def __init__(self, what: str, value: object, cause: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what} {show(value)}: {cause}", hint=hint)
        self.what = what
        self.value = value
        self.cause = cause
