"""Takes over what a loaded tubular (`tubectl`) steers: its bindings and the sockets registered with it.

Both programs are attached for a moment. The kernel asks the earlier one first and ours leaves a choice that was
made alone, so tubular serves until its directory is removed, and svcctl from then on: nothing is refused in
between. Killed at any point, `load --from-tubular` goes on where it stopped.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.map import Map
from svcctl.errors import Conflict, Incompatible, UsageProblem
from svcctl.maps import layouts
from svcctl.maps.layouts import U32
from svcctl.model.binding import Binding, format_binding
from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.destination import DestinationKey
from svcctl.model.label import check_label
from svcctl.model.plan import plan as make_plan
from svcctl.model.prefix import MAPPED
from svcctl.state import bulk, destinations, migrate
from svcctl.state import place as places
from svcctl.state.attach import drop_link
from svcctl.state.bindings import apply_plan, read_labels
from svcctl.state.lock import open_locked
from svcctl.state.unload import retire_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.place import Place
    from svcctl.state.writer import Writer

# Layouts of tubular 2022.2.1: packed, integers in host byte order, addresses v4-mapped.
_BINDING_KEY = Struct("=IBH16s")
_DESTINATION_KEY = Struct("=255sBB")
_PAIR = Struct("=II")
_HEADER_BITS = 24
_DOMAINS = {2: IPV4, 10: IPV6}


def directory(place: Place, inode: int) -> str | None:
    """Path of the tubular state of a network namespace, None without any."""
    path = f"{place.bpffs}/{inode}_dispatcher"
    return path if os.path.lexists(path) else None


def take_over(writer: Writer, path: str) -> Iterator[tuple[str, str, str]]:
    """Copy the bindings and sockets of the tubular state at `path`, then remove it. Yields (action, kind, name).

    The lock of the bpffs root must be held. Raises Conflict where a binding is ours under another label
    already, Incompatible for another version's layouts and for labels svcctl does not allow, Full.
    """
    fd = open_locked(path, writer.place)
    try:
        places.check_owner(path, os.fstat(fd))
        with _open(path, "bindings", (23, 8)) as bindings, _open(path, "destinations", (257, 8)) as named:
            names = _names(writer, named)
            want = dict(_bindings(writer, bindings, names))
        yield from _take_bindings(writer, want)
        with _open(path, "sockets", (4, 8)) as sockets:
            yield from _take_sockets(writer, sockets, names)
        # From here on svcctl's dispatcher decides. Killed after it, the directory without a link steers nothing,
        # and taking over once more finds everything taken.
        drop_link(f"{path}/link")
        retire_directory(writer.place, path)
        yield "deleted", "tubular state", path
    finally:
        os.close(fd)


def _take_bindings(writer: Writer, want: dict[bytes, str]) -> Iterator[tuple[str, str, str]]:
    have = read_labels(writer)
    taken = [key for key, label in want.items() if have.get(key, label) != label]
    if taken:
        binding = Binding.from_key(taken[0], want[taken[0]])
        raise Conflict(
            f"load --from-tubular: {format_binding(binding)} is bound to {have[taken[0]]!r} already",
            hint="unbind it here or there first",
        )
    plan = make_plan({key: have[key] for key in want.keys() & have.keys()}, want)
    if plan.changes > bulk.THRESHOLD:
        bulk.replace_all(writer, {**have, **want})
    else:
        apply_plan(writer, plan)
    for key, label in plan.added:
        yield "created", "binding", format_binding(Binding.from_key(key, label))


def _open(path: str, name: str, sizes: tuple[int, int]) -> Map:
    try:
        opened = Map.open_pinned(f"{path}/{name}", read_only=name != "sockets")
    except BpfError as error:
        raise Incompatible(f"load --from-tubular: {path}/{name}: {error.strerror}") from error
    if (opened.info.key_size, opened.info.value_size) != sizes:
        opened.close()
        raise Incompatible(
            f"load --from-tubular: {path}/{name}: another layout than tubular 2022.2.1 has",
            hint="'tubectl bindings' lists them; bind and register them by hand",
        )
    return opened


def _names(writer: Writer, named: Map) -> dict[int, DestinationKey]:
    """Destinations by id.

    tubular can give an id to a second label while the first one's entry is still there. Bindings then mean the
    one that is counted as bound.
    """
    found: dict[int, tuple[int, DestinationKey]] = {}
    for key, value in named.items():
        raw, domain, protocol = _DESTINATION_KEY.unpack(key)
        number, count = _PAIR.unpack(value)
        if domain not in _DOMAINS or protocol not in (TCP, UDP):
            continue
        one = DestinationKey(layouts.text(raw), _DOMAINS[domain], protocol)
        other = found.get(number)
        if other is not None and count and other[0]:
            raise Conflict(
                f"load --from-tubular: {other[1]} and {one} are one destination, number {number}, to tubular",
                hint="'tubectl unbind' the bindings of one of them first",
            )
        if other is None or count:
            found[number] = count, one
    for _, one in found.values():
        try:
            check_label(one.label)
        except UsageProblem as problem:
            raise Incompatible(f"load --from-tubular: {problem.message}") from None
    return {number: one for number, (_, one) in found.items()}


def _bindings(writer: Writer, bindings: Map, names: dict[int, DestinationKey]) -> Iterator[tuple[bytes, str]]:
    """Bindings as ours. IPv6 prefixes so short that they also caught IPv4 catch only IPv6 from now on."""
    for key, value in bindings.items():
        bits, protocol, port, address = _BINDING_KEY.unpack(key)
        owner = names.get(_PAIR.unpack(value)[0])
        if owner is None:
            continue
        length = bits - _HEADER_BITS
        if length >= 96 and address.startswith(MAPPED):
            yield Binding(owner.label, protocol, IPV4, address, length - 96, port).key(), owner.label
            continue
        binding = Binding(owner.label, protocol, IPV6, address, length, port)
        if length <= 80 and not any(address[: length // 8]):
            writer.place.notice(
                f"{format_binding(binding)} took IPv4 as well under tubular; it no longer does"
            )
        yield binding.key(), owner.label


def _take_sockets(
    writer: Writer, sockets: Map, names: dict[int, DestinationKey]
) -> Iterator[tuple[str, str, str]]:
    live = {}
    for number, key in names.items():
        cookie = sockets.lookup(U32.pack(number))
        if cookie is not None:
            live[number] = (key, layouts.U64.unpack(cookie)[0])
    reservation = destinations.Reservation(writer, [key for key, _ in live.values()])
    known = {key: destinations.find(writer, key) for key, _ in live.values()}
    todo = {
        number: (key, cookie)
        for number, (key, cookie) in live.items()
        if not ((one := known[key]) and destinations.cookies(writer, one))  # registered with svcctl already
    }
    if not todo:
        return
    requests = []
    with writer.changing(**reservation.meta_fields):
        reservation.make(writer, {})
        for number, (key, _) in todo.items():
            found = destinations.find(writer, key)
            assert found is not None
            destinations.put(writer, found._replace(slots=found.slots | 1))
            requests.append(migrate.CopyRequest(number, found.id * layouts.SOCKETS_PER_DESTINATION, 1))
        failed = migrate.copy_sockets(sockets, writer.map("sockets"), requests)
    for (key, cookie), missed in zip(todo.values(), failed, strict=True):
        if missed:
            # The kernel takes no socket that was shut down, and tubular could give it nothing either.
            writer.place.notice(f"{key}: socket sk:{cookie:x} does not listen: not taken over")
        else:
            yield "created", "socket", f"{key} sk:{cookie:x}"
