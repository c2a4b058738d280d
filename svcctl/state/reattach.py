"""`attach netns` and `detach netns`: the dispatcher put on and taken off a state that is loaded already."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.errors import Conflict
from svcctl.maps import catalog, layouts
from svcctl.record import Record
from svcctl.state import attach, swap
from svcctl.state.programs import load_object

if TYPE_CHECKING:
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class AttachPlan(Record):
    """What `attach netns` has to do: make maps, load the program, make the link; nothing when all are False."""

    maps: bool
    program: bool
    link: bool


def plan_attach(state: State, max_bindings: int | None, max_destinations: int | None) -> AttachPlan:
    """Compare the state with an attached dispatcher. Raises Conflict when its maps have other sizes."""
    differs = attach.size_differences(state, max_bindings, max_destinations)
    if differs:
        raise Conflict(
            f"attach netns: {state.path}: the dispatcher's maps are there with {'; '.join(differs)}",
            hint="'svcctl upgrade --max-...' changes sizes without interruption",
        )
    maps = not state.has_dispatcher()
    if not maps:
        state.need_maps(catalog.DISPATCHER)
    program = maps or not os.path.lexists(state.pin(catalog.DISPATCH.pin))
    # None: recorded, and not for the caller to look at. Only a dry run without root gets that.
    return AttachPlan(maps, program, attach.is_live(state) is False)


def attach_dispatcher(
    writer: Writer, plan: AttachPlan, max_bindings: int | None, max_destinations: int | None
) -> None:
    """Carry a plan out. What is missing is pinned under its next names and renamed at one mark, as an upgrade
    does: a command that dies leaves all of the dispatcher's maps or none."""
    if not any(plan):
        return
    with writer.changing():
        if plan.program:
            load_missing(writer, plan, max_bindings, max_destinations)
        attach.attach_netns(writer)


def load_missing(
    writer: Writer, plan: AttachPlan, max_bindings: int | None, max_destinations: int | None
) -> None:
    """Load the program, on new maps if there are none. Inside `changing()`."""
    sizes = catalog.dispatch_sizes(
        max_bindings or catalog.DEFAULT_BINDINGS, max_destinations or catalog.DEFAULT_DESTINATIONS
    )
    swap.drop_next(writer)
    kept = catalog.SHARED_MAPS if plan.maps else (*catalog.DISPATCH_MAPS, *catalog.SHARED_MAPS)
    reuse = {name: writer.map(name) for name in kept}
    with load_object(catalog.DISPATCH.object, sizes, reuse) as loaded:
        swap.prepare_swap(writer, catalog.DISPATCH, loaded, catalog.DISPATCH_MAPS if plan.maps else ())
    if plan.maps:
        for name, shape in catalog.DISPATCH_MAPS.items():
            if shape.usage is not None:
                writer.put_usage(name, layouts.Usage(0, sizes[name]))
    swap.swap(writer)


def detach_dispatcher(writer: Writer) -> bool:
    """Take the dispatcher off, keep everything else. False: it was not attached, nothing was written."""
    if not attach.is_attached(writer) and not os.path.lexists(writer.pin(catalog.DISPATCH.link_pin)):
        return False
    with writer.changing():
        attach.detach_netns(writer)
    return True
