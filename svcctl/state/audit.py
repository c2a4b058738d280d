"""The invariants between the maps, the pins and the kernel. ARCHITECTURE.md has the table; the names are its rows.

`audit` reads everything and returns what is broken, each with the function that mends it, where mending needs
no decision. Used by `check`, `check --repair`, and by the first command after one that died.
"""

from __future__ import annotations

import os
import stat
from sys import byteorder
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.link import query_programs
from svcctl.errors import SvcctlError
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, exact_check
from svcctl.model.binding import is_exact_key, key_fault, key_fields
from svcctl.model.destination import Destination
from svcctl.state import attach, destinations
from svcctl.state.bindings import encode_value, kind_of, map_key, port_index
from svcctl.state.create import DIRECTORY_MODE
from svcctl.state.swap import next_pins
from svcctl.state.writer import link_info, program_map_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcctl.state.writer import Writer


class Finding(NamedTuple):
    """One broken invariant. `repair` mends it; None: `advice` says what to decide."""

    invariant: str
    message: str
    repair: Callable[[], None] | None
    advice: str = ""


def audit(writer: Writer) -> list[Finding]:
    """Everything that is broken. Needs the lock and root; changes nothing."""
    found = list(_pins(writer))
    if any(finding.invariant == "pins" and finding.repair is None for finding in found):
        return found  # without its maps the rest cannot be judged
    found += _meta(writer)
    if not writer.has_dispatcher():
        return found
    found += _programs(writer)
    found += _attachments(writer)
    found += _bindings(writer)
    found += _sockets(writer)
    return found


def expected_pins(writer: Writer) -> dict[str, int]:
    """Name -> mode of every pin that belongs in the directory as it is now."""
    wanted = dict.fromkeys(catalog.STATE_MAPS, 0)
    if any(os.path.lexists(writer.pin(name)) for name in (*catalog.DISPATCH_MAPS, catalog.DISPATCH.pin)):
        wanted |= dict.fromkeys(catalog.DISPATCH_MAPS, 0)
        wanted[catalog.DISPATCH.pin] = 0o600
    if os.path.lexists(writer.pin(catalog.DISPATCH.link_pin)):
        wanted[catalog.DISPATCH.link_pin] = 0o600
    return wanted


def _pins(writer: Writer) -> Iterator[Finding]:
    """pins: all there, of the right shape, nothing else; modes: owner, group, mode."""
    present = set(os.listdir(writer.path))
    wanted = expected_pins(writer)
    for name in sorted(wanted.keys() - present):
        yield Finding(
            "pins", f"pin {name!r} is missing", None, "'svcctl unload' and 'svcctl load' start anew"
        )
    for name in sorted(wanted.keys() & present & catalog.MAPS.keys()):
        try:
            writer.map(name)
        except SvcctlError as error:
            # Modes have their own finding below, and are mended by it.
            if error.exit_code != 4:
                yield Finding("pins", error.message, None, "'svcctl unload' and 'svcctl load' start anew")
    left = next_pins(writer.path)
    for name in sorted(present - wanted.keys() - set(left)):
        yield Finding(
            "orphans", f"{name!r} does not belong here", None, f"look at it, then: rm {writer.pin(name)}"
        )
    try:
        meta = writer.meta()
    except SvcctlError:
        return
    if left and meta.swap_phase == enums.SWAP_NONE and not meta.generation & 1:
        yield Finding("orphans", f"left over from an upgrade: {', '.join(left)}", lambda: _drop_next(writer))
    status = os.stat(writer.path)
    if stat.S_IMODE(status.st_mode) != DIRECTORY_MODE or status.st_gid != meta.group or status.st_uid != 0:
        yield Finding(
            "modes",
            f"the directory has mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}, gid {status.st_gid};"
            f" expected {DIRECTORY_MODE:04o}, 0, {meta.group}",
            lambda: _set_mode(writer.path, DIRECTORY_MODE, meta.group),
        )
    for name in sorted(wanted.keys() & present):
        mode = wanted[name] or meta.mode
        status = os.stat(writer.pin(name))
        group = meta.group if name in catalog.MAPS else status.st_gid
        if stat.S_IMODE(status.st_mode) != mode or status.st_gid != group or status.st_uid != 0:
            yield Finding(
                "modes",
                f"pin {name!r} has mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}, gid {status.st_gid};"
                f" expected {mode:04o}, 0, {group}",
                lambda name=name, mode=mode, group=group: _set_mode(writer.pin(name), mode, group),  # type: ignore[misc]
            )


