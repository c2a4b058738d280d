"""When to apply and when to try again. Pure: the clock is an argument, in seconds, monotonic."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET = 0.2
"""Seconds after the first change until it is applied, so that what comes together is applied together."""

APART = 1.0
"""Seconds from the end of one apply to the beginning of the next, at least."""


class Backoff:
    """Growing pauses between failures: each about twice the one before, up to `most`, never twice the same.

    A random part keeps the nodes of a cluster from asking a server that comes back all at once.
    """

    def __init__(self, first: float, most: float, chance: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """How long to wait after one more failure: from half the pause to all of it."""
        pause = min(self._first * 2.0 ** min(self.failures, 32), self._most)
        self.failures += 1
        return pause * (1 + self._chance()) / 2

    def reset(self) -> None:
        """It went well."""
        self.failures = 0


class Pace:
    """Says when the next apply is due, from when something changed and how the last apply went."""

    def __init__(self, backoff: Backoff, quiet: float = QUIET, apart: float = APART) -> None:
        self._backoff = backoff
        self._quiet = quiet
        self._apart = apart
        self._changed = math.inf  # when the first change came that was not applied yet
        self._not_before = -math.inf
        self._again = math.inf

    def change(self, now: float) -> None:
        """Something is different from what was applied."""
        self._changed = min(self._changed, now)

    def due(self) -> float:
        """When to apply; infinity: nothing to do."""
        return max(min(self._changed + self._quiet, self._again), self._not_before)

    def begin(self) -> None:
        """An apply begins; what changes from now on is for the next one."""
        self._changed = self._again = math.inf

    def done(self, now: float, took: float) -> None:
        """It went well. The next one waits for as long as this one took: half of a processor is for others."""
        self._backoff.reset()
        self._not_before = now + max(self._apart, took)

    def failed(self, now: float) -> float:
        """It did not: it is due again after a pause, or with the next change. Returns the pause."""
        pause = self._backoff.next()
        self._again = now + pause
        self._not_before = now + self._apart
        return self.due() - now
