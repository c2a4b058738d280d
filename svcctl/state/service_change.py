"""Changing one service: from what is stored to what is wanted. `state/change_plan.py` and its neighbours do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.state.change_frontends import Pair
from svcctl.state.change_plan import plan_changes
from svcctl.state.change_write import apply_changes

if TYPE_CHECKING:
    from svcctl.model.service import Service
    from svcctl.state.change_plan import Changes
    from svcctl.state.services import Stored
    from svcctl.state.session import State


def plan_change(state: State, have: Stored | None, want: Service | None) -> Changes:
    """Work out a change. Raises Conflict for a frontend of another service, Full before anything is written."""
    return plan_changes(state, [Pair(have, want)])


apply_change = apply_changes
"""Carries it out; the name that goes with `plan_change`."""

__all__ = ["apply_change", "plan_change"]
