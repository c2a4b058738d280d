"""Bindings as rows of a listing, in its order; for a million of them too.

The rows are those of `key_fields` in the order of `listing_order`. Each binding becomes one string of bytes that
sorts by itself (address, port, number of the label), so that nothing else has to be looked up all over the
memory; what many share (protocol, family, length, port, label) is worked out once.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop
from _struct import Struct

from svcctl.model.binding import HEADER_BITS
from svcctl.model.constants import IPV4, PROTOCOL_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Row = tuple[str, str, int, str]
    # Where to put a binding: the end of its group, where its address starts in the key, its port in order.
    Place = tuple[Callable[[bytes], None], int, bytes]

_HEAD = Struct("=IBBH")


def listing_rows(labels: Mapping[bytes, str], keys: Iterable[bytes] | None = None) -> Iterator[Row]:
    """(protocol, prefix, port, label) of the bindings in `labels`, or of those of them that `keys` names.

    Never fails over a key: what no svcctl writes is shown as it is.
    """
    groups: dict[tuple[int, int, int], list[bytes]] = {}
    places: dict[bytes, Place] = {}
    numbers: dict[str, bytes] = {}
    ports: dict[bytes, int] = {}
    for key, label in labels.items() if keys is None else [(key, labels[key]) for key in keys]:
        place = places.get(key[:8])
        if place is None:
            bits, protocol, family, port = _HEAD.unpack(key[:8])
            group = groups.setdefault((protocol, family, -bits), [])
            rank = ((port - 1) & 0xFFFF).to_bytes(2, "big")  # port 0 last
            ports[rank] = port
            place = places[key[:8]] = group.append, 20 if family == IPV4 else 8, rank
        number = numbers.get(label)
        if number is None:
            number = numbers[label] = len(numbers).to_bytes(4, "big")
        add, start, rank = place
        add(key[start:] + rank + number)
    names = {number: label for label, number in numbers.items()}
    for protocol, family, bits in sorted(groups):
        group = groups.pop((protocol, family, bits))
        group.sort()
        name = PROTOCOL_NAMES.get(protocol) or str(protocol)
        kind, size, front = (AF_INET, 4, HEADER_BITS + 96) if family == IPV4 else (AF_INET6, 16, HEADER_BITS)
        end = size + 2
        mask = f"/{-bits - front}"
        for item in group:
            yield name, inet_ntop(kind, item[:size]) + mask, ports[item[size:end]], names[item[end:]]
