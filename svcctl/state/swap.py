"""Replacing programs, with some of their maps, under live links.

What comes is pinned beside what is, as `next_<name>`; then a mark in `meta` says "forward"; then each link is
updated (naming the old program, so that a foreign change is noticed), the pins are renamed over the old ones
and the mark is cleared. Before the mark a dead command's `next_*` are dropped, after it anybody can finish.
RENAME_EXCHANGE is not used: Linux 5.10's bpffs has none.
"""

from __future__ import annotations

import os
from errno import ENOENT, ENOLINK, EPERM
from typing import TYPE_CHECKING, Any

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.errors import Conflict, Incompatible
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state.attach import attach_netns, is_attached, open_program, pin_map, record_program
from svcctl.state.writer import link_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from svcctl.bpf.object import Object
    from svcctl.bpf.program import Program
    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.writer import Writer


def next_pins(path: str) -> list[str]:
    """Names of the `next_*` pins in a state directory."""
    return sorted(name for name in os.listdir(path) if name.startswith(catalog.NEXT))


def drop_next(writer: Writer) -> list[str]:
    """Remove what an interrupted swap left before its mark. Returns the names."""
    left = next_pins(writer.path)
    for name in left:
        os.unlink(writer.pin(name))
    programs = _programs(writer)
    if programs is not None:
        for shape in catalog.PROGRAMS:
            if writer.program_record(layouts.NEXT_PROGRAMS + shape.number).id:
                programs.update(U32.pack(layouts.NEXT_PROGRAMS + shape.number), bytes(layouts.PROGRAM.size))
    return left


def _programs(writer: Writer) -> Map | None:
    """The map of program records; None when it has another layout, and so no record of ours."""
    try:
        return writer.map("programs")
    except Incompatible:
        return None


def prepare_swap(
    writer: Writer, shape: ProgramShape, loaded: Object, fresh: Iterable[str], name: str | None = None
) -> int:
    """Pin a loaded object's program and its `fresh` maps under their next names; returns the program's id.

    `name` is the program's in the object, where that is not the shape's.
    """
    for map_name in fresh:
        pin_map(writer, loaded, map_name, catalog.NEXT)
    with loaded.program(name or shape.name) as program:
        number = layouts.NEXT_PROGRAMS + shape.number
        following = writer.pin(catalog.NEXT + "programs")
        if os.path.lexists(following):  # the records get another layout by the same swap
            with Map.open_pinned(following) as table:
                record_program(table, shape, program, number)
        else:
            record_program(writer.map("programs"), shape, program, number)
        program.pin(writer.pin(catalog.NEXT + shape.pin))
        return program.info.id


def swap(writer: Writer, between: Callable[[], None] | None = None, **fields: Any) -> None:
    """Set the mark, and with it `fields` of meta; go forward; clear it.

    `between` runs after the links were updated (last counters). Raises Conflict before the mark when someone
    else's program is under a link.
    """
    for shape in catalog.PROGRAMS:
        if shape.link_pin or os.path.lexists(writer.pin(catalog.NEXT + shape.pin)):
            check_links(writer, shape)
    bits = sum(1 << s.number for s in catalog.PROGRAMS if os.path.lexists(writer.pin(catalog.NEXT + s.pin)))
    writer.put_meta(writer.meta()._replace(swap_phase=enums.SWAP_FORWARD, swap_programs=bits, **fields))
    go_forward(writer, between)
    if is_attached(writer):
        attach_netns(writer)  # its link may have been of no use any more


def go_forward(writer: Writer, between: Callable[[], None] | None = None) -> None:
    """Finish a swap whose mark is set, from whatever point it got to."""
    for shape in catalog.PROGRAMS:
        _update_links(writer, shape)
    if between is not None:
        between()
    if os.path.lexists(writer.pin(catalog.NEXT + catalog.TAILS)):
        # The programs in a map of programs go with its last pin, and the old ones may be just running.
        from svcctl.bpf.barrier import rcu_barrier

        rcu_barrier()
    for name in next_pins(writer.path):
        os.rename(writer.pin(name), writer.pin(name.removeprefix(catalog.NEXT)))
    for opened in writer._maps.values():
        opened.close()
    writer._maps.clear()
    programs = _programs(writer)
    if programs is not None:
        for shape in catalog.PROGRAMS:
            record = writer.program_record(layouts.NEXT_PROGRAMS + shape.number)
            if record.id:
                programs.update(U32.pack(shape.number), layouts.PROGRAM.pack(record))
                programs.update(U32.pack(layouts.NEXT_PROGRAMS + shape.number), bytes(layouts.PROGRAM.size))
    writer.put_meta(writer.meta()._replace(swap_phase=enums.SWAP_NONE, swap_programs=0))


