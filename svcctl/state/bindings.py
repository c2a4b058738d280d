"""bind, unbind and small plans of bindings, one atomic write a binding.

Order of a new binding: destination counted up, `ports` and `usage` counted up, then the binding itself; of a
removed one the reverse. So whatever kill comes in between, no packet meets a binding without a destination,
and counts are too high, which is only slower until they are corrected.
"""

from __future__ import annotations

from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING

from svcctl.errors import Conflict, Full, NotFound
from svcctl.maps import layouts
from svcctl.maps.layouts import U32, exact_check
from svcctl.model.binding import Binding, format_binding, is_exact_key
from svcctl.model.constants import UDP
from svcctl.model.destination import DestinationKey
from svcctl.model.plan import Plan
from svcctl.state import destinations
from svcctl.state.owners import NO_OWNERS, forget_owners, note_owners
from svcctl.state.writer import check_map_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.state.session import State
    from svcctl.state.writer import Writer

_FIRST_WORD = Struct("=I4x")
MAPS_WRITTEN = ("bindings", "exact", "ports")


def kind_of(key: bytes) -> str:
    """The map a 24-byte key lives in."""
    return "exact" if is_exact_key(key) else "bindings"


def map_key(key: bytes) -> bytes:
    """The key in that map: all of it in the trie, the last 20 bytes in the hash."""
    return key[4:] if is_exact_key(key) else key


def encode_value(key: bytes, destination: int) -> bytes:
    """The value for a 24-byte key: the hash carries a digest of the key, the trie its prefix length."""
    second = exact_check(key[4:]) if is_exact_key(key) else U32.unpack_from(key)[0]
    return layouts.BINDING.struct.pack(destination, second)


def lookup_destination(state: State, key: bytes) -> int | None:
    """The destination id of exactly this binding, None if there is none."""
    if is_exact_key(key):
        data = state.map("exact").lookup(key[4:])
        return None if data is None else U32.unpack_from(data)[0]
    data = state.map("bindings").lookup(key)
    if data is None:
        return None
    value = layouts.BINDING.unpack(data)
    # A trie finds the longest match: a shorter prefix may have answered.
    return value.destination if value.prefixlen == U32.unpack_from(key)[0] else None


def read_ids(state: State) -> dict[bytes, int]:
    """All bindings: 24-byte key -> destination id."""
    found: dict[bytes, int] = {}
    full = U32.pack(160)
    keys, values, count = state.map("exact").read_all()
    for number in range(count):
        found[full + keys[20 * number : 20 * number + 20]] = U32.unpack_from(values, 8 * number)[0]
    keys, values, count = state.map("bindings").read_all()
    for number in range(count):
        found[keys[24 * number : 24 * number + 24]] = U32.unpack_from(values, 8 * number)[0]
    return found


def referenced_ids(state: State) -> set[int]:
    """Destination ids that some binding means."""
    return set(read_ids(state).values())


def read_labels(state: State) -> dict[bytes, str]:
    """All bindings: 24-byte key -> label. A binding of an unknown destination gets the label '?<id>'."""
    if not state.has_dispatcher():
        return {}
    names = {number: found.key.label for number, found in destinations.read_all(state).items()}
    found: dict[bytes, str] = {}
    for name, size, front in (("exact", 20, U32.pack(160)), ("bindings", 24, b"")):
        keys, values, _ = state.map(name).read_all()
        whole = [front + key for (key,) in Struct(f"{size}s").iter_unpack(keys)]
        labels = [names.get(number) or f"?{number}" for (number,) in _FIRST_WORD.iter_unpack(values)]
        found.update(zip(whole, labels, strict=True))
    return found


def port_index(protocol: int, port: int) -> int:
    """Index in `ports`: TCP's first, then UDP's."""
    return (65536 if protocol == UDP else 0) + port


def destination_key(key: bytes, label: str) -> DestinationKey:
    """The destination that a binding with this key and label has."""
    return DestinationKey(label, key[5], key[4])


def plan_bind(state: State, binding: Binding, *, replace: bool) -> Plan:
    """What `bind` has to do. Raises Conflict if another label holds the binding and `replace` is not given."""
    key = binding.key()
    state.check_maps((kind_of(key),))
    holder = lookup_destination(state, key)
    if holder is None:
        return Plan([(key, binding.label)], [], [], 0)
    mine = destinations.find(state, destination_key(key, binding.label))
    if mine is not None and mine.id == holder:
        return Plan([], [], [], 1)
    owner = destinations.owner_of(state, holder)
    label = owner.key.label if owner else f"?{holder}"
    if not replace:
        raise Conflict(
            f"bind {format_binding(binding)}: already bound to label {label!r}",
            hint="'svcctl bind --replace' moves it to the new label",
        )
    return Plan([], [(key, binding.label, label)], [], 0)


