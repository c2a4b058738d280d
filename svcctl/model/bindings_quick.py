"""The quick way through a file of bindings: hundreds of entries at once, a column at a time.

Only for entries that are plainly right. What is not is left to the reader in bindings_file.py, which goes entry
by entry and says what is wrong where.
"""

from __future__ import annotations

import json
import re
from _operator import itemgetter
from struct import error as StructError

from svcctl.errors import UsageProblem
from svcctl.model.binding import HEADER_BITS, KEY
from svcctl.model.constants import IPV4, PROTOCOL_NUMBERS, TCP, UDP
from svcctl.model.label import MAX_OWNER_BYTES, check_label, check_name
from svcctl.model.prefix import split_prefix

PIECE = 1 << 16
"""Characters of the file that are taken at once: large enough to be quick, small enough to stay in a cache."""

BOTH = (TCP, UDP)
"""What an entry without a protocol means."""

QUOTES = {3: 3 * 2 + 2 * 2, 4: 4 * 2 + 3 * 2, 5: 5 * 2 + 4 * 2}
"""Double quotes in the text of a sound entry, by its number of keys: two a key, two a string.

A repeated key that the dict does not show any more has left at least two too many. (So does a quote in a label,
which is why the number alone proves nothing.) There are never too few, so a sum that is right is right for each.
"""

_COLUMNS = {
    3: itemgetter("label", "prefix", "port"),
    4: itemgetter("label", "prefix", "port", "protocol"),
    5: itemgetter("label", "prefix", "port", "protocol", "owner"),
}
_separator = re.compile(r"[ \t\n\r]*,[ \t\n\r]*").match
_decode = json.JSONDecoder().decode


def find_end(text: str, at: int) -> tuple[int, int]:
    """Where a piece that starts with the entry at `at` may end, and where the entry after it starts; `at` twice
    near the end of the file.

    It may be a wrong place, within a string for one: then the piece does not decode.
    """
    end = text.find("}", at + PIECE) + 1
    separator = _separator(text, end) if end else None
    return (end, separator.end()) if separator else (at, at)


def read_piece(
    text: str,
    at: int,
    end: int,
    want: dict[bytes, str],
    labels: dict[str, str],
    owners: dict[bytes, str] | None = None,
) -> bytes | None:
    """Read the entries in `text[at:end]` into `want`; one byte an entry, the number of keys it made.

    None, and `want` as it was, if any of them is not plainly right. `labels` holds the labels seen so far, so
    that equal ones are one string. `owners`, if they may have any, gets those of them by key.
    """
    try:
        entries = _decode(f"[{text[at:end]}]")
        size = len(entries[0])
        if set(map(len, entries)) != {size} or text.count('"', at, end) != QUOTES[size] * len(entries):
            return None
        if size == 5 and owners is None:
            return None
        names, prefixes, ports, *others = zip(*map(_COLUMNS[size], entries), strict=True)
        if set(map(type, ports)) != {int} or set(map(type, names)) | set(map(type, prefixes)) != {str}:
            return None
        for name in set(names) - labels.keys():
            labels[name] = check_label(name)
        families, addresses, lengths = zip(*map(split_prefix, prefixes), strict=True)
        bits = [
            length + (HEADER_BITS + 96 if family == IPV4 else HEADER_BITS)
            for family, length in zip(families, lengths, strict=True)
        ]
        values = [labels[name] for name in names]
        if others:
            numbers = map(PROTOCOL_NUMBERS.__getitem__, others[0])
            keys = list(map(KEY.pack, bits, numbers, families, ports, addresses))
        else:
            rest = zip(bits, families, ports, addresses, strict=True)
            keys = [KEY.pack(n, number, f, port, address) for n, f, port, address in rest for number in BOTH]
            values = [value for value in values for _ in BOTH]
        for owner in set(others[1]) if size == 5 else ():
            check_name("owner", owner, MAX_OWNER_BYTES)
    except (ValueError, RecursionError, KeyError, TypeError, StructError, UsageProblem):
        return None
    found = dict(zip(keys, values, strict=True))
    if len(found) != len(keys) or not want.keys().isdisjoint(found):
        return None
    want.update(found)
    if owners is not None and size == 5:
        owners.update(zip(keys, others[1], strict=True))
    return bytes((len(keys) // len(names),)) * len(names)
