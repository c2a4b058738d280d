"""upgrade: this svcctl's programs under the links, larger or smaller maps, older layouts carried over.

Also finishes a swap that an earlier command began, and puts svcctl's program back where someone else's was
attached (`force`). Both halves are swapped under one mark.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import svcctl
from svcctl.bpf.map import Map
from svcctl.errors import NotFound
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.record import Record
from svcctl.state import migrate, swap
from svcctl.state.attach import open_program, pin_map
from svcctl.state.audit import audit
from svcctl.state.programs import load_object, object_digest, object_path
from svcctl.state.recover import mend, recover
from svcctl.state.session import open_reader, program_map_ids
from svcctl.state.upgrade_maps import Resized, UpgradeOptions, check_fits, copy_half, find_fresh, halves
from svcctl.state.writer import check_alive, lock_state

if TYPE_CHECKING:
    from svcctl.maps.catalog import Half, ProgramShape
    from svcctl.state.place import Place
    from svcctl.state.upgrade_maps import Follower
    from svcctl.state.writer import Writer


class Swapped(Record):
    """A program: its name, and its ids before and after, which are equal when nothing was done."""

    name: str
    old: int
    new: int


class Upgraded(Record):
    """What was done. Without programs there is none in `programs`."""

    old_version: str
    new_version: str
    programs: tuple[Swapped, ...]
    resized: tuple[Resized, ...]
    changed: bool
    downgrade: bool


def upgrade(place: Place, options: UpgradeOptions, command: str, *, dry_run: bool = False) -> Upgraded:
    """Bring the state to this svcctl's programs, layouts and the sizes asked for.

    Raises NotLoaded, Incompatible (newer layout, a lost pin), Full (a size below what is in use), Conflict.
    """
    if dry_run and os.geteuid() != 0:
        return _planned(place, options)
    with lock_state(place, command) as writer:
        check_alive(writer)
        if not dry_run:
            if options.force:
                for shape in catalog.PROGRAMS:
                    swap.take_links_back(writer, shape)
            meta = writer.meta()
            if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
                recover(writer)
        maps: dict[str, Map] = {}
        try:
            for name in catalog.MAPS:
                if os.path.lexists(writer.pin(name)):
                    maps[name] = migrate.open_any(writer, name)
            done = _upgrade(writer, options, maps, dry_run)
        finally:
            for opened in maps.values():
                opened.close()
        if writer.meta().schema == layouts.SCHEMA and writer.has_half(catalog.BALANCER):
            from svcctl.state.condition import fault as fault_of

            fault = fault_of(writer)
            if fault is not None:
                place.notice(fault)
        return done


def _upgrade(writer: Writer, options: UpgradeOptions, maps: dict[str, Map], dry_run: bool) -> Upgraded:
    meta = writer.meta()
    made = halves(maps)
    _check_options(options, made)
    fresh = find_fresh(writer, maps, options, missing_allowed=meta.schema < layouts.SCHEMA)
    check_fits(maps, fresh)
    old_version, new_version = layouts.text(meta.version), svcctl.__version__
    shapes = [shape for half in made for shape in half.programs]
    programs = {shape: _loaded_program(writer, shape) for shape in shapes}
    same = (
        old_version == new_version
        and meta.schema == layouts.SCHEMA
        and not fresh
        and all(_is_current(writer, shape, maps) for shape in shapes)
    )
    downgrade = _version_key(new_version) < _version_key(old_version)
    unchanged = tuple(Swapped(shape.name, number, number) for shape, number in programs.items())
    done = Upgraded(old_version, new_version, unchanged, tuple(fresh), not same or options.force, downgrade)
    if dry_run:
        return done
    for shape in shapes:
        swap.check_links(writer, shape)
    if not done.changed:
        return done
    with writer.changing():
        # The schema goes with the mark: an older svcctl must not finish a swap to maps it does not know.
        fields = {"schema": layouts.SCHEMA, "version": layouts.fit(new_version, 32)}
        new = _swap_all(writer, maps, {one.name: one.new for one in fresh}, made, fields)
        _settle(writer, fresh)
    return done._replace(
        programs=tuple(Swapped(shape.name, number, new[shape]) for shape, number in programs.items())
    )


def _planned(place: Place, options: UpgradeOptions) -> Upgraded:
    """A dry run for members of the state's group. The pins of programs are root's: the records speak for them."""
    with open_reader(place, any_layout=True) as reader, contextlib.ExitStack() as stack:
        meta = reader.meta()
        maps = {
            name: stack.enter_context(migrate.open_any(reader, name))
            for name in catalog.MAPS
            if os.path.lexists(reader.pin(name))
        }
        made = halves(maps)
        _check_options(options, made)
        fresh = find_fresh(reader, maps, options, missing_allowed=meta.schema < layouts.SCHEMA)
        check_fits(maps, fresh)
        old_version, new_version = layouts.text(meta.version), svcctl.__version__
        same = old_version == new_version and meta.schema == layouts.SCHEMA and not fresh
        programs = []
        for shape in (shape for half in made for shape in half.programs):
            data = maps["programs"].lookup(U32.pack(shape.number))
            if meta.schema != layouts.SCHEMA or data is None:
                continue  # of another layout, perhaps
            record = layouts.PROGRAM.unpack(data)
            known = program_map_ids(record)
            same = (
                same
                and record.sha256 == object_digest(object_path(shape.object))
                and all(maps[name].info.id in known for name in catalog.reads(shape))
            )
            programs.append(Swapped(shape.name, record.id, record.id))
        downgrade = _version_key(new_version) < _version_key(old_version)
        changed = not same or options.force
        return Upgraded(old_version, new_version, tuple(programs), tuple(fresh), changed, downgrade)


def _check_options(options: UpgradeOptions, made: list[Half]) -> None:
    """Refuse sizes of what there is not."""
    if catalog.DISPATCHER not in made and (options.max_bindings or options.max_destinations):
        raise NotFound(
            "upgrade: the dispatcher was never attached, so it has no maps",
            hint="'svcctl attach netns --max-...' makes them with the sizes asked for",
        )
    if catalog.PACKETS not in made and options.max_flows:
        raise NotFound(
            "upgrade: the packet path was never attached, so it has no maps",
            hint="'svcctl attach dev --max-flows' makes them with the size asked for",
        )
    if catalog.BALANCER not in made and (options.max_services or options.max_backends or options.max_sockets):
        raise NotFound(
            "upgrade: the connect balancer was never attached, so there are no service maps",
            hint="'svcctl attach cgroup --max-...' makes them with the sizes asked for",
        )


def _loaded_program(writer: Writer, shape: ProgramShape) -> int:
    """Id of a pinned program, 0 without one."""
    program = open_program(writer, shape)
    if program is None:
        return 0
    with program:
        return program.info.id


def _is_current(writer: Writer, shape: ProgramShape, maps: dict[str, Map]) -> bool:
    """Whether the loaded program came from this svcctl's object and reads the pinned maps."""
    record = writer.program_record(shape.number)
    if record.sha256 != object_digest(object_path(shape.object)):
        return False
    program = open_program(writer, shape)
    if program is None:
        return False
    with program:
        reads = set(program.info.map_ids)
    return all(maps[name].info.id in reads for name in catalog.reads(shape))


