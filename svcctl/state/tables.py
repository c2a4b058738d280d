"""Maglev tables in the kernel: for each set of backends that asks for one an inner map of `lut`, frozen and pinned.

Equal tables are one, whoever uses them: `lut_sets` says by a digest of its content which there are, and how many
blocks use each. A table's number is its index in `lut` and one more; its pin is `lut_<index>`. It is written before
a block names it and removed after the last block that did, so references may be too many and never too few.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from typing import TYPE_CHECKING

from svcctl.errors import Full
from svcctl.maps.catalog import ARRAY
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import LUT, LUT_KEY, Lut, LutKey
from svcctl.model import maglev
from svcctl.model.service import CLUSTER_SET, MAGLEV_STABLE
from svcctl.state import services

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import Changes, NewBlock
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

PIN = "lut_"
INNER_MAP = 1 << 12
"""BPF_F_INNER_MAP: an inner map may have another size than the template's."""


def backend_name(backend: Backend) -> bytes:
    """What places a backend in the tables of every node: address and port, big endian."""
    return backend.address + backend.port.to_bytes(2, "big")


class Taker:
    """Takes tables for blocks; which there are is read once, however many are taken."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._sets = read_sets(writer)
        self._pins = set(pins(writer))
        used = {known.place for known in self._sets.values()} | self._pins
        self._largest = writer.map("lut").info.max_entries
        self._free = (index for index in range(self._largest) if index not in used)

    def take(self, block: NewBlock, backends: Mapping[Backend, int]) -> int:
        """The number of a block's table, made if there is none like it; one more reference. Raises Full."""
        writer = self._writer
        ids = table_ids(writer, block, backends)
        key = LUT_KEY.pack(LutKey(digest(ids)))
        known = self._sets.get(key)
        if known is None:
            index = next(self._free, None)
            if index is None:
                raise _full(self._largest, self._largest, 1)
            known = Lut(index, len(ids), 0)
        known = self._sets[key] = known._replace(refs=known.refs + 1)
        writer.map("lut_sets").update(key, LUT.pack(known))
        if known.place not in self._pins or writer.map("lut").lookup(U32.pack(known.place)) is None:
            put_table(writer, known.place, ids)  # new, or a hand took it away
            self._pins.add(known.place)
        return known.place + 1


def check_tables(state: State, changes: Changes, freed: Iterable[int] = ()) -> None:
    """Raise Full where the tables of a change have no room. `freed` are numbers of tables, as `give_back` takes them,
    that go before."""
    blocks = [
        block for one in changes.parts for block in one.blocks if block.set.table_size and block.set.members
    ]
    if not blocks:
        return
    largest = state.map("lut").info.max_entries
    known = read_sets(state)
    gone = {key for key, left in _after(known, freed).items() if not left}
    used = {one.place for key, one in known.items() if key not in gone}
    used |= set(pins(state)) - {known[key].place for key in gone}
    if len(used) + len(blocks) <= largest:
        return
    # Equal sets share a table, and which are equal is known once they are made.
    wanted = {LUT_KEY.pack(LutKey(digest(table_ids(state, block, changes.backends)))) for block in blocks}
    wanted -= known.keys() - gone
    if len(used) + len(wanted) > largest:
        raise _full(len(used), largest, len(wanted))


def _full(used: int, largest: int, wanted: int) -> Full:
    return Full(
        f"map 'lut' is full: {used} of {largest} used, {wanted} more wanted",
        hint="each set of backends with its own Maglev table takes one; '--algorithm random' takes none",
    )


def _after(known: Mapping[bytes, Lut], numbers: Iterable[int]) -> dict[bytes, int]:
    """Key -> how many references are left of each table of which some are given back."""
    fewer: dict[int, int] = {}
    for number in numbers:
        fewer[number - 1] = fewer.get(number - 1, 0) + 1
    return {key: max(one.refs - fewer[one.place], 0) for key, one in known.items() if one.place in fewer}


def table_ids(state: State, block: NewBlock, backends: Mapping[Backend, int]) -> array[int]:
    """The ids of a table's slots; of a stable one, as near to the lane's present table as may be."""
    names = {backend_name(backend): backends[backend] for backend, _ in block.set.members}
    weights = {backend_name(backend): weight for backend, weight in block.set.members}
    size = block.set.table_size
    old: list[bytes] = []
    if block.set.algorithm == MAGLEV_STABLE:
        known = {number: name for name, number in names.items()}
        old = [known.get(number, b"") for number in _present(state, block)]
    slots = maglev.refill(old, weights) if len(old) == size and any(old) else maglev.table(weights, size)
    return array("I", [names[name] for name in slots])


def digest(ids: array[int]) -> bytes:
    """16 bytes that tell tables apart."""
    from _blake2 import blake2b

    return blake2b(ids.tobytes(), digest_size=16).digest()


def put_table(writer: Writer, index: int, ids: array[int]) -> None:
    """Make the inner map, pin it, and enter it in `lut`. The last takes the time of running programs."""
    from svcctl.bpf.map import Map

    path = writer.pin(f"{PIN}{index}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with Map.create(ARRAY, "lut_table", 4, 4, len(ids), INNER_MAP) as inner:
        keys = array("I", range(len(ids)))
        inner.update_many(keys.tobytes(), ids.tobytes(), len(ids))
        inner.freeze()
        inner.pin(path)
        writer.pin_mode(path)
        writer.map("lut").update(U32.pack(index), U32.pack(inner.fd))


def read_table(state: State, number: int) -> array[int] | None:
    """Backend ids of a table's slots; None without its pin."""
    from svcctl.bpf.errors import BpfError
    from svcctl.bpf.map import Map

    try:
        with Map.open_pinned(state.pin(f"{PIN}{number - 1}"), read_only=True) as inner:
            _, values, _ = inner.read_all()
    except (BpfError, FileNotFoundError):
        return None
    return array("I", values)


def read_sets(state: State) -> dict[bytes, Lut]:
    """All tables by digest."""
    return {key: LUT.unpack(data) for key, data in state.map("lut_sets").items()}


def give_back(writer: Writer, numbers: Iterable[int]) -> None:
    """One reference less for each; a table without any goes. Nothing leads to it any more, nobody reads it."""
    known = read_sets(writer)
    for key, left in _after(known, numbers).items():
        if left:
            writer.map("lut_sets").update(key, LUT.pack(known[key]._replace(refs=left)))
        else:
            drop_table(writer, key, known[key].place)


def drop_table(writer: Writer, key: bytes | None, index: int) -> None:
    """Remove a table: out of `lut`, its pin, then what is known of it."""
    writer.map("lut").delete(U32.pack(index))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(writer.pin(f"{PIN}{index}"))
    if key is not None:
        writer.map("lut_sets").delete(key)


def pins(state: State) -> dict[int, str]:
    """Index -> name of every pin of a table."""
    return {
        int(name[len(PIN) :]): name
        for name in os.listdir(state.path)
        if name.startswith(PIN) and name.isascii() and name[len(PIN) :].isdigit() and len(name) < 20
    }


def _present(state: State, block: NewBlock) -> array[int]:
    """The table that the lane uses now, empty without one."""
    cluster, local = services.current_blocks(state, block.lane)
    record = services.read_block(state, cluster if block.set.kind == CLUSTER_SET else local)
    table = read_table(state, record.lut) if record is not None and record.lut else None
    return array("I") if table is None else table
