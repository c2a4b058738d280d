"""Reading a whole map: in batches where the kernel has them, else key by key."""

from __future__ import annotations

from ctypes import c_char, string_at
from errno import EAGAIN, EINTR, ENOENT, ENOSPC
from typing import TYPE_CHECKING

from svcctl.bpf.batch import CHUNK, NOT_BATCHED
from svcctl.bpf.errors import BpfError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.bpf.map import Map

    Piece = tuple[bytes, bytes, int]

FIRST_CHUNK = 4096
"""A hash gives whole buckets and answers ENOSPC when one does not fit: start well above any bucket."""

BUFFER_BYTES = 4 << 20
"""Keys and values of one piece are kept under this where buckets allow: a per-CPU value can be large."""

LOST_PLACE = 10
"""How often in a row a trie may answer EINTR (a writer took the key the walk stood on) without giving any."""


def pieces(source: Map, flags: int = 0) -> Iterator[Piece]:
    """(keys, values, count) of all entries, piece by piece. Raises BpfError; EAGAIN when it never ends.

    `flags` go with each look-up: LOCK or 0.
    """
    size, value_size, limit = source.key_bytes, source.value_bytes, source.info.max_entries
    # 4 bytes for hashes, a whole key for the others; the kernel reads it before it writes it.
    position = (c_char * max(8, size))()
    largest = min(CHUNK, max(1, BUFFER_BYTES // (size + value_size)))
    chunk = min(limit, FIRST_CHUNK, largest)
    keys, values = (c_char * (chunk * size))(), (c_char * (chunk * value_size))()
    started = False
    total = lost = 0
    while True:
        errno, count = source.lookup_batch(
            position if started else None, position, keys, values, chunk, flags
        )
        if errno in NOT_BATCHED and not started:
            yield from _one_by_one(source, flags)
            return
        if errno not in (0, ENOENT, ENOSPC, EINTR) or lost > LOST_PLACE:
            raise BpfError(errno or EAGAIN, "read", source.subject)
        if errno == ENOSPC:
            count = 0
        elif count:
            started = True
            total += count
            yield string_at(keys, count * size), string_at(values, count * value_size), count
        if errno == ENOENT:
            return
        lost = lost + 1 if errno == EINTR and not count else 0
        _check_end(source, total)
        if errno == ENOSPC or (chunk < largest and total < limit):
            chunk *= 2
            keys, values = (c_char * (chunk * size))(), (c_char * (chunk * value_size))()


def _one_by_one(source: Map, flags: int) -> Iterator[Piece]:
    key = source.next_key(None)
    total = 0
    while key is not None:
        keys, values = [], []
        for _ in range(FIRST_CHUNK):
            total += 1
            value = source.lookup(key, flags)
            # Gone since next_key, or an empty slot of a sockmap.
            if value is not None:
                keys.append(key)
                values.append(value)
            key = source.next_key(key)
            if key is None:
                break
        if keys:
            yield b"".join(keys), b"".join(values), len(keys)
        _check_end(source, total)


def _check_end(source: Map, total: int) -> None:
    # A walk whose key was deleted starts again at the first one, so it may never come to an end.
    if total > 2 * source.info.max_entries + FIRST_CHUNK:
        raise BpfError(EAGAIN, "read", source.subject, reason="it changes faster than it can be read")
