"""Walker's alias table: weights as slots that a program draws from with two random numbers, exactly.

A slot is drawn evenly, then a number below 2^32: below the slot's threshold it is the slot's own member, else
its alias. Built after Vose in whole numbers, so the only error is the rounding of thresholds: each member's
share is within 2^-31 of weight / sum of weights. (Drawing the slot as `(random32 * slots) >> 32` adds up to
2^-32 per slot; that is the program's, not the table's.)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    Slot = tuple[int, int, int]

ALWAYS = 0xFFFFFFFF
"""The threshold of a slot that has no alias: always its own member."""
ONE = 1 << 32


def alias_table(weights: Sequence[int]) -> list[Slot]:
    """(index, index of the alias, threshold) of each slot; indices count `weights`, which are 0 or more.

    One slot for each weight above 0, in their order; the same weights give the same table. Weights that are
    all equal, and slots that need no alias, have the threshold `ALWAYS` and themselves as alias. O(n).
    """
    own = [index for index, weight in enumerate(weights) if weight > 0]
    count = len(own)
    # A slot holds `total`; the weights are scaled so that all slots together are filled exactly.
    total = sum(weights[index] for index in own)
    left = [weights[index] * count for index in own]
    thresholds = [ALWAYS] * count
    aliases = list(own)
    small = [slot for slot in range(count) if left[slot] < total]
    large = [slot for slot in range(count) if left[slot] > total]
    while small:
        slot = small.pop()
        giver = large[-1]
        threshold = ((left[slot] << 32) + total // 2) // total
        if threshold < ALWAYS:
            thresholds[slot] = threshold
            aliases[slot] = own[giver]
        left[giver] -= total - left[slot]
        if left[giver] <= total:
            large.pop()
            if left[giver] < total:
                small.append(giver)
    return list(zip(own, aliases, thresholds, strict=True))


def shares(table: Iterable[Slot]) -> dict[int, Fraction]:
    """The exact probability of each index of a table, if slots are drawn evenly."""
    from fractions import Fraction

    parts: dict[int, int] = {}
    count = 0
    for index, alias, threshold in table:
        count += 1
        mine = ONE if threshold == ALWAYS else threshold
        parts[index] = parts.get(index, 0) + mine
        if mine < ONE:
            parts[alias] = parts.get(alias, 0) + ONE - mine
    return {index: Fraction(part, ONE * count) for index, part in parts.items()}
