"""BTF: the struct and enum layouts a BPF object, or a map in the kernel, was built with.

A reader of our own (format: Documentation/bpf/btf.rst of Linux): libbpf's needs a call for every member, and
layouts of object files must be readable where there is no libbpf.
"""

from __future__ import annotations

import struct
from ctypes import addressof, c_char
from errno import EINVAL, ENODATA
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.errors import BpfError
from svcctl.bpf.handle import Handle
from svcctl.bpf.lib import check, require

if TYPE_CHECKING:
    from typing import Self

_MAGIC = 0xEB9F

# enum of kinds in the type header.
INT, PTR, ARRAY, STRUCT, UNION, ENUM = 1, 2, 3, 4, 5, 6
FWD, TYPEDEF, VOLATILE, CONST, RESTRICT = 7, 8, 9, 10, 11
FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = 12, 13, 14, 15, 16, 17, 18, 19

_QUALIFIERS = (VOLATILE, CONST, RESTRICT, TYPE_TAG)
_ALIASES = (TYPEDEF, *_QUALIFIERS)
_PREFIX = {STRUCT: "struct ", UNION: "union ", ENUM: "enum ", ENUM64: "enum ", FWD: "struct "}
_TAIL = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
_MEMBER = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, DATASEC: 12, ENUM64: 12}
_INT_SIGNED = 1

_DEEPEST = 100
"""Typedefs, dimensions or pointers in a row; more is a loop in damaged data."""


class Field(NamedTuple):
    """One member of a struct. Offsets and sizes are in bytes; of a bit field `bits` is its width, else 0.

    `type_name` is as written (`__u32`, `struct addr`), of an array that of one element; `length` is 1 outside
    arrays, and the product of all dimensions in them. An anonymous member has the name "".
    """

    name: str
    offset: int
    size: int
    type_name: str
    type_id: int
    is_array: bool
    length: int
    signed: bool
    bits: int


class Struct(NamedTuple):
    """Layout of a struct or union; `size` in bytes."""

    name: str
    size: int
    fields: tuple[Field, ...]


class _Type(NamedTuple):
    kind: int
    name: str
    size_or_type: int
    length: int
    flag: bool
    tail: int


