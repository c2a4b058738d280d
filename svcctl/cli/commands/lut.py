"""`svcctl lut`: the Maglev table of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import argument, noun, option
from svcctl.cli.service_params import BACKEND, SERVICE
from svcctl.render.records import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.cli.env import Env
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.lut import Share, Table

COLUMNS = (
    Column("FAMILY", "family"),
    Column("SET", "set"),
    Column("BACKEND", "backend"),
    Column("WEIGHT", "weight", None, ">"),
    Column("SLOTS", "slots", None, ">"),
    Column("SHARE", "share", lambda share: f"{share * 100:.3f}%", ">"),
)
MOVED = (Column("AFTER", "after", None, ">"), Column("KEPT", "kept", None, ">"))
RAW = (
    Column("FAMILY", "family"),
    Column("SET", "set"),
    Column("SLOT", "slot", None, ">"),
    Column("BACKEND", "backend"),
)


@noun(
    "lut",
    examples=("svcctl lut web", "svcctl lut web --without 10.1.2.3:8080", "svcctl lut web --raw -o json"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("service", SERVICE, "The service.")
@option(
    "--without",
    type=BACKEND,
    multiple=True,
    metavar="BACKEND",
    help="Show what would move if this backend were not there; may be repeated.",
)
@option("--raw", is_flag=True, help="Every slot with its backend.")
def command(env: Env, service: str, without: tuple[Backend, ...], raw: bool) -> None:
    """Show each backend's share of the table from which a service with --algorithm maglev chooses.

    SLOTS is off the exact share by less than one slot. With --without: how many slots each would have AFTER, and
    how many of its own it would have KEPT; flows in slots that are not kept go to another backend.
    """
    from svcctl.cli.access import reading
    from svcctl.errors import UsageProblem
    from svcctl.state.lut import shares, tables_of

    if raw and without:
        raise UsageProblem("lut: --raw and --without do not go together")
    tables: list[Table] = reading(env, lambda state: tables_of(state, service))
    if raw:
        env.emit("lut", _raw(tables), RAW, name=lambda row: str(row[3]))
        return
    _check_known(service, tables, without)
    rows = [one for table in tables for one in shares(table, without)]
    if without and env.output in ("text", "wide"):
        env.notice(_summary(tables, rows))
    columns = (*COLUMNS, *MOVED) if without else COLUMNS
    env.emit("lut", [tuple(one)[: len(columns)] for one in rows], columns, name=lambda row: str(row[2]))


def _check_known(service: str, tables: Iterable[Table], without: Iterable[Backend]) -> None:
    from svcctl.errors import NotFound
    from svcctl.model.service_endpoint import format_backend

    known = {backend for table in tables for backend, _ in table.set.members}
    for backend in without:
        if backend not in known:
            raise NotFound(
                f"lut: service {service}: {format_backend(backend)} has no share of its table",
                hint=f"'svcctl lut {service}' lists those that have",
            )


def _raw(tables: Iterable[Table]) -> list[tuple[Any, ...]]:
    from svcctl.model.constants import FAMILY_NAMES
    from svcctl.model.service_endpoint import format_backend

    rows = []
    for table in tables:
        names = {number: format_backend(backend) for number, backend in table.backends.items()}
        family, kind = FAMILY_NAMES[table.family], table.set.kind
        rows += [(family, kind, slot, names.get(number)) for slot, number in enumerate(table.slots)]
    return rows


def _summary(tables: Iterable[Table], rows: Iterable[Share]) -> str:
    total = sum(len(table.slots) for table in tables)
    kept = sum(one.kept or 0 for one in rows)
    own = sum(one.slots for one in rows if not one.after)
    return (
        f"{total - kept} of {total} slots would move: {own} of the backends that go,"
        f" {total - kept - own} of others ({(total - kept - own) / max(total - own, 1):.2%})"
    )
