"""One side of one interface: a tcx link pinned as `link_<side>_<index>`, or, before Linux 6.6, a filter on clsact.

Links are told by their pins, filters by their name and their program. What there is to be is in `attachments`.
"""

from __future__ import annotations

import os
import time
from errno import ENODEV, ENOENT
from typing import TYPE_CHECKING

from svcctl.bpf import probe
from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.program import Program
from svcctl.errors import Incompatible, NotFound
from svcctl.host import tc
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import Attachment, AttachmentKey
from svcctl.record import Record
from svcctl.state.attach import drop_link, open_program
from svcctl.state.session import pin_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.host.devices import Device
    from svcctl.host.netns import Netns
    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

    Records = dict[tuple[int, int], Attachment]


class Side(Record):
    """`hook` is the attach type of a tcx link, `parent` that of a filter."""

    hook: int
    name: str
    parent: int


SIDES = (
    Side(catalog.TCX_INGRESS, "ingress", tc.INGRESS),
    Side(catalog.TCX_EGRESS, "egress", tc.EGRESS),
)
BY_HOOK = {side.hook: side for side in SIDES}
_SHAPES = {
    (role, shape.hook): shape
    for role, names in catalog.ROLE_PROGRAMS.items()
    for shape in catalog.PACKET
    if shape.name in names
}
_ROLES = {shape.number: role for (role, _), shape in _SHAPES.items()}


class Live(Record):
    """What is attached at one side of an interface: `link_id` 0 is a filter."""

    program_id: int
    link_id: int


def shape_of(role: int, side: Side) -> ProgramShape:
    """The program of a role at one side."""
    return _SHAPES[role, side.hook]


def role_of(program: int) -> int:
    """The role a program (its number) is for, 0: none of an interface."""
    return _ROLES.get(program, 0)


def pin_name(side: Side, ifindex: int) -> str:
    """Name of a link's pin."""
    return f"link_{side.name}_{ifindex}"


def parse_pin(name: str) -> tuple[Side, int] | None:
    """Side and interface index in a pin's name, None for any other name."""
    for side in SIDES:
        prefix = f"link_{side.name}_"
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest.isascii() and rest.isdigit() and rest[0] != "0":
            return side, int(rest)
    return None


def pinned(path: str) -> list[tuple[Side, int]]:
    """Side and interface index of every link pin in a state directory."""
    return sorted(found for name in os.listdir(path) if (found := parse_pin(name)) is not None)


def records(state: State) -> Records:
    """(hook, interface index) -> record of every attachment to an interface."""
    found = {}
    for key_data, data in _attachments(state):
        key = layouts.ATTACHMENT_KEY.unpack(key_data)
        if key.kind == enums.ATTACH_DEV:
            found[key.hook, key.target] = layouts.ATTACHMENT.unpack(data)
    return found


def _attachments(state: State) -> Iterator[tuple[bytes, bytes]]:
    """Entries of `attachments`, of an older layout as they will be: `upgrade` asks before it carries them over."""
    try:
        table = state.map("attachments")
    except Incompatible:
        from svcctl.state import migrate

        with migrate.open_any(state, "attachments") as old:
            convert = migrate.value_converter("attachments", old)
            for key, data in old.items():
                yield key, convert(data) if convert else data
        return
    yield from table.items()


def key_of(side: Side, ifindex: int) -> bytes:
    """Key of an attachment's record."""
    return layouts.ATTACHMENT_KEY.pack(AttachmentKey(enums.ATTACH_DEV, side.hook, ifindex))


def wants_clsact() -> bool:
    """Whether filters are to be used: without tcx, or when the environment says SVCCTL_TC=clsact."""
    return os.environ.get("SVCCTL_TC") == "clsact" or not probe.tcx()


def live_link(state: State, side: Side, ifindex: int) -> Live | None:
    """What the pinned link runs; None without a pin, or when its interface is gone or it was detached."""
    path = state.pin(pin_name(side, ifindex))
    try:
        with Link.open_pinned(path) as link:
            info = link.info
    except BpfError as error:
        if error.errno == ENOENT:
            return None
        raise pin_error(error, path) from error
    if info.ifindex != ifindex or info.attach_type != side.hook:
        return None
    return Live(info.program_id, info.id)


def live_filter(netns: Netns, side: Side, ifindex: int, programs: set[int]) -> Live | None:
    """svcctl's filter at one side that runs one of `programs`."""
    for one in tc.mine(netns, ifindex, side.parent):
        if one.program_id in programs:
            return Live(one.program_id, 0)
    return None


def live(state: State, side: Side, ifindex: int, record: Attachment) -> Live | None:
    """What runs at one side of an interface, of the kind that was recorded."""
    if record.flags & enums.ATTACHMENT_CLSACT:
        return live_filter(state.netns, side, ifindex, {number for number, _ in loaded_programs(state)})
    return live_link(state, side, ifindex)


