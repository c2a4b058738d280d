"""The one writer: exclusive lock, identity checks, and the mark around every change.

`meta.generation` is odd from before the first write to after the last one. A command that finds it odd was
preceded by one that died: it repairs first. There is no journal; see ARCHITECTURE.md, 'A command that dies'.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.errors import Conflict, Incompatible, NotLoaded, PermissionProblem, SvcctlError
from svcctl.host.netns import Netns
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state import place as places
from svcctl.state.lock import open_locked_timed
from svcctl.state.session import (
    ZERO,
    State,
    dead_directory,
    need_current_schema,
    pin_error,
    program_map_ids,
)

if TYPE_CHECKING:
    from types import TracebackType

    from svcctl.bpf.link import LinkInfo
    from svcctl.maps.catalog import ProgramShape
    from svcctl.maps.layouts import Meta, Usage
    from svcctl.state.place import Place


class Writer(State):
    """Holds the lock. Every change goes through `changing()`."""

    read_only = False

    def __init__(self, place: Place, netns: Netns, path: str, fd: int, command: str) -> None:
        super().__init__(place, netns, path)
        self.fd = fd
        self.command = command
        self.waited_ns = 0
        self._depth = 0

    def close(self) -> None:
        """Close every descriptor and so release the lock."""
        super().close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def put_meta(self, meta: Meta) -> None:
        """Write `meta` back."""
        self.map("meta").update(ZERO, layouts.META.pack(meta))

    def changing(self, **fields: Any) -> Change:
        """Context of all writes of a command; `fields` of meta are set together with the mark."""
        return Change(self, fields)

    @property
    def is_changing(self) -> bool:
        """Whether the mark is this writer's own."""
        return self._depth > 0

    def put_usage(self, name: str, usage: Usage) -> None:
        """Write how full a map is."""
        self.map("usage").update(U32.pack(catalog.MAPS[name].usage or 0), layouts.USAGE.pack(usage))

    def pin_mode(self, path: str) -> None:
        """Give a new map pin the state's mode and group."""
        meta = self.meta()
        os.chmod(path, meta.mode)
        if os.stat(path).st_gid != meta.group:
            os.chown(path, -1, meta.group)


class Change:
    """The mark: odd generation inside, even again and a line in `writers` at a clean end.

    An error inside is handled as a crash would be: the state is repaired at once, then the error goes on.
    Nests: only the outermost one marks.
    """

    def __init__(self, writer: Writer, fields: dict[str, Any]) -> None:
        self.writer = writer
        self.fields = fields

    def __enter__(self) -> None:
        writer = self.writer
        writer._depth += 1
        try:
            if writer._depth > 1:
                if self.fields:
                    writer.put_meta(writer.meta()._replace(**self.fields))
                return
            meta = writer.meta()
            if meta.schema == layouts.SCHEMA:  # else `upgrade` is about to make it anew
                writer.map("writers")  # needed at the end: not to be missed only then
            writer.put_meta(
                meta._replace(
                    generation=meta.generation | 1,
                    mark_time_ns=time.time_ns(),
                    mark_pid=os.getpid(),
                    mark_uid=os.getuid(),
                    mark_command=layouts.fit(writer.command, 64),
                    **self.fields,
                )
            )
        except BaseException:
            writer._depth -= 1  # nothing was written, and the next line of a batch must mark again
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer = self.writer
        writer._depth -= 1
        if writer._depth:
            return
        if error is not None:
            self._repair()
            return
        try:
            finish_change(writer)
        except BaseException:
            self._repair()
            raise

    def _repair(self) -> None:
        """Repair at once. The error that led here is the one to report, whatever comes of it."""
        from svcctl.state.recover import recover

        try:
            recover(self.writer, say=False)
        except (SvcctlError, OSError) as problem:
            self.writer.place.notice(f"left for the next command to repair: {problem}")


def finish_change(writer: Writer) -> None:
    """Note the command among the last ten and make the generation even."""
    meta = writer.meta()
    line = layouts.Writer(time.time_ns(), os.getpid(), os.getuid(), layouts.fit(writer.command, 112))
    writer.map("writers").update(U32.pack(meta.next_writer % layouts.WRITERS), layouts.WRITER.pack(line))
    writer.put_meta(
        meta._replace(
            generation=(meta.generation | 1) + 1,
            next_writer=(meta.next_writer + 1) % layouts.WRITERS,
            lock_waits=meta.lock_waits + (writer.waited_ns > 0),
            lock_wait_ns=meta.lock_wait_ns + writer.waited_ns,
        )
    )
    writer.waited_ns = 0  # the next change of the same writer, in `batch`, did not wait


