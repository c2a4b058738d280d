"""tables: every block's Maglev table is there, holds its backends by their weights, and is counted; no others are."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import LUT
from svcctl.model.maglev import shares
from svcctl.state import tables
from svcctl.state.audit.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.maps.service_layouts import Block
    from svcctl.state.audit.service_view import View
    from svcctl.state.change_plan import NewBlock


def table_fault(view: View, record: Block, wanted: NewBlock, backends: list[int]) -> str:
    """What is wrong with the table that a block names, "" if nothing is. `backends`: ids in the order of the set."""
    known = view.table_digests.get(record.lut)
    if known is None:
        return f"whose table {record.lut} is not known"
    content = tables.read_table(view.writer, record.lut)
    if content is None:
        return f"whose table {record.lut} has no pin"
    if len(content) != record.lut_size or tables.digest(content) != known:
        return f"whose table {record.lut} has another content"
    if view.writer.map("lut").lookup(U32.pack(record.lut - 1)) is None:
        return f"whose table {record.lut} is not in lut"
    total = sum(weight for _, weight in wanted.set.members)
    found = shares(content)
    for number, (_, weight) in zip(backends, wanted.set.members, strict=True):
        if abs(found.pop(number, 0) - Fraction(len(content) * weight, total)) >= 1:
            return f"whose table {record.lut} is not by its weights"
    return f"whose table {record.lut} has backends of others" if found else ""


def find(view: View) -> Iterator[Finding]:
    """References of tables, tables without any, and pins of none."""
    used: dict[int, int] = {}
    for record in view.blocks.values():
        if record.lut:
            used[record.lut - 1] = used.get(record.lut - 1, 0) + 1
    writer = view.writer
    for key, known in view.tables.items():
        count = used.get(known.place, 0)
        if not count:
            yield Finding(
                "tables", f"table {known.place + 1} is no block's", partial(_drop, view, key, known.place)
            )
        elif known.refs != count:
            yield Finding(
                "tables",
                f"table {known.place + 1}: {known.refs} references, {count} blocks",
                partial(writer.map("lut_sets").update, key, LUT.pack(known._replace(refs=count))),
            )
    indices = {known.place for known in view.tables.values()}
    for index, name in sorted(tables.pins(writer).items()):
        if index not in indices:
            yield Finding("tables", f"pin {name} is of no table", partial(_drop, view, None, index))


def _drop(view: View, key: bytes | None, index: int) -> None:
    view.wait()
    tables.drop_table(view.writer, key, index)
