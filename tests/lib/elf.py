"""Reads a BPF object file: which instructions, helpers and maps each program uses. Without libbpf or a kernel."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_SHT_SYMTAB, _SHT_REL = 2, 9
_SHF_EXECINSTR = 4
_STT_FUNC = 2
_CALL = 0x85  # BPF_JMP | BPF_CALL; source register 0: a helper, 1: another function of the object
_LD_IMM64 = 0x18


class Instruction(NamedTuple):
    """One of eight bytes; `target` is the symbol it is relocated with, if it is."""

    code: int
    source: int
    immediate: int
    target: str


class Program(NamedTuple):
    """A program, with the functions of the object that it may call; `hook` is its section's name."""

    name: str
    hook: str
    instructions: tuple[Instruction, ...]

    @property
    def helpers(self) -> set[int]:
        """Numbers of the helpers it calls."""
        return {one.immediate for one in self.instructions if one.code == _CALL and one.source == 0}

    @property
    def maps(self) -> set[str]:
        """Names of the maps it refers to (and of sections of constants, which start with a dot)."""
        return {one.target for one in self.instructions if one.code == _LD_IMM64 and one.target}


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: bytes
    info: int


class _Symbol(NamedTuple):
    name: str
    kind: int
    section: int
    value: int
    size: int


def programs(path: str | Path) -> dict[str, Program]:
    """Every program of an object, by name. Functions that programs call are in a section of their own, .text."""
    found = _functions(path)
    shared = [one for function in found.values() if function.hook == ".text" for one in function.instructions]
    return {
        name: function._replace(instructions=(*function.instructions, *shared))
        if any(one.code == _CALL and one.source == 1 for one in function.instructions)
        else function
        for name, function in found.items()
        if function.hook != ".text"
    }


def _functions(path: str | Path) -> dict[str, Program]:
    data = Path(path).read_bytes()
    assert data[:5] == b"\x7fELF\x02", path
    order = "<" if data[5] == 1 else ">"
    sections = _sections(data, order)
    symbols = _symbols(sections, order)
    found = {}
    for index, section in enumerate(sections):
        if not section.flags & _SHF_EXECINSTR or not section.data:
            continue
        targets = _targets(sections, symbols, index, order)
        decoded = [
            _decode(section.data[at : at + 8], order, targets.get(at, ""))
            for at in range(0, len(section.data), 8)
        ]
        for symbol in symbols:
            if symbol.kind == _STT_FUNC and symbol.section == index:
                first, count = symbol.value // 8, symbol.size // 8
                found[symbol.name] = Program(symbol.name, section.name, tuple(decoded[first : first + count]))
    return found


def _decode(raw: bytes, order: str, target: str) -> Instruction:
    code, registers, _, immediate = struct.unpack(f"{order}BBhi", raw)
    source = registers >> 4 if order == "<" else registers & 15
    return Instruction(code, source, immediate, target)


def _sections(data: bytes, order: str) -> list[_Section]:
    (table_at,) = struct.unpack_from(f"{order}Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from(f"{order}3H", data, 0x3A)
    raw = [struct.unpack_from(f"{order}2I4Q2I2Q", data, table_at + n * entry_size) for n in range(count)]
    names = data[raw[names_index][4] : raw[names_index][4] + raw[names_index][5]]
    return [
        _Section(_text(names, name), kind, flags, data[at : at + size] if kind != 8 else b"", info)
        for name, kind, flags, _, at, size, _, info, _, _ in raw
    ]


def _symbols(sections: list[_Section], order: str) -> list[_Symbol]:
    table = next(section for section in sections if section.kind == _SHT_SYMTAB)
    names = next(section for section in sections if section.name == ".strtab").data
    found = []
    for name, info, _, section, value, size in struct.iter_unpack(f"{order}I2BH2Q", table.data):
        # A section's own symbol has no name.
        label = _text(names, name) or (sections[section].name if section < len(sections) else "")
        found.append(_Symbol(label, info & 15, section, value, size))
    return found


def _targets(sections: list[_Section], symbols: list[_Symbol], index: int, order: str) -> dict[int, str]:
    """Offset in a section -> symbol, from its relocations."""
    found = {}
    for section in sections:
        if section.kind == _SHT_REL and section.info == index:
            for at, info in struct.iter_unpack(f"{order}2Q", section.data):
                found[at] = symbols[info >> 32].name
    return found


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
