"""One broken invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable


class Finding(Record):
    """One broken invariant. `repair` mends it; None: `advice` says what to decide."""

    invariant: str
    message: str
    repair: Callable[[], object] | None
    advice: str = ""
