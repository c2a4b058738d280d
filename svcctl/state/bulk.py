"""Many bindings at once: fresh maps beside the old ones, swapped with the program under the link.

All or nothing for traffic, however many there are, and faster than binding by binding: the three maps are
filled by batches before anything looks at them.
"""

from __future__ import annotations

from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING

from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import CHECK_FACTORS, U32
from svcctl.model.binding import LENGTH_BYTE
from svcctl.model.destination import DestinationKey
from svcctl.state import destinations, swap
from svcctl.state.bindings import MAPS_WRITTEN, port_index, read_labels
from svcctl.state.owners import NO_OWNERS, check_owner_room, forget_owners, note_owners, read_owners
from svcctl.state.programs import load_object
from svcctl.state.writer import check_map_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from svcctl.bpf.object import Object
    from svcctl.state.writer import Writer

THRESHOLD = 10_000
"""Plans with more changes than this are swapped in whole; smaller ones are applied binding by binding."""

CHUNK = 100_000
_EXACT_ENTRY = Struct("=4x5I")
_PAIR = Struct("=II")


def replace_all(
    writer: Writer,
    want: Mapping[bytes, str],
    progress: Callable[[int, int], None] | None = None,
    *,
    owners: Mapping[bytes, str] = NO_OWNERS,
) -> None:
    """Make the bindings exactly `want` (24-byte key -> label). Raises Full before anything is written.

    `progress` is called with (bindings written, all) now and then. `owners` is who keys belong to from now on:
    others that get another label belong to nobody afterwards.
    """
    check_map_ids(writer, MAPS_WRITTEN)
    counts: dict[tuple[str, bytes], int] = {}
    for key, label in want.items():
        kind = (label, key[4:6])
        counts[kind] = counts.get(kind, 0) + 1
    refs = {DestinationKey(label, kind[1], kind[0]): count for (label, kind), count in counts.items()}
    exact = [key for key in want if key[LENGTH_BYTE] == 160]
    trie = [key for key in want if key[LENGTH_BYTE] != 160]
    for name, keys in (("exact", exact), ("bindings", trie)):
        largest = writer.map(name).info.max_entries
        if len(keys) > largest:
            raise destinations.full(name, writer.usage(name).used, largest, len(keys))

    owned = read_owners(writer)
    check_owner_room(writer, owned, owners)
    reservation = destinations.Reservation(writer, refs)
    with writer.changing(**reservation.meta_fields):
        reservation.make(writer, refs)
        ids: dict[tuple[str, bytes], int] = {}
        old = destinations.read_all(writer)
        for found in old.values():
            count = refs.get(found.key)
            if count is not None:
                ids[(found.key.label, bytes((found.key.protocol, found.key.family)))] = found.id
                if found.key not in reservation.new:
                    destinations.change_refs(writer, found, count)
        note_owners(writer, owners)
        owned = {**owned, **owners}
        have = read_labels(writer) if owned else {}
        moved = [key for key in owned if key in want and want[key] != have.get(key)]
        forget_owners(writer, [key for key in moved if key not in owners])
        _swap_in(writer, want, exact, trie, ids, progress)
        forget_owners(writer, [key for key in owned if key not in want])
        for found in old.values():
            if found.key not in reservation.new:
                settled = found._replace(refs=refs.get(found.key, 0))
                destinations.put(writer, settled)
                destinations.release_if_unused(writer, settled)
        for name, keys in (("exact", exact), ("bindings", trie)):
            writer.put_usage(name, layouts.Usage(len(keys), writer.map(name).info.max_entries))


def _swap_in(
    writer: Writer,
    want: Mapping[bytes, str],
    exact: list[bytes],
    trie: list[bytes],
    ids: Mapping[tuple[str, bytes], int],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Fill fresh maps and put a program that reads them under the link."""
    sizes = {name: writer.map(name).info.max_entries for name in MAPS_WRITTEN}
    keep = {
        name: writer.map(name)
        for name in (*catalog.DISPATCH_MAPS, *catalog.SHARED_MAPS)
        if name not in MAPS_WRITTEN
    }
    total = len(want)
    with load_object(catalog.DISPATCH.object, sizes, keep) as loaded:
        for start in range(0, len(exact), CHUNK):
            part = exact[start : start + CHUNK]
            _fill(
                loaded,
                "exact",
                b"".join([key[4:] for key in part]),
                _exact_values(part, want, ids),
                len(part),
            )
            if progress:
                progress(start + len(part), total)
        for start in range(0, len(trie), CHUNK):
            part = trie[start : start + CHUNK]
            values = b"".join(
                [_PAIR.pack(ids[(want[key], key[4:6])], U32.unpack_from(key)[0]) for key in part]
            )
            _fill(loaded, "bindings", b"".join(part), values, len(part))
            if progress:
                progress(len(exact) + start + len(part), total)
        _fill_ports(loaded, exact, trie)
        swap.prepare_swap(writer, catalog.DISPATCH, loaded, MAPS_WRITTEN)
        swap.swap(writer)


def _exact_values(
    keys: list[bytes], want: Mapping[bytes, str], ids: Mapping[tuple[str, bytes], int]
) -> bytes:
    """Values of `exact`; as layouts.exact_check, in one expression since it runs a million times."""
    f0, f1, f2, f3, f4 = CHECK_FACTORS
    unpack, pack = _EXACT_ENTRY.unpack, _PAIR.pack
    values = []
    for key in keys:
        a, b, c, d, e = unpack(key)
        check = (a * f0 + b * f1 + c * f2 + d * f3 + e * f4) & 0xFFFFFFFF
        values.append(pack(ids[(want[key], key[4:6])], check))
    return b"".join(values)


def _fill(loaded: Object, name: str, keys: bytes, values: bytes, count: int) -> None:
    with loaded.map(name) as fresh:
        fresh.update_many(keys, values, count)


def _fill_ports(loaded: Object, exact: list[bytes], trie: list[bytes]) -> None:
    counts: dict[tuple[int, bytes], list[int]] = {}
    for number, keys in ((0, exact), (1, trie)):
        for key in keys:
            kind = (key[4], key[6:8])
            cell = counts.get(kind)
            if cell is None:
                cell = counts[kind] = [0, 0]
            cell[number] += 1
    if not counts:
        return
    keys_data = b"".join(
        U32.pack(port_index(protocol, int.from_bytes(port, byteorder))) for protocol, port in counts
    )
    values = b"".join(_PAIR.pack(*cell) for cell in counts.values())
    _fill(loaded, "ports", keys_data, values, len(counts))