def _swap_all(
    writer: Writer, maps: dict[str, Map], fresh: dict[str, int], made: list[Half], fields: dict[str, Any]
) -> dict[ProgramShape, int]:
    """Make what is new beside what is, copy, swap. Returns the new programs' ids."""
    following: list[Follower] = []
    ids: dict[ProgramShape, int] = {}
    with contextlib.ExitStack() as stack:
        shared = _make_state_maps(writer, maps, fresh, following, stack)
        for half in made:
            ids |= _prepare_half(writer, half, maps | shared, fresh, following, stack)
            if half is catalog.BALANCER:
                # The packet path reads the service maps: those that are new are no longer in the way of its own.
                shared |= _next_maps(writer, half, fresh, stack)

        def bring_rest() -> None:
            for one in following:
                one.add_since()

        for one in following:
            if not isinstance(one, migrate.CounterCopy):
                one.add_since()  # so that little is left for after the swap
        if {"flows", "halfopen", "flow_filter"} & fresh.keys() & maps.keys():
            from svcctl.state import carry

            settings = [maps["packet_config"]]
            if "packet_config" in fresh:
                settings.append(
                    stack.enter_context(Map.open_pinned(writer.pin(catalog.NEXT + "packet_config")))
                )
            hold = stack.enter_context(carry.holding(settings))
            for one in following:
                if isinstance(one, (carry.Flows, carry.Filter)):
                    one.add_since()
            hold()
        swap.swap(writer, bring_rest, **fields)
    return ids


