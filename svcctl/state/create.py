"""load: makes a state directory, under a temporary name until it is whole, then attaches."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import svcctl
from svcctl.errors import Conflict, NotFound, PermissionProblem, SvcctlError, UsageProblem
from svcctl.host import bpffs
from svcctl.host.netns import Netns
from svcctl.maps import catalog, layouts
from svcctl.record import Record
from svcctl.state import place as places
from svcctl.state.attach import (
    attach_netns,
    is_attached,
    pin_dispatcher,
    pin_map,
    record_netns,
    size_differences,
)
from svcctl.state.lock import lock_fd
from svcctl.state.programs import load_object
from svcctl.state.session import ZERO, open_reader
from svcctl.state.unload import clear_leftovers, lock_root, remove_directory, retire_directory
from svcctl.state.writer import Writer, finish_change, is_dead, lock_state, open_writer

if TYPE_CHECKING:
    from svcctl.state.place import Place

DIRECTORY_MODE = 0o2710
"""setgid, so that pins get the group by themselves; no read for the group, so that members cannot lock it."""
PIN_MODE = 0o640


class LoadOptions(Record):
    """What `load` was asked for; None stands for 'not given'."""

    group: str | None = None
    dispatcher: bool = True
    max_bindings: int | None = None
    max_destinations: int | None = None
    mount: bool = False
    from_tubular: bool = False
    timeouts: tuple[tuple[str, int], ...] = ()
    """(name, milliseconds) of flows of the packet path."""
    quiet: bool = False
    """Of a state that is there: say nothing of the dispatcher, as something else is asked for."""


class Loaded(Record):
    """What `load` did. `created` is False when the state was there already, as asked for."""

    path: str
    created: bool
    attached: bool
    inode: int
    taken: tuple[tuple[str, str, str], ...] = ()
    """(action, kind, name) of what was taken over from tubular."""
    timeouts: str = ""
    """What was changed of a state that was there: `udp 60 s -> 30 s`."""


def load(place: Place, options: LoadOptions, command: str) -> Loaded:
    """Make the state directory of the namespace and attach the dispatcher.

    Loaded already with the same options: nothing is done. Raises Conflict when it differs from what is asked
    for, PermissionProblem, UsageProblem (no such group), Incompatible.
    """
    if options.from_tubular and not options.dispatcher:
        raise UsageProblem("load: --from-tubular needs the dispatcher: not with --no-dispatcher")
    gid = _group_id(options.group)
    _ensure_bpffs(place, options.mount)
    if options.group is not None:
        _open_root_to_group(place)
    root = lock_root(place, "load")
    try:
        clear_leftovers(place)
        with Netns.open(place.netns) as netns:
            path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
            old = _tubular(place, netns.inode) if options.from_tubular else None
        exists = os.path.lexists(path) and not _reclaimed(place, command)
        if options.from_tubular and old is None:
            _no_tubular(place, exists)
        make = _loaded_already if exists else _create
        done = make(place, options, gid, command)
        if old is not None:
            from svcctl.state.tubular import take_over

            if not done.attached:
                raise Conflict(
                    "load --from-tubular: svcctl's dispatcher is not attached, so nobody would steer afterwards",
                    hint="'svcctl attach netns' attaches it",
                )
            with open_writer(place, command) as writer:
                done = done._replace(taken=tuple(take_over(writer, old)))
        return done
    finally:
        os.close(root)


def _tubular(place: Place, inode: int) -> str | None:
    from svcctl.state.tubular import directory

    return directory(place, inode)


def _no_tubular(place: Place, exists: bool) -> None:
    """Without tubular state there is nothing to take over: no error where that was done before."""
    if exists:
        place.notice("no tubular state: nothing to take over")
        return
    raise NotFound(
        f"load --from-tubular: no tubular state for this network namespace under {place.bpffs}",
        hint="tubular is not loaded here: 'svcctl load' is enough",
    )


def planned(place: Place, options: LoadOptions) -> Loaded:
    """What `load` would do; changes nothing."""
    _group_id(options.group)
    with Netns.open(place.netns) as netns:
        path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
        exists = os.path.lexists(path)
    changes = _planned_timeouts(place, options) if exists and options.timeouts else ""
    return Loaded(path, not exists, options.dispatcher and not exists, netns.inode, timeouts=changes)


def _planned_timeouts(place: Place, options: LoadOptions) -> str:
    from svcctl.state.packet_settings import config_of, timeout_changes, with_timeouts

    with open_reader(place) as reader:
        old = config_of(reader)
        return timeout_changes(old, with_timeouts(old, options.timeouts))


def _group_id(name: str | None) -> int:
    if name is None:
        return os.getegid()
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):  # ValueError: of a NUL byte
        if name.isascii() and name.isdigit() and len(name) < 20 and int(name) < 2**32 - 1:
            return int(name)
        raise UsageProblem(
            f"load: --group: no such group {name!r}", hint="'groupadd --system NAME' makes one"
        ) from None


def _ensure_bpffs(place: Place, mount: bool) -> None:
    """Mount bpffs where none is; only where it outlives the command."""
    if not os.path.isdir(place.bpffs) or bpffs.is_bpffs(place.bpffs):
        places.check_bpffs(place.bpffs)
        return
    if not mount and _is_used(place.bpffs):
        raise SvcctlError(
            f"load: {place.bpffs} is no BPF file system, and has files, which one mounted over it would hide",
            hint="--bpffs names the mount point of a BPF file system: 'findmnt -t bpf' lists them; or --mount-bpffs",
        )
    if not mount and not bpffs.in_pid1_mount_namespace():
        raise SvcctlError(
            f"load: {place.bpffs} is no BPF file system, and one mounted here would vanish with this mount namespace",
            hint="run 'svcctl --netns /run/netns/NAME load' from the host, not under 'ip netns exec'; or --mount-bpffs",
        )
    bpffs.mount(place.bpffs, 0o711)
    place.notice(f"mounted a BPF file system on {place.bpffs} (mode 0711)")


def _is_used(path: str) -> bool:
    """Whether a directory has something in it."""
    try:
        return bool(os.listdir(path))
    except OSError:
        return False


def _open_root_to_group(place: Place) -> None:
    """Members of a group must be able to search the root of bpffs, and nobody else may write there.

    A read-only descriptor of a map can be pinned again in any directory one may write, and then opened for
    writing (the new pin belongs to who made it).
    """
    status = os.stat(place.bpffs)
    if status.st_mode & 0o022:
        raise PermissionProblem(
            f"load: --group: {place.bpffs} has mode {status.st_mode & 0o7777:04o}:"
            " others could pin maps there and so write them",
            hint=f"chmod go-w {place.bpffs}",
        )
    if not status.st_mode & 0o001:
        os.chmod(place.bpffs, (status.st_mode & 0o7777) | 0o011)
        place.notice(
            f"made {place.bpffs} searchable (mode {(status.st_mode & 0o7777) | 0o011:04o}) for the group"
        )


def _reclaimed(place: Place, command: str) -> bool:
    """Remove the directory of a dead namespace that had our inode; False if it is alive."""
    writer = lock_state(place, command)
    with writer:
        try:
            dead = is_dead(writer)
        except SvcctlError:
            dead = False
        if dead:
            retire_directory(place, writer.path)
            place.notice(f"removed {writer.path}: its network namespace is gone")
        return dead


def _loaded_already(place: Place, options: LoadOptions, gid: int, command: str) -> Loaded:
    """Compare what is there with what was asked for."""
    with open_writer(place, command) as writer:
        meta = writer.meta()
        differs = []
        if options.group is not None and meta.group != gid:
            differs.append(f"group {meta.group}, asked for {gid} (--group)")
        differs += size_differences(writer, options.max_bindings, options.max_destinations)
        if differs:
            raise Conflict(
                f"load: {writer.path}: already loaded with {'; '.join(differs)}",
                hint="'svcctl upgrade --max-...' changes sizes without interruption; 'svcctl unload' starts anew",
            )
        attached = is_attached(writer)
        if options.dispatcher and not attached and not options.quiet:
            place.notice("the dispatcher is not attached: 'svcctl attach netns' does it")
        changed = _set_timeouts(writer, options.timeouts) if options.timeouts else ""
        return Loaded(writer.path, False, attached, writer.netns.inode, timeouts=changed)


def _set_timeouts(writer: Writer, timeouts: tuple[tuple[str, int], ...]) -> str:
    """Settings may be said again, unlike sizes; what was changed."""
    from svcctl.maps.packet_layouts import PACKET_CONFIG
    from svcctl.state import packet_settings

    old = packet_settings.config_of(writer)
    new = packet_settings.with_timeouts(old, timeouts)
    if new != old:
        with writer.changing(idle_ms=packet_settings.kept(new)):
            if writer.has_half(catalog.PACKETS):
                writer.map("packet_config").update(ZERO, PACKET_CONFIG.pack(new))
    return packet_settings.timeout_changes(old, new)


def _idle_ms(timeouts: tuple[tuple[str, int], ...]) -> bytes:
    """What `meta` keeps of the idle times asked for."""
    if not timeouts:
        return b""
    from svcctl.state.packet_settings import DEFAULTS, kept, with_timeouts

    return kept(with_timeouts(DEFAULTS, timeouts))


def _create(place: Place, options: LoadOptions, gid: int, command: str) -> Loaded:
    netns = Netns.open(place.netns)
    temporary = f"{place.bpffs}/{places.TEMPORARY}{os.getpid()}_{time.monotonic_ns()}"
    try:
        os.mkdir(temporary, 0o700)
    except PermissionError:
        netns.close()
        raise PermissionProblem(
            f"load: {place.bpffs}: permission denied", hint="needs root: try sudo"
        ) from None
    except BaseException:
        netns.close()
        raise
    path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
    published = False
    writer = None
    try:
        fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        writer = Writer(place, netns, temporary, fd, command)
        lock_fd(fd, temporary, place)
        if os.fstat(fd).st_gid != gid:
            os.chown(temporary, -1, gid)
        os.chmod(temporary, DIRECTORY_MODE)
        _make_state_maps(writer, gid, options)
        if options.dispatcher:
            pin_dispatcher(
                writer,
                options.max_bindings or catalog.DEFAULT_BINDINGS,
                options.max_destinations or catalog.DEFAULT_DESTINATIONS,
            )
            # Recorded before anybody can see the directory: whoever finds it after a kill makes the link.
            record_netns(writer)
        bpffs.rename_noreplace(temporary, path)
        published = True
        writer.path = path
        if options.dispatcher:
            attach_netns(writer)
        finish_change(writer)
        return Loaded(path, True, options.dispatcher, netns.inode)
    except BaseException:
        _take_back(place, temporary, path if published else None)
        raise
    finally:
        if writer is not None:
            writer.close()
        else:
            netns.close()


def _take_back(place: Place, temporary: str, published: str | None) -> None:
    """Remove what a `load` that failed has made. What cannot be removed is a leftover, as of one that died."""
    try:
        if published is None:
            with Netns.open(place.netns) as netns:
                remove_directory(temporary, netns)
        else:
            retire_directory(place, published)
    except OSError as problem:
        place.notice(f"left for the next load to remove: {published or temporary}: {problem}")


def _make_state_maps(writer: Writer, gid: int, options: LoadOptions) -> None:
    """Make and pin meta and its sisters; meta first, with the mark set: a writer is at work."""
    now = time.time_ns()
    version = layouts.fit(svcctl.__version__, 32)
    meta = layouts.Meta(
        magic=layouts.MAGIC,
        schema=layouts.SCHEMA,
        netns_inode=writer.netns.inode,
        netns_cookie=writer.netns.cookie() or 0,
        generation=1,
        mark_time_ns=now,
        mark_pid=os.getpid(),
        mark_uid=os.getuid(),
        mark_command=layouts.fit(writer.command, 64),
        swap_phase=0,
        swap_programs=0,
        next_destination=0,
        next_writer=0,
        group=gid,
        mode=PIN_MODE,
        created_ns=now,
        created_by=version,
        version=version,
        lock_waits=0,
        lock_wait_ns=0,
        next_service=1,
        next_backend=1,
        next_block=1,
        next_lane=1,
        next_ranges=1,
        idle_ms=_idle_ms(options.timeouts),
        reserved=b"",
    )
    with load_object("state", {}, {}) as loaded:
        with loaded.map("meta") as made:
            made.update(ZERO, layouts.META.pack(meta))
            made.pin(writer.pin("meta"))
        writer.pin_mode(writer.pin("meta"))
        for name in catalog.STATE_MAPS:
            if name != "meta":
                pin_map(writer, loaded, name)
