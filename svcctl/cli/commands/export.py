"""`svcctl export`: prints the bindings as the file that `load-bindings` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.commands.bindings import COLUMNS
from svcctl.cli.options import noun

if TYPE_CHECKING:
    from typing import Any

    from svcctl.cli.env import Env


@noun("export", examples=("svcctl export > bindings.json", "svcctl export | svcctl load-bindings -"))
def command(env: Env) -> None:
    """Print the desired state, all bindings, as JSON (or, with -o yaml, as YAML): a file for 'load-bindings'.

    Loading it again where it came from writes nothing. Registered sockets are not part of it: services register
    their own.
    """
    rows = read_rows(env)
    if env.output in ("text", "wide"):
        env.output = "json"
    env.emit("bindings", rows, COLUMNS, name=lambda row: f"{row[3]}#{row[0]}:[{row[1]}]:{row[2]}")


def read_rows(env: Env) -> list[tuple[Any, ...]]:
    """Rows of COLUMNS for every binding that has a label, in the order of listings."""
    from svcctl.cli.access import reading
    from svcctl.model.binding import key_fields, listing_order
    from svcctl.state.export import read_export

    labels, orphans = reading(env, read_export)
    if orphans:
        env.warn(
            f"{orphans} bindings have no label and are left out: 'svcctl check' names them"
            if orphans > 1
            else "one binding has no label and is left out: 'svcctl check' names it"
        )
    return [(*key_fields(key), labels[key]) for key in sorted(labels, key=listing_order)]