def link_pins(writer: Writer, shape: ProgramShape) -> list[str]:
    """Names of the pins of the links that run a program: one, or for the packet path one an interface."""
    if shape.link_pin:
        return [shape.link_pin]
    if not writer.has_half(catalog.PACKETS):
        return []
    from svcctl.state import device_links

    return list(device_links.link_pins(writer, shape))


def check_links(writer: Writer, shape: ProgramShape) -> None:
    """Raise Conflict when a link runs neither the pinned program nor the one that is to follow it."""
    for pin in link_pins(writer, shape):
        _check_link(writer, shape, pin)


def _check_link(writer: Writer, shape: ProgramShape, pin: str) -> None:
    info = link_info(writer, pin)
    if info is None:
        return
    loaded = 0
    for prefix in ("", catalog.NEXT):
        program = open_program(writer, shape, prefix)
        if program is None:
            if not prefix:
                return  # the pin is lost: whatever is there is replaced
            continue
        with program:
            mine = program.info.id
        if info.program_id == mine:
            return
        if not prefix:
            loaded = mine
    raise swapped(writer, pin, info.program_id, loaded)


def swapped(writer: Writer, pin: str, runs: int, loaded: int) -> Conflict:
    """The error for a link that someone else has updated."""
    return Conflict(
        f"{writer.pin(pin)}: runs program {runs}, svcctl loaded {loaded}",
        hint="someone else swapped it; 'svcctl upgrade --force' puts svcctl's program back",
    )


def take_links_back(writer: Writer, shape: ProgramShape) -> None:
    """Put the pinned program under a link that someone else updated, so that a swap finds what it names."""
    for pin in link_pins(writer, shape):
        _take_link_back(writer, shape, pin)


def _take_link_back(writer: Writer, shape: ProgramShape, pin: str) -> None:
    info, current = link_info(writer, pin), open_program(writer, shape)
    if current is None:
        return
    with current:
        if info is not None and info.program_id != current.info.id:
            following = open_program(writer, shape, catalog.NEXT)
            if following is not None:
                with following:
                    if info.program_id == following.info.id:
                        return  # an interrupted swap of our own
            with Link.open_pinned(writer.pin(pin)) as link:
                try:
                    link.update(current)
                except BpfError as error:
                    if error.errno != ENOLINK:
                        raise  # else detached, or its interface is gone: nothing to be taken back


def _update_links(writer: Writer, shape: ProgramShape) -> None:
    """Put the next program under every link, and in the place of every filter, that runs the present one."""
    following = open_program(writer, shape, catalog.NEXT)
    if following is None:
        return
    with following:
        for pin in link_pins(writer, shape):
            _update_link(writer, shape, pin, following)
        if not shape.link_pin:
            from svcctl.state.device_links import Hooks

            with Hooks(writer) as hooks:
                hooks.follow(shape, following)


def _update_link(writer: Writer, shape: ProgramShape, pin: str, following: Program) -> None:
    """Put the next program under a link, unless it is there already or nothing is attached."""
    try:
        link = Link.open_pinned(writer.pin(pin))
    except BpfError as error:
        if error.errno == ENOENT:
            return
        raise
    with link:
        if link.info.program_id == following.info.id:
            return
        current = open_program(writer, shape)
        try:
            if current is None:
                link.update(following)
                return
            with current:
                try:
                    link.update(following, current)
                except BpfError as error:
                    # EPERM is also what the kernel says when the old program is not the one named.
                    if error.errno == EPERM and link.info.program_id != current.info.id:
                        raise swapped(writer, pin, link.info.program_id, current.info.id) from error
                    raise
        except BpfError as error:
            if error.errno != ENOLINK:
                raise
            # Detached by hand, or its interface is gone: the link cannot be used again. Another one is made when
            # all is done, where there is something to make it on.
            os.unlink(writer.pin(pin))
