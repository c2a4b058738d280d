"""upgrade: this svcctl's programs under the links, larger or smaller maps, older layouts carried over.

Also finishes a swap that an earlier command began, and puts svcctl's program back where someone else's was
attached (`force`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import svcctl
from svcctl.bpf.link import Link
from svcctl.errors import Full, NotFound
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state import migrate, swap
from svcctl.state.attach import open_program, pin_map
from svcctl.state.audit import audit
from svcctl.state.programs import load_object, object_digest, object_path
from svcctl.state.recover import recover, repair_all
from svcctl.state.writer import check_alive, check_programs, link_info, lock_state

if TYPE_CHECKING:
    from svcctl.bpf.map import Map
    from svcctl.bpf.object import Object
    from svcctl.state.place import Place
    from svcctl.state.writer import Writer


class UpgradeOptions(NamedTuple):
    """New sizes (None: as they are); `force`: swap even what is the same, or was swapped by someone else."""

    max_bindings: int | None = None
    max_destinations: int | None = None
    force: bool = False


class Resized(NamedTuple):
    """A map made anew: name, old and new max_entries, whether its layout was an older one."""

    name: str
    old: int
    new: int
    migrated: bool


class Upgraded(NamedTuple):
    """What was done. Ids of the program before and after are equal when nothing was."""

    old_version: str
    new_version: str
    old_program: int
    new_program: int
    resized: tuple[Resized, ...]
    changed: bool
    downgrade: bool


def upgrade(place: Place, options: UpgradeOptions, command: str, *, dry_run: bool = False) -> Upgraded:
    """Bring the state to this svcctl's programs, layouts and the sizes asked for.

    Raises NotLoaded, Incompatible (newer layout), Full (a size below what is in use), Conflict.
    """
    with lock_state(place, command) as writer:
        meta = writer.meta()
        check_alive(writer)
        if not dry_run and (meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE):
            if meta.schema == layouts.SCHEMA:
                recover(writer)
            elif meta.swap_phase == enums.SWAP_FORWARD:
                swap.go_forward(writer)
            else:
                swap.drop_next(writer)
        maps: dict[str, Map] = {}
        try:
            for name in catalog.MAPS:
                if os.path.lexists(writer.pin(name)):
                    maps[name] = migrate.open_any(writer, name)
            return _upgrade(writer, options, maps, dry_run)
        finally:
            for opened in maps.values():
                opened.close()


def _upgrade(writer: Writer, options: UpgradeOptions, maps: dict[str, Map], dry_run: bool) -> Upgraded:
    meta = writer.meta()
    has_dispatcher = "destinations" in maps
    if not has_dispatcher and (options.max_bindings or options.max_destinations):
        raise NotFound(
            "upgrade: the dispatcher was never attached, so it has no maps",
            hint="'svcctl attach netns --max-...' makes them with the sizes asked for",
        )
    resized = _resizes(maps, options)
    _check_fits(maps, resized)
    old_version, new_version = layouts.text(meta.version), svcctl.__version__
    old = _loaded_program(writer, maps)
    same = (
        old_version == new_version
        and meta.schema == layouts.SCHEMA
        and not resized
        and (not has_dispatcher or _is_current(writer, maps))
    )
    downgrade = _version_key(new_version) < _version_key(old_version)
    done = Upgraded(old_version, new_version, old, old, tuple(resized), not same or options.force, downgrade)
    if dry_run or not done.changed:
        if not dry_run and has_dispatcher:
            check_programs(writer)
        return done
    if options.force:
        _take_link_back(writer)
    with writer.changing():
        new = _swap_all(writer, maps, {one.name: one for one in resized}, has_dispatcher)
        writer.put_meta(writer.meta()._replace(version=layouts.fit(new_version, 32), schema=layouts.SCHEMA))
        repair_all(audit(writer))
    return done._replace(new_program=new)


def _resizes(maps: dict[str, Map], options: UpgradeOptions) -> list[Resized]:
    """Maps to be made anew, for their size or their layout."""
    if "destinations" in maps:
        sizes = catalog.dispatch_sizes(
            options.max_bindings or maps["exact"].info.max_entries,
            options.max_destinations or maps["destinations"].info.max_entries,
        )
    else:
        sizes = {}
    found = []
    for name, opened in maps.items():
        have = opened.info.max_entries
        want = sizes.get(name, have)
        other = migrate.has_other_layout(opened, name)
        if want != have or other:
            found.append(Resized(name, have, want, other))
    return found


def _check_fits(maps: dict[str, Map], resized: list[Resized]) -> None:
    """Refuse to make a map smaller than its content."""
    for one in resized:
        if one.new >= one.old or one.name not in ("exact", "bindings", "destinations"):
            continue
        _, values, count = maps[one.name].read_all()
        if count > one.new:
            raise Full(f"upgrade: {one.name} holds {count} entries, more than {one.new}")
        if one.name == "destinations":
            size = len(values) // count if count else 1
            highest = max((U32.unpack_from(values, size * n)[0] for n in range(count)), default=-1)
            if highest >= one.new:
                raise Full(
                    f"upgrade: destination id {highest} is in use, so --max-destinations must be at least {highest + 1}"
                )


def _loaded_program(writer: Writer, maps: dict[str, Map]) -> int:
    """Id of the pinned dispatcher, 0 without one."""
    program = open_program(writer, catalog.DISPATCH) if "destinations" in maps else None
    if program is None:
        return 0
    with program:
        return program.info.id


def _is_current(writer: Writer, maps: dict[str, Map]) -> bool:
    """Whether the loaded program came from this svcctl's object, reads the pinned maps and is what runs."""
    record = writer.program_record(catalog.DISPATCH.number)
    if record.sha256 != object_digest(object_path(catalog.DISPATCH.object)):
        return False
    program = open_program(writer, catalog.DISPATCH)
    if program is None:
        return False
    with program:
        reads = set(program.info.map_ids)
    return all(maps[name].info.id in reads for name in catalog.PROGRAM_READS)


