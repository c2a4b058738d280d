"""The packet path's maps and programs: made by the first `attach dev`, and the settings of its flows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.errors import Conflict
from svcctl.maps import catalog
from svcctl.maps.packet_layouts import PACKET_CONFIG
from svcctl.model.packet_settings import PacketSettings
from svcctl.record import Record
from svcctl.state import balancer, swap
from svcctl.state.packet_settings import kept, new_config, put_config, read_config, with_timeouts
from svcctl.state.programs import load_object
from svcctl.state.tunnel_settings import (
    changed_words,
    check_range_room,
    delete_ranges,
    no_dsr,
    with_settings,
    words,
    write_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.maps.packet_layouts import PacketConfig
    from svcctl.maps.service_layouts import Config
    from svcctl.model.prefix import Prefix
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class PacketOptions(Record):
    """What `attach dev` was asked for besides interfaces; None: as it is, or the default. Times in milliseconds."""

    timeouts: tuple[tuple[str, int], ...] = ()
    max_flows: int | None = None
    max_services: int | None = None
    max_backends: int | None = None
    max_sockets: int | None = None
    settings: PacketSettings = PacketSettings()


class PacketPlan(Record):
    """What has to be made: service maps (with the balancer's programs), packet maps, programs; new settings.

    `balancer` are the settings of new service maps. `no_dsr` are the prefixes of a new set of clients, None: as it is.
    `differences` are (name, remark) of the settings that change.
    """

    services: bool
    make: bool
    load: bool
    config: PacketConfig
    config_changes: bool
    balancer: Config | None
    no_dsr: tuple[Prefix, ...] | None = None
    differences: tuple[tuple[str, str], ...] = ()

    @property
    def notes(self) -> str:
        """`tunnel port 4789 -> 4790`, empty if no setting changes."""
        return "; ".join(f"{name} {text}" for name, text in self.differences)

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return self.services or self.make or self.load or self.config_changes or self.no_dsr is not None


def plan_packets(state: State, options: PacketOptions) -> PacketPlan:
    """Compare the packet path with what is asked for. Raises Conflict for other sizes than the maps have."""
    services = not state.has_map(catalog.BALANCER.marker)
    make = not state.has_half(catalog.PACKETS)
    if not services:
        _refuse(state, {"services": options.max_services, "backends": options.max_backends})
        _refuse(state, {"reverse": options.max_sockets})
    if not make:
        _refuse(state, {"flows": None if options.max_flows is None else options.max_flows * 2})
    now = new_config(state.meta()) if make else read_config(state)
    config = with_timeouts(with_settings(now, options.settings), options.timeouts)
    old_clients = [] if make else no_dsr(state, now)
    clients = options.settings.no_dsr
    if clients is None or (sorted(set(clients)) == old_clients and bool(old_clients) == bool(now.no_dsr)):
        clients = None
    elif not services:
        check_range_room(state, clients)
    load = make or not all(
        os.path.lexists(state.pin(name)) for name in (catalog.TAILS, *(s.pin for s in catalog.PACKET))
    )
    return PacketPlan(
        services,
        make,
        load,
        config,
        not make and config != now,
        balancer.new_settings(state) if services else None,
        clients,
        changed_words(words(now, old_clients), words(config, old_clients if clients is None else clients)),
    )


def end_hold(writer: Writer) -> None:
    """Have flows opened again at once (`carry.holding`)."""
    config = read_config(writer)
    if config.hold_until_ns:
        writer.map("packet_config").update(bytes(4), PACKET_CONFIG.pack(config._replace(hold_until_ns=0)))


_OPTIONS = {
    "services": "--max-services",
    "backends": "--max-backends",
    "reverse": "--max-sockets",
    "flows": "--max-flows",
}


def _refuse(state: State, asked: dict[str, int | None]) -> None:
    for name, want in asked.items():
        have = state.map(name).info.max_entries
        if want is not None and want != have:
            raise Conflict(
                f"attach dev: {state.path}: {name} has {have} entries, asked for {want} ({_OPTIONS[name]})",
                hint=f"'svcctl upgrade {_OPTIONS[name]} N' changes sizes without interruption",
            )


def apply_packets(writer: Writer, plan: PacketPlan, options: PacketOptions) -> None:
    """Make and load what is missing, each half in one swap; write the settings. Inside `changing()`."""
    if options.timeouts:
        writer.put_meta(writer.meta()._replace(idle_ms=kept(plan.config)))
    if plan.services:
        sizes = catalog.service_sizes(
            options.max_services or catalog.DEFAULT_SERVICES,
            options.max_backends or catalog.DEFAULT_BACKENDS,
            options.max_sockets or catalog.DEFAULT_SOCKETS,
        )
        balancer.load_programs(writer, catalog.CONNECT, sizes, plan.balancer)
    if plan.make:
        load_packets(writer, catalog.packet_sizes(options.max_flows or catalog.DEFAULT_FLOWS), plan.config)
    elif plan.load:
        load_packets(writer)
    if not plan.make:
        put_settings(writer, plan)
    elif plan.no_dsr is not None:
        _put_no_dsr(writer, plan.no_dsr)


def put_settings(writer: Writer, plan: PacketPlan) -> None:
    """Write the settings that change. Inside `changing()`."""
    if plan.config_changes:
        put_config(writer, plan.config)
    if plan.no_dsr is not None:
        _put_no_dsr(writer, plan.no_dsr)


def _put_no_dsr(writer: Writer, clients: tuple[Prefix, ...]) -> None:
    now = read_config(writer)
    old = no_dsr(writer, now)
    put_config(writer, now._replace(no_dsr=write_ranges(writer, clients)))
    delete_ranges(writer, now.no_dsr, old)


def load_packets(
    writer: Writer,
    sizes: Mapping[str, int] | None = None,
    config: PacketConfig | None = None,
    *,
    anew: Sequence[str] = (),
) -> None:
    """Load the programs and publish them in one swap; with `sizes` on new maps, else with those in `anew` new.

    The map of programs is always new: the old programs go on jumping to their like until they are replaced.
    Inside `changing()`.
    """
    swap.drop_next(writer)
    fresh = (
        tuple(catalog.PACKET_MAPS)
        if sizes
        else (*(name for name in anew if name != catalog.TAILS), catalog.TAILS)
    )
    own = [name for name in catalog.PACKET_MAPS if name not in fresh]
    reuse = {name: writer.map(name) for name in (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS, *own)}
    with load_object(catalog.PACKETS.object, sizes or _sizes(writer), reuse) as loaded:
        if "packet_config" in fresh:
            with loaded.map("packet_config") as made:
                made.update(bytes(4), PACKET_CONFIG.pack(config or new_config(writer.meta())))
        for number, shape in enumerate(catalog.PACKET):
            swap.prepare_swap(writer, shape, loaded, fresh if number == 0 else ())
    swap.swap(writer)


def _sizes(writer: Writer) -> dict[str, int]:
    """Sizes of maps that are made anew beside others: as those others say, else the default ones."""
    flows = writer.map("flows").info.max_entries // 2 if writer.has_map("flows") else catalog.DEFAULT_FLOWS
    return catalog.packet_sizes(flows)