def _drop_next(writer: Writer) -> None:
    from svcctl.state.swap import drop_next

    drop_next(writer)


def _set_mode(path: str, mode: int, group: int) -> None:
    os.chown(path, 0, group)
    os.chmod(path, mode)


def _meta(writer: Writer) -> Iterator[Finding]:
    """identity: whose state this is; mark: no writer died; writers: the ring's position."""
    meta = writer.meta()
    if meta.netns_inode != writer.netns.inode:
        yield Finding(
            "identity",
            f"meta names network namespace {meta.netns_inode}, the directory {writer.netns.inode}",
            None,
            "'svcctl unload' and 'svcctl load' start anew",
        )
    if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
        yield Finding(
            "mark",
            f"interrupted: {layouts.text(meta.mark_command)!r} by pid {meta.mark_pid}, uid {meta.mark_uid}",
            lambda: None,  # every writer mends this first; to be here means it could not
        )
    if meta.next_writer >= layouts.WRITERS:
        yield Finding(
            "writers",
            f"next writer {meta.next_writer} is out of range",
            lambda: writer.put_meta(writer.meta()._replace(next_writer=0)),
        )


def _programs(writer: Writer) -> Iterator[Finding]:
    """programs: record, pin and maps agree."""
    shape = catalog.DISPATCH
    record = writer.program_record(shape.number)
    program = attach.open_program(writer, shape)
    if program is None:
        return
    with program:
        info = program.info
    if info.id != record.id:
        yield Finding(
            "programs",
            f"the pinned program {shape.name} is {info.id}, recorded is {record.id}",
            None,
            "'svcctl upgrade --force' loads svcctl's program anew",
        )
        return
    reads = set(info.map_ids)
    if reads != program_map_ids(record):
        yield Finding(
            "programs",
            f"the record of program {info.id} names other maps than the kernel",
            lambda: _record_again(writer),
        )
    for name in catalog.PROGRAM_READS:
        if writer.map(name).info.id not in reads:
            yield Finding(
                "programs",
                f"pinned map {name!r} ({writer.map(name).info.id}) is not one that program {info.id} reads",
                None,
                "'svcctl upgrade --force' puts a program on the pinned maps, if those are the good ones",
            )


def _record_again(writer: Writer) -> None:
    shape = catalog.DISPATCH
    old = writer.program_record(shape.number)
    program = attach.open_program(writer, shape)
    if program is None:
        return
    with program:
        ids = tuple(program.info.map_ids)[: layouts.PROGRAM_MAPS]
    record = old._replace(map_count=len(ids), map_ids=b"".join(U32.pack(number) for number in ids))
    writer.map("programs").update(U32.pack(shape.number), layouts.PROGRAM.pack(record))


def _attachments(writer: Writer) -> Iterator[Finding]:
    """attachments: recorded, pinned and attached are the same."""
    shape = catalog.DISPATCH
    records = {
        layouts.ATTACHMENT_KEY.unpack(key): layouts.ATTACHMENT.unpack(value)
        for key, value in writer.map("attachments").items()
    }
    mine = attach.netns_key(writer.netns.inode)
    for key in records:
        if key != mine:
            yield Finding(
                "attachments",
                f"recorded: kind {key.kind}, hook {key.hook}, target {key.target}: not made by this svcctl",
                lambda key=key: _forget(writer, key),  # type: ignore[misc]
            )
    info = link_info(writer, shape)
    record = records.get(mine)
    if record is None and info is not None:
        yield Finding(
            "attachments", "the dispatcher is attached but not recorded", lambda: attach.attach_netns(writer)
        )
    elif record is not None and info is None:
        yield Finding(
            "attachments", "the dispatcher is recorded but not attached", lambda: attach.attach_netns(writer)
        )
    elif record is not None and info is not None:
        if info.netns_inode != writer.netns.inode:
            yield Finding(
                "attachments",
                f"the dispatcher's link is on network namespace {info.netns_inode}",
                lambda: _attach_anew(writer),
            )
        elif info.id != record.link_id:
            yield Finding(
                "attachments",
                f"the dispatcher's link is {info.id}, recorded is {record.link_id}",
                lambda: attach.attach_netns(writer),
            )
        elif info.program_id not in query_programs(writer.netns.fd, shape.hook):
            yield Finding(
                "attachments", f"program {info.program_id} is not attached", lambda: _attach_anew(writer)
            )
        if info.program_id != writer.program_record(shape.number).id:
            yield Finding(
                "attachments",
                f"the link runs program {info.program_id}, recorded is {writer.program_record(shape.number).id}",
                None,
                "someone else swapped it; 'svcctl upgrade --force' puts svcctl's program back",
            )


