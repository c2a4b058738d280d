"""Attachments: recorded first, made as a link, pinned at once; taken away in the other order."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.program import Program
from svcctl.errors import SvcctlError
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32, Attachment, AttachmentKey
from svcctl.record import Record
from svcctl.state.programs import describe_program, load_object
from svcctl.state.session import pin_error
from svcctl.state.writer import link_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.bpf.link import LinkInfo
    from svcctl.bpf.map import Map
    from svcctl.bpf.object import Object
    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Attached(Record):
    """One row of `attachments`. `program_id` and `up` are None for who may not open links.

    `interface` and `role` are those of an interface, else None; `clsact`: by a filter, not by a link.
    """

    kind: str
    target: int
    hook: str
    program: str
    program_id: int
    link_id: int
    since_ns: int
    version: str
    up: bool | None
    interface: str | None = None
    role: str | None = None
    clsact: bool = False


def netns_key(inode: int) -> AttachmentKey:
    """Key of the dispatcher's attachment."""
    return AttachmentKey(enums.ATTACH_NETNS, catalog.SK_LOOKUP, inode)


def pin_dispatcher(writer: Writer, max_bindings: int, max_destinations: int) -> None:
    """Make the dispatcher's maps (those that are missing) and program, and pin them in the writer's directory."""
    sizes = catalog.dispatch_sizes(max_bindings, max_destinations)
    reuse = {
        name: writer.map(name)
        for name in (*catalog.DISPATCH_MAPS, *catalog.SHARED_MAPS)
        if writer.has_map(name)
    }
    with load_object(catalog.DISPATCH.object, sizes, reuse) as loaded:
        for name in catalog.DISPATCH_MAPS:
            if name not in reuse:
                pin_map(writer, loaded, name)
        for name, shape in catalog.DISPATCH_MAPS.items():
            if shape.usage is not None and name not in reuse:
                writer.put_usage(name, layouts.Usage(0, sizes[name]))
        with loaded.program(catalog.DISPATCH.name) as program:
            record_program(writer.map("programs"), catalog.DISPATCH, program, catalog.DISPATCH.number)
            if not os.path.lexists(writer.pin(catalog.DISPATCH.pin)):
                program.pin(writer.pin(catalog.DISPATCH.pin))


def pin_map(writer: Writer, loaded: Object, name: str, prefix: str = "") -> None:
    """Pin a map of a loaded object with the mode and group of the state."""
    path = writer.pin(prefix + name)
    with loaded.map(name) as made:
        made.pin(path)
    writer.pin_mode(path)


def record_program(programs: Map, shape: ProgramShape, program: Program, index: int) -> None:
    """Write a program's record at `index` of `programs`."""
    programs.update(U32.pack(index), layouts.PROGRAM.pack(describe_program(shape, program)))


def is_attached(state: State) -> bool:
    """Whether the dispatcher's attachment is recorded."""
    key = layouts.ATTACHMENT_KEY.pack(netns_key(state.netns.inode))
    return state.map("attachments").lookup(key) is not None


def record_netns(writer: Writer) -> bytes:
    """Record that the dispatcher is to be attached; returns the record, an older one if there is one."""
    key = layouts.ATTACHMENT_KEY.pack(netns_key(writer.netns.inode))
    attachments = writer.map("attachments")
    known = attachments.lookup(key)
    if known is None:
        known = layouts.ATTACHMENT.pack(Attachment(catalog.DISPATCH.number, 0, time.time_ns(), 0, 0))
        attachments.update(key, known)
    return known


def attach_netns(writer: Writer) -> None:
    """Record and make the dispatcher's link. Its program must be pinned. Inside `changing()`."""
    shape = catalog.DISPATCH
    known = record_netns(writer)
    key = layouts.ATTACHMENT_KEY.pack(netns_key(writer.netns.inode))
    info = make_link(writer, shape, writer.netns.fd, lambda have: have.netns_inode == writer.netns.inode)
    if layouts.ATTACHMENT.unpack(known).link_id != info.id:
        writer.map("attachments").update(
            key, layouts.ATTACHMENT.pack(Attachment(shape.number, info.id, time.time_ns(), 0, 0))
        )


def make_link(writer: Writer, shape: ProgramShape, fd: int, is_there: Callable[[LinkInfo], bool]) -> LinkInfo:
    """The link at a program's pin, made and pinned if there is none on what `fd` is open on, which `is_there` tells.

    One that was detached by hand, or whose target has gone, leaves its pin, and attaches nothing. Inside `changing()`.
    """
    info = link_info(writer, shape)
    if info is not None and is_there(info):
        return info
    if info is not None:
        drop_link(writer.pin(shape.link_pin))
    with (
        Program.open_pinned(writer.pin(shape.pin)) as program,
        Link.create(program, fd, shape.hook) as link,
    ):
        link.pin(writer.pin(shape.link_pin))
        return link.info


