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

from svcctl.maps.catalog import ARRAY
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import LUT, LUT_KEY, Lut, LutKey
from svcctl.model import maglev
from svcctl.model.service import CLUSTER_SET, MAGLEV_STABLE
from svcctl.state import services
from svcctl.state.destinations import full

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.service_endpoint import Backend
    from svcctl.state.change_plan import NewBlock
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

PIN = "lut_"
INNER_MAP = 1 << 12
"""BPF_F_INNER_MAP: an inner map may have another size than the template's."""


def backend_name(backend: Backend) -> bytes:
    """What places a backend in the tables of every node: address and port, big endian."""
    return backend.address + backend.port.to_bytes(2, "big")


def take_table(writer: Writer, block: NewBlock, backends: Mapping[Backend, int]) -> int:
    """The number of a block's table, made if there is none like it; one more reference. Raises Full."""
    ids = table_ids(writer, block, backends)
    key = LUT_KEY.pack(LutKey(digest(ids)))
    sets = writer.map("lut_sets")
    data = sets.lookup(key)
    if data is not None:
        known = LUT.unpack(data)
        sets.update(key, LUT.pack(known._replace(refs=known.refs + 1)))
        if known.place not in pins(writer) or writer.map("lut").lookup(U32.pack(known.place)) is None:
            put_table(writer, known.place, ids)  # a hand took it away
        return known.place + 1
    index = _free_index(writer)
    sets.update(key, LUT.pack(Lut(index, len(ids), 1)))
    put_table(writer, index, ids)
    return index + 1


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
    fewer: dict[int, int] = {}
    for number in numbers:
        fewer[number - 1] = fewer.get(number - 1, 0) + 1
    for key, known in read_sets(writer).items():
        count = fewer.get(known.place, 0)
        if not count:
            continue
        if known.refs > count:
            writer.map("lut_sets").update(key, LUT.pack(known._replace(refs=known.refs - count)))
        else:
            drop_table(writer, key, known.place)


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
        if name.startswith(PIN) and name[len(PIN) :].isdigit()
    }


def _present(state: State, block: NewBlock) -> array[int]:
    """The table that the lane uses now, empty without one."""
    cluster, local = services.current_blocks(state, block.lane)
    record = services.read_block(state, cluster if block.set.kind == CLUSTER_SET else local)
    table = read_table(state, record.lut) if record is not None and record.lut else None
    return array("I") if table is None else table


def _free_index(writer: Writer) -> int:
    used = {known.place for known in read_sets(writer).values()} | pins(writer).keys()
    largest = writer.map("lut").info.max_entries
    for index in range(largest):
        if index not in used:
            return index
    raise full("lut", len(used), largest, 1)
