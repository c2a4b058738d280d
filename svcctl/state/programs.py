"""Loads svcctl's own objects: which file, which maps reused, which made, and what `programs` says of it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import svcctl
from svcctl.bpf.object import Object
from svcctl.errors import SvcctlError
from svcctl.maps import layouts
from svcctl.maps.layouts import U32

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.bpf.map import Map
    from svcctl.bpf.object import MapSpec
    from svcctl.bpf.program import Program
    from svcctl.maps.catalog import ProgramShape
    from svcctl.maps.layouts import ProgramRecord


def object_path(name: str) -> str:
    """Path of a built object for this machine's byte order. Raises SvcctlError if it was not built."""
    suffix = "bpfel" if sys.byteorder == "little" else "bpfeb"
    directory = os.environ.get("SVCCTL_OBJECTS") or os.path.join(os.path.dirname(svcctl.__file__), "objects")
    path = os.path.join(directory, f"{name}.{suffix}.o")
    if not os.path.exists(path):
        raise SvcctlError(f"{path}: no such object", hint="'make build' compiles it; packages carry it")
    return path


def object_digest(path: str) -> bytes:
    """SHA-256 of an object file: what `programs` identifies a program by. Kernel tags changed with 6.18."""
    import hashlib  # loads OpenSSL: 2 ms that most commands need not spend

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def object_specs(name: str) -> dict[str, MapSpec]:
    """The maps an object declares, with their sizes before `load_object` changes any."""
    with Object.open(object_path(name)) as opened:
        return opened.map_specs


def load_object(
    name: str, sizes: Mapping[str, int], reuse: Mapping[str, Map], programs: Sequence[str] = ()
) -> Object:
    """Open and load an object: maps in `reuse` are taken, the others are made, with `sizes` where given.

    `programs`: only these of its programs; none given, all.

    The caller closes it. Raises VerifierRejected and other BpfErrors.
    """
    loaded = Object.open(object_path(name))
    try:
        for map_name in loaded.map_specs:
            if map_name in reuse:
                loaded.reuse(map_name, reuse[map_name])
            elif map_name in sizes:
                loaded.resize(map_name, sizes[map_name])
        if programs:
            loaded.only_program(*programs)
        loaded.load()
    except BaseException:
        loaded.close()
        raise
    return loaded


def describe_program(shape: ProgramShape, program: Program) -> ProgramRecord:
    """The record of a freshly loaded program."""
    info = program.info
    ids = tuple(info.map_ids)[: layouts.PROGRAM_MAPS]
    return layouts.ProgramRecord(
        name=shape.name.encode(),
        id=info.id,
        map_count=len(ids),
        map_ids=b"".join(U32.pack(number) for number in ids),
        sha256=object_digest(object_path(shape.object)),
        version=layouts.fit(svcctl.__version__, 32),
        loaded_ns=time.time_ns(),
    )