def _make_state_maps(
    writer: Writer,
    maps: dict[str, Map],
    fresh: dict[str, int],
    following: list[Follower],
    stack: contextlib.ExitStack,
) -> dict[str, Map]:
    """Make, fill and pin the state maps that are new; returns those that programs write too."""
    sizes = {name: size for name, size in fresh.items() if name in catalog.STATE_MAPS}
    if not sizes:
        return {}
    shared = {}
    keep = {name: maps[name] for name in catalog.STATE_MAPS if name not in sizes}
    with load_object("state", sizes, keep) as loaded:
        for name in sizes:
            new = stack.enter_context(loaded.map(name))
            if name in catalog.SHARED_MAPS:
                shared[name] = new
            if name in maps and name in migrate.COUNTERS:
                one = migrate.CounterCopy(name, maps[name], new)
                one.copy()
                following.append(one)
            elif name in maps:
                migrate.copy_content(name, maps[name], new)
            pin_map(writer, loaded, name, catalog.NEXT)
    return shared


def _prepare_half(
    writer: Writer,
    half: Half,
    maps: dict[str, Map],
    fresh: dict[str, int],
    following: list[Follower],
    stack: contextlib.ExitStack,
) -> dict[ProgramShape, int]:
    """Load a half's programs, on new maps where there are any, and pin it all under the next names."""
    sizes = {name: size for name, size in fresh.items() if name in half.maps}
    if half is catalog.PACKETS:
        sizes.setdefault(catalog.TAILS, maps[catalog.TAILS].info.max_entries)
    also = catalog.SERVICE_MAPS if half is catalog.PACKETS else ()
    keep = {name: maps[name] for name in (*half.maps, *also, *catalog.SHARED_MAPS) if name not in sizes}
    names = _names_in_object(half)
    ids = {}
    with load_object(half.object, sizes, keep, _to_load(half, names)) as loaded:
        for one in copy_half(writer, half, maps, loaded, sizes):
            stack.enter_context(one.new)
            following.append(one)
        for number, (shape, name) in enumerate(names.items()):
            ids[shape] = swap.prepare_swap(writer, shape, loaded, sizes if number == 0 else (), name)
    return ids


def _to_load(half: Half, names: dict[ProgramShape, str]) -> tuple[str, ...]:
    """What is loaded of an object; of the packet path's all, with the programs in `tails`."""
    return () if half is catalog.PACKETS else tuple(names.values())


def _next_maps(
    writer: Writer, half: Half, fresh: dict[str, int], stack: contextlib.ExitStack
) -> dict[str, Map]:
    """The maps of a half that were made anew, as they are pinned beside the old ones."""
    return {
        name: stack.enter_context(Map.open_pinned(writer.pin(catalog.NEXT + name)))
        for name in half.maps
        if name in fresh
    }


def _names_in_object(half: Half) -> dict[ProgramShape, str]:
    """What this kernel gets of the variants that some programs have."""
    if half is not catalog.BALANCER:
        return {shape: shape.name for shape in half.programs}
    from svcctl.state.balancer import program_name

    return {shape: program_name(shape) for shape in half.programs}


def _settle(writer: Writer, fresh: list[Resized]) -> None:
    """Correct what depends on sizes; after a change of layout everything, since meanings may have changed."""
    if any(one.migrated for one in fresh):
        mend(lambda: audit(writer))
        return
    for one in fresh:
        if catalog.MAPS[one.name].usage is not None:
            writer.put_usage(one.name, writer.usage(one.name)._replace(max=one.new))
        if one.name in ("destinations", "current"):
            meta = writer.meta()
            meta = (
                meta._replace(next_lane=min(meta.next_lane, one.new))
                if one.name == "current"
                else (meta._replace(next_destination=min(meta.next_destination, one.new)))
            )
            writer.put_meta(meta)
    # A link may have been of no use any more, or its target may be gone.
    if writer.has_half(catalog.BALANCER):
        from svcctl.state.audit import cgroups

        mend(lambda: list(cgroups.find(writer, False)))
    if writer.has_half(catalog.PACKETS):
        from svcctl.state.audit import devices

        mend(lambda: list(devices.find(writer, False)))


def _version_key(text: str) -> tuple[int, ...]:
    """Numbers of a version, to tell a downgrade: 0.10.1 is more than 0.9."""
    return tuple(int(part) for part in text.replace("-", ".").split(".") if part.isdigit())
