"""Open state: readers and the one writer, with their pinned maps.

A reader opens pins read-only and never writes; a writer holds the exclusive lock from open to close. Both look
at `meta` first: whose namespace it is, which layout, whether a writer is at work.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.map import Map
from svcctl.errors import Incompatible, NotLoaded, PermissionProblem, SvcctlError
from svcctl.host.netns import Netns
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state import place as places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self, TypeVar

    from svcctl.maps.catalog import Half
    from svcctl.maps.layouts import Meta, ProgramRecord, Usage
    from svcctl.state.place import Place

    T = TypeVar("T")

ZERO = b"\0\0\0\0"
"""Key of the only entry of `meta`."""


class State:
    """Pinned maps of one state directory, opened when first asked for and closed together."""

    read_only = True

    def __init__(self, place: Place, netns: Netns, path: str) -> None:
        self.place = place
        self.netns = netns
        self.path = path
        self._maps: dict[str, Map] = {}

    def close(self) -> None:
        """Close every descriptor."""
        for opened in self._maps.values():
            opened.close()
        self._maps.clear()
        self.netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pin(self, name: str) -> str:
        """Path of a pin in the directory."""
        return f"{self.path}/{name}"

    def map(self, name: str) -> Map:
        """The pinned map `name`. Raises Incompatible if its pin is missing or of another shape.

        NotLoaded: it is the dispatcher's, and that was never attached.
        """
        opened = self._maps.get(name)
        if opened is None:
            try:
                opened = self._maps[name] = open_map(self.pin(name), name, read_only=self.read_only)
            except Incompatible:
                if name in catalog.DISPATCH_MAPS and not self.has_dispatcher():
                    raise NotLoaded(
                        f"{self.path}: the dispatcher was never attached",
                        hint="'svcctl attach netns' does it",
                    ) from None
                if name in catalog.SERVICE_MAPS and not self.has_half(catalog.BALANCER):
                    raise no_services(self.path) from None
                if name in catalog.PACKET_MAPS and not self.has_half(catalog.PACKETS):
                    raise NotLoaded(
                        f"{self.path}: the packet path was never attached",
                        hint="'svcctl attach dev' does it",
                    ) from None
                raise
        return opened

    def has_map(self, name: str) -> bool:
        """Whether `name` is pinned: a half that was never attached has no maps."""
        return name in self._maps or os.path.lexists(self.pin(name))

    def has_dispatcher(self) -> bool:
        """As `has_half`, of the dispatcher."""
        return self.has_half(catalog.DISPATCHER)

    def has_half(self, half: Half) -> bool:
        """Whether a half was made: any of its pins is there, or its program is recorded.

        So what it has lost since is still asked for, and missed; nothing is made in its place.
        """
        pins = (*half.maps, *(pin for one in half.programs for pin in (one.pin, one.link_pin) if pin))
        return any(self.has_map(name) for name in pins) or self.is_recorded(half)

    def is_recorded(self, half: Half) -> bool:
        """Whether `programs` says that the half's first program was loaded. Raises Incompatible without that map."""
        try:
            return self.program_record(half.programs[0].number).id != 0
        except Incompatible:
            if not self.has_map("programs"):
                raise
            return False  # of another layout

    def program_record(self, index: int) -> ProgramRecord:
        """What `programs` says of a program; id 0 if it was never loaded."""
        data = self.map("programs").lookup(U32.pack(index))
        return layouts.PROGRAM.unpack(data or bytes(layouts.PROGRAM.size))

    def need_maps(self, *halves: Half) -> None:
        """Raise Incompatible for the first map that is not pinned, of those that every state has and of `halves`."""
        for maps in (catalog.STATE_MAPS, *(half.maps for half in halves)):
            for name in maps:
                if not self.has_map(name):
                    raise places.missing_pin(self.pin(name))

    def need_all_maps(self) -> None:
        """As `need_maps`, for each half that was made."""
        self.need_maps(*(half for half in catalog.HALVES if self.has_half(half)))

    def opened(self) -> tuple[str, ...]:
        """Names of the maps that were asked for so far."""
        return tuple(self._maps)

    def check_maps(self, names: Iterable[str]) -> None:
        """Refuse a pinned map that is not the one the recorded program reads.

        A pin that was replaced by hand would take writes that no packet meets, and show what no packet met.
        """
        asked = set(names)
        # Of the balancer connect4 reads all that any of its programs does.
        for index, reads in (
            (enums.PROGRAM_DISPATCH, catalog.PROGRAM_READS),
            (catalog.CONNECT[0].number, catalog.SERVICE_READS),
            (catalog.PACKET[0].number, catalog.PACKET_READS),
        ):
            mine = [name for name in reads if name in asked]
            record = self.program_record(index) if mine else None
            if record is None or not record.id:
                continue
            known = program_map_ids(record)
            for name in mine:
                number = self.map(name).info.id
                if number not in known:
                    raise Incompatible(
                        f"{self.pin(name)}: map {number} is not one the loaded program {record.id} reads",
                        hint="'svcctl check' lists what is broken; 'svcctl unload' and 'svcctl load' start anew",
                    )

    def usage(self, name: str) -> Usage:
        """Used and largest number of entries of a map."""
        data = self.map("usage").lookup(U32.pack(catalog.MAPS[name].usage or 0))
        return layouts.USAGE.unpack(data or bytes(layouts.USAGE.size))

    def meta(self) -> Meta:
        """The `meta` record as it is now. Raises Incompatible if it is not svcctl's or of a newer layout."""
        data = self.map("meta").lookup(ZERO)
        if data is None:
            raise Incompatible(f"{self.pin('meta')}: the map is empty")
        return check_meta(layouts.META.unpack(data), self.pin("meta"))