def plan_unbind(state: State, binding: Binding, *, force: bool = False) -> Plan:
    """What `unbind` has to do. Raises NotFound, or Conflict if another label holds it and `force` is not given."""
    key = binding.key()
    state.check_maps((kind_of(key),))
    holder = lookup_destination(state, key)
    if holder is None:
        raise NotFound(
            f"unbind {format_binding(binding)}: no such binding", hint="'svcctl bindings' lists them"
        )
    mine = destinations.find(state, destination_key(key, binding.label))
    if mine is None or mine.id != holder:
        owner = destinations.owner_of(state, holder)
        label = owner.key.label if owner else f"?{holder}"
        if not force:
            raise Conflict(
                f"unbind {format_binding(binding)}: bound to label {label!r}",
                hint="--force removes it all the same",
            )
        return Plan([], [], [(key, label)], 0)
    return Plan([], [], [(key, binding.label)], 0)


def check_room(writer: Writer, plan: Plan) -> None:
    """Raise Full, before anything is written, if a map has no room for the plan."""
    for name in ("bindings", "exact"):
        added = sum(1 for key, _ in plan.added if kind_of(key) == name)
        if added:
            usage = writer.usage(name)
            largest = writer.map(name).info.max_entries
            if usage.used + added > largest:
                raise destinations.full(name, usage.used, largest, added)


def has_room(writer: Writer, plan: Plan) -> bool:
    """Whether a plan can be carried out step by step, with all additions before the first removal."""
    try:
        check_room(writer, plan)
    except Full:
        return False
    return True


def apply_plan(writer: Writer, plan: Plan, owners: Mapping[bytes, str] = NO_OWNERS) -> None:
    """Carry a plan out, binding by binding in its safe order. Nothing is written for an empty plan.

    `owners` is who keys belong to from now on: others that are replaced belong to nobody afterwards.
    """
    if plan.is_empty:
        return
    check_map_ids(writer, MAPS_WRITTEN)
    check_room(writer, plan)
    ups: dict[DestinationKey, int] = {}
    for key, label in plan.added:
        name = destination_key(key, label)
        ups[name] = ups.get(name, 0) + 1
    for key, label, _ in plan.replaced:
        name = destination_key(key, label)
        ups[name] = ups.get(name, 0) + 1
    downs: dict[DestinationKey, int] = {}
    for key, old in [(key, old) for key, _, old in plan.replaced] + plan.removed:
        name = destination_key(key, old)
        downs[name] = downs.get(name, 0) + 1

    reservation = destinations.Reservation(writer, ups)
    with writer.changing(**reservation.meta_fields):
        note_owners(writer, owners)
        reservation.make(writer, ups)
        ids = dict(reservation.new)
        for name, count in ups.items():
            if name not in ids:
                found = destinations.find(writer, name)
                assert found is not None
                ids[name] = destinations.change_refs(writer, found, count).id
        _count(writer, [key for key, _ in plan.added], 1)
        for key, label in plan.added:
            _write(writer, key, ids[destination_key(key, label)])
        forget_owners(writer, [key for key, _, _ in plan.replaced if key not in owners])
        for key, label, _ in plan.replaced:
            _write(writer, key, ids[destination_key(key, label)])
        for key, _ in plan.removed:
            writer.map(kind_of(key)).delete(map_key(key))
        forget_owners(writer, [key for key, _ in plan.removed])
        _count(writer, [key for key, _ in plan.removed], -1)
        for name, count in downs.items():
            found = destinations.find(writer, name)
            if found is not None:
                destinations.release_if_unused(writer, destinations.change_refs(writer, found, -count))


def _write(writer: Writer, key: bytes, destination: int) -> None:
    writer.map(kind_of(key)).update(map_key(key), encode_value(key, destination))


def _count(writer: Writer, keys: list[bytes], by: int) -> None:
    """Count bindings up or down in `ports` and `usage`."""
    if not keys:
        return
    ports: dict[int, list[int]] = {}
    kinds = {"exact": 0, "bindings": 0}
    for key in keys:
        exact = is_exact_key(key)
        counts = ports.setdefault(port_index(key[4], int.from_bytes(key[6:8], byteorder)), [0, 0])
        counts[0 if exact else 1] += by
        kinds["exact" if exact else "bindings"] += by
    table = writer.map("ports")
    for index, (hosts, prefixes) in ports.items():
        now = layouts.PORTS.unpack(table.lookup(U32.pack(index)) or bytes(layouts.PORTS.size))
        table.update(
            U32.pack(index),
            layouts.PORTS.struct.pack(max(now.exact + hosts, 0), max(now.trie + prefixes, 0)),
        )
    for name, delta in kinds.items():
        if delta:
            usage = writer.usage(name)
            writer.put_usage(name, usage._replace(used=max(usage.used + delta, 0)))


def limit_labels(
    have: Mapping[bytes, str], want: Mapping[bytes, str], labels: tuple[str, ...]
) -> tuple[Mapping[bytes, str], Mapping[bytes, str]]:
    """Both sides limited to some labels. Raises Conflict where another label holds what the file wants."""
    from svcctl.model.plan import limit

    scope = limit(have, want, labels)
    if scope.taken:
        key, label, holder = scope.taken[0]
        raise Conflict(
            f"load-bindings: {format_binding(Binding.from_key(key, label))} is bound to label {holder!r}"
            + (f" (and {len(scope.taken) - 1} more)" if len(scope.taken) > 1 else ""),
            hint=f"add --label {holder} to let the file decide about it too, or unbind it first",
        )
    return scope.have, scope.want
