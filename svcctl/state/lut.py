"""Reading the Maglev tables of a service: each backend's share, and what would move without some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Incompatible, NotFound
from svcctl.model import maglev
from svcctl.model.constants import FAMILY_NAMES
from svcctl.model.service import MAGLEV_STABLE, RANDOM, blocks_of
from svcctl.model.service_endpoint import format_backend
from svcctl.record import Record
from svcctl.state import services
from svcctl.state.tables import backend_name, read_table

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection

    from svcctl.model.service import BackendSet
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.services import Stored
    from svcctl.state.session import State


class Table(Record):
    """One set's table: `slots` are ids of backends, `backends` the set's by id.

    While a change is under way, or after one that died, a slot may be of a backend that is not the set's any more.
    """

    family: int
    set: BackendSet
    number: int
    slots: array[int]
    backends: dict[int, Backend]


class Share(Record):
    """One backend of a table. `after` and `kept` are None unless the question was what would move."""

    family: str
    set: str
    backend: str
    weight: int
    slots: int
    share: float
    after: int | None = None
    kept: int | None = None


def tables_of(state: State, name: str) -> list[Table]:
    """The tables of a service. Raises NotFound for one that is not there or has none, Incompatible for a lost one."""
    stored = services.get(state, name, "lut")
    if stored.service.algorithm == RANDOM:
        raise NotFound(
            f"lut: service {name} has no table: its algorithm is random",
            hint=f"'svcctl service set {name} --algorithm maglev' gives it one",
        )
    found = []
    ids = dict(zip(stored.backends, (one.backend for one in stored.service.members), strict=True))
    for lane in blocks_of(stored.service):
        cluster, local = services.current_blocks(state, stored.lanes.get(lane.family, 0))
        for number, each in ((cluster, lane.cluster), (local, lane.local)):
            if each is not None and each.members and (each is lane.cluster or number != cluster):
                found.append(_table(state, stored, number, each, ids))
    return found


def _table(state: State, stored: Stored, block: int, each: BackendSet, ids: dict[int, Backend]) -> Table:
    record = services.read_block(state, block)
    slots = read_table(state, record.lut) if record is not None and record.lut else None
    if record is None or slots is None:
        raise Incompatible(
            f"lut: service {stored.service.name}: the table of its {each.kind} set is missing",
            hint="'svcctl check --repair' makes it anew",
        )
    return Table(
        each.family, each, record.lut, slots, {number: ids[number] for number in set(slots) & ids.keys()}
    )


def shares(table: Table, without: Collection[Backend] = ()) -> list[Share]:
    """A table's backends by address; with `without`, how many slots they would have if those were not there."""
    total = len(table.slots)
    old = _names(table)
    found = maglev.shares(old)
    after: dict[bytes, int] = {}
    kept: dict[bytes, int] = {}
    if without:
        new = without_backends(old, table, without)
        after = maglev.shares(new)
        kept = maglev.shares(name for name, other in zip(old, new, strict=False) if name == other)
    rows = []
    for backend, weight in table.set.members:
        name = backend_name(backend)
        slots = found.get(name, 0)
        rows.append(
            Share(
                FAMILY_NAMES[table.family],
                table.set.kind,
                format_backend(backend),
                weight,
                slots,
                slots / total,
                after.get(name, 0) if without else None,
                kept.get(name, 0) if without else None,
            )
        )
    return rows


def _names(table: Table) -> list[bytes]:
    """What each slot leads to; empty for a backend that is not the set's any more."""
    names = {number: backend_name(backend) for number, backend in table.backends.items()}
    return [names.get(number, b"") for number in table.slots]


def without_backends(old: list[bytes], table: Table, without: Collection[Backend]) -> list[bytes]:
    """The table that would follow; empty when nobody is left."""
    weights = {
        backend_name(backend): weight for backend, weight in table.set.members if backend not in without
    }
    if table.set.algorithm == MAGLEV_STABLE:
        return maglev.refill(old, weights)
    return maglev.table(weights, len(old))