def program_map_ids(record: ProgramRecord) -> set[int]:
    """The map ids in a program record."""
    count = min(record.map_count, layouts.PROGRAM_MAPS)
    return {U32.unpack_from(record.map_ids, 4 * index)[0] for index in range(count)}


def open_pin(path: str, *, read_only: bool) -> Map:
    """A pinned map of whatever shape. Raises Incompatible for what is none, PermissionProblem for another's pin."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        raise places.missing_pin(path) from None
    except PermissionError:
        raise no_access(path) from None
    if not stat.S_ISREG(status.st_mode):  # the kernel would only say "permission denied"
        raise Incompatible(f"open {path}: not a pinned object", hint="'svcctl check' lists what is broken")
    places.check_owner(path, status)
    try:
        return Map.open_pinned(path, read_only=read_only)
    except BpfError as error:
        raise pin_error(error, path) from error


def open_map(path: str, name: str, *, read_only: bool) -> Map:
    """As `open_pin`, comparing its shape with the catalogue, all differences at once."""
    opened = open_pin(path, read_only=read_only)
    shape, info = catalog.MAPS[name], opened.info
    wrong = [
        f"{what} {have}, expected {want}"
        for what, have, want in (
            ("type", info.type, shape.type),
            ("key size", info.key_size, shape.key_size),
            ("value size", info.value_size, shape.value_size),
        )
        if have != want
    ]
    if wrong:
        opened.close()
        raise Incompatible(
            f"pinned map {path}: {'; '.join(wrong)}",
            hint="'svcctl upgrade' carries an older layout over; 'svcctl check --repair' mends a replaced pin",
        )
    return opened


def no_services(path: str) -> NotLoaded:
    """The error for a state that has no service maps."""
    return NotLoaded(
        f"{path}: there are no service maps",
        hint="'svcctl attach cgroup' or 'svcctl attach dev' makes them, and attaches what serves them",
    )


def no_access(path: str) -> PermissionProblem:
    """The error for who may not even look into the state directory."""
    return PermissionProblem(
        f"{path}: permission denied",
        hint="needs root, or the group of 'svcctl load --group' and a searchable bpffs (mode 0711)",
    )


def pin_error(error: BpfError, path: str) -> SvcctlError:
    """What a failed BPF_OBJ_GET means to the user."""
    if error.errno == errno.ENOENT:
        return places.missing_pin(path)
    if error.errno in (errno.EPERM, errno.EACCES):
        return PermissionProblem(
            f"open {path}: {os.strerror(error.errno)}",
            hint="needs root, or for reading: the group of 'svcctl load --group' (before Linux 5.19 with CAP_BPF)",
        )
    if not is_wrong_pin(error):
        return SvcctlError(f"open {path}: {error.strerror}")
    return Incompatible(
        f"open {path}: not a pinned object of the right kind ({os.strerror(error.errno or 0)})",
        hint="'svcctl check' lists what is broken; 'svcctl unload' clears it",
    )


def is_wrong_pin(error: BpfError) -> bool:
    """Whether an open failed for what the pin is, and will again; not for want of memory or descriptors."""
    return error.errno in (errno.EINVAL, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENOTDIR)


def check_meta(meta: Meta, path: str) -> Meta:
    """Refuse what is not svcctl's, and layouts this version does not know. An older one passes: see `schema`."""
    if meta.magic != layouts.MAGIC:
        raise Incompatible(f"{path}: not written by svcctl", hint="'svcctl unload' clears it")
    if meta.schema > layouts.SCHEMA:
        raise Incompatible(
            f"state has layout {meta.schema} (svcctl {layouts.text(meta.version)}), newer than {layouts.SCHEMA}",
            hint="use the newer svcctl",
        )
    return meta


