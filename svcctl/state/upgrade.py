"""upgrade: this svcctl's programs under the links, larger or smaller maps, older layouts carried over.

Also finishes a swap that an earlier command began, and puts svcctl's program back where someone else's was
attached (`force`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import svcctl
from svcctl.errors import Full, NotFound
from svcctl.maps import catalog, enums, layouts
from svcctl.record import Record
from svcctl.state import migrate, swap
from svcctl.state import place as places
from svcctl.state.attach import open_program, pin_map
from svcctl.state.audit import audit
from svcctl.state.programs import load_object, object_digest, object_path, object_specs
from svcctl.state.recover import mend, recover
from svcctl.state.writer import check_alive, lock_state

if TYPE_CHECKING:
    from svcctl.bpf.map import Map
    from svcctl.bpf.object import Object
    from svcctl.state.place import Place
    from svcctl.state.writer import Writer


class UpgradeOptions(Record):
    """New sizes (None: as they are); `force`: swap even what is the same, or was swapped by someone else."""

    max_bindings: int | None = None
    max_destinations: int | None = None
    force: bool = False


class Resized(Record):
    """A map made anew: name, old and new max_entries, whether its layout was an older one."""

    name: str
    old: int
    new: int
    migrated: bool


class Upgraded(Record):
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

    Raises NotLoaded, Incompatible (newer layout, a lost pin), Full (a size below what is in use), Conflict.
    """
    with lock_state(place, command) as writer:
        check_alive(writer)
        if not dry_run:
            if options.force:
                swap.take_link_back(writer, catalog.DISPATCH)
            meta = writer.meta()
            if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
                recover(writer)
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
    has_dispatcher = any(name in maps for name in catalog.DISPATCH_MAPS)
    if not has_dispatcher and (options.max_bindings or options.max_destinations):
        raise NotFound(
            "upgrade: the dispatcher was never attached, so it has no maps",
            hint="'svcctl attach netns --max-...' makes them with the sizes asked for",
        )
    fresh = _fresh(writer, maps, options, has_dispatcher, missing_allowed=meta.schema < layouts.SCHEMA)
    _check_fits(maps, fresh)
    old_version, new_version = layouts.text(meta.version), svcctl.__version__
    old = _loaded_program(writer) if has_dispatcher else 0
    same = (
        old_version == new_version
        and meta.schema == layouts.SCHEMA
        and not fresh
        and (not has_dispatcher or _is_current(writer, maps))
    )
    downgrade = _version_key(new_version) < _version_key(old_version)
    done = Upgraded(old_version, new_version, old, old, tuple(fresh), not same or options.force, downgrade)
    if dry_run:
        return done
    if has_dispatcher:
        swap.check_link(writer, catalog.DISPATCH)
    if not done.changed:
        return done
    with writer.changing():
        # The schema goes with the mark: an older svcctl must not finish a swap to maps it does not know.
        fields = {"schema": layouts.SCHEMA, "version": layouts.fit(new_version, 32)}
        new = _swap_all(writer, maps, {one.name: one for one in fresh}, has_dispatcher, fields)
        _settle(writer, fresh)
    return done._replace(new_program=new)


def _fresh(
    writer: Writer,
    maps: dict[str, Map],
    options: UpgradeOptions,
    has_dispatcher: bool,
    *,
    missing_allowed: bool,
) -> list[Resized]:
    """Maps to be made anew: for their size or layout, or because an older svcctl had none such."""
    sizes = {name: spec.max_entries for name, spec in object_specs("state").items()}
    if has_dispatcher:
        sizes |= {name: spec.max_entries for name, spec in object_specs(catalog.DISPATCH.object).items()}
        sizes |= catalog.dispatch_sizes(
            options.max_bindings or _entries(maps, "exact", catalog.DEFAULT_BINDINGS),
            options.max_destinations or _entries(maps, "destinations", catalog.DEFAULT_DESTINATIONS),
        )
    found = []
    for name in (*catalog.STATE_MAPS, *(catalog.DISPATCH_MAPS if has_dispatcher else ())):
        opened = maps.get(name)
        if opened is None:
            if not missing_allowed:
                raise places.missing_pin(writer.pin(name))
            found.append(Resized(name, 0, sizes[name], True))
            continue
        have, other = opened.info.max_entries, migrate.has_other_layout(opened, name)
        if sizes[name] != have or other:
            found.append(Resized(name, have, sizes[name], other))
    return found


def _entries(maps: dict[str, Map], name: str, default: int) -> int:
    return maps[name].info.max_entries if name in maps else default


