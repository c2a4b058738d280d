"""attachments, strays: the balancer's links against its records, its settings and the cgroup they are on."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from svcctl.host import cgroup
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import AttachmentKey
from svcctl.state import balancer
from svcctl.state.attach import drop_link
from svcctl.state.audit.finding import Finding
from svcctl.state.audit.kernel import SWAPPED, pinned_program
from svcctl.state.service_config import read_service_config
from svcctl.state.writer import link_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.bpf.link import LinkInfo
    from svcctl.maps.catalog import ProgramShape
    from svcctl.maps.layouts import Attachment
    from svcctl.state.writer import Writer

    Records = dict[int, dict[int, Attachment]]


def find(writer: Writer, deep: bool) -> Iterator[Finding]:
    """Findings about links to cgroups.

    The settings say which hooks there should be as soon as one is recorded: so a killed attach is completed and
    a killed detach is undone, or complete.
    """
    if not writer.has_half(catalog.BALANCER):
        return
    records = _records(writer)
    links = {shape: link_info(writer, shape) for shape in catalog.CONNECT}
    home = _home(records, links)
    yield from _other_records(writer, records, home)
    if home is None:
        if not records:
            for shape, info in links.items():
                if info is not None:
                    message = f"{shape.name}: link {info.id} is pinned, and nothing is recorded or attached"
                    yield Finding("attachments", message, partial(drop_link, writer.pin(shape.link_pin)))
        return
    config = read_service_config(writer)
    for shape, info in links.items():
        record = records.get(shape.hook, {}).get(home)
        if config.flags & enums.CONFIG_EXCLUDE_UDP and shape.name in catalog.UDP_HOOKS:
            if info is not None or record is not None:
                message = f"{shape.name} is attached, though UDP is excluded"
                yield Finding("attachments", message, partial(balancer.drop_attachment, writer, shape))
        else:
            yield from _hook(writer, shape, info, record, home)
    if deep:
        yield from _strays(writer, links[catalog.CONNECT[0]], home)


def _records(writer: Writer) -> Records:
    """Hook -> cgroup id -> record."""
    found: Records = {}
    for raw, data in writer.map("attachments").items():
        key = layouts.ATTACHMENT_KEY.unpack(raw)
        if key.kind == enums.ATTACH_CGROUP:
            found.setdefault(key.hook, {})[key.target] = layouts.ATTACHMENT.unpack(data)
    return found


def _home(records: Records, links: dict[ProgramShape, LinkInfo | None]) -> int | None:
    """Id of the cgroup the balancer belongs on: recorded and attached, else recorded and there, else attached."""
    recorded = sorted({target for each in records.values() for target in each})
    live = sorted({info.cgroup_id for info in links.values() if info is not None and info.cgroup_id})
    for target in recorded:
        if target in live:
            return target
    for target in recorded:
        if not cgroup.is_gone(target):
            return target
    return live[0] if live else None


def _other_records(writer: Writer, records: Records, home: int | None) -> Iterator[Finding]:
    """attachments: all are on one cgroup, which exists."""
    for hook, each in sorted(records.items()):
        for target in sorted(each.keys() - {home}):
            why = "which is gone" if cgroup.is_gone(target) else f"but the balancer is on {home}"
            yield Finding(
                "attachments",
                f"{_hook_name(hook)} is recorded on cgroup {target}, {why}",
                partial(_forget, writer, hook, target),
            )


def _hook_name(hook: int) -> str:
    return next((shape.name for shape in catalog.CONNECT if shape.hook == hook), f"hook {hook}")


def _forget(writer: Writer, hook: int, target: int) -> None:
    key = layouts.ATTACHMENT_KEY.pack(AttachmentKey(enums.ATTACH_CGROUP, hook, target))
    writer.map("attachments").delete(key)


def _hook(
    writer: Writer, shape: ProgramShape, info: LinkInfo | None, record: Attachment | None, home: int
) -> Iterator[Finding]:
    """attachments: recorded, pinned and attached are the same."""
    pinned = pinned_program(writer, shape)
    anew = partial(_attach, writer, shape, home) if pinned is not None else None
    unable = "" if pinned is not None else "mend the pin of the program first"
    if info is None:
        what = "recorded but not attached" if record is not None else "not attached as the others are"
        yield Finding("attachments", f"{shape.name} is {what} (cgroup {home})", anew, unable)
        return
    fault = _link_fault(shape, info, home)
    if fault:
        yield Finding("attachments", f"{shape.name}: link {info.id} {fault}", anew, unable)
        return
    if record is None:
        message = f"{shape.name} is attached to cgroup {home} but not recorded"
        yield Finding("attachments", message, anew, unable)
    elif (record.link_id, record.program) != (info.id, shape.number):
        yield Finding(
            "attachments",
            f"the link of {shape.name} is {info.id}, recorded is {record.link_id} of program {record.program}",
            anew,
            unable,
        )
    recorded = writer.program_record(shape.number).id
    if recorded and info.program_id != recorded:
        yield Finding(
            "attachments",
            f"the link of {shape.name} runs program {info.program_id}, recorded is {recorded}",
            None,
            SWAPPED,
        )


def _link_fault(shape: ProgramShape, info: LinkInfo, home: int) -> str:
    if info.cgroup_id is None or info.attach_type != shape.hook:
        return "is of another kind"
    if info.cgroup_id == 0:
        return "is detached"
    return "" if info.cgroup_id == home else f"is on cgroup {info.cgroup_id} instead of {home}"


def _attach(writer: Writer, shape: ProgramShape, home: int) -> None:
    """Make and record what is missing; a link that is wrong goes first."""
    info = link_info(writer, shape)
    if info is not None and _link_fault(shape, info, home):
        drop_link(writer.pin(shape.link_pin))
    fd = cgroup.open_id(home)
    try:
        balancer.attach_hook(writer, shape, fd, home)
    finally:
        os.close(fd)


def _strays(writer: Writer, own: LinkInfo | None, home: int) -> Iterator[Finding]:
    """strays: no other balancer of svcctl's is on the cgroup, above it or below it: it would translate again."""
    path = cgroup.path_of(home)
    if path is None:
        return
    mine = own.program_id if own is not None else 0
    for where, paths in (("on", (path,)), ("above", cgroup.above(path)), ("below", cgroup.below(path))):
        for other in paths:
            for number in balancer.balancers_on(other):
                if number != mine:
                    yield Finding(
                        "strays",
                        f"program {number} is a connect balancer of svcctl, {where} the cgroup of this one, on {other}",
                        None,
                        "state of another namespace, under another bpffs, or left over:"
                        f" 'bpftool cgroup show {other}' tells more",
                    )
