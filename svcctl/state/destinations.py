"""Destinations: handing out ids, counting references, letting go.

References err to too many: they are counted up before the binding is written and down after it is gone, so a
command that dies leaves a number `check` can correct and never a binding to an id of someone else.
"""

from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import Full
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, DestinationValue
from svcctl.model.destination import Destination, DestinationKey

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from svcctl.state.session import State
    from svcctl.state.writer import Writer


def encode_key(key: DestinationKey) -> bytes:
    """The map key of a destination."""
    return layouts.DESTINATION_KEY.pack(
        layouts.DestinationKey(key.label.encode("utf-8"), key.family, key.protocol)
    )


def decode_key(data: bytes) -> DestinationKey:
    """The destination a map key names."""
    raw = layouts.DESTINATION_KEY.unpack(data)
    return DestinationKey(layouts.text(raw.label), raw.family, raw.protocol)


def find(state: State, key: DestinationKey) -> Destination | None:
    """The destination of a label, family and protocol."""
    data = state.map("destinations").lookup(encode_key(key))
    return None if data is None else Destination(key, *layouts.DESTINATION.unpack(data))


def read_all(state: State) -> dict[int, Destination]:
    """Every destination by id."""
    found = {}
    for key, value in state.map("destinations").items():
        destination = Destination(decode_key(key), *layouts.DESTINATION.unpack(value))
        found[destination.id] = destination
    return found


def owner_of(state: State, number: int) -> Destination | None:
    """The destination with an id: a walk, for messages and replacements only."""
    return read_all(state).get(number)


def put(writer: Writer, destination: Destination) -> None:
    """Write a destination."""
    writer.map("destinations").update(
        encode_key(destination.key),
        layouts.DESTINATION.pack(
            DestinationValue(destination.id, destination.refs, destination.slots, destination.flags)
        ),
    )


def change_refs(writer: Writer, destination: Destination, by: int) -> Destination:
    """Count references up or down (not below zero)."""
    changed = destination._replace(refs=max(destination.refs + by, 0))
    put(writer, changed)
    return changed


class Reservation:
    """Ids for destinations that do not exist yet, chosen before the first write. Raises Full without room.

    `meta_fields` goes into the mark, so that an id is reserved before it is used. When the map is full, those
    that nothing binds and whose sockets have all gone make room.
    """

    def __init__(self, writer: Writer, keys: Iterable[DestinationKey]) -> None:
        self.new: dict[DestinationKey, int] = {}
        self.reused: list[int] = []
        self.abandoned: list[Destination] = []
        self.meta_fields: dict[str, int] = {}
        asked = dict.fromkeys(keys)
        wanted = [key for key in asked if find(writer, key) is None]
        if not wanted:
            return
        usage = writer.usage("destinations")
        largest = writer.map("destinations").info.max_entries
        missing = usage.used + len(wanted) - largest
        if missing > 0:
            self.abandoned = _abandoned(writer, missing, asked)
            if len(self.abandoned) < missing:
                raise full("destinations", usage.used, largest, len(wanted))
        following = writer.meta().next_destination
        fresh = min(len(wanted), max(largest - following, 0))
        ids = list(range(following, following + fresh))
        if len(ids) < len(wanted):
            free = {destination.id for destination in self.abandoned}
            self.reused = _unused_ids(writer, largest, len(wanted) - len(ids), set(ids), free)
            ids += self.reused
            if len(ids) < len(wanted):
                raise full("destinations", usage.used, largest, len(wanted))
        if fresh:
            self.meta_fields["next_destination"] = following + fresh
        self.new = dict(zip(wanted, ids, strict=True))

    def make(self, writer: Writer, refs: dict[DestinationKey, int]) -> None:
        """Create the reserved destinations with their first references. Inside `changing(**meta_fields)`."""
        if not self.new:
            return
        for destination in self.abandoned:
            release_if_unused(writer, destination)
        if self.reused:
            _scrub(writer, self.reused)
        usage = writer.usage("destinations")
        writer.put_usage("destinations", usage._replace(used=usage.used + len(self.new)))
        for key, number in self.new.items():
            put(writer, Destination(key, number, refs.get(key, 0), 0, 0))


def full(name: str, used: int, largest: int, wanted: int) -> Full:
    """The error for a map without room."""
    return Full(
        f"map {name!r} is full: {used} of {largest} used, {wanted} more wanted",
        hint=f"'svcctl upgrade {catalog.USAGE_OPTIONS[name]} N' makes it larger without interruption",
    )


def _abandoned(writer: Writer, count: int, keep: Container[DestinationKey]) -> list[Destination]:
    """Up to `count` destinations without bindings and live sockets, such as labels of services that ended."""
    found = []
    for destination in read_all(writer).values():
        if not destination.refs and destination.key not in keep and not cookies(writer, destination):
            found.append(destination)
            if len(found) == count:
                break
    return found


def _unused_ids(writer: Writer, largest: int, count: int, taken: set[int], free: set[int]) -> list[int]:
    """The lowest ids that no destination has, but for those in `free`, and no binding means."""
    from svcctl.state.bindings import referenced_ids

    used = (set(read_all(writer)) - free) | referenced_ids(writer) | taken
    found = []
    for number in range(largest):
        if number not in used:
            found.append(number)
            if len(found) == count:
                break
    return found


def _scrub(writer: Writer, ids: list[int]) -> None:
    """Make ids as new before another owner gets them: no program still reads them, no socket, no count."""
    from svcctl.bpf.barrier import rcu_barrier

    rcu_barrier()
    stats = writer.map("dispatch_stats")
    for number in ids:
        clear_slots(writer, number, (1 << SOCKETS_PER_DESTINATION) - 1)
        writer.map("hints").update(U32.pack(number), U32.pack(0))
        stats.update(U32.pack(number), bytes(len(stats.lookup(U32.pack(number)) or b"")))


def clear_slots(writer: Writer, number: int, slots: int) -> None:
    """Empty the slots of `sockets` whose bits are set; empty ones are no error."""
    sockets = writer.map("sockets")
    for slot in range(SOCKETS_PER_DESTINATION):
        if slots >> slot & 1:
            try:
                sockets.delete(U32.pack(number * SOCKETS_PER_DESTINATION + slot))
            except BpfError as error:
                if error.errno != EINVAL:  # what a sockmap answers for an empty slot
                    raise


def cookies(state: State, destination: Destination) -> dict[int, int]:
    """Slot -> cookie of the destination's live sockets; looks only at slots a writer filled."""
    found = {}
    if destination.slots:
        sockets = state.map("sockets")
        for slot in range(SOCKETS_PER_DESTINATION):
            if destination.slots >> slot & 1:
                data = sockets.lookup(U32.pack(destination.id * SOCKETS_PER_DESTINATION + slot))
                if data is not None:
                    found[slot] = layouts.U64.unpack(data)[0]
    return found


def release_if_unused(writer: Writer, destination: Destination) -> bool:
    """Delete a destination without bindings and live sockets; True if it went."""
    if destination.refs or cookies(writer, destination):
        return False
    clear_slots(writer, destination.id, destination.slots)
    if writer.map("destinations").delete(encode_key(destination.key)):
        usage = writer.usage("destinations")
        writer.put_usage("destinations", usage._replace(used=max(usage.used - 1, 0)))
    return True


def release_unused(writer: Writer) -> None:
    """Delete every destination without bindings and live sockets, such as one a dead command had just made."""
    if writer.has_dispatcher():
        for destination in read_all(writer).values():
            release_if_unused(writer, destination)