def _take_link_back(writer: Writer) -> None:
    """Put the pinned program under a link that someone else updated, so that the swap finds what it names."""
    info = link_info(writer, catalog.DISPATCH)
    current = open_program(writer, catalog.DISPATCH)
    if info is None or current is None:
        return
    with current:
        if info.program_id != current.info.id:
            with Link.open_pinned(writer.pin(catalog.DISPATCH.link_pin)) as link:
                link.update(current)


def _swap_all(writer: Writer, maps: dict[str, Map], fresh: dict[str, Resized], has_dispatcher: bool) -> int:
    """Make what is new beside what is, copy, swap. Returns the new program's id (0 without a dispatcher)."""
    state_fresh = {name: one.new for name, one in fresh.items() if name in catalog.STATE_MAPS}
    if state_fresh:
        with load_object(
            "state", state_fresh, {n: maps[n] for n in catalog.STATE_MAPS if n not in state_fresh}
        ) as made:
            for name in state_fresh:
                with made.map(name) as new:
                    migrate.copy_content(name, maps[name], new)
                pin_map(writer, made, name, catalog.NEXT)
    if not has_dispatcher:
        swap.swap(writer)
        return 0
    sizes = {name: one.new for name, one in fresh.items() if name in catalog.DISPATCH_MAPS}
    keep = {name: maps[name] for name in (*catalog.DISPATCH_MAPS, *catalog.SHARED_MAPS) if name not in sizes}
    with load_object(catalog.DISPATCH.object, sizes, keep) as loaded:
        counters = _copy_dispatch(maps, loaded, sizes)
        try:
            new_id = swap.prepare_swap(writer, catalog.DISPATCH, loaded, sizes)

            def add_counts() -> None:
                for one in counters:
                    one.add_since()

            swap.swap(writer, add_counts)
        finally:
            for one in counters:
                one.new.close()
    return new_id


def _copy_dispatch(maps: dict[str, Map], loaded: Object, sizes: dict[str, int]) -> list[migrate.CounterCopy]:
    counters = []
    for name in sizes:
        old, new = maps[name], loaded.map(name)
        if name in migrate.COUNTERS:
            counters.append(migrate.CounterCopy(name, old, new))
            continue
        with new:
            if name == "sockets":
                _, values, count = maps["destinations"].read_all()
                size = len(values) // count if count else 1
                ids = (U32.unpack_from(values, size * n)[0] for n in range(count))
                migrate.copy_sockets(old, new, map(migrate.all_slots, ids))
            else:
                migrate.copy_content(name, old, new)
    return counters


def _version_key(text: str) -> tuple[int, ...]:
    """Numbers of a version, to tell a downgrade: 0.10.1 is more than 0.9."""
    return tuple(int(part) for part in text.replace("-", ".").split(".") if part.isdigit())