def detach_netns(writer: Writer) -> None:
    """Take the dispatcher off. Bindings and sockets stay. Inside `changing()`."""
    drop_link(writer.pin(catalog.DISPATCH.link_pin))
    writer.map("attachments").delete(layouts.ATTACHMENT_KEY.pack(netns_key(writer.netns.inode)))


def drop_link(path: str) -> None:
    """Unpin a link, and detach it at once: the kernel gets round to that only a while after the pin has gone."""
    try:
        link = Link.open_pinned(path)
    except (BpfError, OSError):
        link = None  # not there, or no link at all
    try:
        if os.path.lexists(path):
            os.unlink(path)
        if link is not None:
            link.detach()
    except BpfError:
        pass  # its target has died, or the kernel has no such call: it goes with our descriptor
    finally:
        if link is not None:
            link.close()


def list_attachments(state: State) -> list[Attached]:
    """All recorded attachments; root also sees whether the kernel still has each link."""
    rows = []
    for key_data, value_data in state.map("attachments").items():
        key, value = layouts.ATTACHMENT_KEY.unpack(key_data), layouts.ATTACHMENT.unpack(value_data)
        record = state.program_record(value.program)
        rows.append(
            Attached(
                kind=_KINDS.get(key.kind, str(key.kind)),
                target=key.target,
                hook=_hook_name(key),
                program=layouts.text(record.name),
                program_id=record.id,
                link_id=value.link_id,
                since_ns=value.since_ns,
                version=layouts.text(record.version),
                up=_is_up(state, key, value, record.id),
                interface=layouts.text(value.name) if key.kind == enums.ATTACH_DEV else None,
                role=enums.ROLE_NAMES.get(value.role) if key.kind == enums.ATTACH_DEV else None,
                clsact=key.kind == enums.ATTACH_DEV and bool(value.flags & enums.ATTACHMENT_CLSACT),
            )
        )
    return sorted(rows)


def is_live(state: State) -> bool | None:
    """Whether the dispatcher steers the namespace: recorded, and the kernel has the link.

    None when it is recorded and the caller may not open links.
    """
    return _link_is_up(state, netns_key(state.netns.inode)) if is_attached(state) else False


def size_differences(state: State, max_bindings: int | None, max_destinations: int | None) -> list[str]:
    """How the maps that exist differ from the sizes asked for (None: not asked), one text each."""
    differs = []
    for name, option, wanted in (
        ("bindings", "--max-bindings", max_bindings),
        ("destinations", "--max-destinations", max_destinations),
    ):
        if wanted is not None and state.has_map(name):
            have = state.map(name).info.max_entries
            if have != wanted:
                differs.append(f"room for {have} {name}, asked for {wanted} ({option})")
    return differs


_KINDS = {enums.ATTACH_NETNS: "netns", enums.ATTACH_CGROUP: "cgroup", enums.ATTACH_DEV: "dev"}
_SIDES = {catalog.TCX_INGRESS: "ingress", catalog.TCX_EGRESS: "egress"}


def shape_of(hook: int) -> ProgramShape | None:
    """The program svcctl attaches to a hook."""
    return next((shape for shape in catalog.PROGRAMS if shape.hook == hook), None)


def _hook_name(key: AttachmentKey) -> str:
    if key.kind == enums.ATTACH_DEV:
        return _SIDES.get(key.hook, str(key.hook))
    shape = shape_of(key.hook)
    if shape is None:
        return str(key.hook)
    return "sk_lookup" if shape is catalog.DISPATCH else shape.name


def _is_up(state: State, key: AttachmentKey, record: Attachment, program_id: int) -> bool | None:
    """As `_link_is_up`, of any kind; of an interface also whether it runs the program."""
    if key.kind != enums.ATTACH_DEV:
        return _link_is_up(state, key)
    if os.geteuid() != 0:
        return None
    from svcctl.state import device_links

    side = device_links.BY_HOOK.get(key.hook)
    if side is None:
        return None
    try:
        live = device_links.live(state, side, key.target, record)
    except (SvcctlError, BpfError, OSError):
        return None
    return live is not None and live.program_id == program_id


def _link_is_up(state: State, key: AttachmentKey) -> bool | None:
    """Whether the link is alive, None if the caller may not look (links cannot be opened read-only)."""
    shape = shape_of(key.hook)
    if os.geteuid() != 0 or shape is None:
        return None
    try:
        info = link_info(state, shape)
    except (BpfError, OSError):
        return None
    if info is None:
        return False
    return key.target == (info.netns_inode if key.kind == enums.ATTACH_NETNS else info.cgroup_id)


def open_program(state: State, shape: ProgramShape, prefix: str = "") -> Program | None:
    """The pinned program, None without a pin. For writers: the pins are root's."""
    path = state.pin(prefix + shape.pin)
    try:
        return Program.open_pinned(path)
    except BpfError as error:
        if error.errno == 2:
            return None
        raise pin_error(error, path) from error
