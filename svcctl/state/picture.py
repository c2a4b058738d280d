"""The whole picture of one state directory, as plain values: what `status` shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.errors import BpfError
from svcctl.errors import NotFound, PermissionProblem, SvcctlError
from svcctl.host.netns import Netns
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32, Meta
from svcctl.state import counters
from svcctl.state import place as places
from svcctl.state.bindings import read_labels
from svcctl.state.listing import destination_rows
from svcctl.state.session import INCONSISTENT, Reader, check_meta, need_current_schema, read_consistent
from svcctl.state.unload import judge_directories

if TYPE_CHECKING:
    from typing import Any

    from svcctl.maps.layouts import Writer as WriteLine
    from svcctl.state.balancer_settings import Settings
    from svcctl.state.place import Place
    from svcctl.state.session import State


class Fill(NamedTuple):
    """How full a map is; `option` grows it, "": none does."""

    name: str
    used: int
    max: int
    option: str


class Picture(NamedTuple):
    """One state directory. `bindings` is 24-byte key -> label of the label asked for, None without one.

    `services` is None without service maps, and when a label was asked for. `writes` is the last ten, newest
    first; `hosts` and `prefixes` count bindings of full and shorter length. `rules` are (pattern, role) of interfaces.
    """

    path: str
    inode: int
    meta: Meta
    hosts: int
    prefixes: int
    bindings: dict[bytes, str] | None
    destinations: list[tuple[Any, ...]]
    drops: dict[str, int]
    fill: list[Fill]
    writes: list[WriteLine]
    services: list[tuple[Any, ...]] | None
    settings: Settings | None = None
    """Those of the balancer; None without service maps."""
    fault: str | None = None
    """Why the balancer does not serve, or not all."""
    node_port_nets: tuple[str, ...] = ()
    """The prefixes within which addresses of the node serve node ports; none: all do."""
    has_packets: bool = False
    rules: tuple[tuple[str, str], ...] = ()
    nodes: int = 0
    tunnel: tuple[dict[str, str], dict[str, Any]] | None = None
    """The packet path's settings, as words and as values."""
    timeouts: dict[str, float] | None = None
    """Seconds a flow may be idle, by name; None without a packet path, unless somebody has set some for it."""
    events: dict[str, int] | None = None
    """What the packet path has counted; None without one."""


class Other(NamedTuple):
    """One directory of `status --all`. `picture` is None when it is broken.

    `state` is own, live, dead, broken, or unknown: whether its namespace lives cannot be told from here.
    """

    path: str
    inode: int
    state: str
    problem: str | None
    picture: Picture | None


def read(state: State, inode: int, label: str | None = None) -> Picture:
    """Read it all. Raises NotFound when nothing has the label."""
    state.need_all_maps()
    fill = read_fill(state)
    used = {one.name: one.used for one in fill}
    rows = destination_rows(state, label)
    bindings = None
    services, settings, fault, nets = None, None, None, []
    has_services, has_packets = (state.has_half(half) for half in (catalog.BALANCER, catalog.PACKETS))
    meta = state.meta()
    timeouts = None
    if has_packets or any(meta.idle_ms):
        from svcctl.state.packet_settings import config_of, timeouts_of

        timeouts = timeouts_of(config_of(state))
    if has_services:
        from svcctl.state.balancer_settings import read_settings
        from svcctl.state.condition import fault as fault_of
        from svcctl.state.node_addresses import net_texts, read_nets

        settings, fault, nets = read_settings(state), fault_of(state), net_texts(read_nets(state))
    if label is None and has_services:
        from svcctl.state.service_listing import service_rows

        services = service_rows(state)
    if label is not None:
        bindings = {key: name for key, name in read_labels(state).items() if name == label}
        if not rows and not bindings:
            raise NotFound(f"status: no such label {label!r}", hint="'svcctl destinations' lists them")
    return Picture(
        path=state.path,
        inode=inode,
        meta=meta,
        hosts=used.get("exact", 0),
        prefixes=used.get("bindings", 0),
        bindings=bindings,
        destinations=rows,
        drops=counters.drops(state) if state.has_dispatcher() or has_services else {},
        fill=fill,
        writes=read_writes(state),
        services=services,
        settings=settings,
        fault=fault,
        node_port_nets=tuple(nets),
        has_packets=has_packets,
        rules=_rules(state),
        **_tunnel(state),
        timeouts=timeouts,
        events=counters.packet_events(state) if has_packets else None,
    )


