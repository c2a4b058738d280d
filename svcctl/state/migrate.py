"""Carries the content of pinned maps into maps of another size or an older layout into the present one.

An older layout is read from the map's own BTF, which the kernel keeps: fields are carried over by name, new
ones start at zero, and what depends on the old meaning is recounted afterwards. Counters that programs go on
writing are copied before the swap, and what was added meanwhile is added after it.
"""

from __future__ import annotations

from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Any

from svcctl.bpf.btf import Btf
from svcctl.errors import Incompatible
from svcctl.maps import catalog
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32
from svcctl.record import Record
from svcctl.state.programs import load_object
from svcctl.state.session import open_pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from svcctl.bpf.map import Map
    from svcctl.bpf.program import Program
    from svcctl.maps.layouts import Layout
    from svcctl.state.session import State

    Convert = Callable[[bytes], bytes]

COUNTERS = ("dispatch_stats", "drop_stats", "packet_stats")

# struct bpf_sk_lookup: family, protocol, remote_ip4, local_ip4, local_port, ingress_ifindex; the rest is zero.
_CONTEXT = Struct("=8x3I20xI16x2I4x")
_AF_INET, _TCP = 2, 6
_SK_PASS = 1


class CopyRequest(Record):
    """What `copy_sockets` copies: first slot to read, first to write, how many (16 at most)."""

    source: int
    target: int
    slots: int


class Field(Record):
    """A field of an old layout: offset and size in bytes; whether it is bytes rather than an integer."""

    offset: int
    size: int
    is_bytes: bool


def open_any(state: State, name: str, prefix: str = "") -> Map:
    """A pinned map whatever its shape. Raises Incompatible for another type, PermissionProblem for another's pin."""
    path = state.pin(prefix + name)
    opened = open_pin(path, read_only=state.read_only)
    if opened.info.type != catalog.MAPS[name].type:
        found = opened.info.type
        opened.close()
        raise Incompatible(f"pinned map {path}: type {found}, expected {catalog.MAPS[name].type}")
    return opened


def has_other_layout(opened: Map, name: str) -> bool:
    """Whether key or value have another size than this svcctl's."""
    shape = catalog.MAPS[name]
    return (opened.info.key_size, opened.info.value_size) != (shape.key_size, shape.value_size)


def copy_content(name: str, old: Map, new: Map) -> None:
    """Copy all entries of a map that is no sockmap, converting layouts; arrays as far as both reach."""
    copy_entries(name, old, new, *old.read_all())


def copy_entries(name: str, old: Map, new: Map, keys: bytes, values: bytes, count: int) -> None:
    """Copy entries that were read from `old` with `read_all`."""
    convert_key, convert_value = converters(name, old)
    if not count:
        return
    key_size, value_size = len(keys) // count, len(values) // count
    is_array = old.info.type in (catalog.ARRAY, catalog.PERCPU_ARRAY)
    cut = is_array and new.info.max_entries < old.info.max_entries
    if convert_key is None and convert_value is None and not cut:
        new.update_many(keys, values, count)
        return
    out_keys, out_values, kept = [], [], 0
    empty = bytes(value_size) if is_array else None  # as a new array is anyway: most of a large one
    for number in range(count):
        value = values[value_size * number : value_size * (number + 1)]
        if value == empty:
            continue
        key = keys[key_size * number : key_size * (number + 1)]
        if is_array and U32.unpack(key)[0] >= new.info.max_entries:
            continue
        out_keys.append(convert_key(key) if convert_key else key)
        out_values.append(convert_value(value) if convert_value else value)
        kept += 1
    new.update_many(b"".join(out_keys), b"".join(out_values), kept)


class CounterCopy:
    """Counters copied once; `add_since` adds what programs counted on the old map in the meantime."""

    def __init__(self, name: str, old: Map, new: Map) -> None:
        self.name, self.old, self.new = name, old, new
        self.copied = old.read_all()

    def copy(self) -> None:
        """Put what was there when this was made into the new map."""
        copy_entries(self.name, self.old, self.new, *self.copied)

    def add_since(self) -> None:
        """Call when the new program runs. A count that both maps get in this very moment may be lost."""
        _, convert = converters(self.name, self.old)
        keys, values, count = self.old.read_all()
        size = len(values) // count if count else 0
        for number in range(count):
            part = slice(size * number, size * (number + 1))
            before, after = self.copied[1][part], values[part]
            key = keys[4 * number : 4 * number + 4]
            if before == after or U32.unpack(key)[0] >= self.new.info.max_entries:
                continue
            if convert:
                before, after = convert(before), convert(after)
            have = self.new.lookup(key) or bytes(len(after))
            self.new.update(key, _add_words(have, after, before))