def _forget(writer: Writer, key: layouts.AttachmentKey) -> None:
    writer.map("attachments").delete(layouts.ATTACHMENT_KEY.pack(key))


def _attach_anew(writer: Writer) -> None:
    os.unlink(writer.pin(catalog.DISPATCH.link_pin))
    attach.attach_netns(writer)


def _bindings(writer: Writer) -> Iterator[Finding]:
    """bindings, references, ids, ports, usage."""
    all_destinations, clashes = _read_destinations(writer)
    yield from clashes
    refs = dict.fromkeys(all_destinations, 0)
    ports: dict[int, list[int]] = {}
    counts = {"exact": 0, "bindings": 0}
    for key, value in _all_bindings(writer):
        name = kind_of(key)
        counts[name] += 1
        fault = key_fault(key)
        if fault is not None:
            yield Finding(
                "bindings",
                f"{name}: key {key.hex()}: {fault}",
                lambda key=key, name=name: _delete_binding(writer, name, key),  # type: ignore[misc]
            )
            counts[name] -= 1
            continue
        cell = ports.setdefault(port_index(key[4], int.from_bytes(key[6:8], byteorder)), [0, 0])
        cell[0 if name == "exact" else 1] += 1
        number, second = layouts.BINDING.struct.unpack(value)
        if second != (exact_check(key[4:]) if name == "exact" else U32.unpack_from(key)[0]):
            yield Finding(
                "bindings",
                f"{name}: {_show(key)}: the value does not belong to the key",
                lambda key=key, name=name, number=number: writer.map(name).update(  # type: ignore[misc]
                    map_key(key), encode_value(key, number)
                ),
            )
        owner = all_destinations.get(number)
        if owner is None:
            yield Finding(
                "bindings",
                f"{_show(key)} goes to destination {number}, which does not exist (its traffic is refused)",
                None,
                "'svcctl bind --replace' gives it a label, 'svcctl unbind --force' removes it",
            )
        else:
            refs[number] += 1
            if (owner.key.family, owner.key.protocol) != (key[5], key[4]):
                yield Finding(
                    "bindings",
                    f"{_show(key)} goes to {owner}, of another family or protocol",
                    None,
                    "'svcctl bind --replace' gives it the right label",
                )
    for number, owner in all_destinations.items():
        if owner.refs != refs[number]:
            yield Finding(
                "references",
                f"{owner}: {owner.refs} references, {refs[number]} bindings",
                lambda owner=owner, count=refs[number]: _set_refs(writer, owner, count),  # type: ignore[misc]
            )
    yield from _ports(writer, ports)
    for name, used in (*counts.items(), ("destinations", len(all_destinations) + len(clashes))):
        usage = writer.usage(name)
        right = layouts.Usage(used, writer.map(name).info.max_entries)
        if usage != right:
            yield Finding(
                "usage",
                f"{name}: {usage.used} of {usage.max} noted, {right.used} of {right.max} counted",
                lambda name=name, right=right: writer.put_usage(name, right),  # type: ignore[misc]
            )


def _set_refs(writer: Writer, owner: Destination, count: int) -> None:
    destinations.release_if_unused(writer, destinations.change_refs(writer, owner, count - owner.refs))


