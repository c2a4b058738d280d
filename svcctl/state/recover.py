"""What the first command after one that died does before its own work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums, layouts
from svcctl.state import swap
from svcctl.state.attach import attach_netns, is_attached

if TYPE_CHECKING:
    from svcctl.state.audit import Finding
    from svcctl.state.writer import Writer


def recover(writer: Writer, *, say: bool = True) -> list[Finding]:
    """Finish or undo an interrupted swap, make recorded links, correct every count; then clear the mark.

    Returns what needs a decision. Says on stderr whose work it completes.
    """
    from svcctl.state.audit import audit

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
    if is_attached(writer) and os.path.lexists(writer.pin(catalog.DISPATCH.pin)):
        attach_netns(writer)
    left = repair_all(audit(writer))
    meta = writer.meta()
    writer.put_meta(meta._replace(generation=(meta.generation | 1) + 1))
    return left


def repair_all(findings: list[Finding]) -> list[Finding]:
    """Mend what needs no decision; returns the rest."""
    left = []
    for finding in findings:
        if finding.repair is None:
            left.append(finding)
        else:
            finding.repair()
    return left
