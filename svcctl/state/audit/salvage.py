"""Pins that are lost or wrong, made again from what the kernel still holds.

The attached program holds every map it reads, so those maps outlive their pins; `usage`, `writers`, `programs`
and `attachments` can be told from the rest. `meta` and `destinations` (the labels) exist only as pinned.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.errors import SvcctlError
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from svcctl.state import device_links
from svcctl.state.attach import pin_map
from svcctl.state.foreign import map_names
from svcctl.state.programs import load_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.writer import Writer

REMADE = ("usage", "writers", "programs", "attachments", "attach_rules")
"""State maps whose content the other rows of the audit restore; rules that are lost have to be given again."""
INDICES = ("service_names", "backend_ids")
"""Likewise of the service maps."""
TABLES = "lut_sets"
"""Of these the content is found again in the tables' own pins, and in the blocks that name them."""
_BY_PIN = {shape.pin: shape for shape in catalog.PROGRAMS}
_LINK_PINS = frozenset(shape.link_pin for shape in catalog.PROGRAMS if shape.link_pin)


def plan(writer: Writer, name: str, anew: str) -> tuple[Callable[[], object] | None, str]:
    """(repair, advice) for a pin that is missing or not what it should be."""
    if name in REMADE:
        return partial(_remake, writer, name), ""
    if name in INDICES and writer.has_map(catalog.BALANCER.marker):
        return partial(_remake_index, writer, name), ""
    if name == TABLES and writer.has_map(catalog.BALANCER.marker):
        return partial(_remake_tables, writer), ""
    if is_link_pin(name):
        return partial(_drop, writer, name), ""  # `attachments` then makes the link
    if name == catalog.TAILS:
        # The map itself may live on, but the programs in it went with the pin.
        return partial(_load_packets, writer, name), ""
    shape = _BY_PIN.get(name)
    if shape is not None:
        number = program_id(writer, shape)
        if number:
            return partial(_repin_program, writer, shape, number), ""
        return partial(_load_program, writer, shape), ""
    held = held_maps(writer).get(name)
    if held is not None:
        return partial(repin_map, writer, name, held), ""
    if name in catalog.PACKET_MAPS:
        # No program is left that has it, or none but those that went with `tails`.
        return partial(_load_packets, writer, name), ""
    if name == "destinations":
        return None, f"labels are lost with it; {anew}"
    return None, anew


def is_link_pin(name: str) -> bool:
    """Whether a pin of this name is a link: one of a program's, or one of an interface's."""
    return name in _LINK_PINS or device_links.parse_pin(name) is not None


def held_maps(writer: Writer) -> dict[str, int]:
    """Name -> id of the maps that the pinned, or else the attached, programs read; empty when there are none."""
    found: dict[str, int] = {}
    for half in catalog.HALVES:
        for shape in half.programs:
            for name, number in _maps_of(writer, shape).items():
                found.setdefault(name, number)
            if found.keys() >= set(catalog.reads(half.programs[0])):
                break  # the first one reads all that the others do
    for name, number in _maps_behind_tails(writer).items():
        found.setdefault(name, number)
    return found


def _maps_behind_tails(writer: Writer) -> dict[str, int]:
    """Maps of the packet path that the programs have which others jump to; nothing else leads to some of them."""
    found: dict[str, int] = {}
    if not writer.has_map(catalog.TAILS):
        return found
    try:
        for _, value in writer.map(catalog.TAILS).items():
            with Program.open_id(U32.unpack(value)[0]) as program:  # what a read of such a map gives is an id
                found |= map_names(program.info.map_ids)
    except BpfError:
        pass  # gone meanwhile: what is known by now is all there is
    return {name: number for name, number in found.items() if name in catalog.PACKET_MAPS}


def _maps_of(writer: Writer, shape: ProgramShape) -> dict[str, int]:
    try:
        program = _open_program(writer, shape)
        if program is None:
            return {}
        with program:
            names = map_names(program.info.map_ids)
    except BpfError:
        return {}
    return {name: number for name, number in names.items() if name in catalog.reads(shape)}


def _open_program(writer: Writer, shape: ProgramShape) -> Program | None:
    """The program under the link, which is what traffic meets; without a link the pinned one."""
    number = program_id(writer, shape)
    if number:
        return Program.open_id(number)
    try:
        return Program.open_pinned(writer.pin(shape.pin))
    except BpfError:
        return None


