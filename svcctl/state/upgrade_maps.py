"""The maps that `upgrade` makes anew: which, how large, whether their content fits, and how it is carried over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from svcctl.errors import Full
from svcctl.maps import catalog, layouts
from svcctl.record import Record
from svcctl.state import migrate
from svcctl.state import place as places
from svcctl.state.programs import object_specs

if TYPE_CHECKING:
    from svcctl.bpf.map import Map
    from svcctl.bpf.object import Object
    from svcctl.maps.catalog import Half
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class UpgradeOptions(Record):
    """New sizes (None: as they are); `force`: swap even what is the same, or was swapped by someone else."""

    max_bindings: int | None = None
    max_destinations: int | None = None
    force: bool = False
    max_services: int | None = None
    max_backends: int | None = None
    max_sockets: int | None = None
    max_flows: int | None = None


class Resized(Record):
    """A map made anew: name, old and new max_entries, whether its layout was an older one."""

    name: str
    old: int
    new: int
    migrated: bool


class Follower(Protocol):
    """A map that programs go on writing until they are swapped."""

    new: Map

    def copy(self) -> None:
        """Copy what there is."""

    def add_since(self) -> None:
        """Bring what came since."""


def halves(maps: dict[str, Map]) -> list[Half]:
    """The halves that were made."""
    return [half for half in catalog.HALVES if any(name in maps for name in half.maps)]


def find_fresh(
    state: State, maps: dict[str, Map], options: UpgradeOptions, *, missing_allowed: bool
) -> list[Resized]:
    """Maps to be made anew: for their size or layout, or because an older svcctl had none such."""
    made = halves(maps)
    sizes = {name: spec.max_entries for name, spec in object_specs("state").items()}
    for half in made:
        specs = object_specs(half.object)
        sizes |= {name: specs[name].max_entries for name in half.maps}
        sizes |= _sizes(half, maps, options)
    found = []
    for name in (*catalog.STATE_MAPS, *(name for half in made for name in half.maps)):
        opened = maps.get(name)
        if opened is None:
            if not missing_allowed and name not in catalog.ADDED:
                raise places.missing_pin(state.pin(name))
            found.append(Resized(name, 0, sizes[name], True))
            continue
        have, other = opened.info.max_entries, migrate.has_other_layout(opened, name)
        if sizes[name] != have or other:
            found.append(Resized(name, have, sizes[name], other))
    return found


def _sizes(half: Half, maps: dict[str, Map], options: UpgradeOptions) -> dict[str, int]:
    if half is catalog.DISPATCHER:
        return catalog.dispatch_sizes(
            options.max_bindings or _entries(maps, "exact", catalog.DEFAULT_BINDINGS),
            options.max_destinations or _entries(maps, "destinations", catalog.DEFAULT_DESTINATIONS),
        )
    if half is catalog.PACKETS:
        return catalog.packet_sizes(
            options.max_flows or _entries(maps, "flows", catalog.DEFAULT_FLOWS * 2) // 2,
        )
    return catalog.service_sizes(
        options.max_services or _entries(maps, "services", catalog.DEFAULT_SERVICES),
        options.max_backends or _entries(maps, "backends", catalog.DEFAULT_BACKENDS),
        options.max_sockets or _entries(maps, "reverse", catalog.DEFAULT_SOCKETS),
    )


def _entries(maps: dict[str, Map], name: str, default: int) -> int:
    return maps[name].info.max_entries if name in maps else default


FITS_ANYWAY = ("affinity", "flows", "halfopen", "fragments")
"""A full LRU map forgets the oldest."""


def check_fits(maps: dict[str, Map], fresh: list[Resized]) -> None:
    """Refuse to make a map smaller than its content. Raises Full."""
    for one in fresh:
        if one.new >= one.old or one.name in FITS_ANYWAY:
            continue
        if catalog.MAPS[one.name].type in (catalog.HASH, catalog.LPM_TRIE):
            used = maps[one.name].read_all()[2]
            if used > one.new:
                option = catalog.USAGE_OPTIONS.get(one.name, "")
                raise Full(
                    f"upgrade: {one.name} holds {used} entries, more than {one.new}",
                    hint=f"a larger {option} keeps them" if option else None,
                )
        if one.name == "destinations":
            highest = max(destination_ids(maps), default=-1)
            if highest >= one.new:
                raise Full(
                    f"upgrade: destination id {highest} is in use,"
                    f" so --max-destinations must be at least {highest + 1}"
                )
        if one.name == "current":
            highest = max(_lanes(maps), default=0)
            if highest >= one.new:
                raise Full(
                    f"upgrade: lane {highest} is in use, so --max-services must be at least {highest // 2 + 1}"
                )


def destination_ids(maps: dict[str, Map]) -> list[int]:
    """Ids of all destinations, whatever their layout."""
    convert = migrate.value_converter("destinations", maps["destinations"])
    return [
        layouts.DESTINATION.unpack(convert(value) if convert else value).id
        for _, value in maps["destinations"].items()
    ]


def _lanes(maps: dict[str, Map]) -> list[int]:
    """Lanes of all services."""
    from svcctl.maps.service_layouts import SERVICE

    convert = migrate.value_converter("services", maps["services"])
    values = [SERVICE.unpack(convert(value) if convert else value) for _, value in maps["services"].items()]
    return [lane for value in values for lane in (value.lane4, value.lane6)]


def copy_half(
    writer: Writer, half: Half, maps: dict[str, Map], loaded: Object, fresh: dict[str, int]
) -> list[Follower]:
    """Copy the maps of a half that are made anew; returns those that programs still write, to be closed after use."""
    following: list[Follower] = []
    for name in fresh:
        source = "halfopen" if name == "flow_filter" else name
        if source not in maps or name == catalog.TAILS:
            continue
        old, new = maps[source], loaded.map(name)
        one = _follower(name, old, new)
        if one is not None:
            following.append(one)
            one.copy()
            continue
        with new:
            if name != "sockets":
                migrate.copy_content(name, old, new)
                continue
            failed = sum(migrate.copy_sockets(old, new, map(migrate.all_slots, destination_ids(maps))))
            if failed:
                # The kernel takes no socket that was shut down: it can have no connections now either.
                writer.place.notice(f"{failed} sockets that no longer listen were not carried over")
    return following


def _follower(name: str, old: Map, new: Map) -> Follower | None:
    if name in migrate.COUNTERS:
        return migrate.CounterCopy(name, old, new)
    if name in catalog.SERVICE_MAPS or name in catalog.PACKET_MAPS:
        from svcctl.state import carry

        kind = carry.KINDS.get(name)
        return None if kind is None else kind("halfopen" if name == "flow_filter" else name, old, new)
    return None
