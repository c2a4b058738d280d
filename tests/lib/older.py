"""State as an older svcctl would have left it: objects built from changed sources, maps written in their layout.

The present svcctl makes the state; then each map whose layout the older version had otherwise is made from the
older objects, filled with what that layout has room for, and put in the place of the present one, under a
program of the older objects.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from svcctl.state import migrate
from svcctl.state.place import Place
from svcctl.state.programs import object_digest
from svcctl.state.writer import Writer, lock_state
from tests.lib.bpf_source import clang

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = "bpfel" if sys.byteorder == "little" else "bpfeb"
VERSION = "0.0.7"

Narrow = Callable[[bytes], bytes]


class Older(NamedTuple):
    """How an older version differed: `changes` are (file below bpf/, pattern, replacement), each of which must
    match. `values` and `keys` narrow present values and keys of a map to the older layout; a map in `without`
    it did not have at all."""

    changes: tuple[tuple[str, str, str], ...]
    values: dict[str, Narrow] = {}
    keys: dict[str, Narrow] = {}
    without: tuple[str, ...] = ()


TYPES = "include/svc_types.h"
MAPS = "include/svc_dispatch_maps.h"
PROGRAM = "dispatch.bpf.c"


def _drop_field(struct: str, field: str) -> tuple[str, str, str]:
    """Leave a field out of a struct."""
    return (TYPES, rf"(struct {struct} \{{[^}}]*?)\n\t[^\n]*\b{field}\b[^\n]*;[^\n]*", r"\1")


def _cut(size: int) -> Narrow:
    return lambda value: value[:size]


def _each_cpu(narrow: Narrow, step: int) -> Narrow:
    return lambda value: b"".join(narrow(value[at : at + step]) for at in range(0, len(value), step))


def _without_version(value: bytes) -> bytes:
    record = layouts.PROGRAM.unpack(value)
    return value[: -(32 + 8)] + record.loaded_ns.to_bytes(8, sys.byteorder)


def _ports(value: bytes) -> bytes:
    both = layouts.PORTS.unpack(value)
    return both.exact.to_bytes(2, sys.byteorder) + both.trie.to_bytes(2, sys.byteorder)


KINDS = {
    "destination-without-flags": Older(
        (_drop_field("svc_destination", "flags"),), {"destinations": _cut(12)}
    ),
    "two-counters": Older(
        (_drop_field("svc_dispatch_stats", "errors"), (PROGRAM, r"stats->errors\+\+;", ";")),
        {"dispatch_stats": _each_cpu(_cut(16), 24)},
    ),
    "usage-without-max": Older((_drop_field("svc_usage", "max"),), {"usage": _cut(4)}),
    "shorter-commands": Older(((TYPES, r"char command\[112\]", "char command[48]"),), {"writers": _cut(64)}),
    "program-without-version": Older(
        ((TYPES, r"(sha256\[32\];[^\n]*)\n\tchar version\[32\];", r"\1"),), {"programs": _without_version}
    ),
    "attachment-without-role": Older(
        tuple(_drop_field("svc_attachment", field) for field in ("role", "flags", "name")),
        {"attachments": _cut(16)},
    ),
    "narrow-port-counts": Older(
        (
            (
                TYPES,
                r"struct svc_ports \{\n\t__u32 exact;\n\t__u32 trie;",
                r"struct svc_ports {\n\t__u16 exact;\n\t__u16 trie;",
            ),
        ),
        {"ports": _ports},
    ),
    "shorter-labels": Older(
        ((TYPES, "#define SVC_LABEL_BYTES 255", "#define SVC_LABEL_BYTES 63"),),
        keys={"destinations": lambda key: key[:63] + key[255:]},
    ),
    "fewer-drop-reasons": Older(
        (("include/svc_drop.h", r"max_entries, SVC_DROP_SLOTS", "max_entries, 2"),),
        {"drop_stats": lambda v: v},
    ),
    "without-hints": Older(
        (
            (MAPS, r"/\* Per destination the slot[^/]*\*/\nstruct \{[^}]*\} hints SEC\(\"\.maps\"\);\n", ""),
            (PROGRAM, r"hint = bpf_map_lookup_elem\(&hints, &id\);", "hint = 0;"),
        ),
        without=("hints",),
    ),
    "without-owners": Older(
        (
            (
                MAPS,
                r"/\* Nor this one: who asked[^/]*\*/\nstruct \{[^}]*\} binding_owners SEC\(\"\.maps\"\);\n",
                "",
            ),
        ),
        without=("binding_owners",),
    ),
}


def everything() -> Older:
    """All differences at once."""
    return Older(
        tuple(change for kind in KINDS.values() for change in kind.changes),
        {name: narrow for kind in KINDS.values() for name, narrow in kind.values.items()},
        {name: narrow for kind in KINDS.values() for name, narrow in kind.keys.items()},
        tuple(name for kind in KINDS.values() for name in kind.without),
    )


def build(older: Older, scratch: Path, schema: int = layouts.SCHEMA - 1) -> Path:
    """Compile `state` and `dispatch` with the changes; the directory of the objects."""
    root = scratch / "older"
    shutil.copytree(ROOT / "bpf", root / "bpf")
    for name, pattern, replacement in (
        (TYPES, r"#define SVC_SCHEMA \d+", f"#define SVC_SCHEMA {schema}"),
        *older.changes,
    ):
        file = root / "bpf" / name
        text, count = re.subn(pattern, replacement, file.read_text())
        assert count, f"{name} has nothing like {pattern}"
        file.write_text(text)
    types = root / "bpf" / TYPES
    types.write_text(re.sub(r"_Static_assert\([^;]*\);", "", types.read_text()))
    return compile_objects(root, scratch / "objects")


def compile_objects(root: Path, out: Path, names: tuple[str, ...] = ("state", "dispatch")) -> Path:
    """Compile some of a tree's programs for this machine."""
    out.mkdir(exist_ok=True)
    machine = os.uname().machine
    command = [
        clang(),
        "-g",
        "-O2",
        "-fno-strict-aliasing",
        "-mcpu=v3",
        "-target",
        SUFFIX,
        "-Ibpf/include",
        f"-I/usr/include/{machine}-linux-gnu",
    ]
    for name in names:
        made = ["-c", "-o", str(out / f"{name}.{SUFFIX}.o"), f"bpf/{name}.bpf.c"]
        done = subprocess.run([*command, *made], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return out


def make_older(older: Older, objects: Path, schema: int = layouts.SCHEMA - 1) -> None:
    """Turn the present state of this namespace into one of the older version. It must be attached."""
    with lock_state(Place(), "test") as writer:
        kept = {name: writer.map(name) for name in catalog.MAPS if writer.has_map(name)}
        fresh = (older.values.keys() | older.keys.keys()) - set(older.without)
        sizes = {name: one.info.max_entries for name, one in kept.items()}
        with (
            _load(objects, "state", catalog.STATE_MAPS, kept, fresh, sizes) as state,
            _load(objects, "dispatch", catalog.DISPATCH_MAPS, kept, fresh, sizes) as dispatch,
        ):
            for name in fresh:
                with (state if name in catalog.STATE_MAPS else dispatch).map(name) as new:
                    _fill(kept[name], new, older.keys.get(name), older.values.get(name))
                    _replace(writer, name, new)
            _swap_program(writer, dispatch, older)
        for name in older.without:
            os.unlink(writer.pin(name))
        writer.put_meta(
            writer.meta()._replace(schema=schema, version=VERSION.encode(), created_by=VERSION.encode())
        )


def _load(
    objects: Path,
    name: str,
    names: dict[str, catalog.MapShape],
    kept: dict[str, Map],
    fresh: set[str],
    sizes: dict[str, int],
) -> Object:
    loaded = Object.open(str(objects / f"{name}.{SUFFIX}.o"))
    for one in loaded.map_specs:
        if one not in fresh:
            loaded.reuse(one, kept[one])
        elif one in catalog.dispatch_sizes(1, 1):
            loaded.resize(one, sizes[one])
    loaded.load()
    return loaded


def _fill(old: Map, new: Map, key: Narrow | None, value: Narrow | None) -> None:
    is_array = new.info.type in (catalog.ARRAY, catalog.PERCPU_ARRAY)
    for old_key, old_value in old.items():
        if is_array and (not any(old_value) or U32.unpack(old_key)[0] >= new.info.max_entries):
            continue
        new.update(key(old_key) if key else old_key, value(old_value) if value else old_value)


def _replace(writer: Writer, name: str, new: Map) -> None:
    os.unlink(writer.pin(name))
    new.pin(writer.pin(name))
    writer.pin_mode(writer.pin(name))


def _swap_program(writer: Writer, dispatch: Object, older: Older) -> None:
    """Put the older program under the link, and its record into `programs`, in whatever layout that has."""
    shape = catalog.DISPATCH
    with dispatch.program(shape.name) as program:
        with Link.open_pinned(writer.pin(shape.link_pin)) as link:
            link.update(program)
        os.unlink(writer.pin(shape.pin))
        program.pin(writer.pin(shape.pin))
        info = program.info
    record = writer.program_record(shape.number)._replace(
        id=info.id,
        map_count=len(info.map_ids),
        map_ids=b"".join(U32.pack(number) for number in info.map_ids),
        sha256=object_digest(dispatch.path),
        version=VERSION.encode(),
    )
    narrow = older.values.get("programs")
    data = layouts.PROGRAM.pack(record)
    with migrate.open_any(writer, "programs") as programs:
        programs.update(U32.pack(shape.number), narrow(data) if narrow else data)
