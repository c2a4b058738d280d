"""programs, attachments, strays: records and pins against what the kernel has loaded and attached."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state import attach, foreign
from svcctl.state.audit import salvage
from svcctl.state.audit.finding import Finding
from svcctl.state.writer import link_info, program_map_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.bpf.link import LinkInfo
    from svcctl.bpf.program import ProgramInfo
    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.writer import Writer

SWAPPED = "someone else swapped it; 'svcctl upgrade --force' puts svcctl's program back"


def find(writer: Writer, deep: bool) -> Iterator[Finding]:
    """Findings about programs, and about the dispatcher's attachment."""
    yield from _unknown_records(writer)
    seen: set[str] = set()
    for half in catalog.HALVES:
        if writer.has_half(half):
            for shape in half.programs:
                yield from _programs(writer, shape, pinned_program(writer, shape), seen)
    yield from _unknown_attachments(writer)
    if not writer.has_dispatcher():
        return
    yield from _attachments(writer, pinned_program(writer, catalog.DISPATCH))
    if deep:
        yield from _strays(writer)


def pinned_program(writer: Writer, shape: ProgramShape) -> ProgramInfo | None:
    """What the kernel says of a pinned program, None without a pin."""
    program = attach.open_program(writer, shape)
    if program is None:
        return None
    with program:
        return program.info


def _unknown_records(writer: Writer) -> Iterator[Finding]:
    """programs: none is recorded but svcctl's."""
    known = {one.number for one in catalog.PROGRAMS}
    for index in range(layouts.NEXT_PROGRAMS):
        if index not in known and writer.program_record(index).id:
            yield Finding(
                "programs",
                f"program {index} is recorded, which this svcctl does not have",
                partial(salvage.zero_record, writer, index),
            )


def _programs(
    writer: Writer, shape: ProgramShape, pinned: ProgramInfo | None, seen: set[str]
) -> Iterator[Finding]:
    """programs: record, pin and maps agree. `seen` are maps that another program was compared by."""
    record = writer.program_record(shape.number)
    if pinned is None:
        return  # `pins` has said so
    if not record.id:
        # The record was lost: what is pinned is all there is to go by. Without a digest `upgrade` replaces it.
        yield Finding(
            "programs",
            f"the pinned program {pinned.id} ({shape.name}) is not recorded",
            partial(_record, writer, shape, pinned),
        )
    elif pinned.id != record.id:
        if salvage.program_id(writer, shape) == record.id:
            yield Finding(
                "programs",
                f"the pinned program {shape.name} is {pinned.id}, attached and recorded is {record.id}",
                *salvage.plan(writer, shape.pin, SWAPPED),
            )
        else:
            yield Finding(
                "programs",
                f"the pinned program {shape.name} is {pinned.id}, recorded is {record.id}",
                None,
                SWAPPED,
            )
        return
    elif set(pinned.map_ids) != program_map_ids(record):
        yield Finding(
            "programs",
            f"the record of program {pinned.id} ({shape.name}) names other maps than the kernel",
            partial(_record, writer, shape, pinned),
        )
    reads = [name for name in catalog.reads(shape) if name not in seen]
    astray = [name for name in reads if writer.map(name).info.id not in pinned.map_ids]
    seen.update(reads if shape is not catalog.DISPATCH else set(reads) - set(catalog.SHARED_MAPS))
    # Names take CAP_SYS_ADMIN, which a sound state must not need.
    held = salvage.held_maps(writer) if astray else {}
    for name in astray:
        have = writer.map(name).info.id
        # Writers refuse such a pin, so nothing of svcctl's is in it: the program's map is the one to have.
        message = f"pinned map {name!r} is {have}, program {pinned.id} reads {held.get(name)}"
        if name in held and held[name] != have:
            yield Finding("programs", message, partial(salvage.repin_map, writer, name, held[name]))
        else:
            yield Finding("programs", message, None, SWAPPED)


def _record(writer: Writer, shape: ProgramShape, pinned: ProgramInfo) -> None:
    """Write down what is pinned."""
    ids = tuple(pinned.map_ids)[: layouts.PROGRAM_MAPS]
    record = writer.program_record(shape.number)._replace(
        name=shape.name.encode(),
        id=pinned.id,
        map_count=len(ids),
        map_ids=b"".join(U32.pack(number) for number in ids),
    )
    if not record.version.rstrip(b"\0"):
        record = record._replace(version=writer.meta().version)
    writer.map("programs").update(U32.pack(shape.number), layouts.PROGRAM.pack(record))


