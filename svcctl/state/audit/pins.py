"""pins, orphans, modes, sizes: what is in the directory, of which kind, whose, and how large."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.errors import SvcctlError
from svcctl.maps import catalog, enums, layouts
from svcctl.state import device_links
from svcctl.state.audit import salvage
from svcctl.state.audit.finding import Finding
from svcctl.state.create import DIRECTORY_MODE, PIN_MODE
from svcctl.state.session import is_wrong_pin
from svcctl.state.swap import drop_next, next_pins
from svcctl.state.tables import pins as pins_of_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.writer import Writer

ANEW = "'svcctl unload' and 'svcctl load' start anew"


def find(writer: Writer) -> Iterator[Finding]:
    """Findings about the directory and its pins."""
    present = set(os.listdir(writer.path))
    wanted = expected(present | _recorded(writer))
    yield from _modes(
        writer, sorted(wanted.keys() & present), wanted
    )  # first: it opens the way to the others
    yield from _kinds(writer, present, wanted)
    yield from _orphans(writer, present, wanted)
    if usable(writer):
        yield from _sizes(writer)


def usable(writer: Writer) -> bool:
    """Whether all that belongs there can be opened as it should be, and `meta` is svcctl's."""
    present = set(os.listdir(writer.path))
    wanted = expected(present | _recorded(writer))
    if any(_fault(writer, name) for name in wanted.keys() & present - catalog.MAPS.keys()):
        return False
    try:
        for name in wanted.keys() & catalog.MAPS.keys():
            writer.map(name)
        writer.meta()
    except SvcctlError:
        return False
    return True


def expected(present: set[str]) -> dict[str, int]:
    """Name -> mode (0: that of the state) of every pin that belongs in a directory with these names."""
    wanted = dict.fromkeys(catalog.STATE_MAPS, 0)
    for half in catalog.HALVES:
        programs = [shape.pin for shape in half.programs]
        links = [shape.link_pin for shape in half.programs if shape.link_pin]
        if half is catalog.PACKETS:
            links = [name for name in present if device_links.parse_pin(name) is not None]
        if present & {*half.maps, *programs, *links}:
            wanted |= dict.fromkeys(half.maps, 0)
            wanted |= dict.fromkeys(programs, 0o600)
        # Which links there should be is told by the records: `attachments`.
        wanted |= {name: 0o600 for name in links if name in present}
    return wanted


def _recorded(writer: Writer) -> set[str]:
    """A pin of each half that was loaded: one that has lost all of its pins is missed as well."""
    try:
        return {half.programs[0].pin for half in catalog.HALVES if writer.is_recorded(half)}
    except SvcctlError:
        return set()  # `programs` is a finding by itself


_PROGRAM_PINS = frozenset(shape.pin for shape in catalog.PROGRAMS)


def _kinds(writer: Writer, present: set[str], wanted: dict[str, int]) -> Iterator[Finding]:
    """pins: all there, each of its kind and shape."""
    for name in sorted(wanted):
        fault = _fault(writer, name) if name in present else "is missing"
        if fault is not None:
            repair, advice = salvage.plan(writer, name, ANEW)
            yield Finding("pins", f"pin {name!r} {fault}", repair, advice)


def _fault(writer: Writer, name: str) -> str | None:
    """What is wrong with a pin that is there. Its mode is not looked at: that is another row."""
    path = writer.pin(name)
    try:
        if name in _PROGRAM_PINS:
            Program.open_pinned(path).close()
            return None
        if salvage.is_link_pin(name):
            Link.open_pinned(path).close()
            return None
        with Map.open_pinned(path) as opened:
            info, shape = opened.info, catalog.MAPS[name]
    except BpfError as error:
        if not is_wrong_pin(error):
            raise  # mending would replace a pin that is sound
        return f"cannot be opened as what it should be: {error.strerror or error}"
    have = (info.type, info.key_size, info.value_size)
    want = (shape.type, shape.key_size, shape.value_size)
    if have != want:
        return f"is a map of type, key size and value size {have}, expected {want}"
    return None


def _orphans(writer: Writer, present: set[str], wanted: dict[str, int]) -> Iterator[Finding]:
    """orphans: nothing else is in the directory."""
    left = next_pins(writer.path)
    tables = set(pins_of_tables(writer).values()) if salvage.TABLES in wanted else set()
    for name in sorted(present - wanted.keys() - set(left) - tables):
        advice = f"look at it, then: rm -r {writer.pin(name)}"
        yield Finding("orphans", f"{name!r} does not belong here", None, advice)
    try:
        meta = writer.meta()
    except SvcctlError:
        return
    if meta.swap_phase != enums.SWAP_NONE or (meta.generation & 1 and not writer.is_changing):
        return  # the mark's business, unless the mark is our own
    records = salvage.next_records(writer)
    if left or records:
        what = ", ".join(left) or "records of programs"
        yield Finding("orphans", f"left over from an upgrade: {what}", partial(drop_next, writer))


