"""gc: what killed commands and dead namespaces left under a bpffs root, labels nobody uses any more, and what
the balancer remembers of sockets and clients that are gone.

The locks: that of the bpffs root first, then a directory's, one at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.errors import BpfError
from svcctl.errors import LockTimeout, NotLoaded, PermissionProblem, SvcctlError
from svcctl.maps import catalog, enums
from svcctl.state import destinations, service_gc, swap
from svcctl.state import place as places
from svcctl.state.lock import open_locked
from svcctl.state.session import INCONSISTENT, read_consistent
from svcctl.state.unload import (
    find_leftovers,
    judge_directories,
    lock_root,
    retire_directory,
)
from svcctl.state.writer import is_dead, lock_state, open_writer

if TYPE_CHECKING:
    from svcctl.model.destination import Destination
    from svcctl.state.place import Place
    from svcctl.state.session import Reader, State
    from svcctl.state.writer import Writer


class Removed(NamedTuple):
    """One thing that `gc` removes: `kind` is leftover, state, pin, destination, attachment, drain, reverse, affinity
    or flow."""

    kind: str
    name: str
    why: str


INTERRUPTED = "left over from a load that was interrupted"
DEAD = "its network namespace is gone"
UNUSED = "no bindings, no live sockets"
SWAP = "left over from an upgrade"
GONE = "its interface is gone"


def collect(place: Place, command: str) -> list[Removed]:
    """Remove it all; what was removed. Doing it again removes nothing.

    Raises NotLoaded where there is no BPF file system, PermissionProblem, LockTimeout, and what opening the
    namespace's own state raises, except NotLoaded.
    """
    removed = []
    root = lock_root(place, "gc")
    try:
        removed += [Removed("leftover", path, INTERRUPTED) for path in find_leftovers(place, remove=True)]
        for path in dict.fromkeys(_dead(place) + _own_dead(place, command)):
            if _retire(place, path):
                removed.append(Removed("state", path, DEAD))
    finally:
        os.close(root)
    try:
        with open_writer(place, command) as writer:
            pins = _swap_pins(writer)
            unused = unused_destinations(writer)
            gone = gone_interfaces(writer)
            if pins or unused or gone:
                with writer.changing():
                    swap.drop_next(writer)
                    for one in unused:
                        destinations.release_if_unused(writer, one)
                    if gone:
                        _forget(writer, gone)
            removed += _own_rows(pins, unused, gone)
            removed += _service_rows(place, service_gc.collect(writer))
            removed += _flow_rows(_sweep(writer))
            _tell(writer)
    except NotLoaded:
        pass
    return removed


def planned(place: Place) -> list[Removed]:
    """What `collect` would remove; reads as readers do."""
    places.check_bpffs(place.bpffs)
    rows = []
    try:
        rows += [Removed("leftover", path, INTERRUPTED) for path in find_leftovers(place)]
        rows += [Removed("state", path, DEAD) for path in _dead(place)]
    except PermissionError:  # a member of the state's group
        place.notice(f"not looked at: leftovers and dead states: {place.bpffs} may be listed by root only")
    try:
        own, consistent = read_consistent(place, _read_garbage)
    except NotLoaded:
        return rows
    if own.unseen is not None:
        place.notice(f"not looked at: interfaces: {own.unseen}")
    rows += _own_rows(own.pins, own.unused, own.gone)
    rows += _service_rows(place, own.services)
    rows += _flow_rows(own.over)
    if not consistent:
        place.notice(INCONSISTENT)
    return rows


class _Found(NamedTuple):
    """What is to be removed of the namespace's own state; `unseen`: why interfaces that are gone could not be told."""

    pins: list[str]
    unused: list[Destination]
    gone: list[tuple[int, str]]
    unseen: PermissionProblem | None
    services: service_gc.Garbage
    over: int


def _read_garbage(reader: Reader) -> _Found:
    """Says nothing, as it may be read more than once."""
    gone: list[tuple[int, str]] = []
    unseen = None
    try:
        gone = gone_interfaces(reader)
    except PermissionProblem as problem:
        unseen = problem
    unused, services = unused_destinations(reader), service_gc.find(reader)
    return _Found(_swap_pins(reader), unused, gone, unseen, services, _count_over(reader))


