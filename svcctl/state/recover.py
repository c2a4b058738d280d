"""What the first command after one that died does before its own work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import SvcctlError
from svcctl.maps import catalog, enums, layouts
from svcctl.state import destinations, swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.state.audit import Finding
    from svcctl.state.writer import Writer


def recover(writer: Writer, *, say: bool = True) -> list[Finding]:
    """Finish or undo an interrupted swap, make recorded links, correct every count; then clear the mark.

    Of an older layout, which only `upgrade` may have begun to change, just the swap is looked at. Returns what
    needs a decision. Says on stderr whose work it completes.
    """
    meta = writer.meta()
    if say:
        writer.place.notice(
            f"repairing after {layouts.text(meta.mark_command)!r} (pid {meta.mark_pid}, uid {meta.mark_uid}),"
            " which did not finish"
        )
    if meta.swap_phase == enums.SWAP_FORWARD:
        swap.go_forward(writer)
    else:
        swap.drop_next(writer)
    _end_hold(writer)
    left = _recount(writer) if meta.schema == layouts.SCHEMA else []
    if left and say:
        writer.place.notice(f"{len(left)} problems need a decision: 'svcctl check' lists them")
    meta = writer.meta()
    writer.put_meta(meta._replace(generation=(meta.generation | 1) + 1))
    return left


def _end_hold(writer: Writer) -> None:
    """Let flows be opened again, if the command died while they were not."""
    try:
        if not writer.has_half(catalog.PACKETS):
            return
        from svcctl.state.packets import end_hold

        end_hold(writer)
    except (SvcctlError, BpfError):
        return  # a lost pin, or another layout: the time passes


def _recount(writer: Writer) -> list[Finding]:
    from svcctl.state.audit import audit

    _, left = mend(lambda: audit(writer))
    if not any(one.invariant == "pins" for one in left):
        destinations.release_unused(writer)
    return left


ROUNDS = 5
"""Mending one thing can bring up another (a pin made anew has no group yet); nothing goes this deep."""


def mend(find: Callable[[], list[Finding]]) -> tuple[list[Finding], list[Finding]]:
    """Look and mend until nothing is left that needs no decision; (what was mended, what is left)."""
    mended: list[Finding] = []
    left: list[Finding] = []
    for _ in range(ROUNDS):
        # The mark is set because somebody is mending.
        found = [one for one in find() if one.invariant != "mark"]
        left = repair_all(found)
        now = [one for one in found if not any(one[:2] == other[:2] for other in left)]
        mended += now
        if not now:
            break
    return mended, left


def repair_all(findings: list[Finding]) -> list[Finding]:
    """Mend what needs no decision; returns the rest, with what could not be mended."""
    left = []
    for finding in findings:
        if finding.repair is None:
            left.append(finding)
            continue
        try:
            finding.repair()
        except (SvcctlError, BpfError, OSError) as error:
            left.append(finding._replace(repair=None, advice=f"mending it failed: {error}"))
    return left
