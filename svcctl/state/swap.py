"""Replacing programs, with some of their maps, under live links.

What comes is pinned beside what is, as `next_<name>`; then a mark in `meta` says "forward"; then each link is
updated (naming the old program, so that a foreign change is noticed), the pins are renamed over the old ones
and the mark is cleared. Before the mark a dead command's `next_*` are dropped, after it anybody can finish.
RENAME_EXCHANGE is not used: Linux 5.10's bpffs has none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.errors import Conflict
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state.attach import open_program, pin_map, record_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from svcctl.bpf.object import Object
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
    for shape in catalog.PROGRAMS:
        record = writer.program_record(layouts.NEXT_PROGRAMS + shape.number)
        if record.id:
            writer.map("programs").update(
                U32.pack(layouts.NEXT_PROGRAMS + shape.number), bytes(layouts.PROGRAM.size)
            )
    return left


def prepare_swap(
    writer: Writer, shape: ProgramShape, loaded: Object, fresh: Iterable[str], name: str | None = None
) -> int:
    """Pin a loaded object's program and its `fresh` maps under their next names; returns the program's id.

    `name` is the program's in the object, where that is not the shape's.
    """
    for map_name in fresh:
        pin_map(writer, loaded, map_name, catalog.NEXT)
    with loaded.program(name or shape.name) as program:
        record_program(writer, shape, program, layouts.NEXT_PROGRAMS + shape.number)
        program.pin(writer.pin(catalog.NEXT + shape.pin))
        return program.info.id


def swap(writer: Writer, between: Callable[[], None] | None = None) -> None:
    """Set the mark, go forward, clear it. `between` runs after the links were updated (last counters)."""
    bits = sum(1 << s.number for s in catalog.PROGRAMS if os.path.lexists(writer.pin(catalog.NEXT + s.pin)))
    writer.put_meta(writer.meta()._replace(swap_phase=enums.SWAP_FORWARD, swap_programs=bits))
    go_forward(writer, between)


def go_forward(writer: Writer, between: Callable[[], None] | None = None) -> None:
    """Finish a swap whose mark is set, from whatever point it got to."""
    for shape in catalog.PROGRAMS:
        _update_link(writer, shape)
    if between is not None:
        between()
    for name in next_pins(writer.path):
        os.rename(writer.pin(name), writer.pin(name.removeprefix(catalog.NEXT)))
    for opened in writer._maps.values():
        opened.close()
    writer._maps.clear()
    programs = writer.map("programs")
    version = writer.meta().version
    for shape in catalog.PROGRAMS:
        record = writer.program_record(layouts.NEXT_PROGRAMS + shape.number)
        if record.id:
            programs.update(U32.pack(shape.number), layouts.PROGRAM.pack(record))
            programs.update(U32.pack(layouts.NEXT_PROGRAMS + shape.number), bytes(layouts.PROGRAM.size))
            version = record.version
    writer.put_meta(
        writer.meta()._replace(
            swap_phase=enums.SWAP_NONE, swap_programs=0, schema=layouts.SCHEMA, version=version
        )
    )


def _update_link(writer: Writer, shape: ProgramShape) -> None:
    """Put the next program under the link, unless it is there already or nothing is attached."""
    following = open_program(writer, shape, catalog.NEXT)
    if following is None:
        return
    with following:
        try:
            link = Link.open_pinned(writer.pin(shape.link_pin))
        except BpfError as error:
            if error.errno == 2:
                return
            raise
        with link:
            if link.info.program_id == following.info.id:
                return
            current = open_program(writer, shape)
            if current is None:
                link.update(following)
                return
            with current:
                try:
                    link.update(following, current)
                except BpfError as error:
                    # EPERM is also what the kernel says when the old program is not the one named.
                    if error.errno == 1 and link.info.program_id != current.info.id:
                        raise Conflict(
                            f"{writer.pin(shape.link_pin)}: runs program {link.info.program_id},"
                            f" svcctl loaded {current.info.id}",
                            hint="someone else swapped it; 'svcctl upgrade --force' puts svcctl's program back",
                        ) from error
                    raise