def _check_fits(maps: dict[str, Map], fresh: list[Resized]) -> None:
    """Refuse to make a map smaller than its content."""
    for one in fresh:
        if one.new >= one.old or one.name not in ("exact", "bindings", "destinations"):
            continue
        used = maps[one.name].read_all()[2]
        if used > one.new:
            raise Full(f"upgrade: {one.name} holds {used} entries, more than {one.new}")
        highest = max(_ids(maps), default=-1) if one.name == "destinations" else -1
        if highest >= one.new:
            raise Full(
                f"upgrade: destination id {highest} is in use, so --max-destinations must be at least {highest + 1}"
            )


def _ids(maps: dict[str, Map]) -> list[int]:
    """Ids of all destinations, whatever their layout."""
    convert = migrate.value_converter("destinations", maps["destinations"])
    return [
        layouts.DESTINATION.unpack(convert(value) if convert else value).id
        for _, value in maps["destinations"].items()
    ]


def _loaded_program(writer: Writer) -> int:
    """Id of the pinned dispatcher, 0 without one."""
    program = open_program(writer, catalog.DISPATCH)
    if program is None:
        return 0
    with program:
        return program.info.id


def _is_current(writer: Writer, maps: dict[str, Map]) -> bool:
    """Whether the loaded program came from this svcctl's object and reads the pinned maps."""
    record = writer.program_record(catalog.DISPATCH.number)
    if record.sha256 != object_digest(object_path(catalog.DISPATCH.object)):
        return False
    program = open_program(writer, catalog.DISPATCH)
    if program is None:
        return False
    with program:
        reads = set(program.info.map_ids)
    return all(maps[name].info.id in reads for name in catalog.PROGRAM_READS)


def _swap_all(
    writer: Writer,
    maps: dict[str, Map],
    fresh: dict[str, Resized],
    has_dispatcher: bool,
    fields: dict[str, Any],
) -> int:
    """Make what is new beside what is, copy, swap. Returns the new program's id (0 without a dispatcher)."""
    state_fresh = {name: one.new for name, one in fresh.items() if name in catalog.STATE_MAPS}
    if state_fresh:
        keep = {name: maps[name] for name in catalog.STATE_MAPS if name not in state_fresh}
        with load_object("state", state_fresh, keep) as made:
            for name in state_fresh:
                if name in maps:
                    with made.map(name) as new:
                        migrate.copy_content(name, maps[name], new)
                pin_map(writer, made, name, catalog.NEXT)
    if not has_dispatcher:
        swap.swap(writer, **fields)
        return 0
    sizes = {name: one.new for name, one in fresh.items() if name in catalog.DISPATCH_MAPS}
    keep = {name: maps[name] for name in (*catalog.DISPATCH_MAPS, *catalog.SHARED_MAPS) if name not in sizes}
    with load_object(catalog.DISPATCH.object, sizes, keep) as loaded:
        counters: list[migrate.CounterCopy] = []
        try:
            _copy_dispatch(writer, maps, loaded, sizes, counters)
            new_id = swap.prepare_swap(writer, catalog.DISPATCH, loaded, sizes)

            def add_counts() -> None:
                for one in counters:
                    one.add_since()

            swap.swap(writer, add_counts, **fields)
        finally:
            for one in counters:
                one.new.close()
    return new_id


def _copy_dispatch(
    writer: Writer,
    maps: dict[str, Map],
    loaded: Object,
    sizes: dict[str, int],
    counters: list[migrate.CounterCopy],
) -> None:
    for name in sizes:
        if name not in maps:
            continue
        old, new = maps[name], loaded.map(name)
        if name in migrate.COUNTERS:
            counters.append(migrate.CounterCopy(name, old, new))
            counters[-1].copy()
            continue
        with new:
            if name != "sockets":
                migrate.copy_content(name, old, new)
                continue
            failed = sum(migrate.copy_sockets(old, new, map(migrate.all_slots, _ids(maps))))
            if failed:
                # The kernel takes no socket that was shut down: it can have no connections now either.
                writer.place.notice(f"{failed} sockets that no longer listen were not carried over")


def _settle(writer: Writer, fresh: list[Resized]) -> None:
    """Correct what depends on sizes; after a change of layout everything, since meanings may have changed."""
    if any(one.migrated for one in fresh):
        mend(lambda: audit(writer))
        return
    for one in fresh:
        if catalog.MAPS[one.name].usage is not None:
            writer.put_usage(one.name, writer.usage(one.name)._replace(max=one.new))
        if one.name == "destinations":
            meta = writer.meta()
            if meta.next_destination > one.new:
                writer.put_meta(meta._replace(next_destination=one.new))


def _version_key(text: str) -> tuple[int, ...]:
    """Numbers of a version, to tell a downgrade: 0.10.1 is more than 0.9."""
    return tuple(int(part) for part in text.replace("-", ".").split(".") if part.isdigit())