def program_id(writer: Writer, shape: ProgramShape) -> int:
    """Id of the program that the pinned link runs, of an interface's the first there is; 0 without one."""
    if not shape.link_pin and not writer.has_map("attachments"):
        return 0  # lost: there is no telling which link is whose
    if not shape.link_pin:
        return next(
            (
                live.program_id
                for (hook, ifindex), record in sorted(device_links.records(writer).items())
                if record.program == shape.number
                and (live := device_links.live(writer, device_links.BY_HOOK[hook], ifindex, record))
            ),
            0,
        )
    try:
        with Link.open_pinned(writer.pin(shape.link_pin)) as link:
            return link.info.program_id
    except BpfError:
        return 0


def pinned_map_id(path: str) -> int | None:
    """Id of a pinned map whatever its mode, None if it is no map."""
    try:
        with Map.open_pinned(path) as opened:
            return opened.info.id
    except BpfError:
        return None


def next_records(writer: Writer) -> bool:
    """Whether `programs` has entries of an upgrade under way."""
    try:
        return any(
            writer.program_record(layouts.NEXT_PROGRAMS + shape.number).id for shape in catalog.PROGRAMS
        )
    except SvcctlError:
        return False


def repin_map(writer: Writer, name: str, map_id: int) -> None:
    """Put the map with an id at a pin, whatever is there."""
    _drop(writer, name)
    with Map.open_id(map_id) as held:
        held.pin(writer.pin(name))
    writer.pin_mode(writer.pin(name))


def _repin_program(writer: Writer, shape: ProgramShape, number: int) -> None:
    _drop(writer, shape.pin)
    with Program.open_id(number) as program:
        program.pin(writer.pin(shape.pin))


def _load_program(writer: Writer, shape: ProgramShape) -> None:
    """Load the program anew on the pinned maps: without a link nothing holds the old one."""
    _drop(writer, shape.pin)
    if shape in catalog.PACKET:
        _load_packets(writer, shape.pin)
    elif shape is catalog.DISPATCH:
        from svcctl.state.reattach import AttachPlan, load_missing

        load_missing(writer, AttachPlan(maps=False, program=True, link=False), None, None)
    else:
        from svcctl.state.balancer import load_programs

        load_programs(writer, (shape,))


def _load_packets(writer: Writer, name: str) -> None:
    """Load the packet path's programs anew, with the map of those they jump to."""
    from svcctl.state.packets import load_packets

    _drop(writer, name)
    load_packets(writer, anew=tuple(one for one in catalog.PACKET_MAPS if not writer.has_map(one)))


def _remake_index(writer: Writer, name: str) -> None:
    """Make an empty map that programs do not read, of the size it has to have."""
    _drop(writer, name)
    sizes = catalog.service_sizes(
        writer.map("services").info.max_entries, writer.map("backends").info.max_entries, 1
    )
    reuse = {
        each: writer.map(each)
        for each in (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS)
        if each != name and writer.has_map(each)
    }
    # An object is loaded with at least one program; this one reads a single map.
    with load_object(catalog.BALANCER.object, sizes, reuse, ("sock_release",)) as loaded:
        pin_map(writer, loaded, name)


def _remake_tables(writer: Writer) -> None:
    """What is known of Maglev tables, from the tables; what is wrong with one the row `tables` tells."""
    from svcctl.maps.service_layouts import BLOCK, LUT, LUT_KEY, Lut, LutKey
    from svcctl.state.tables import digest, read_table

    _remake_index(writer, TABLES)
    used: dict[int, int] = {}
    for _, data in writer.map("blocks").items():
        number = BLOCK.unpack(data).lut
        if number:
            used[number] = used.get(number, 0) + 1
    for number, count in used.items():
        ids = read_table(writer, number)
        if ids is not None:
            known = LUT.pack(Lut(number - 1, len(ids), count))
            writer.map(TABLES).update(LUT_KEY.pack(LutKey(digest(ids))), known)


def _remake(writer: Writer, name: str) -> None:
    """Make an empty state map. What was in it is found again by the rows that compare it."""
    _drop(writer, name)
    with load_object("state", {}, {}) as loaded:
        pin_map(writer, loaded, name)


def _drop(writer: Writer, name: str) -> None:
    opened = writer._maps.pop(name, None)
    if opened is not None:
        opened.close()
    path = writer.pin(name)
    if os.path.lexists(path):
        os.unlink(path)


def zero_record(writer: Writer, index: int) -> None:
    """Forget a program in `programs`."""
    writer.map("programs").update(U32.pack(index), bytes(layouts.PROGRAM.size))