def _add_words(have: bytes, plus: bytes, minus: bytes) -> bytes:
    words = []
    for at in range(0, len(have), 8):
        a, b, c = (int.from_bytes(part[at : at + 8], byteorder) for part in (have, plus, minus))
        words.append(((a + b - c) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, byteorder))
    return b"".join(words)


def copy_sockets(old: Map, new: Map, requests: Iterable[CopyRequest]) -> list[int]:
    """Copy slots by a BPF program; returns for each request how many sockets could not be copied.

    User space reads cookies from a sockmap, never sockets. One that closes meanwhile leaves both maps.
    """
    with (
        load_object("copy", {}, {"old_sockets": old, "new_sockets": new}, ("copy_sockets",)) as loaded,
        loaded.program("copy_sockets") as program,
    ):
        return [_failures(program, request) for request in requests]


def _failures(program: Program, request: CopyRequest) -> int:
    """Copy one request; how many of its sockets could not be copied."""
    if run_copy(program, request):
        return 0
    return sum(
        not run_copy(program, CopyRequest(request.source + slot, request.target + slot, 1))
        for slot in range(request.slots)
    )


def run_copy(program: Program, request: CopyRequest) -> bool:
    """Run a program of bpf/copy.bpf.c, which says how a request is put into its context; False if it failed."""
    context = _CONTEXT.pack(_AF_INET, _TCP, request.source, request.target, request.slots, 0)
    return program.test_run(ctx_in=context).retval == _SK_PASS


def all_slots(destination: int) -> CopyRequest:
    """The request for all sockets of a destination, to the same place."""
    first = destination * SOCKETS_PER_DESTINATION
    return CopyRequest(first, first, SOCKETS_PER_DESTINATION)


def converters(name: str, old: Map) -> tuple[Convert | None, Convert | None]:
    """Functions for key and value of one entry, None where the layout is the present one."""
    key_layout, value_layout = catalog.map_layouts(name)
    shape = catalog.MAPS[name]
    info = old.info
    key = _converter(name, old, key_layout, info.btf_key_type_id) if info.key_size != shape.key_size else None
    if info.value_size == shape.value_size:
        return key, None
    value = _converter(name, old, value_layout, info.btf_value_type_id)
    if info.type == catalog.PERCPU_ARRAY:
        return key, _for_each_cpu(value, info.value_size, shape.value_size)
    return key, value


def value_converter(name: str, old: Map) -> Convert | None:
    """A function for values of a map of another layout, None where the layout is the present one."""
    return converters(name, old)[1]


def _for_each_cpu(convert: Convert, old_size: int, new_size: int) -> Convert:
    """Per-CPU values come back to back, each rounded up to 8 bytes."""
    old_step, new_step = (old_size + 7) & ~7, (new_size + 7) & ~7

    def all_cpus(data: bytes) -> bytes:
        return b"".join(
            convert(data[at : at + old_size]).ljust(new_step, b"\0") for at in range(0, len(data), old_step)
        )

    return all_cpus


def _converter(name: str, old: Map, layout: Layout[Any] | None, type_id: int) -> Convert:
    """A function from the old bytes to the present layout, by field names."""
    if layout is None or not old.info.btf_id or not type_id:
        raise Incompatible(
            f"pinned map {name!r}: has another layout and no type information to read it by",
            hint="'svcctl unload' and 'svcctl load' start anew",
        )
    struct = Btf.from_kernel_id(old.info.btf_id).struct_by_id(type_id)
    fields = {
        field.name: Field(field.offset, field.size, field.size not in (1, 2, 4, 8)) for field in struct.fields
    }
    steps = []
    for field_name, offset, size in layout.fields():
        source = fields.get(field_name)
        if source is not None:
            steps.append((source, offset, size))
    total = layout.size

    def convert(data: bytes) -> bytes:
        result = bytearray(total)
        for source, offset, size in steps:
            part = data[source.offset : source.offset + source.size]
            if source.size == size or source.is_bytes or size not in (1, 2, 4, 8):
                part = part[:size]
                result[offset : offset + len(part)] = part
            else:
                number = int.from_bytes(part, byteorder)
                result[offset : offset + size] = min(number, (1 << 8 * size) - 1).to_bytes(size, byteorder)
        return bytes(result)

    return convert