def need_current_schema(meta: Meta) -> None:
    """Refuse an older layout for anything but upgrade and unload."""
    if meta.schema != layouts.SCHEMA:
        raise Incompatible(
            f"state has layout {meta.schema} (svcctl {layouts.text(meta.version)}), older than {layouts.SCHEMA}",
            hint="'svcctl upgrade' carries the state over without interruption",
        )


class Reader(State):
    """Read-only look at the state. Holds no lock after it was opened."""

    identity = (0, 0)
    """Device and inode of the directory that was opened."""

    def generation(self) -> int:
        """meta.generation now: odd while a writer is at work."""
        return self.meta().generation

    def is_published(self) -> bool:
        """Whether the directory is still the one that was opened: pins of another may have been mixed in."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self.identity


def open_reader(place: Place, *, any_layout: bool = False) -> Reader:
    """Open for reading; as root or as a member of the state's group. `any_layout`: of an older svcctl too.

    Takes no lock, not even shared: what is read is judged by the generation and by the directory still being
    there, and a lock that eight readers took for a moment each held writers up for 230 ms (measured).
    """
    netns = Netns.open(place.netns)
    try:
        path = f"{place.bpffs}/{places.directory_name(netns.inode)}"
        fd = _open_directory(path, netns.inode, place)
        reader = Reader(place, netns, path)
        try:
            status = os.fstat(fd)
            reader.identity = status.st_dev, status.st_ino
            places.check_owner(path, status)
            if not any_layout:
                need_current_schema(reader.meta())
            _check_identity(reader.meta(), netns, path)
        except BaseException:
            for opened in reader._maps.values():
                opened.close()
            raise
        finally:
            os.close(fd)
        return reader
    except BaseException:
        netns.close()
        raise


def _open_directory(path: str, inode: int, place: Place) -> int:
    """An O_PATH descriptor of the state directory, or the right error."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        places.check_bpffs(place.bpffs)
        raise places.not_loaded(inode, place.bpffs) from None
    except PermissionError:
        raise no_access(path) from None
    except NotADirectoryError:
        places.check_bpffs(place.bpffs)
        raise Incompatible(f"{path}: not a directory") from None


def _check_identity(meta: Meta, netns: Netns, path: str) -> None:
    """Second opinion on the namespace for readers, who may not open the link: cookies never repeat."""
    if meta.netns_cookie:
        cookie = netns.cookie()
        if cookie is not None and cookie != meta.netns_cookie:
            raise dead_directory(path, netns.inode)


def dead_directory(path: str, inode: int) -> SvcctlError:
    """The state is that of a namespace that no longer exists; the inode number was given out again."""
    error = places.not_loaded(inode, os.path.dirname(path))
    error.message = (
        f"{path} belongs to an earlier network namespace with the same inode {inode}, which is gone"
    )
    error.hint = "'svcctl load' clears it and loads; 'svcctl gc' only clears it"
    return error


INCONSISTENT = "inconsistent: a writer was at work, or died at it, while this was read"


def read_consistent(
    place: Place, read: Callable[[Reader], T], opening: Callable[[Place], Reader] | None = None
) -> tuple[T, bool]:
    """Run `read` until no writer was at work meanwhile, at most four times; (result, whether it is consistent).

    `opening` opens another state than that of the place's namespace.

    Between tries a writer gets a moment to finish. Errors of a torn read (a pin renamed away) count as a try.
    Raises Incompatible also when what was read is not what the dispatcher reads.
    """
    for attempt in range(4):
        last = attempt == 3
        try:
            with (opening or open_reader)(place) as reader:
                before = reader.generation()
                if before & 1 and not last:
                    time.sleep(0.01 * 3**attempt)
                    continue
                result = read(reader)
                if not before & 1 and reader.generation() == before and reader.is_published():
                    reader.check_maps(reader.opened())
                    return result, True
                if last:
                    return result, False
        except (Incompatible, BpfError) as error:
            # EAGAIN: a walk that writers keep sending back to its start.
            if last or (isinstance(error, BpfError) and error.errno != errno.EAGAIN):
                raise
            time.sleep(0.01)
    raise AssertionError("unreachable")
