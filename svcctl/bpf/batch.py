"""How a long write to a map is cut into batches, and what happens when the kernel refuses in the middle."""

from __future__ import annotations

from errno import EINVAL, ENOMEM
from time import sleep as real_sleep
from typing import TYPE_CHECKING

from svcctl.bpf.errors import ENOTSUPP

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 65_536
"""Entries of one batch. A batch is finished even when the process is killed in it."""

PAUSES = (0.001, 0.005, 0.02, 0.05, 0.1)
"""Seconds to wait before each retry in a row that got no further for want of memory."""

NOT_BATCHED = (EINVAL, ENOTSUPP)
"""What kernels answer when a map type has no such batch operation. EINVAL can also mean a bad entry: going on
one by one tells the two apart."""


def write(
    count: int,
    batch: Callable[[int, int], tuple[int, int]],
    single: Callable[[int], int],
    *,
    skip: int = 0,
    chunk: int = CHUNK,
    sleep: Callable[[float], None] = real_sleep,
) -> tuple[int, int, int]:
    """Write entries 0 to `count`; the answer is (errno or 0, entries dealt with, entries skipped of these).

    `batch(start, n)` gives (errno or 0, the kernel's count), `single(index)` an errno or 0; entries that
    fail with errno `skip` are passed over. Rules:

    * After an error the kernel's count says how many entries of the batch are done. A count that is the one
      passed in means the kernel never came to set it, so nothing is done.
    * EINVAL and 524: the rest one by one.
    * ENOMEM: a batch in a full memory cgroup fails where the same entries still go in one by one, because
      memory is reclaimed between system calls. Go on after a pause, in smaller pieces, where a piece does not
      even begin one by one, and give up when an entry fails after every pause.
    """
    position = skipped = stalls = 0
    piece = chunk
    batched = True
    while position < count:
        n = min(piece, count - position) if batched else 1
        if n > 1:
            errno, done = batch(position, n)
            done = n if errno == 0 else done % n
        else:
            errno = single(position)
            done = 0 if errno else 1
        position += done
        if done:
            stalls = 0
        if errno == 0:
            piece = min(chunk, piece * 2)
        elif errno == skip:
            position += 1
            skipped += 1
            stalls = 0
        elif batched and n > 1 and errno in NOT_BATCHED:
            batched = False
        elif errno == ENOMEM and stalls < len(PAUSES):
            sleep(PAUSES[stalls])
            stalls += 1
            piece = max(1, n // 8) if done else 1
        else:
            return errno, position, skipped
    return 0, position, skipped
