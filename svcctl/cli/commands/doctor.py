"""`svcctl doctor`: whether this host has what svcctl needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun
from svcctl.errors import Exit
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env

COLUMNS = (
    Column("STATUS", "status"),
    Column("NAME", "name"),
    Column("MESSAGE", "message"),
    Column("HINT", "hint"),
)


@noun("doctor", examples=("svcctl doctor", "svcctl doctor -o json"), exits=(0, 1, 2))
def command(env: Env) -> int:
    """Look at the kernel, libbpf, capabilities, sysctls, mounts and modes, objects, and the loaded state.

    Each line is ok, warn or fail, with a hint where there is something to do. Nothing needs to be loaded, and
    root is not needed: what could not be looked at is a warning. Ends with 1 if any line is fail.
    """
    from svcctl.cli.access import place
    from svcctl.state.doctor import FAIL, Probe, diagnose

    lines = diagnose(Probe(place(env)))
    if env.output in ("text", "wide"):
        from svcctl.render.text import escape

        width = max(len(line.name) for line in lines)
        for line in lines:
            env.write(escape(f"{line.status:4}  {line.name:{width}}  {line.message}") + "\n")
            if line.hint:
                env.write(escape(f"{'':4}  {'':{width}}  hint: {line.hint}") + "\n")
    else:
        env.emit(
            "doctor",
            [(line.status, line.name, line.message, line.hint) for line in lines],
            COLUMNS,
            name=lambda row: str(row[1]),
        )
    return Exit.FAILURE if any(line.status == FAIL for line in lines) else Exit.OK
