"""attach cgroup and detach cgroup: the connect balancer on a cgroup2 subtree.

One cgroup per state directory, and at most one balancer of svcctl on any way from a cgroup to the root, over all
state directories: two would translate twice. A program of somebody else on the same hooks stays and keeps working.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf import probe
from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import query_programs
from svcctl.bpf.program import Program
from svcctl.errors import Conflict, UsageProblem
from svcctl.host import cgroup
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import Attachment, AttachmentKey
from svcctl.maps.service_layouts import CONFIG, Config
from svcctl.state import swap
from svcctl.state.attach import drop_link, make_link
from svcctl.state.balancer_settings import setting_changes
from svcctl.state.foreign import map_names
from svcctl.state.programs import load_object
from svcctl.state.service_config import put_service_config, read_service_config
from svcctl.state.writer import link_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

SOCK_ADDR = 18
"""BPF_PROG_TYPE_CGROUP_SOCK_ADDR."""
SET_RETVAL = 187
"""BPF_FUNC_set_retval: allowed in connect and sendmsg from Linux 6.1 on."""
CONNECT4_HOOK = 10


class BalancerOptions(NamedTuple):
    """What `attach cgroup` was asked for; None: as it is, or the default."""

    path: str | None = None
    host_only: bool | None = None
    exclude_udp: bool | None = None
    udp_affinity: int | None = None
    max_services: int | None = None
    max_backends: int | None = None
    max_sockets: int | None = None


class BalancerPlan(NamedTuple):
    """What has to be done; `hooks` are those to be attached in the end, `config` the settings."""

    path: str
    cgroup: int
    make: bool
    attach: tuple[str, ...]
    drop: tuple[str, ...]
    config: Config
    config_changes: bool
    notes: str = ""
    """The settings that change, as text."""

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return bool(self.make or self.attach or self.drop or self.config_changes)


def recorded(state: State) -> dict[int, int]:
    """Hook -> cgroup id of every recorded attachment to a cgroup."""
    found = {}
    for key_data, _ in state.map("attachments").items():
        key = layouts.ATTACHMENT_KEY.unpack(key_data)
        if key.kind == enums.ATTACH_CGROUP:
            found[key.hook] = key.target
    return found


def program_name(shape: ProgramShape) -> str:
    """Which of two variants of a program this kernel takes: without bpf_set_retval a refusal is EPERM."""
    if shape.name not in catalog.REFUSING_HOOKS or probe.has_helper(SOCK_ADDR, SET_RETVAL, shape.hook):
        return shape.name
    return f"{shape.name}_eperm"


def plan_attach(state: State, options: BalancerOptions) -> BalancerPlan:
    """Compare what is with what is asked for. Raises Conflict, NotFound, UsageProblem, PermissionProblem."""
    path = options.path or cgroup.mount_point()
    fd = cgroup.open_cgroup(path)
    try:
        number = cgroup.cgroup_id(fd)
    finally:
        os.close(fd)
    # A cgroup that was removed took the links with it, and its id is never given out again.
    have = {hook: target for hook, target in recorded(state).items() if not cgroup.is_gone(target)}
    if have and set(have.values()) != {number}:
        other = next(iter(have.values()))
        raise Conflict(
            f"attach cgroup {path}: the balancer is on {cgroup.path_of(other) or f'cgroup {other}'} already",
            hint="'svcctl detach cgroup' takes it off there",
        )
    # By its id, as it may have been named by another mount of the hierarchy than the one that is walked up.
    where = cgroup.path_of(number) or path
    _refuse_neighbours(state, where, () if have else (where,))
    make = not state.has_half(catalog.BALANCER)
    if not make:
        state.need_maps(catalog.BALANCER)
        _refuse_other_sizes(state, options)
    now = Config(0, 0, 0, 0, 0)
    if not make:
        now = read_service_config(state)
    # Attached anew it begins with the defaults; while it is attached, what is not said stays.
    config = _settings(state, now if have else _with_defaults(now), options)
    wanted = [
        shape
        for shape in catalog.CONNECT
        if not (config.flags & enums.CONFIG_EXCLUDE_UDP and shape.name in catalog.UDP_HOOKS)
    ]
    attach = tuple(shape.name for shape in wanted if make or not _is_live(state, shape, number))
    names = {shape.name for shape in wanted}
    drop = tuple(
        shape.name
        for shape in catalog.CONNECT
        if shape.name not in names and (shape.hook in have or os.path.lexists(state.pin(shape.link_pin)))
    )
    notes = setting_changes(now, config) if config != now and not make else ""
    return BalancerPlan(path, number, make, attach, drop, config, make or config != now, notes)


def _with_defaults(config: Config) -> Config:
    kept = config.flags & ~(enums.CONFIG_HOST_ONLY | enums.CONFIG_EXCLUDE_UDP)
    return config._replace(flags=kept, udp_affinity_seconds=0)


def new_settings(state: State) -> Config:
    """The settings of service maps that are made without a cgroup to attach to."""
    return _settings(state, Config(0, 0, 0, 0, 0), BalancerOptions())


def _settings(state: State, now: Config, options: BalancerOptions) -> Config:
    flags = now.flags
    for asked, bit in (
        (options.host_only, enums.CONFIG_HOST_ONLY),
        (options.exclude_udp, enums.CONFIG_EXCLUDE_UDP),
    ):
        if asked is not None:
            flags = flags | bit if asked else flags & ~bit
    cookie = state.netns.cookie() or 0
    if cookie:
        flags &= ~enums.CONFIG_NODE_IS_INIT
    elif state.netns.is_own() and _in_initial_namespace():
        flags |= enums.CONFIG_NODE_IS_INIT
    elif flags & enums.CONFIG_HOST_ONLY:
        raise UsageProblem(
            "attach cgroup: --sockets host: this kernel gives no cookie of a network namespace (Linux 5.14 does)"
        )
    seconds = now.udp_affinity_seconds if options.udp_affinity is None else options.udp_affinity
    return now._replace(node_cookie=cookie, flags=flags, udp_affinity_seconds=seconds, reserved=bytes(16))


def _in_initial_namespace() -> bool:
    try:
        return os.stat("/proc/1/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return False


def _refuse_other_sizes(state: State, options: BalancerOptions) -> None:
    differs = [
        f"room for {have} {name}, asked for {want} ({option})"
        for name, have, want, option in (
            ("services", state.map("services").info.max_entries, options.max_services, "--max-services"),
            ("backends", state.map("backends").info.max_entries, options.max_backends, "--max-backends"),
            ("sockets", state.map("reverse").info.max_entries, options.max_sockets, "--max-sockets"),
        )
        if want is not None and have != want
    ]
    if differs:
        raise Conflict(
            f"attach cgroup: {state.path}: the service maps are there with {'; '.join(differs)}",
            hint="'svcctl upgrade --max-...' changes sizes without interruption",
        )


def _is_live(state: State, shape: ProgramShape, number: int) -> bool:
    if os.geteuid() != 0:
        return True  # only a dry run gets here; links are not for members to open
    info = link_info(state, shape)
    return info is not None and info.cgroup_id == number


def _refuse_neighbours(state: State, path: str, itself: tuple[str, ...]) -> None:
    """Refuse if a balancer of svcctl, of whatever state directory, is above, below, or on the cgroup itself."""
    for where, paths in (("on", itself), ("above", cgroup.above(path)), ("below", cgroup.below(path))):
        for other in paths:
            for number in balancers_on(other):
                raise _neighbour(state, path, f"(program {number}) is {where} it, on {other}", number)


def _neighbour(state: State, path: str, what: str, number: int) -> Conflict:
    from svcctl.state.liveness import directory_of_program, how_to_detach

    owner = directory_of_program(state.place, number)
    if owner is None:
        whose = f"its state is not under {state.place.bpffs}"
        hint = "state under another bpffs or of a container: detach it there; connections would be translated twice"
    else:
        whose, hint = f"its state is {owner[0]}", how_to_detach(*owner)
    return Conflict(f"attach cgroup {path}: a connect balancer of svcctl {what}; {whose}", hint=hint)


def balancers_on(path: str) -> list[int]:
    """Ids of svcctl's programs attached to exactly this cgroup, judged by their name and those of their maps."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        ids = query_programs(fd, CONNECT4_HOOK)
    except BpfError:
        return []
    finally:
        os.close(fd)
    return [number for number in ids if _is_balancer(number)]