def _show(key: bytes) -> str:
    protocol, prefix, port = key_fields(key)
    return f"{protocol} {prefix} port {port}"


def _delete_binding(writer: Writer, name: str, key: bytes) -> None:
    writer.map(name).delete(key[4:] if name == "exact" else key)


def _all_bindings(writer: Writer) -> Iterator[tuple[bytes, bytes]]:
    full = U32.pack(160)
    for key, value in writer.map("exact").items():
        yield full + key, value
    for key, value in writer.map("bindings").items():
        if is_exact_key(key):
            yield key[:4] + key[4:], value
        else:
            yield key, value


def _read_destinations(writer: Writer) -> tuple[dict[int, Destination], list[Finding]]:
    """Destinations by id, and those whose id is another's, out of range or never handed out."""
    found: dict[int, Destination] = {}
    broken = []
    meta = writer.meta()
    largest = writer.map("destinations").info.max_entries
    highest = -1
    for key, value in writer.map("destinations").items():
        one = Destination(destinations.decode_key(key), *layouts.DESTINATION.unpack(value))
        if one.id >= largest or one.id in found:
            other = f", which is also {found[one.id]}'s" if one.id in found else f", of at most {largest}"
            broken.append(
                Finding(
                    "ids",
                    f"{one} has id {one.id}{other}",
                    None,
                    "bind and register its label anew under another name",
                )
            )
            continue
        found[one.id] = one
        highest = max(highest, one.id)
    if highest >= meta.next_destination:
        broken.append(
            Finding(
                "ids",
                f"the next id is {meta.next_destination}, but {highest} is in use",
                lambda: writer.put_meta(writer.meta()._replace(next_destination=highest + 1)),
            )
        )
    return found, broken


def _ports(writer: Writer, counted: dict[int, list[int]]) -> Iterator[Finding]:
    table = writer.map("ports")
    _, values, count = table.read_all()
    wrong = []
    for index in range(count):
        exact, trie = layouts.PORTS.struct.unpack_from(values, 8 * index)
        right = counted.get(index)
        if (exact, trie) != (tuple(right) if right else (0, 0)):
            wrong.append((index, (exact, trie), tuple(right) if right else (0, 0)))
    for index, have, want in wrong[:20]:
        protocol = "udp" if index >= 65536 else "tcp"
        yield Finding(
            "ports",
            f"{protocol} port {index % 65536}: {have[0]} hosts and {have[1]} prefixes noted,"
            f" {want[0]} and {want[1]} counted",
            lambda index=index, want=want: table.update(U32.pack(index), layouts.PORTS.struct.pack(*want)),  # type: ignore[misc]
        )
    if len(wrong) > 20:
        rest = wrong[20:]

        def repair() -> None:
            for index, _, want in rest:
                table.update(U32.pack(index), layouts.PORTS.struct.pack(*want))

        yield Finding("ports", f"{len(rest)} more ports with wrong counts", repair)


def _sockets(writer: Writer) -> Iterator[Finding]:
    """sockets: only under destinations that say so; hints: within the slots."""
    sockets, hints = writer.map("sockets"), writer.map("hints")
    slots = {found.id: found.slots for found in destinations.read_all(writer).values()}
    largest = writer.map("destinations").info.max_entries
    for number in range(min(max(writer.meta().next_destination, max(slots, default=-1) + 1), largest)):
        noted = slots.get(number, 0)
        for slot in range(SOCKETS_PER_DESTINATION):
            key = U32.pack(number * SOCKETS_PER_DESTINATION + slot)
            if not noted >> slot & 1 and sockets.lookup(key) is not None:
                yield Finding(
                    "sockets",
                    f"slot {slot} of destination {number} holds a socket nobody registered",
                    lambda key=key: (sockets.delete(key), None)[1],  # type: ignore[misc]
                )
        hint = hints.lookup(U32.pack(number))
        if hint is not None and U32.unpack(hint)[0] >= SOCKETS_PER_DESTINATION:
            yield Finding(
                "hints",
                f"the hint of destination {number} is {U32.unpack(hint)[0]}",
                lambda number=number: hints.update(U32.pack(number), U32.pack(0)),  # type: ignore[misc]
            )
