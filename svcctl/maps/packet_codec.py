"""Flows as the maps have them: keys and values, the two directions of one, and what the digest of an entry is."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from svcctl.maps import enums
from svcctl.maps.packet_layouts import (
    CHECK_FACTORS,
    FILTER_BUCKET,
    FILTER_MARKS,
    FLOW,
    FLOW_KEY,
    FilterBucket,
    FlowKey,
    FlowValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY_WORDS = Struct("=5Q")
_VALUE_WORDS = Struct("=6QI")
_MARKS = Struct(f"={FILTER_MARKS}I")
_ALL_BITS = (1 << 64) - 1


def flow_check(key: FlowKey, value: FlowValue) -> int:
    """`check` of struct svc_flow: the program takes an entry whose digest is another for one that is gone."""
    words = _KEY_WORDS.unpack(FLOW_KEY.pack(key)) + _VALUE_WORDS.unpack_from(FLOW.pack(value))
    total: int = sum(word * factor for word, factor in zip(words, CHECK_FACTORS, strict=True))
    return (total & _ALL_BITS) >> 32


def filter_place(key: bytes) -> tuple[int, int]:
    """The bucket of a packed key in `flow_filter`, and its mark. What has none is not looked for in `halfopen`."""
    total: int = sum(
        word * factor for word, factor in zip(_KEY_WORDS.unpack(key), CHECK_FACTORS, strict=False)
    )
    total &= _ALL_BITS
    return total >> 48, (total ^ total >> 32) & 0xFFFFFFFF | 1


def add_mark(bucket: bytes, mark: int) -> bytes:
    """A packed bucket of `flow_filter` with a mark at its front; the last of a full one is pushed out."""
    recent = _MARKS.unpack(FILTER_BUCKET.unpack(bucket).recent)
    return FILTER_BUCKET.pack(FilterBucket(0, _MARKS.pack(mark, *recent[:-1])))


def with_check(key: FlowKey, value: FlowValue) -> FlowValue:
    """The same entry with its digest."""
    return value._replace(check=flow_check(key, value))


def is_whole(key: FlowKey, value: FlowValue) -> bool:
    """Whether an entry is one flow's: a reader may meet it while it is given to another key."""
    return value.check == flow_check(key, value)


def other_key(key: FlowKey, value: FlowValue) -> FlowKey:
    """The key of the other direction's entry."""
    return FlowKey(
        value.destination, value.source, value.destination_port, value.source_port, key.protocol, bytes(3)
    )


def other_value(key: FlowKey, value: FlowValue) -> FlowValue:
    """The other direction's entry: what does not change of it, with times and states swapped or as they are here."""
    other = value._replace(
        source=key.destination,
        destination=key.source,
        source_port=key.destination_port,
        destination_port=key.source_port,
        kind=value.kind ^ enums.FLOW_REPLY,
        seen=value.other,
        other=value.seen,
        route=0,
        route_time=0,
        device=0,
    )
    return with_check(other_key(key, value), other)


def merge(
    answered: Iterable[tuple[bytes, bytes]], halfopen: Iterable[tuple[bytes, bytes]]
) -> dict[FlowKey, FlowValue]:
    """The entries of both maps that count: whole ones, and of a flow that was moved the one in `flows`."""
    found = {FLOW_KEY.unpack(key): FLOW.unpack(value) for key, value in halfopen}
    found = {key: value for key, value in found.items() if not value.seen & enums.SEEN_MOVED}
    found.update((FLOW_KEY.unpack(key), FLOW.unpack(value)) for key, value in answered)
    return {key: value for key, value in found.items() if is_whole(key, value)}