def open_writer(place: Place, command: str) -> Writer:
    """Lock the state of `place` for changes; repair first if the last writer died.

    Raises NotLoaded, PermissionProblem, Incompatible, Conflict (someone else swapped our program), LockTimeout.
    """
    writer = lock_state(place, command)
    try:
        meta = writer.meta()
        need_current_schema(meta)
        check_alive(writer)
        if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
            from svcctl.state.recover import recover

            recover(writer)
        check_programs(writer)
        return writer
    except BaseException:
        writer.close()
        raise


def lock_state(place: Place, command: str, *, any_mode: bool = False) -> Writer:
    """The lock and nothing else: for unload, upgrade, check and gc, which work on broken state too.

    `any_mode` takes a directory that others own or may write, for `check`, which says so.
    """
    netns = Netns.open(place.netns)
    try:
        path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
        try:
            fd, waited = open_locked_timed(path, place)
        except FileNotFoundError:
            places.check_bpffs(place.bpffs)
            raise places.not_loaded(netns.inode, place.bpffs) from None
        except PermissionError:
            raise PermissionProblem(
                f"{path}: permission denied", hint="changes need root: try sudo"
            ) from None
        except NotADirectoryError:
            places.check_bpffs(place.bpffs)
            raise Incompatible(f"{path}: not a directory") from None
        try:
            if not any_mode:
                places.check_owner(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        writer = Writer(place, netns, path, fd, command)
        writer.waited_ns = waited
        return writer
    except BaseException:
        netns.close()
        raise


def link_info(state: State, program: ProgramShape | str) -> LinkInfo | None:
    """The pinned link of a program, or at a pin, as the kernel sees it; None without a pin."""
    pin = program if isinstance(program, str) else program.link_pin
    if not pin:
        return None  # a program of the packet path has a link for each interface
    try:
        with Link.open_pinned(state.pin(pin)) as link:
            return link.info
    except BpfError as error:
        if error.errno == 2:
            return None
        raise pin_error(error, state.pin(pin)) from error


def is_dead(state: State) -> bool:
    """Whether the directory is left over from a namespace that is gone.

    The cookie decides, where the kernel has one: it is never given out again. Before Linux 5.14 the link does:
    while our descriptor holds the namespace its inode cannot be given to another, so a link that names another
    inode, or 0, proves it (or was detached by hand, which cannot be told from it).
    """
    recorded = state.meta().netns_cookie
    if recorded:
        cookie = state.netns.cookie()
        if cookie is not None:
            return cookie != recorded
    info = link_info(state, catalog.DISPATCH)
    return info is not None and info.netns_inode is not None and info.netns_inode != state.netns.inode


def check_alive(writer: Writer) -> None:
    """Refuse the directory of a dead namespace."""
    if is_dead(writer):
        raise dead_directory(writer.path, writer.netns.inode)


def check_programs(writer: Writer) -> None:
    """The program under each link is the recorded one, and the pinned maps are those it reads.

    A pin that was replaced by hand would otherwise take writes that no packet ever sees.
    """
    for shape in catalog.PROGRAMS:
        if not shape.link_pin:
            continue  # as many links as interfaces: looked at by who changes them, and by `check`
        record = writer.program_record(shape.number)
        if not record.id:
            continue
        info = link_info(writer, shape)
        if info is not None and info.program_id != record.id:
            raise Conflict(
                f"{writer.pin(shape.link_pin)}: runs program {info.program_id}, svcctl loaded {record.id}",
                hint="someone else swapped it; 'svcctl upgrade --force' puts svcctl's program back",
            )


def check_map_ids(state: State, names: tuple[str, ...]) -> None:
    """Refuse to change what no packet would meet: a pinned map the program does not read, a link that was lost.

    Any map that is missing is missed now, and not when half the work is done.
    """
    for name in (*catalog.STATE_MAPS, *catalog.DISPATCH_MAPS):
        if not os.path.lexists(state.pin(name)):
            raise places.missing_pin(state.pin(name))
    state.check_maps(names)
    shape = catalog.DISPATCH
    if os.path.lexists(state.pin(shape.link_pin)):
        return
    key = layouts.AttachmentKey(enums.ATTACH_NETNS, shape.hook, state.netns.inode)
    if state.map("attachments").lookup(layouts.ATTACHMENT_KEY.pack(key)) is not None:
        raise Incompatible(
            f"{state.pin(shape.link_pin)}: the pin is missing, so the dispatcher is not attached",
            hint="'svcctl attach netns' attaches it again",
        )


__all__ = ["NotLoaded", "Writer", "open_writer", "program_map_ids"]
