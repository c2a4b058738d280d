"""check: the audit of one state directory and its surroundings, and the mending of what needs no decision."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.maps import enums
from svcctl.record import Record
from svcctl.state.audit import Finding, audit, pins
from svcctl.state.recover import mend, recover, repair_all
from svcctl.state.unload import find_leftovers, lock_root
from svcctl.state.writer import lock_state

if TYPE_CHECKING:
    from svcctl.state.place import Place
    from svcctl.state.writer import Writer


class Report(Record):
    """`found` is what was broken; of that `mended` was mended and `left` needs a decision (only with repair)."""

    path: str
    found: list[Finding]
    mended: list[Finding]
    left: list[Finding]


def check(place: Place, command: str, *, repair: bool) -> Report:
    """Audit the namespace's state, and mend it.

    Raises NotLoaded, PermissionProblem, Incompatible (another layout), LockTimeout.
    """
    root = lock_root(place, "check")
    try:
        with lock_state(place, command, any_mode=True) as writer:
            found = _temporary(place) + audit(writer, deep=True)
            if not repair or not found:
                return Report(writer.path, found, [], [])
            if os.fstat(writer.fd).st_uid != os.geteuid():
                # Somebody else's directory: nothing in it is worth mending before that is settled.
                return Report(writer.path, found, [], [one._replace(repair=None) for one in found])
            mended, left = _repair(writer, found)
            return Report(writer.path, found, mended, left)
    finally:
        os.close(root)


def _temporary(place: Place) -> list[Finding]:
    """temporary: no directory of a `load` that died is under the root."""
    return [
        Finding(
            "temporary",
            f"{path} is left over from a load that was interrupted",
            partial(find_leftovers, place, remove=True),
        )
        for path in find_leftovers(place)
    ]


def _repair(writer: Writer, found: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    left = repair_all([one for one in found if one.invariant == "temporary"])
    more: list[Finding] = []
    rest: list[Finding] = []
    if _is_marked(writer):
        recover(writer)
    if not pins.usable(writer):
        # Without a mark: `meta` itself may be what cannot be reached.
        more, rest = mend(lambda: list(pins.find(writer)))
    if pins.usable(writer):
        rest = audit(writer, deep=True)
        if more or any(one.repair for one in rest):
            with writer.changing():
                now, rest = mend(lambda: audit(writer, deep=True))
            more += now
    else:
        rest = rest or audit(writer, deep=True)
    left += rest
    mended = {one[:2]: one for one in found + more if not any(one[:2] == other[:2] for other in left)}
    return list(mended.values()), left


def _is_marked(writer: Writer) -> bool:
    try:
        meta = writer.meta()
    except SvcctlError:
        return False
    return bool(meta.generation & 1) or meta.swap_phase != enums.SWAP_NONE
