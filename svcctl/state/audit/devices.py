"""attachments, strays: the packet path's links and filters against its records and the interfaces there are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.host import devices as host_devices
from svcctl.host import tc
from svcctl.maps import catalog, enums
from svcctl.state import device_links, devices, foreign
from svcctl.state.attach import drop_link
from svcctl.state.audit.finding import Finding
from svcctl.state.audit.kernel import SWAPPED, pinned_program
from svcctl.state.device_links import SIDES, Hooks, Side, pin_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.host.devices import Device
    from svcctl.maps.layouts import Attachment
    from svcctl.state.device_links import Live, Records
    from svcctl.state.writer import Writer


def find(writer: Writer, deep: bool) -> Iterator[Finding]:
    """Findings about attached interfaces.

    An interface that is recorded at one side is to be attached at both: so a killed attach is completed and a
    killed detach is undone, or complete.
    """
    if not writer.has_half(catalog.PACKETS):
        return
    there = {one.ifindex: one for one in host_devices.devices(writer.netns)}
    known = device_links.records(writer)
    loaded = {
        info.id: shape.number
        for shape in catalog.PACKET
        if (info := pinned_program(writer, shape)) is not None
    }
    gone = dict(devices.find_gone(writer, list(there.values())))
    for ifindex, name in gone.items():
        yield Finding(
            "attachments",
            f"interface {name} ({ifindex}) is attached, and gone",
            partial(_forget, writer, ifindex),
        )
    yield from _unrecorded(writer, known, loaded, there)
    for ifindex in sorted({index for _, index in known} - gone.keys()):
        yield from _interface(writer, known, loaded, there[ifindex])
    yield from _table(writer, known, gone, there)
    if deep:
        yield from _filters(writer, known, loaded, there)
        yield from _strays(writer, known, loaded, there)


def _forget(writer: Writer, ifindex: int) -> None:
    with Hooks(writer) as hooks:
        devices.forget(hooks, ifindex)


def _unrecorded(
    writer: Writer, known: Records, loaded: dict[int, int], there: dict[int, Device]
) -> Iterator[Finding]:
    """attachments: every pinned link of an interface is recorded."""
    for side, ifindex in device_links.pinned(writer.path):
        if any((each.hook, ifindex) in known for each in SIDES):
            continue  # judged with the interface
        live, device = device_links.live_link(writer, side, ifindex), there.get(ifindex)
        role = device_links.role_of(loaded.get(live.program_id, -1)) if live is not None else 0
        if live is None or device is None or not role:
            yield Finding(
                "attachments",
                f"pin {pin_name(side, ifindex)!r} is a link to nothing, and not recorded",
                partial(drop_link, writer.pin(pin_name(side, ifindex))),
            )
            continue
        yield Finding(
            "attachments",
            f"interface {device.name} is attached at {side.name} but not recorded",
            partial(_attach, writer, device, role, clsact=False),
        )


def _interface(writer: Writer, known: Records, loaded: dict[int, int], device: Device) -> Iterator[Finding]:
    """attachments: both sides are recorded, pinned and attached, with the programs of one role."""
    mine = {side: known[side.hook, device.ifindex] for side in SIDES if (side.hook, device.ifindex) in known}
    first = next(iter(mine.values()))
    role, clsact = first.role, bool(first.flags & enums.ATTACHMENT_CLSACT)
    if role not in enums.ROLE_NAMES:
        role = device_links.role_of(first.program)
        if not role:
            yield Finding(
                "attachments",
                f"interface {device.name} is recorded with role {first.role}, which there is not",
                partial(_forget, writer, device.ifindex),
            )
            return
    repair = partial(_attach, writer, device, role, clsact=clsact)
    for side in SIDES:
        fault = _fault(writer, loaded, device, side, role, mine.get(side))
        if fault is None:
            continue
        foreign = fault.endswith(_FOREIGN)
        missing = device_links.shape_of(role, side).number not in loaded.values()
        yield Finding(
            "attachments",
            f"interface {device.name} ({enums.ROLE_NAMES[role]}), {side.name}: {fault}",
            None if foreign or missing else repair,
            SWAPPED if foreign else "mend the pin of the program first" if missing else "",
        )


_FOREIGN = "which is not svcctl's"


def _fault(
    writer: Writer, loaded: dict[int, int], device: Device, side: Side, role: int, record: Attachment | None
) -> str | None:
    if record is None:
        return "not recorded as the other side is"
    shape = device_links.shape_of(role, side)
    if (record.role, record.program) != (role, shape.number):
        return f"recorded is program {record.program} of role {record.role}"
    live: Live | None = device_links.live(writer, side, device.ifindex, record)
    if live is None:
        return "recorded but not attached"
    if loaded.get(live.program_id) != shape.number:
        recorded = writer.program_record(shape.number).id
        if live.program_id in loaded or live.program_id == recorded or not live.link_id:
            return f"runs program {live.program_id}, not that of its role"
        return f"runs program {live.program_id}, {_FOREIGN}"
    if live.link_id != record.link_id:
        return f"its link is {live.link_id}, recorded is {record.link_id}"
    if record.name.rstrip(b"\0") not in _raw_names(device):
        return f"recorded as {record.name.rstrip(bytes(1)).decode('utf-8', 'backslashreplace')}"
    return None


def _raw_names(device: Device) -> set[bytes]:
    return {name.encode("utf-8", "surrogateescape") for name in (device.name, *device.others)}


def _attach(writer: Writer, device: Device, role: int, *, clsact: bool) -> None:
    """Make and record what is missing on both sides."""
    with Hooks(writer) as hooks:
        devices.attach_device(hooks, device, role, clsact=clsact)


def _table(
    writer: Writer, known: Records, gone: dict[int, str], there: dict[int, Device]
) -> Iterator[Finding]:
    """attachments: `devices`, which programs read, has exactly the attached interfaces."""
    table = devices.read_table(writer)
    wanted = {
        ifindex: devices.table_value(there[ifindex], devices.role_of(known, ifindex))
        for ifindex in {index for _, index in known} - gone.keys()
    }
    for ifindex in sorted(table.keys() | wanted.keys()):
        if ifindex in gone or table.get(ifindex) == wanted.get(ifindex):
            continue
        have, want = table.get(ifindex), wanted.get(ifindex)
        if have is None or want is None:
            what = "does not have it" if have is None else "has it"
        elif have.mtu != want.mtu:
            what = f"says otherwise: its MTU is {want.mtu}, no longer {have.mtu}"
        else:
            what = "says otherwise"
        name = there[ifindex].name if ifindex in there else f"#{ifindex}"
        yield Finding(
            "attachments",
            f"interface {name}: the programs' table {what}",
            partial(devices.put_table, writer, ifindex, want),
        )


def _filters(
    writer: Writer, known: Records, loaded: dict[int, int], there: dict[int, Device]
) -> Iterator[Finding]:
    """attachments, strays: no filter of svcctl's is on an interface but the recorded ones."""
    for device in there.values():
        for side in SIDES:
            record = known.get((side.hook, device.ifindex))
            if record is not None and record.flags & enums.ATTACHMENT_CLSACT:
                continue
            for one in tc.mine(writer.netns, device.ifindex, side.parent):
                role = device_links.role_of(loaded.get(one.program_id, -1))
                if not role:
                    yield Finding(
                        "strays",
                        f"filter {one.name} on {device.name} ({side.name}) runs program {one.program_id},"
                        " and not one of this state",
                        None,
                        f"left over, or of a state under another bpffs: 'tc filter del dev {device.name}"
                        f" {side.name} pref {one.priority}' ends it",
                    )
                elif record is not None:
                    yield Finding(
                        "attachments",
                        f"filter {one.name} is on {device.name} ({side.name}) besides its link",
                        partial(_drop_filter, writer, side, device.ifindex),
                    )
                elif not any((each.hook, device.ifindex) in known for each in SIDES):
                    yield Finding(
                        "attachments",
                        f"filter {one.name} is on {device.name} ({side.name}) but not recorded",
                        partial(_attach, writer, device, role, clsact=True),
                    )


def _strays(
    writer: Writer, known: Records, loaded: dict[int, int], there: dict[int, Device]
) -> Iterator[Finding]:
    """strays: no packet path of another state is linked to an interface of this one."""
    for hook, ifindex in sorted(known):
        device = there.get(ifindex)
        if device is None:
            continue
        for other in foreign.others_on_device(writer.netns, ifindex, hook, set(loaded)):
            if other.ours:
                yield Finding(
                    "strays",
                    f"program {other.program_id} ({other.name}) is a packet path of svcctl on {device.name}, and not"
                    " the one of this state",
                    None,
                    "state under another bpffs, or left over: 'bpftool net' and 'bpftool link' tell more",
                )


def _drop_filter(writer: Writer, side: Side, ifindex: int) -> None:
    with Hooks(writer) as hooks:
        hooks.drop_filter(side, ifindex)
