"""frontends, blocks, backends, references: what follows from the services, and what is left of none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BACKEND_ID,
    BACKEND_KEY,
    FRONTEND,
    MEMBER_KEY,
    SLOT_KEY,
    BackendId,
    MemberKey,
    SlotKey,
)
from svcctl.model.service_endpoint import format_backend
from svcctl.state.audit.finding import Finding
from svcctl.state.change_frontends import show_key, words_of
from svcctl.state.services import as_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.maps.service_layouts import BackendValue
    from svcctl.state.audit.service_view import View


def frontends(view: View) -> Iterator[Finding]:
    """frontends: one word for each frontend and blocked address of a service, and no others."""
    table = view.writer.map("frontends")
    wanted: dict[bytes, bytes] = {}
    owners: dict[bytes, str] = {}
    unclear = set()
    for one in view.known.values():
        if one.fault or not one.is_whole:
            unclear |= set(one.lanes.values())  # frontends that lead there may be right
        if not one.is_whole:
            continue
        for key, word in words_of(one.service, one.lanes).items():
            if key in wanted:
                yield Finding(
                    "frontends",
                    f"{show_key(key)} is claimed by {owners[key]} and {one}",
                    None,
                    "'svcctl service set NAME --no-frontend' takes it from one of them",
                )
                unclear.add(FRONTEND.unpack(view.words.get(key, word)).lane)
                continue
            wanted[key], owners[key] = word, str(one)
    for key, word in wanted.items():
        have = view.words.get(key)
        if have != word and not (have is not None and FRONTEND.unpack(have).lane in unclear):
            what = "is missing" if have is None else f"is {_word(have)} instead of {_word(word)}"
            yield Finding(
                "frontends", f"{owners[key]}: {show_key(key)} {what}", partial(table.update, key, word)
            )
    for key, word in view.words.items():
        if key not in wanted and FRONTEND.unpack(word).lane not in unclear:
            yield Finding("frontends", f"{show_key(key)} is no service's", partial(table.delete, key))


def _word(word: bytes) -> str:
    lane, mark = FRONTEND.struct.unpack(word)
    return f"lane {lane}, mark {mark:#x}"


def lost_backends(view: View) -> Iterator[Finding]:
    """backends: each that a service has is there under its id."""
    table = view.writer.map("backends")
    for number in sorted(view.referenced()):
        have, right = view.backends.get(number), view.address(number)
        assert right is not None
        if have is None or (have.id, have.flags, have.node, have.pad) != (number, 0, 0, 0):
            sound = right._replace(id=number, flags=0, node=0, pad=0)
            what = "is missing" if have is None else f"has other fields than its own: {have}"
            yield Finding(
                "backends",
                f"backend {number} ({format_backend(as_backend(right))}) {what}",
                partial(table.update, U32.pack(number), BACKEND.pack(sound)),
            )


def references(view: View) -> Iterator[Finding]:
    """references: of a backend, as many as memberships; backends: address and id lead to each other."""
    index = view.writer.map("backend_ids")
    counts = view.referenced()
    for number in sorted(counts):
        key = view.keys[number]
        entry = view.index.get(key)
        if entry is not None and (entry.id, entry.refs) == (number, counts[number]):
            continue
        value = view.address(number)
        assert value is not None
        if entry is None:
            entry = BackendId(number, counts[number], b"", b"")
            yield Finding(
                "backends",
                f"the address of backend {number} ({format_backend(as_backend(value))}) does not lead to it",
                partial(index.update, key, BACKEND_ID.pack(entry)),
            )
        elif entry.id != number:
            if counts.get(entry.id) and view.keys.get(entry.id) == key:
                yield Finding(
                    "backends",
                    f"backends {entry.id} and {number} are both {format_backend(as_backend(value))}",
                    None,
                    "'svcctl backend delete' and 'svcctl backend add' in one of their services",
                )
            else:
                yield Finding(
                    "backends",
                    f"{format_backend(as_backend(value))} leads to backend {entry.id} instead of {number}",
                    partial(
                        index.update, key, BACKEND_ID.pack(entry._replace(id=number, refs=counts[number]))
                    ),
                )
        elif entry.refs < counts[number] or (view.is_sure and entry.refs != counts[number]):
            yield Finding(
                "references",
                f"backend {format_backend(as_backend(value))}: {entry.refs} references, {counts[number]} memberships",
                partial(index.update, key, BACKEND_ID.pack(entry._replace(refs=counts[number]))),
            )
    if view.is_sure:
        yield from _stray_backends(view, counts)


def _stray_backends(view: View, counts: dict[int, int]) -> Iterator[Finding]:
    """backends: none that no service has."""
    for key, entry in view.index.items():
        if not counts.get(entry.id) or view.keys.get(entry.id) != key:
            shown = format_backend(as_backend(_from_key(key)))
            yield Finding(
                "backends",
                f"backend {entry.id} ({shown}) is in no service",
                partial(view.writer.map("backend_ids").delete, key),
            )
    for number, value in view.backends.items():
        if not counts.get(number):
            yield Finding(
                "backends",
                f"backend {number} ({format_backend(as_backend(value))}) is nobody's",
                partial(_delete_backend, view, number),
            )


def _from_key(key: bytes) -> BackendValue:
    from svcctl.maps.service_layouts import BackendValue

    return BackendValue(*BACKEND_KEY.unpack(key)[:2], 0, 0, 0, 0, 0)


def _delete_backend(view: View, number: int) -> None:
    view.wait()
    view.writer.map("backends").delete(U32.pack(number))


def stray_blocks(view: View) -> Iterator[Finding]:
    """blocks: none, with slots and members, that no lane's word leads to."""
    reached = {number for pair in view.current.values() for number in pair}
    reached.discard(0)
    # Of a block that is reached, what is too much in it is a fault of its lane.
    for number in sorted({*view.blocks, *view.slots, *view.members} - reached):
        slots, members = view.slots.get(number, {}), view.members.get(number, {})
        what = "block" if number in view.blocks else "what is left of block"
        yield Finding(
            "blocks",
            f"{what} {number} with {len(slots)} slots and {len(members)} members is reached by no lane",
            partial(_delete_block, view, number, tuple(slots), tuple(members)),
        )


def stray_ranges(view: View) -> Iterator[Finding]:
    """blocks: no source ranges but those of a service, and those of clients without DSR."""
    known = {one.value.ranges for one in view.known.values()} | {view.no_dsr}
    for number, prefixes in sorted(view.ranges.items()):
        if number not in known or not number:
            keys = codec.range_keys(number, prefixes)
            yield Finding(
                "blocks",
                f"{len(keys)} source ranges of number {number}, which is no service's",
                partial(_delete_ranges, view, keys),
            )


def _delete_ranges(view: View, keys: list[bytes]) -> None:
    view.wait()
    view.writer.map("source_ranges").delete_many(b"".join(keys), len(keys))


def _delete_block(view: View, number: int, slots: tuple[int, ...], members: tuple[int, ...]) -> None:
    view.wait()
    writer = view.writer
    writer.map("blocks").delete(U32.pack(number))
    if slots:
        keys = b"".join(SLOT_KEY.pack(SlotKey(number, slot)) for slot in slots)
        writer.map("slots").delete_many(keys, len(slots))
    if members:
        keys = b"".join(MEMBER_KEY.pack(MemberKey(number, backend)) for backend in members)
        writer.map("members").delete_many(keys, len(members))