def _dead(place: Place) -> list[str]:
    """Directories of namespaces that are gone; says of which it cannot tell."""
    judged = judge_directories(place)
    for path, dead in judged:
        if dead is None:
            place.notice(f"left alone: {path}: whether its network namespace lives cannot be told from here")
    return [path for path, dead in judged if dead]


def _own_rows(pins: list[str], unused: list[Destination], gone: list[tuple[int, str]]) -> list[Removed]:
    return [
        *(Removed("pin", name, SWAP) for name in pins),
        *(Removed("destination", str(one), UNUSED) for one in unused),
        *(Removed("attachment", name, GONE) for _, name in gone),
    ]


def gone_interfaces(state: State) -> list[tuple[int, str]]:
    """(index, name) of attached interfaces that are no more."""
    if not state.has_half(catalog.PACKETS):
        return []
    from svcctl.host.devices import devices
    from svcctl.state.devices import find_gone

    return find_gone(state, devices(state.netns))


def _forget(writer: Writer, gone: list[tuple[int, str]]) -> None:
    from svcctl.state.device_links import Hooks
    from svcctl.state.devices import forget

    with Hooks(writer) as hooks:
        for ifindex, _ in gone:
            forget(hooks, ifindex)


def _tell(writer: Writer) -> None:
    """Tell programs what is another by now of interfaces that are attached."""
    if not writer.has_half(catalog.PACKETS):
        return
    from svcctl.host.devices import devices
    from svcctl.state.devices import put_table, stale_table

    there = devices(writer.netns)
    stale = stale_table(writer, there)
    if not stale:
        return
    with writer.changing():
        for ifindex, value in stale.items():
            put_table(writer, ifindex, value)
    names = [one.name for one in there if one.ifindex in stale]
    writer.place.notice(f"noted what has changed of interfaces: {', '.join(names)}")


def _service_rows(place: Place, garbage: service_gc.Garbage) -> list[Removed]:
    if garbage.unsure is not None:
        place.notice(f"left alone: {garbage.unsure}")
    return [Removed(*row) for row in service_gc.describe(garbage)]


def _sweep(writer: Writer) -> int:
    """Forget flows whose time is over; how many."""
    if not writer.has_half(catalog.PACKETS):
        return 0
    from svcctl.state.conntrack import find_over, sweep

    over = find_over(writer)
    if not over:
        return 0
    with writer.changing():
        return sweep(writer, over)


def _count_over(state: State) -> int:
    if not state.has_half(catalog.PACKETS):
        return 0
    from svcctl.state.conntrack import find_over

    return len(find_over(state))


def _flow_rows(count: int) -> list[Removed]:
    text = f"{count} {'flow' if count == 1 else 'flows'}"
    return [Removed("flow", text, "idle for longer than they may be")] if count else []


def _own_dead(place: Place, command: str) -> list[str]:
    """The directory that has our namespace's inode, if it is that of an earlier one: the cookie tells."""
    try:
        with lock_state(place, command) as writer:
            return [writer.path] if is_dead(writer) else []
    except LockTimeout:
        raise
    except (SvcctlError, BpfError):
        return []  # none there, or broken: `check` says so, nothing is removed


def _retire(place: Place, path: str) -> bool:
    """Take a dead directory away, under its lock. False: it went meanwhile."""
    try:
        fd = open_locked(path, place)
    except FileNotFoundError:
        return False
    try:
        retire_directory(place, path)
    finally:
        os.close(fd)
    return True


def _swap_pins(state: State) -> list[str]:
    """Pins of a swap that is not under way."""
    meta = state.meta()
    if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
        return []
    try:
        return swap.next_pins(state.path)
    except PermissionError:
        return []  # a member of the state's group, in a dry run


def unused_destinations(state: State) -> list[Destination]:
    """Destinations without bindings and without live sockets: a label that was given up."""
    if not state.has_dispatcher():
        return []
    return [
        one
        for one in destinations.read_all(state).values()
        if not one.refs and not destinations.cookies(state, one)
    ]
