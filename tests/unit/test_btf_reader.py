"""The BTF reader on objects compiled here, of both byte orders, and on damaged input."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from svcctl.bpf.btf import Btf
from svcctl.bpf.errors import BpfError
from tests.lib.bpf_source import clang_version, compile_bpf

SOURCE = """
struct inner { __u8 low; __u8 high; };
typedef struct inner inner_t;
enum reason { REASON_NONE, REASON_FULL = 7, REASON_LAST };
enum signed_one { BELOW = -2, ABOVE = 3 };
enum wide { WIDE_SMALL = 1, WIDE_LARGE = 0x100000000ULL };
struct layout {
    __u32 id;
    __s16 balance;
    __u16 ports[2][3];
    const inner_t inner;
    struct inner several[4];
    union { __u64 word; void *pointer; };
    enum reason reason;
    __u32 three : 3, five : 5;
};
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct layout);
} typed SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 8);
} untyped SEC(".maps");
enum reason keep_reason = REASON_LAST;
enum signed_one keep_signed = BELOW;
enum wide keep_wide = WIDE_LARGE;
"""


@pytest.fixture(scope="module", params=[False, True], ids=["little", "big"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_bpf(SOURCE, tmp_path_factory.mktemp("bpf"), big_endian=request.param)


@pytest.fixture
def btf(path: str) -> Btf:
    return Btf.from_object(path)


def test_struct(btf: Btf) -> None:
    layout = btf.struct("layout")
    assert (layout.name, layout.size) == ("layout", 48)
    fields = {field.name: field for field in layout.fields}
    seen = {
        name: (f.offset, f.size, f.type_name, f.is_array, f.length, f.signed) for name, f in fields.items()
    }
    assert seen == {
        "id": (0, 4, "__u32", False, 1, False),
        "balance": (4, 2, "__s16", False, 1, True),
        "ports": (6, 12, "__u16", True, 6, False),
        "inner": (18, 2, "inner_t", False, 1, False),
        "several": (20, 8, "struct inner", True, 4, False),
        "": (32, 8, "union (anonymous)", False, 1, False),
        "reason": (40, 4, "enum reason", False, 1, False),
        "three": (44, 4, "__u32", False, 1, False),
        "five": (44, 4, "__u32", False, 1, False),
    }
    assert (fields["three"].bits, fields["five"].bits, fields["id"].bits) == (3, 5, 0)
    choice = btf.struct_by_id(fields[""].type_id)
    assert [(f.name, f.offset, f.size, f.type_name) for f in choice.fields] == [
        ("word", 0, 8, "__u64"),
        ("pointer", 0, 8, "void *"),
    ]
    assert btf.struct("inner_t") == btf.struct("inner")
    with pytest.raises(KeyError):
        btf.struct("nobody")
    with pytest.raises(KeyError):
        btf.struct_by_id(100_000)
    with pytest.raises(KeyError):
        btf.struct("__u32")


def test_enum(btf: Btf) -> None:
    assert btf.enum("reason") == {"REASON_NONE": 0, "REASON_FULL": 7, "REASON_LAST": 8}
    if clang_version() >= 15:  # older compilers write neither signs nor 64 bits
        assert btf.enum("signed_one") == {"BELOW": -2, "ABOVE": 3}
        assert btf.enum("wide") == {"WIDE_SMALL": 1, "WIDE_LARGE": 1 << 32}
    else:
        assert btf.enum("signed_one") == {"BELOW": 0xFFFFFFFE, "ABOVE": 3}
    with pytest.raises(KeyError):
        btf.enum("layout")


def test_names_and_maps(btf: Btf) -> None:
    assert {"layout", "inner", "reason", "signed_one", "wide"} <= set(btf.names())
    assert "" not in btf.names()
    assert btf.map_types("typed") == ("__u32", "struct layout")
    assert btf.map_types("untyped") == ("", "")
    with pytest.raises(KeyError):
        btf.map_types("nobody")


def test_not_an_object(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Btf.from_object(str(tmp_path / "none.o"))
    other = tmp_path / "text.o"
    other.write_bytes(b"hello\n")
    with pytest.raises(BpfError, match="not a 64-bit ELF file"):
        Btf.from_object(str(other))
    other.write_bytes(b"\x7fELF\x02\x01" + bytes(100))
    with pytest.raises(BpfError):
        Btf.from_object(str(other))
    with pytest.raises(BpfError, match="not valid BTF"):
        Btf(b"")


@pytest.mark.parametrize("table_at", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_section_headers_far_beyond_the_file(path: str, tmp_path: Path, table_at: int) -> None:
    content = bytearray(Path(path).read_bytes())
    struct.pack_into("<Q" if content[5] == 1 else ">Q", content, 0x28, table_at)
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(content)
    with pytest.raises(BpfError, match="damaged ELF file"):
        Btf.from_object(str(damaged))


def test_damaged_input_is_an_error_and_nothing_else(path: str, tmp_path: Path) -> None:
    """Bytes changed at random in the whole file: an answer, KeyError or BpfError."""
    content = Path(path).read_bytes()
    dice = random.Random(4)
    damaged = tmp_path / "damaged.o"
    for _ in range(300):
        changed = bytearray(content[: dice.choice([len(content), dice.randrange(len(content))])])
        for _ in range(dice.randrange(1, 30)):
            if changed:
                changed[dice.randrange(len(changed))] = dice.randrange(256)
        damaged.write_bytes(changed)
        try:
            btf = Btf.from_object(str(damaged))
            for name in btf.names():
                try:
                    btf.struct(name)
                except KeyError:
                    btf.enum(name)
            btf.map_types("typed")
        except (KeyError, BpfError):
            continue