class Btf:
    """Parsed BTF. Look-ups by name raise KeyError when there is none of that name."""

    def __init__(self, data: bytes, subject: str = "BTF") -> None:
        self._data = data
        self._subject = subject
        self._parse()

    @classmethod
    def from_object(cls, path: str) -> Self:
        """The .BTF section of a 64-bit ELF file, of either byte order. BpfError ENODATA when it has none."""
        with open(path, "rb") as file:
            return cls(_elf_section(file.read(), b".BTF", path), path)

    @classmethod
    def from_kernel_id(cls, btf_id: int) -> Self:
        """The BTF a map or program was loaded with (`MapInfo.btf_id`). Needs CAP_SYS_ADMIN."""
        subject = f"btf id {btf_id}"
        with _KernelBtf(check(require("bpf_btf_get_fd_by_id")(btf_id), "open", subject)) as handle:
            return cls(handle.data(), subject)

    def _parse(self) -> None:
        data = self._data
        self._order = "<" if data[:2] == _MAGIC.to_bytes(2, "little") else ">"
        magic, header_len, type_off, type_len, text_off, text_len = self._unpack("H2xI4I", 0)
        if magic != _MAGIC:
            raise self._damaged("wrong magic")
        text_at = header_len + text_off
        self._texts = data[text_at : text_at + text_len]
        self._types = [_Type(0, "void", 0, 0, False, 0)]
        self._names: dict[tuple[int, str], int] = {}
        position, end = header_len + type_off, header_len + type_off + type_len
        while position < end:
            name_at, info, size_or_type = self._unpack("3I", position)
            kind, length = info >> 24 & 0x1F, info & 0xFFFF
            if not INT <= kind <= ENUM64:
                raise self._damaged(f"kind {kind} is unknown")
            name = self._text(name_at)
            self._names.setdefault((kind, name), len(self._types))
            self._types.append(_Type(kind, name, size_or_type, length, bool(info >> 31), position + 12))
            position += 12 + _TAIL.get(kind, 0) + _MEMBER.get(kind, 0) * length

    def _unpack(self, layout: str, position: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(self._order + layout, self._data, position)
        except struct.error:
            raise self._damaged("it ends too early") from None

    def _text(self, position: int) -> str:
        try:
            return self._texts[position : self._texts.index(b"\0", position)].decode()
        except ValueError:
            raise self._damaged("a name is missing") from None

    def _type(self, type_id: int) -> _Type:
        if type_id < len(self._types):
            return self._types[type_id]
        raise self._damaged(f"no type has the id {type_id}")

    def _damaged(self, how: str) -> BpfError:
        return BpfError(EINVAL, "parse", self._subject, reason=f"not valid BTF: {how}")

    def names(self) -> tuple[str, ...]:
        """Names of all structs, unions and enums."""
        wanted = (STRUCT, UNION, ENUM, ENUM64)
        return tuple(name for kind, name in self._names if kind in wanted and name)

    def struct(self, name: str) -> Struct:
        """Layout of `struct name`, `union name`, or a typedef of one."""
        for kind in (STRUCT, UNION, TYPEDEF):
            type_id = self._names.get((kind, name))
            if type_id is not None:
                return self.struct_by_id(type_id)
        raise KeyError(name)

    def struct_by_id(self, type_id: int) -> Struct:
        """Layout of the struct or union with a type id; KeyError when that is something else."""
        if not 0 < type_id < len(self._types):
            raise KeyError(type_id)
        it = self._behind(type_id)
        if it.kind not in (STRUCT, UNION):
            raise KeyError(type_id)
        fields = []
        for index in range(it.length):
            name_at, member, offset = self._unpack("3I", it.tail + 12 * index)
            # With the flag the upper 8 bits of the offset are the width of a bit field.
            bits, offset = (offset >> 24, offset & 0xFFFFFF) if it.flag else (0, offset)
            fields.append(self._field(self._text(name_at), member, offset, bits))
        return Struct(it.name, it.size_or_type, tuple(fields))

    def enum(self, name: str) -> dict[str, int]:
        """Names and numbers of `enum name`."""
        type_id = self._names.get((ENUM, name)) or self._names.get((ENUM64, name))
        if not type_id:
            raise KeyError(name)
        it = self._types[type_id]
        members = {}
        for index in range(it.length):
            if it.kind == ENUM:
                name_at, value = self._unpack("Ii" if it.flag else "2I", it.tail + 8 * index)
            else:
                name_at, low, high = self._unpack("3I", it.tail + 12 * index)
                value = low | high << 32
                value -= (it.flag and value >> 63) << 64
            members[self._text(name_at)] = value
        return members

    def map_types(self, name: str) -> tuple[str, str]:
        """Names of the key and value type of a map the object declares; "" for one given by its size only."""
        section = self._type(self._names[DATASEC, ".maps"])
        for index in range(section.length):
            variable = self._type(self._unpack("3I", section.tail + 12 * index)[0])
            if variable.name == name:
                members = {
                    field.name: field.type_id for field in self.struct_by_id(variable.size_or_type).fields
                }
                return self._pointed_at(members.get("key")), self._pointed_at(members.get("value"))
        raise KeyError(name)

    def _pointed_at(self, type_id: int | None) -> str:
        if type_id is None:
            return ""
        it = self._behind(type_id)
        return self.type_name(it.size_or_type) if it.kind == PTR else ""

    def _behind(self, type_id: int) -> _Type:
        """The type behind typedefs and qualifiers."""
        for _ in range(_DEEPEST):
            it = self._type(type_id)
            if it.kind not in _ALIASES:
                return it
            type_id = it.size_or_type
        raise self._damaged("a typedef that never ends")

    def _array(self, type_id: int) -> tuple[int, int, bool]:
        """Element type, number of elements over all dimensions, whether it is an array at all."""
        length = 1
        for depth in range(_DEEPEST):
            it = self._behind(type_id)
            if it.kind != ARRAY:
                return type_id, length, depth > 0
            type_id, _, elements = self._unpack("3I", it.tail)
            length *= elements
        raise self._damaged("an array that never ends")

    def _field(self, name: str, type_id: int, bit_offset: int, bits: int) -> Field:
        element, length, is_array = self._array(type_id)
        it = self._behind(element)
        size = 8 if it.kind == PTR else it.size_or_type
        signed = it.kind in (ENUM, ENUM64) and it.flag
        if it.kind == INT:
            encoding = self._unpack("I", it.tail)[0]
            signed = bool(encoding >> 24 & _INT_SIGNED)
        return Field(
            name,
            bit_offset // 8,
            size * length,
            self.type_name(element),
            type_id,
            is_array,
            length,
            signed,
            bits,
        )

    def type_name(self, type_id: int) -> str:
        """A type as C writes it, without array brackets and qualifiers."""
        stars = ""
        for _ in range(_DEEPEST):
            it = self._type(type_id)
            if it.kind == PTR:
                stars += "*"
            elif it.kind not in _QUALIFIERS:
                name = f"{_PREFIX.get(it.kind, '')}{it.name or '(anonymous)'}"
                return f"{name} {stars}" if stars else name
            type_id = it.size_or_type
        raise self._damaged("a type that never ends")


class _KernelBtf(Handle):
    KIND = "btf"

    def data(self) -> bytes:
        """All of it, asked for twice: the first answer is the size."""
        # struct bpf_btf_info: btf (pointer), btf_size, id.
        info = (c_char * 16)()
        self._read_info(info)
        (size,) = struct.unpack_from("=I", info, 8)
        content = (c_char * size)()
        struct.pack_into("=QII", info, 0, addressof(content), size, 0)
        self._read_info(info)
        return bytes(content)


def _elf_section(data: bytes, wanted: bytes, path: str) -> bytes:
    """Content of one section of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise BpfError(EINVAL, "read", path, reason="not a 64-bit ELF file")
    order = "<" if data[5] == 1 else ">"
    try:
        (table_at,) = struct.unpack_from(f"{order}Q", data, 0x28)
        entry_size, entries, names_index = struct.unpack_from(f"{order}3H", data, 0x3A)
        # Of each header: name, offset in the file, size.
        headers = [
            struct.unpack_from(f"{order}I20x2Q", data, table_at + index * entry_size)
            for index in range(entries)
        ]
        _, names_at, names_size = headers[names_index]
        names = data[names_at : names_at + names_size]
        for name_at, offset, size in headers:
            if names[name_at : names.index(b"\0", name_at)] == wanted:
                return data[offset : offset + size]
    except (struct.error, IndexError, ValueError, OverflowError) as problem:
        raise BpfError(EINVAL, "read", path, reason=f"damaged ELF file: {problem}") from problem
    raise BpfError(ENODATA, "read", path, reason=f"no {wanted.decode()} section (compiled without -g?)")