def _modes(writer: Writer, names: list[str], wanted: dict[str, int]) -> Iterator[Finding]:
    """modes: owner root, the state's group, nobody else writes."""
    status = os.stat(writer.path)
    group, pin_mode = status.st_gid, PIN_MODE
    try:
        meta = writer.meta()
        group, pin_mode = meta.group, meta.mode
    except SvcctlError:
        pass  # missing, or refused because of its own mode: judged by the directory's group
    fault = _wrong(status, DIRECTORY_MODE, group)
    if fault:
        yield _mode_finding("the directory", writer.path, fault, DIRECTORY_MODE, group, status.st_uid == 0)
    root = os.path.dirname(writer.path)
    root_mode = stat.S_IMODE(os.stat(root).st_mode)
    if group != 0 and root_mode & 0o022:
        yield Finding(
            "modes",
            f"{root} has mode {root_mode:04o}: members of group {group} could pin maps there again and write them",
            None,
            f"chmod go-w {root}",
        )
    genuine = salvage.held_maps(writer)
    for name in names:
        path = writer.pin(name)
        status = os.stat(path)
        mode = wanted[name] or pin_mode
        wanted_group = group if name in catalog.MAPS else status.st_gid  # of 0600 nobody asks the group
        fault = _wrong(status, mode, wanted_group)
        if fault:
            own = status.st_uid == 0 or (name in genuine and genuine[name] == salvage.pinned_map_id(path))
            yield _mode_finding(f"pin {name!r}", path, fault, mode, wanted_group, own)


def _wrong(status: os.stat_result, mode: int, group: int) -> str | None:
    have = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    if have == (mode, 0, group):
        return None
    return "has mode {:04o}, uid {}, gid {}; expected {:04o}, 0, {}".format(*have, mode, group)


def _mode_finding(what: str, path: str, fault: str, mode: int, group: int, own: bool) -> Finding:
    if not own:
        # Whoever owned it could have put it there, or anything into it, and may hold it open for writing.
        advice = f"if you know how that came: chown root {path}; else {ANEW}"
        return Finding("modes", f"{what} {fault}", None, advice)
    return Finding("modes", f"{what} {fault}", partial(_set_mode, path, mode, group))


def _set_mode(path: str, mode: int, group: int) -> None:
    os.chown(path, 0, group)
    os.chmod(path, mode)


def _sizes(writer: Writer) -> Iterator[Finding]:
    """sizes: maps that are indexed by destination or lane have room for each, and others for what goes with that."""
    fixed = {"drop_stats": len(enums.DROP_REASONS), "writers": layouts.WRITERS}
    yield from _too_small(writer, fixed, "--max-destinations", 0)
    if writer.has_dispatcher():
        most = writer.map("destinations").info.max_entries
        sizes = catalog.dispatch_sizes(writer.map("bindings").info.max_entries, most) | {"ports": 131072}
        del sizes["exact"]  # an upgrade may grow it alone
        yield from _too_small(writer, sizes, "--max-destinations", most + 1)
    if writer.has_half(catalog.BALANCER):
        most = writer.map("services").info.max_entries
        sizes = catalog.service_sizes(
            most, writer.map("backends").info.max_entries, writer.map("reverse").info.max_entries
        )
        yield from _too_small(writer, sizes, "--max-services", most + 1)
        yield from _too_small(writer, {"reverse_counts": catalog.REVERSE_COUNTS}, "--max-services", 0)
    if writer.has_half(catalog.PACKETS):
        most = writer.map("flows").info.max_entries // 2
        yield from _too_small(writer, catalog.packet_sizes(most), "--max-flows", most + 1)


def _too_small(writer: Writer, sizes: dict[str, int], option: str, number: int) -> Iterator[Finding]:
    for name, size in sizes.items():
        have = writer.map(name).info.max_entries
        if have < size:
            asked = f"upgrade {option} {number}" if number else "upgrade --force"
            yield Finding(
                "sizes",
                f"map {name!r} has {have} entries, needs {size}",
                None,
                f"'svcctl {asked}' makes them anew, with what is in them",
            )
