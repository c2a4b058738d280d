"""Doctor's lines about the namespace and the state that is loaded for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import NotLoaded, PermissionProblem, SvcctlError
from svcctl.host import devices as host_devices
from svcctl.maps import catalog, layouts
from svcctl.state import attach
from svcctl.state.doctor import balancer, tunnels
from svcctl.state.doctor.line import FAIL, OK, UNSEEN, WARN, Line, unseen
from svcctl.state.picture import read_fill
from svcctl.state.programs import object_digest, object_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcctl.state.doctor.probe import Probe
    from svcctl.state.session import Reader

NEARLY_FULL = 0.9
GROUP_READS = (5, 19)
"""From this kernel on a process without capabilities may read pinned maps it has permission for."""


def lines(probe: Probe) -> Iterator[Line]:
    """Foreign programs, leftovers, and the loaded state."""
    yield _foreign(probe)
    yield _leftovers(probe)
    try:
        reader = probe.reader()
    except NotLoaded as error:
        yield from _without("state", Line("state", OK, f"not loaded: {error.message}"))
        return
    except PermissionProblem as error:
        yield from _without("state", unseen("state", error.message))
        return
    except (SvcctlError, BpfError, OSError) as error:
        hint = getattr(error, "hint", None) or "'svcctl check' lists what is broken"
        yield from _without("state", Line("state", FAIL, str(error), hint))
        return
    with reader:
        for name, look in LOADED.items():
            yield _guarded(name, look, probe, reader)


def _without(first: str, line: Line) -> Iterator[Line]:
    """The line that says why there is no state, and the others that hang on it."""
    yield line
    why = line.message.removeprefix(UNSEEN)
    for name in LOADED:
        if name != first:
            yield Line(name, OK, "not loaded") if line.status == OK else unseen(name, why, "see 'state'")


def _guarded(name: str, look: Callable[[Probe, Reader], Line], probe: Probe, reader: Reader) -> Line:
    try:
        return look(probe, reader)
    except PermissionProblem as error:
        return unseen(name, error.message)
    except (SvcctlError, BpfError, OSError) as error:
        return Line(
            name, FAIL, str(error), getattr(error, "hint", None) or "'svcctl check' lists what is broken"
        )


def _foreign(probe: Probe) -> Line:
    name = "foreign programs"
    try:
        programs = probe.foreign_programs()
    except SvcctlError as error:
        return Line(name, FAIL, error.message, error.hint)
    except BpfError as error:
        return Line(name, WARN, f"not looked at: {error}")
    if programs is None:
        return unseen(name, "needs CAP_NET_ADMIN")
    own = _own_program(probe)
    others = [one for one in programs if one.program_id != own]
    if not others:
        return Line(name, OK, "none at the dispatcher's hook")
    text = ", ".join(f"{one.name or 'unnamed'} ({one.program_id}, place {one.position})" for one in others)
    return Line(
        name,
        WARN,
        f"also at the dispatcher's hook: {text}",
        "the first one that chooses a socket is obeyed: 'svcctl attachments -o wide' shows the order",
    )


def _own_program(probe: Probe) -> int | None:
    try:
        with probe.reader() as reader:
            if not attach.is_attached(reader):
                return None
            return reader.program_record(catalog.DISPATCH.number).id
    except (SvcctlError, BpfError, OSError):
        return None


def _leftovers(probe: Probe) -> Line:
    name = "leftovers"
    try:
        found = probe.leftovers()
    except PermissionError:
        return unseen(name, f"{probe.place.bpffs} may not be listed")
    except OSError as error:
        return Line(name, WARN, f"not looked at: {probe.place.bpffs}: {error.strerror}")
    if found:
        return Line(
            name,
            WARN,
            f"of killed commands or dead namespaces: {', '.join(found)}",
            "'svcctl gc' removes them",
        )
    return Line(name, OK, "none")


def _state(probe: Probe, reader: Reader) -> Line:
    meta = reader.meta()
    missing = [name for name in catalog.STATE_MAPS if not reader.has_map(name)]
    made = [half for half in catalog.HALVES if not missing and reader.has_half(half)]
    missing += [name for half in made for name in half.maps if not reader.has_map(name)]
    if missing:
        return Line(
            "state", FAIL, f"pins are missing: {', '.join(missing)}", "'svcctl check --repair' mends it"
        )
    for name in catalog.MAPS:
        if reader.has_map(name):
            reader.map(name)
    return Line("state", OK, f"{reader.path}, layout {meta.schema}, of svcctl {layouts.text(meta.version)}")


def _mark(probe: Probe, reader: Reader) -> Line:
    meta = reader.meta()
    if not meta.generation & 1 and not meta.swap_phase:
        return Line("interrupted", OK, "no")
    who = f"{layouts.text(meta.mark_command)!r} (pid {meta.mark_pid}, uid {meta.mark_uid})"
    if os.path.exists(f"/proc/{meta.mark_pid}"):
        return Line("interrupted", OK, f"no: {who} is at work")
    return Line(
        "interrupted", WARN, f"{who} did not finish", "the next change, or 'svcctl check --repair', mends it"
    )


def _program(probe: Probe, reader: Reader) -> Line:
    record = reader.program_record(catalog.DISPATCH.number)
    if not record.id:
        return Line("program", OK, "none is loaded")
    text = f"program {record.id} of svcctl {layouts.text(record.version)}"
    try:
        same = record.sha256 == object_digest(object_path(catalog.DISPATCH.object))
    except (SvcctlError, OSError) as error:
        return Line("program", WARN, f"{text}, not compared: {error}")
    if not same:
        return Line(
            "program", WARN, f"{text} is not the one this svcctl has", "'svcctl upgrade' swaps it in place"
        )
    return Line("program", OK, text)


def _attachment(probe: Probe, reader: Reader) -> Line:
    if not reader.has_dispatcher():
        return Line("attachment", OK, "the dispatcher was never attached ('load --no-dispatcher')")
    if not attach.is_attached(reader):
        return Line("attachment", WARN, "the dispatcher is not attached", "'svcctl attach netns' attaches it")
    up = attach.is_live(reader)
    if up is None:
        return unseen("attachment", "recorded as attached; links are for root")
    if not up:
        return Line(
            "attachment", FAIL, "recorded as attached, but it is not", "'svcctl check --repair' attaches it"
        )
    return Line("attachment", OK, f"the dispatcher steers network namespace {reader.netns.inode}")


def _interfaces(probe: Probe, reader: Reader) -> Line:
    """What the packet path is attached to, or would be by its rules."""
    name = "interfaces"
    if not reader.has_half(catalog.PACKETS):
        return Line(name, OK, "the packet path was never attached")
    from svcctl.state import devices

    rows = [row for row in attach.list_attachments(reader) if row.kind == "dev"]
    there = probe.devices()
    gone = [text for _, text in devices.find_gone(reader, there)]
    if gone:
        return Line(name, WARN, f"attached, and gone: {', '.join(gone)}", "'svcctl gc' forgets them")
    down = sorted({row.interface or "?" for row in rows if row.up is False})
    if down:
        return Line(
            name,
            FAIL,
            f"recorded as attached, but not: {', '.join(down)}",
            "'svcctl check --repair' attaches them",
        )
    attached = {row.target for row in rows}
    waiting = sorted(
        one.name
        for one in there
        if one.ifindex not in attached
        and not one.loopback
        and any(host_devices.matches(one, rule.pattern) for rule in devices.read_rules(reader))
    )
    if waiting:
        return Line(
            name,
            WARN,
            f"match a rule and are not attached: {', '.join(waiting)}",
            "'svcctl attach dev' attaches them",
        )
    return Line(name, OK, f"{len(attached)} attached" if attached else "none is attached")


def _group(probe: Probe, reader: Reader) -> Line:
    name, group = "group access", reader.meta().group
    if not group:
        return Line(name, OK, "root only")
    root = probe.root()
    path = probe.place.bpffs
    if root is not None and root.mode & 0o022:
        return Line(
            name,
            FAIL,
            f"{path} has mode {root.mode:04o}: a member of group {group} could pin a map there and write it",
            f"chmod go-w {path}",
        )
    if root is not None and not root.mode & 0o001:
        return Line(
            name,
            WARN,
            f"{path} has mode {root.mode:04o}: group {group} cannot get through",
            f"chmod o+x {path}",
        )
    if probe.kernel_release() < GROUP_READS and probe.sysctl("kernel.unprivileged_bpf_disabled") != "0":
        return Line(
            name,
            WARN,
            f"before Linux 5.19 members of group {group} need CAP_BPF to read",
            "AmbientCapabilities=CAP_BPF in the unit that scrapes",
        )
    return Line(name, OK, f"group {group} may read")


def _fill(probe: Probe, reader: Reader) -> Line:
    texts, status, hint = [], OK, None
    for name, used, most, option in read_fill(reader):
        texts.append(f"{name} {used} of {most}")
        # A full LRU map forgets the oldest; sockets beyond `reverse` are served all the same.
        if most and used >= NEARLY_FULL * most and catalog.MAPS[name].type != catalog.LRU_HASH:
            counted = catalog.MAPS[name].usage is not None
            status = FAIL if (used >= most and counted) or status == FAIL else WARN
            hint = f"'svcctl upgrade {option} N' makes it larger without interruption"
    return Line("fill", status, ", ".join(texts) or "no maps yet", hint)


LOADED: dict[str, Callable[[Probe, Reader], Line]] = {
    "state": _state,
    "interrupted": _mark,
    "program": _program,
    "attachment": _attachment,
    "balancer programs": balancer.programs,
    "balancer": balancer.attachment,
    "interfaces": _interfaces,
    "tunnels": tunnels.tunnels,
    "pod prefixes": tunnels.pod_prefixes,
    "forwarding": tunnels.forwarding,
    "source ports": tunnels.source_ports,
    "group access": _group,
    "fill": _fill,
}
"""Lines that need a loaded state, in their order."""
