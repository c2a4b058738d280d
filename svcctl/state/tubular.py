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
from svcctl.errors import Conflict, Incompatible, NotFound
from svcctl.maps import layouts
from svcctl.maps.layouts import U32
from svcctl.model.binding import Binding, format_binding
from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.destination import DestinationKey
from svcctl.model.plan import plan as make_plan
from svcctl.model.prefix import MAPPED
from svcctl.state import destinations, migrate
from svcctl.state.bindings import apply_plan, read_labels
from svcctl.state.lock import open_locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.writer import Writer

# Layouts of tubular 2022.2.1: packed, integers in host byte order, addresses v4-mapped.
_BINDING_KEY = Struct("=IBH16s")
_DESTINATION_KEY = Struct("=255sBB")
_PAIR = Struct("=II")
_HEADER_BITS = 24
_DOMAINS = {2: IPV4, 10: IPV6}
_PINS = ("link", "program", "program-upgrade", "bindings", "sockets", "destinations", "destination_metrics")


def take_over(writer: Writer) -> Iterator[tuple[str, str, str]]:
    """Copy tubular's bindings and sockets, then remove its directory. Yields (action, kind, name).

    Raises NotFound without tubular state, Conflict where a binding is ours under another label already,
    Incompatible for another version's layouts.
    """
    path = f"{os.path.dirname(writer.path)}/{writer.netns.inode}_dispatcher"
    try:
        fd = open_locked(path, writer.place)
    except FileNotFoundError:
        raise NotFound(
            f"load --from-tubular: {path}: no such directory", hint="tubular is not loaded here"
        ) from None
    try:
        with _open(path, "bindings", (23, 8)) as bindings, _open(path, "destinations", (257, 8)) as named:
            names = dict(_destinations(named))
            want = dict(_bindings(writer, bindings, names))
        have = read_labels(writer)
        taken = [key for key, label in want.items() if have.get(key, label) != label]
        if taken:
            binding = Binding.from_key(taken[0], want[taken[0]])
            raise Conflict(
                f"load --from-tubular: {format_binding(binding)} is bound to {have[taken[0]]!r} already"
            )
        plan = make_plan({key: have[key] for key in want.keys() & have.keys()}, want)
        apply_plan(writer, plan)
        for key, label in plan.added:
            yield "created", "binding", format_binding(Binding.from_key(key, label))
        with _open(path, "sockets", (4, 8)) as sockets:
            yield from _sockets(writer, sockets, names)
        for pin in _PINS:
            if os.path.lexists(f"{path}/{pin}"):
                os.unlink(f"{path}/{pin}")
        os.rmdir(path)
        yield "deleted", "tubular state", path
    finally:
        os.close(fd)


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


def _destinations(named: Map) -> Iterator[tuple[int, DestinationKey]]:
    for key, value in named.items():
        label, domain, protocol = _DESTINATION_KEY.unpack(key)
        if domain in _DOMAINS and protocol in (TCP, UDP):
            yield _PAIR.unpack(value)[0], DestinationKey(layouts.text(label), _DOMAINS[domain], protocol)


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


def _sockets(
    writer: Writer, sockets: Map, names: dict[int, DestinationKey]
) -> Iterator[tuple[str, str, str]]:
    live = {}
    for number, key in names.items():
        cookie = sockets.lookup(U32.pack(number))
        if cookie is not None:
            live[number] = (key, layouts.U64.unpack(cookie)[0])
    reservation = destinations.Reservation(writer, [key for key, _ in live.values()])
    requests, done = [], []
    with writer.changing(**reservation.meta_fields):
        reservation.make(writer, {})
        for number, (key, cookie) in live.items():
            found = destinations.find(writer, key)
            if found is None or destinations.cookies(writer, found):
                continue  # registered with svcctl already
            destinations.put(writer, found._replace(slots=found.slots | 1))
            requests.append(migrate.CopyRequest(number, found.id * layouts.SOCKETS_PER_DESTINATION, 1))
            done.append((str(key), cookie))
        migrate.copy_sockets(sockets, writer.map("sockets"), requests)
    for name, cookie in done:
        yield "created", "socket", f"{name} sk:{cookie:x}"