def _unknown_attachments(writer: Writer) -> Iterator[Finding]:
    """attachments: nothing is recorded that this svcctl does not make here."""
    mine = attach.netns_key(writer.netns.inode)
    hooks = {shape.hook for shape in catalog.CONNECT} if writer.has_half(catalog.BALANCER) else set()
    for raw, _ in list(writer.map("attachments").items()):
        key = layouts.ATTACHMENT_KEY.unpack(raw)
        if key == mine and writer.has_dispatcher():
            continue
        if key.kind == enums.ATTACH_CGROUP and key.hook in hooks:
            continue  # cgroups.py
        if key.kind == enums.ATTACH_DEV and writer.has_half(catalog.PACKETS):
            continue  # devices.py
        yield Finding(
            "attachments",
            f"recorded: kind {key.kind}, hook {key.hook}, target {key.target},"
            " which this svcctl does not make here",
            partial(writer.map("attachments").delete, raw),
        )


def _attachments(writer: Writer, pinned: ProgramInfo | None) -> Iterator[Finding]:
    """attachments: recorded, pinned and attached are the same."""
    records = {
        layouts.ATTACHMENT_KEY.unpack(key): layouts.ATTACHMENT.unpack(value)
        for key, value in writer.map("attachments").items()
    }
    mine = attach.netns_key(writer.netns.inode)
    info = link_info(writer, catalog.DISPATCH)
    record = records.get(mine)
    again = partial(attach.attach_netns, writer) if pinned is not None else None
    unable = "" if pinned is not None else "mend the pin of the program first"
    if info is None:
        if record is not None:
            yield Finding("attachments", "the dispatcher is recorded but not attached", again, unable)
        return
    fault = _link_fault(writer, info)
    if fault is not None:
        repair = partial(_attach_anew, writer) if again is not None else None
        yield Finding("attachments", fault, repair, unable)
    elif record is None:
        yield Finding("attachments", "the dispatcher is attached but not recorded", again, unable)
    elif (record.link_id, record.program) != (info.id, catalog.DISPATCH.number):
        yield Finding(
            "attachments",
            f"the dispatcher's link is {info.id}, recorded is {record.link_id} of program {record.program}",
            partial(_record_link, writer, info),
        )
    recorded = writer.program_record(catalog.DISPATCH.number).id
    if fault is None and recorded and info.program_id != recorded:
        yield Finding(
            "attachments", f"the link runs program {info.program_id}, recorded is {recorded}", None, SWAPPED
        )


def _link_fault(writer: Writer, info: LinkInfo) -> str | None:
    """Why a pinned link is not the dispatcher's attachment to this namespace."""
    if info.netns_inode is None or info.attach_type != catalog.SK_LOOKUP:
        return f"the pinned link {info.id} is of another kind"
    if info.netns_inode == 0:
        return f"the dispatcher's link {info.id} is detached"
    if info.netns_inode != writer.netns.inode:
        return f"the dispatcher's link is on network namespace {info.netns_inode}"
    running = foreign.attached(writer.netns)
    if running is not None and info.program_id not in running:
        return f"program {info.program_id} is not attached"
    return None


def _attach_anew(writer: Writer) -> None:
    os.unlink(writer.pin(catalog.DISPATCH.link_pin))
    attach.attach_netns(writer)


def _record_link(writer: Writer, info: LinkInfo) -> None:
    key = layouts.ATTACHMENT_KEY.pack(attach.netns_key(writer.netns.inode))
    attachments = writer.map("attachments")
    record = layouts.ATTACHMENT.unpack(attachments.lookup(key) or bytes(layouts.ATTACHMENT.size))
    attachments.update(
        key, layouts.ATTACHMENT.pack(record._replace(program=catalog.DISPATCH.number, link_id=info.id))
    )


def _strays(writer: Writer) -> Iterator[Finding]:
    """strays: no dispatcher of svcctl's steers the namespace besides the one that is pinned."""
    info = link_info(writer, catalog.DISPATCH)
    own = info.program_id if info is not None else writer.program_record(catalog.DISPATCH.number).id
    for other in foreign.others(writer.netns, own) or ():
        if other.ours:
            by = f"link {other.link_id}" if other.link_id else "no link that can be seen"
            yield Finding(
                "strays",
                f"program {other.program_id} is a dispatcher of svcctl, attached by {by},"
                " and not the one of this state",
                None,
                "state under another bpffs, or left over: "
                + (
                    f"'bpftool link detach id {other.link_id}' ends it"
                    if other.link_id
                    else "find the process that holds it"
                ),
            )