def _is_balancer(number: int) -> bool:
    try:
        with Program.open_id(number) as program:
            info = program.info
        return info.name in ("connect4", "connect4_eperm") and {"frontends", "current", "slots"} <= set(
            map_names(info.map_ids)
        )
    except BpfError:
        return False


def apply_attach(writer: Writer, plan: BalancerPlan, options: BalancerOptions) -> None:
    """Carry a plan out: maps and programs in one swap, the settings, records, then each link."""
    if not plan.changes:
        return
    with writer.changing():
        if plan.make or not _programs_pinned(writer):
            _load(writer, plan, options)
        if plan.config_changes:
            put_service_config(writer, plan.config)
        for shape in catalog.CONNECT:
            if shape.name in plan.drop:
                drop_attachment(writer, shape)
        fd = cgroup.open_cgroup(plan.path)
        try:
            for shape in catalog.CONNECT:
                if shape.name in plan.attach:
                    attach_hook(writer, shape, fd, plan.cgroup)
        finally:
            os.close(fd)


def _programs_pinned(writer: Writer) -> bool:
    return all(os.path.lexists(writer.pin(shape.pin)) for shape in catalog.CONNECT)


def _load(writer: Writer, plan: BalancerPlan, options: BalancerOptions) -> None:
    """Load the programs, on new maps if there are none, and publish them in one swap."""
    if not plan.make:
        load_programs(writer, catalog.CONNECT)
        return
    sizes = catalog.service_sizes(
        options.max_services or catalog.DEFAULT_SERVICES,
        options.max_backends or catalog.DEFAULT_BACKENDS,
        options.max_sockets or catalog.DEFAULT_SOCKETS,
    )
    load_programs(writer, catalog.CONNECT, sizes, plan.config)


