"""Service maps as an older svcctl would have left them: made from changed sources, in the place of the present ones."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from svcctl.bpf.link import Link
from svcctl.bpf.object import Object
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from svcctl.state.balancer import program_name
from svcctl.state.place import Place
from svcctl.state.programs import object_digest
from svcctl.state.writer import Writer, lock_state
from tests.lib import older
from tests.lib.older import Narrow

TYPES = "include/svc_service_types.h"
MAPS = "include/svc_service_maps.h"


def _without(struct: str, *fields: str) -> list[tuple[str, str]]:
    return [(rf"(struct {struct} \{{[^}}]*?)\n\t[^\n]*\b{field}\b[^\n]*;[^\n]*", r"\1") for field in fields]


CHANGES = [
    *_without("svc_block", "ranges"),
    *_without("svc_service", "sources", "table_size"),
    *_without("svc_backend_id", "zone", "node"),
    *_without("svc_service_stats", "reserved"),
    *_without("svc_backend", "node", "pad"),
    *_without("svc_service_member", "until_ns"),
    (r"char owner\[64\]", "char owner[16]"),
]
"""How the older version's structs differed."""
WITHOUT = ("source_ranges", "node_port_nets")
"""Maps it did not have."""


def _cut(*parts: slice) -> Narrow:
    return lambda value: b"".join(value[part] for part in parts)


VALUES: dict[str, Narrow] = {
    "blocks": _cut(slice(0, 24), slice(28, 40)),
    "backend_ids": _cut(slice(0, 8)),
    "service_stats": _cut(slice(0, 56)),
    "backends": _cut(slice(0, 20), slice(24, 28), slice(32, 40)),
    "service_members": _cut(slice(0, 32 - 8)),
    "services": _cut(slice(0, 256 + 16), slice(320, 376)),
}


def build(scratch: Path) -> Path:
    """Compile `connect` with the changes; the directory of the object."""
    root = scratch / "older-services"
    shutil.copytree(older.ROOT / "bpf", root / "bpf")
    file = root / "bpf" / TYPES
    text = file.read_text()
    for pattern, replacement in CHANGES:
        text, count = re.subn(pattern, replacement, text)
        assert count, f"nothing like {pattern}"
    file.write_text(re.sub(r"_Static_assert\([^;]*\);", "", text))
    maps = root / "bpf" / MAPS
    text, count = re.subn(r"struct \{[^}]*\} source_ranges SEC\(\"\.maps\"\);", "", maps.read_text())
    assert count == 1
    text, count = re.subn(r"SVC_HASH\(node_port_nets,[^;]*;", "", text)
    assert count == 1
    maps.write_text(text)
    return older.compile_objects(root, scratch / "objects-services", ("connect",))


def make_older(objects: Path, schema: int = layouts.SCHEMA - 1) -> None:
    """Turn the service maps of this namespace into those of the older version. They must be attached."""
    with lock_state(Place(), "test") as writer:
        with Object.open(str(objects / f"connect.{older.SUFFIX}.o")) as loaded:
            for name in loaded.map_specs:
                if name in VALUES:
                    loaded.resize(name, writer.map(name).info.max_entries)
                else:
                    loaded.reuse(name, writer.map(name))
            names = {shape: program_name(shape) for shape in catalog.CONNECT}
            loaded.only_program(*names.values())
            loaded.load()
            for name, narrow in VALUES.items():
                with loaded.map(name) as new:
                    for key, value in writer.map(name).items():
                        if any(value):
                            new.update(key, narrow(value))
                    os.unlink(writer.pin(name))
                    new.pin(writer.pin(name))
                    writer.pin_mode(writer.pin(name))
            for name in WITHOUT:
                os.unlink(writer.pin(name))
            for shape, name in names.items():
                _swap(writer, shape, loaded, name)
        writer.put_meta(writer.meta()._replace(schema=schema, version=older.VERSION.encode()))


def _swap(writer: Writer, shape: catalog.ProgramShape, loaded: Object, name: str) -> None:
    with loaded.program(name) as program, Link.open_pinned(writer.pin(shape.link_pin)) as link:
        link.update(program)
        os.unlink(writer.pin(shape.pin))
        program.pin(writer.pin(shape.pin))
        info = program.info
    record = writer.program_record(shape.number)._replace(
        id=info.id,
        map_count=len(info.map_ids),
        map_ids=b"".join(U32.pack(number) for number in info.map_ids),
        sha256=object_digest(loaded.path),
    )
    writer.map("programs").update(U32.pack(shape.number), layouts.PROGRAM.pack(record))
