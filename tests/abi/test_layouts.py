"""Structs, enums and constants: the Python mirrors against the BTF and the headers of the built objects.

BTF of an object is what the compiler made of bpf/include/svc_types.h, for both byte orders, so nothing here
needs a kernel or root.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import pytest

import svcctl
from svcctl.bpf.btf import Btf, Struct
from svcctl.maps import enums, layouts, packet_layouts, service_layouts
from svcctl.maps.layouts import Layout

ROOT = Path(svcctl.__file__).resolve().parents[1]
OBJECTS = ROOT / "svcctl" / "objects"
HEADERS = [
    ROOT / "bpf" / "include" / name for name in ("svc_types.h", "svc_service_types.h", "svc_packet_types.h")
]
ALL = (*layouts.ALL, *service_layouts.ALL, *packet_layouts.ALL)
ORDERS = ("el", "eb")
OWN = "el" if sys.byteorder == "little" else "eb"


@pytest.fixture(scope="module", params=ORDERS)
def abi(request: pytest.FixtureRequest) -> Btf:
    """Everything in svc_types.h, in one object."""
    path = OBJECTS / f"abi.bpf{request.param}.o"
    assert path.exists(), "make objects"
    return Btf.from_object(str(path))


@pytest.fixture(scope="module")
def header() -> str:
    """Text of the headers with layouts. They are no part of an installed package."""
    return "".join(path.read_text() for path in HEADERS)


@pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.name)
def test_every_layout(abi: Btf, layout: Layout) -> None:  # type: ignore[type-arg]
    """Size, and name, offset and size of each field."""
    built = abi.struct(layout.name)
    assert layout.size == built.size
    assert layout.fields() == [(field.name, field.offset, field.size) for field in built.fields]


@pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.name)
def test_no_holes(abi: Btf, layout: Layout) -> None:  # type: ignore[type-arg]
    """Garbage in padding would make look-ups miss; so there is none, at the end neither, and no bit field."""
    built = abi.struct(layout.name)
    assert holes(built) == []
    assert all(not field.bits for field in built.fields)


def holes(built: Struct) -> list[int]:
    """Bytes of a struct that no field covers."""
    covered = {at for field in built.fields for at in range(field.offset, field.offset + field.size)}
    return sorted(set(range(built.size)) - covered)


def test_holes_would_be_found() -> None:
    """The check itself: a struct with a hole in the middle and padding at the end."""
    from svcctl.bpf.btf import Field

    def field(name: str, offset: int, size: int) -> Field:
        return Field(name, offset, size, "__u8", 0, size > 1, size, False, 0)

    assert holes(Struct("holey", 8, (field("a", 0, 1), field("b", 4, 2)))) == [1, 2, 3, 6, 7]


@pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.name)
def test_signs_and_kinds(abi: Btf, layout: Layout) -> None:  # type: ignore[type-arg]
    """A struct code stands for what the field is: unsigned integers by size, bytes for every array."""
    for field, code in zip(abi.struct(layout.name).fields, layout.codes, strict=True):
        assert not field.signed or field.type_name == "char", field
        if field.is_array:
            assert code == f"{field.size}s", field
        else:
            assert code == {1: "B", 2: "H", 4: "I", 8: "Q"}[field.size], field


def test_every_struct_of_the_header_has_a_mirror(abi: Btf) -> None:
    mirrored = {layout.name for layout in ALL}
    assert {name for name in abi.names() if name.startswith("svc_")} == mirrored | set(enums.ALL)


@pytest.mark.parametrize("name", enums.ALL)
def test_every_enum(abi: Btf, name: str) -> None:
    assert abi.enum(name) == enums.ALL[name]


def test_names_of_enum_values() -> None:
    """What listings call a drop reason is its C name in small letters."""
    named = {name: f"SVC_DROP_{name.upper()}" for name in enums.DROP_REASONS}
    assert [enums.DROP_REASON[value] for value in named.values()] == list(range(len(named)))
    assert enums.DROP_REASON["SVC_DROP_REASONS"] == len(named)
    assert (enums.DROP_NO_SOCKET, enums.DROP_BAD_DESTINATION, enums.DROP_UNSTABLE) == (0, 1, 2)


CONSTANTS = {
    "SVC_MAGIC": layouts.MAGIC,
    "SVC_SCHEMA": layouts.SCHEMA,
    "SVC_LABEL_BYTES": layouts.LABEL_BYTES,
    "SVC_SOCKETS_PER_DESTINATION": layouts.SOCKETS_PER_DESTINATION,
    "SVC_PROGRAM_MAPS": layouts.PROGRAM_MAPS,
    "SVC_PROGRAM_SLOTS": layouts.PROGRAM_SLOTS,
    "SVC_WRITERS": layouts.WRITERS,
    "SVC_DROP_SLOTS": 64,
    "SVC_REVERSE_ENTRIES": service_layouts.REVERSE_ENTRIES,
    "SVC_FRONTEND_CHECK_SHIFT": service_layouts.FRONTEND_CHECK_SHIFT,
    "SVC_ROUTE_SHIFT": packet_layouts.ROUTE_SHIFT,
    "SVC_MEMBER_RESTS": service_layouts.MEMBER_RESTS,
    "SVC_FILTER_BUCKETS": packet_layouts.FILTER_BUCKETS,
    "SVC_FILTER_MARKS": packet_layouts.FILTER_MARKS,
    **{f"SVC_FLOW_CHECK_{n}": factor for n, factor in enumerate(packet_layouts.CHECK_FACTORS)},
    **{f"SVC_CHECK_{n}": factor for n, factor in enumerate(layouts.CHECK_FACTORS)},
}


def test_every_constant_of_the_header(header: str) -> None:
    found = {}
    for name, text in re.findall(r"^#define (SVC_\w+) (.+?)(?:/\*.*)?$", header, re.M):
        value = re.sub(r"(?<=[0-9a-fA-F])(ULL|U|u)\b", "", text.strip())
        found[name] = eval(value, {"__builtins__": {}}, {})
    assert found.pop("SVC_PORTS") == 2 * 65536
    assert found == CONSTANTS


def test_schema_is_asserted_in_c(header: str) -> None:
    """The size of every struct stands in the header as well, so that the compiler holds it."""
    sizes = dict(re.findall(r"_Static_assert\(sizeof\(struct (\w+)\) == (\d+),", header))
    assert {layout.name: str(layout.size) for layout in ALL} == sizes


def test_exact_check_is_the_digest_the_header_describes() -> None:
    """Against a straight reading of it: a factor a word, sum modulo 2^32, words in the host's order."""
    for key in (
        bytes(20),
        bytes(range(20)),
        b"\xff" * 20,
        b"\x06\x04\x50\x00" + bytes(10) + b"\xff\xff\x7f\0\0\1",
    ):
        words = struct.unpack("=5I", key)
        expected = sum(word * factor for word, factor in zip(words, layouts.CHECK_FACTORS, strict=True))
        assert layouts.exact_check(key) == expected % (1 << 32)


def test_pack_and_unpack() -> None:
    """Every layout survives both ways, at its largest and smallest values."""
    for layout in layouts.ALL:
        for fill in (b"\0", b"\xff", b"\x5a"):
            data = fill * layout.size
            assert layout.pack(layout.unpack(data)) == data
        with pytest.raises(struct.error):
            layout.unpack(bytes(layout.size + 1))