def load_programs(
    writer: Writer,
    shapes: Sequence[ProgramShape],
    sizes: Mapping[str, int] | None = None,
    config: Config | None = None,
) -> None:
    """Load some of the programs and publish them in one swap, with `sizes` on new maps. Inside `changing()`."""
    swap.drop_next(writer)
    kept = catalog.SHARED_MAPS if sizes else (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS)
    reuse = {name: writer.map(name) for name in kept}
    names = {shape: program_name(shape) for shape in shapes}
    with load_object(catalog.BALANCER.object, sizes or {}, reuse, tuple(names.values())) as loaded:
        if config is not None:
            with loaded.map("config") as made:
                made.update(bytes(4), CONFIG.pack(config))
        fresh = tuple(catalog.SERVICE_MAPS) if sizes else ()
        for number, shape in enumerate(shapes):
            swap.prepare_swap(writer, shape, loaded, fresh if number == 0 else (), names[shape])
    if sizes:
        for name, map_shape in catalog.SERVICE_MAPS.items():
            if map_shape.usage is not None:
                writer.put_usage(name, layouts.Usage(0, sizes[name]))
    swap.swap(writer)


def attach_hook(writer: Writer, shape: ProgramShape, fd: int, number: int) -> None:
    """Record one hook, make its link, pin it, record the link. Inside `changing()`."""
    key = layouts.ATTACHMENT_KEY.pack(AttachmentKey(enums.ATTACH_CGROUP, shape.hook, number))
    attachments = writer.map("attachments")
    if attachments.lookup(key) is None:
        attachments.update(key, layouts.ATTACHMENT.pack(Attachment(shape.number, 0, time.time_ns(), 0, 0)))
    info = make_link(writer, shape, fd, lambda have: have.cgroup_id == number)
    attachments.update(key, layouts.ATTACHMENT.pack(Attachment(shape.number, info.id, time.time_ns(), 0, 0)))
    for other, _ in list(attachments.items()):
        record = layouts.ATTACHMENT_KEY.unpack(other)
        if (record.kind, record.hook) == (enums.ATTACH_CGROUP, shape.hook) and record.target != number:
            attachments.delete(other)  # of a cgroup that has gone


def drop_attachment(writer: Writer, shape: ProgramShape) -> None:
    """Take one hook off and forget it. Inside `changing()`."""
    drop_link(writer.pin(shape.link_pin))
    for key_data, _ in list(writer.map("attachments").items()):
        key = layouts.ATTACHMENT_KEY.unpack(key_data)
        if key.kind == enums.ATTACH_CGROUP and key.hook == shape.hook:
            writer.map("attachments").delete(key_data)


def is_attached(state: State) -> bool:
    """Whether the balancer is recorded on a cgroup."""
    return bool(recorded(state))


def detach(writer: Writer) -> bool:
    """Take the balancer off; services stay. False: it was not attached."""
    pinned = any(os.path.lexists(writer.pin(shape.link_pin)) for shape in catalog.CONNECT)
    if not pinned and not is_attached(writer):
        return False
    with writer.changing():
        for shape in catalog.CONNECT:
            drop_attachment(writer, shape)
    return True