def _tunnel(state: State) -> dict[str, Any]:
    """How many other nodes there are, and the settings of tunnels to them."""
    if not state.has_half(catalog.PACKETS):
        return {}
    from svcctl.model.node import OwnNode
    from svcctl.state import own_node
    from svcctl.state.nodes import own_pods, read_values
    from svcctl.state.packet_settings import read_config
    from svcctl.state.tunnel_settings import no_dsr, values, words

    config = read_config(state)
    opted_out = no_dsr(state, config)
    number, own = 0, OwnNode()
    if state.has_map("nodes"):
        number, own = len(read_values(state)), own_node.read_own(state, own_pods(state))
    texts = {**own_node.words(own), **words(config, opted_out)}
    return {"nodes": number, "tunnel": (texts, {**own_node.values(own), **values(config, opted_out)})}


def _rules(state: State) -> tuple[tuple[str, str], ...]:
    """(pattern, role) of the rules for interfaces."""
    if not state.has_half(catalog.PACKETS):
        return ()
    from svcctl.state.devices import read_rules

    return tuple((rule.pattern, enums.ROLE_NAMES.get(rule.role, "?")) for rule in read_rules(state))


def read_fill(state: State) -> list[Fill]:
    """Used and most entries of each map that has them counted."""
    found = []
    for name, option in catalog.USAGE_OPTIONS.items():
        if not state.has_map(name):
            continue
        index = catalog.MAPS[name].usage
        if index is None:  # filled by programs
            used = counters.count_entries(state, name)
        else:
            data = state.map("usage").lookup(U32.pack(index))
            used = layouts.USAGE.unpack(data or bytes(layouts.USAGE.size)).used
        found.append(Fill(name, used, state.map(name).info.max_entries, option))
    return found


def read_writes(state: State) -> list[WriteLine]:
    """The last ten commands that changed something, newest first."""
    ring = state.map("writers")
    following = state.meta().next_writer
    found = []
    for back in range(1, layouts.WRITERS + 1):
        data = ring.lookup(U32.pack((following - back) % layouts.WRITERS))
        line = layouts.WRITER.unpack(data or bytes(layouts.WRITER.size))
        if line.time_ns:
            found.append(line)
    return found


_STANDING = {True: "dead", False: "live", None: "unknown"}


def read_all(place: Place) -> list[Other]:
    """Every state directory under the bpffs root, by inode. Needs the right to list it: root, mostly."""
    places.check_bpffs(place.bpffs)
    try:
        names = os.listdir(place.bpffs)
    except PermissionError:
        raise PermissionProblem(
            f"status --all: {place.bpffs}: permission denied", hint="needs root: try sudo"
        ) from None
    with Netns.open(place.netns) as netns:
        own = netns.inode
    judged = dict(judge_directories(place))
    found = []
    for name in names:
        inode = places.parse_directory_name(name)
        if inode is None:
            continue
        path = f"{place.bpffs}/{name}"
        state = _STANDING[judged.get(path)]
        if inode == own and state != "dead":
            state = "own"
        try:
            found.append(Other(path, inode, state, None, _read_one(place, path, inode)))
        except (SvcctlError, BpfError, OSError) as error:
            found.append(Other(path, inode, state if state == "dead" else "broken", str(error), None))
    return sorted(found, key=lambda one: one.inode)


def _read_one(place: Place, path: str, inode: int) -> Picture:
    """A directory of whatever namespace: its identity is not judged, a dead one is shown as well."""

    def opening(place: Place) -> Reader:
        # A State owns a namespace; nothing of this one is asked.
        reader = Reader(place, Netns.open(place.netns), path)
        try:
            places.check_owner(path, os.stat(path))
            need_current_schema(check_meta(reader.meta(), reader.pin("meta")))
        except BaseException:
            reader.close()
            raise
        return reader

    picture, consistent = read_consistent(place, lambda reader: read(reader, inode), opening)
    if not consistent:
        place.notice(f"{path}: {INCONSISTENT}")
    return picture
