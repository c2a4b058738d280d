"""The difference between the bindings there are and those wanted, in an order that is safe under traffic.

Steps are applied one after the other: all of `added`, then `replaced`, then `removed`. Each step changes one
key and is atomic. Then for every connection, at every moment between two steps, the owner (key and label) is
the one before the first step or the one after the last, and it changes at most once.

Why: let `old` and `new` be the most specific keys that match the connection before and after.
* Added most specific first: nothing wanted matches better than `new`, so no added key gets the connection
  before `new` does; `new` then has it, or waits below an `old` that is not wanted.
* Replaced after that: a key that changes its label in place has the connection only if it is `new`. Earlier,
  it could be an `old` whose `new` is still to be added.
* Removed last and least specific first: when `old` goes, all that was unwanted between it and `new` has gone,
  and `new` has its new label.

What this cannot promise: a program that is between two of its look-ups while several steps happen may see
parts of both. A writer that cares waits for running programs once, before the first removal.
"""

from __future__ import annotations

from svcctl.model.binding import LENGTH_BYTE
from svcctl.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

NO_PORT = b"\0\0"


class Plan(Record):
    """Changes in safe order; keys are the 24 bytes of `Binding.key`."""

    added: list[tuple[bytes, str]]
    """(key, label), most specific first."""
    replaced: list[tuple[bytes, str, str]]
    """(key, new label, old label), most specific first."""
    removed: list[tuple[bytes, str]]
    """(key, label it has), least specific first."""
    unchanged: int
    """How many bindings are already as wanted."""

    @property
    def is_empty(self) -> bool:
        """Whether everything is as wanted: nothing to write."""
        return not (self.added or self.replaced or self.removed)

    @property
    def changes(self) -> int:
        """How many keys are written or deleted."""
        return len(self.added) + len(self.replaced) + len(self.removed)


class Scope(Record):
    """Both sides of a plan, limited to some labels."""

    have: dict[bytes, str]
    want: dict[bytes, str]
    taken: list[tuple[bytes, str, str]]
    """(key, wanted label, label outside the scope that holds it): a conflict unless replacing is allowed."""


def plan(have: Mapping[bytes, str], want: Mapping[bytes, str]) -> Plan:
    """What turns the bindings `have` into `want`; both are key -> label."""
    had = have.get
    added = []
    replaced = []
    unchanged = 0
    for key, label in want.items():
        old = had(key)
        if old == label:
            unchanged += 1
        elif old is None:
            added.append((key, label))
        else:
            replaced.append((key, label, old))
    removed = []
    if unchanged + len(replaced) < len(have):
        removed = [(key, label) for key, label in have.items() if key not in want]
    added.sort(key=_specificity, reverse=True)
    replaced.sort(key=_specificity, reverse=True)
    removed.sort(key=_specificity)
    return Plan(added, replaced, removed, unchanged)


def limit(have: Mapping[bytes, str], want: Mapping[bytes, str], labels: Collection[str]) -> Scope:
    """Only what concerns `labels`: other labels' bindings are neither removed nor added.

    A wanted key that a label outside `labels` holds is in `taken`, and in `want` and `have` as well, so that
    the plan shows it as replaced.
    """
    wanted = {key: label for key, label in want.items() if label in labels}
    mine = {}
    taken = []
    for key, label in have.items():
        if label in labels:
            mine[key] = label
        elif key in wanted:
            mine[key] = label
            taken.append((key, wanted[key], label))
    return Scope(mine, wanted, taken)


def _specificity(change: tuple[bytes, str] | tuple[bytes, str, str]) -> tuple[int, bool]:
    """As `precedence.specificity`, from the key's bytes. Keys of different families never meet."""
    key = change[0]
    return key[LENGTH_BYTE], key[6:8] != NO_PORT
