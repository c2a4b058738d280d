"""`svcctl check`: every invariant between the maps, the pins and the kernel; `--repair` mends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.apply_commands import file_option, input_options
from svcctl.cli.options import option, verb
from svcctl.errors import Exit, SvcctlError, Trouble, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from svcctl.cli.env import Env
    from svcctl.state.audit import Finding
    from svcctl.state.check import Report

BROKEN, MENDED, UNDECIDED = "mendable", "mended", "undecided"


@verb(
    "check",
    examples=(
        "svcctl check",
        "svcctl check --repair",
        "svcctl check -o json",
        "svcctl check -f services.yaml",
    ),
    exits=(0, 1, 2, 10),
)
@option("--repair", is_flag=True, help="Mend what needs no decision, and say what is left to decide.")
@file_option("Check these inputs of 'svcctl apply' instead, without a kernel or root.", required=False)
@input_options
def command(env: Env, repair: bool, files: tuple[str, ...], **options: Any) -> int:
    """Verify the state against itself and against the kernel: pins, modes, programs, attachments, counts, sockets.

    Traffic goes on meanwhile; other writers wait. Ends with 1 if there are problems, after --repair if some are
    left, and with 10 if it could not look. With -f it reads inputs as 'svcctl apply' would, and ends with 1 if that
    would refuse them.
    """
    if files:
        if repair:
            raise UsageProblem("check: --repair: not with -f, which looks at no state")
        from svcctl.cli.apply_commands import check_inputs

        return check_inputs(env, files, options)
    from svcctl.bpf.errors import BpfError
    from svcctl.cli.access import command_line, place
    from svcctl.state.check import check

    try:
        report = check(place(env), command_line(), repair=repair and not env.dry_run)
    except (UsageProblem, Trouble):
        raise
    except SvcctlError as error:
        raise Trouble(error.message.removeprefix("check: "), hint=error.hint) from error
    except (BpfError, OSError) as error:
        raise Trouble(str(error)) from error
    rows = _rows(report)
    env.emit_objects(
        "problems",
        [
            {"invariant": one.invariant, "state": state, "message": one.message, "advice": one.advice or None}
            for one, state in rows
        ],
        lambda: _lines(rows, repair and env.dry_run),
        name="invariant",
    )
    if repair and not env.dry_run:
        return Exit.FAILURE if report.left else Exit.OK
    return Exit.FAILURE if report.found else Exit.OK


def _rows(report: Report) -> list[tuple[Finding, str]]:
    if report.mended or report.left:
        return [(one, MENDED) for one in report.mended] + [(one, UNDECIDED) for one in report.left]
    return [(one, BROKEN if one.repair else UNDECIDED) for one in report.found]


def _lines(rows: list[tuple[Finding, str]], dry_run: bool) -> Iterator[str]:
    from svcctl.render.text import escape

    if not rows:
        yield "no problems found"
        return
    for one, state in rows:
        what = "would be mended" if dry_run and state == BROKEN else state
        yield escape(f"{one.invariant}: {one.message}: {what}")
        if one.advice:
            yield escape(f"  {one.advice}")
    counts = {state: sum(1 for _, each in rows if each == state) for state in (BROKEN, MENDED, UNDECIDED)}
    yield ", ".join(f"{number} {state}" for state, number in counts.items() if number)