class Hooks:
    """Makes and takes away what is attached to interfaces. Holds one connection to tc, made when it is needed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._filters: tc.Filters | None = None

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._filters is not None:
            self._filters.close()

    @property
    def filters(self) -> tc.Filters:
        """The connection to tc."""
        if self._filters is None:
            self._filters = tc.Filters(self.writer.netns)
        return self._filters

    @property
    def own(self) -> set[int]:
        """Ids of the programs that filters of this state may run: pinned, or recorded where the pin was lost."""
        return program_ids(self.writer) | {number for number, _ in loaded_programs(self.writer)}

    def record(self, side: Side, device: Device, role: int, *, clsact: bool, link_id: int = 0) -> None:
        """Write what is to be at one side of an interface. Inside `changing()`."""
        flags = enums.ATTACHMENT_CLSACT if clsact else 0
        value = Attachment(
            shape_of(role, side).number,
            link_id,
            time.time_ns(),
            role,
            flags,
            device.name.encode("utf-8", "surrogateescape"),
        )
        self.writer.map("attachments").update(key_of(side, device.ifindex), layouts.ATTACHMENT.pack(value))

    def record_missing(self, side: Side, device: Device, role: int, *, clsact: bool) -> None:
        """Record a side of which nothing is known yet, before the other one is attached. Inside `changing()`."""
        if self.writer.map("attachments").lookup(key_of(side, device.ifindex)) is None:
            self.record(side, device, role, clsact=clsact)

    def make(self, side: Side, device: Device, role: int, *, clsact: bool) -> None:
        """Record one side, attach the role's program there or put it in the place of what is there, record the link.

        Raises NotFound when the interface has gone. Inside `changing()`.
        """
        before = self._flags(side, device.ifindex)
        self.record(side, device, role, clsact=clsact)
        shape = shape_of(role, side)
        path = self.writer.pin(shape.pin)
        try:
            program = Program.open_pinned(path)
        except BpfError as error:
            raise pin_error(error, path) from error
        with program:
            if clsact:
                drop_link(self.writer.pin(pin_name(side, device.ifindex)))
                self.filters.put(device.ifindex, side.parent, program.fd, shape.name, self.own)
            else:
                link_id = self._link(side, device, program)
                if before & enums.ATTACHMENT_CLSACT:
                    self.drop_filter(side, device.ifindex)
                self.record(side, device, role, clsact=False, link_id=link_id)

    def _link(self, side: Side, device: Device, program: Program) -> int:
        pin = self.writer.pin(pin_name(side, device.ifindex))
        live = live_link(self.writer, side, device.ifindex)
        if live is not None:
            if live.program_id != program.info.id:
                with Link.open_pinned(pin) as link:
                    link.update(program)
            return live.link_id
        drop_link(pin)  # of an interface that had this index, or detached by hand
        try:
            with self.writer.netns.entered(), Link.create(program, device.ifindex, side.hook) as link:
                link.pin(pin)
                return link.info.id
        except BpfError as error:
            if error.errno == ENODEV:
                raise NotFound(f"attach dev: interface {device.name} is gone") from None
            raise

    def drop_filter(self, side: Side, ifindex: int) -> None:
        """Take svcctl's filters off one side; those that run programs of other states stay."""
        mine = self.own
        for one in tc.mine(self.writer.netns, ifindex, side.parent):
            if one.program_id in mine:
                self.filters.delete(ifindex, side.parent, one)

    def drop(self, side: Side, ifindex: int) -> None:
        """Detach one side and forget it. Inside `changing()`."""
        drop_link(self.writer.pin(pin_name(side, ifindex)))
        if self._flags(side, ifindex) & enums.ATTACHMENT_CLSACT:
            self.drop_filter(side, ifindex)
        self.writer.map("attachments").delete(key_of(side, ifindex))

    def _flags(self, side: Side, ifindex: int) -> int:
        data = self.writer.map("attachments").lookup(key_of(side, ifindex))
        return layouts.ATTACHMENT.unpack(data).flags if data is not None else 0

    def follow(self, shape: ProgramShape, program: Program) -> None:
        """Put a program in the place of its predecessor at every recorded filter, without a gap."""
        for (hook, ifindex), record in sorted(records(self.writer).items()):
            if record.program == shape.number and record.flags & enums.ATTACHMENT_CLSACT:
                try:
                    self.filters.put(ifindex, BY_HOOK[hook].parent, program.fd, shape.name, self.own)
                except NotFound:
                    continue  # gone with its interface; the record goes when somebody looks


def loaded_programs(state: State) -> list[tuple[int, int]]:
    """(id, number) of the packet path's programs as they are recorded, those of a swap under way included."""
    found = []
    for base in (0, layouts.NEXT_PROGRAMS):
        for shape in catalog.PACKET:
            number = state.program_record(base + shape.number).id
            if number:
                found.append((number, shape.number))
    return found


def program_ids(writer: Writer) -> set[int]:
    """Ids of the packet path's programs that are pinned here, those of a swap under way included."""
    found = set()
    for shape in catalog.PACKET:
        for prefix in ("", catalog.NEXT):
            program = open_program(writer, shape, prefix)
            if program is not None:
                with program:
                    found.add(program.info.id)
    return found


def link_pins(writer: Writer, shape: ProgramShape) -> Iterator[str]:
    """Names of the link pins whose record, or else whose program, is this shape's."""
    known = records(writer)
    for side, ifindex in pinned(writer.path):
        record = known.get((side.hook, ifindex))
        if record is not None:
            if record.program == shape.number:
                yield pin_name(side, ifindex)
            continue
        live = live_link(writer, side, ifindex)
        if live is not None and live.program_id == writer.program_record(shape.number).id:
            yield pin_name(side, ifindex)
