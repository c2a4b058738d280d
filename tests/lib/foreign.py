"""sk_lookup programs that are not svcctl's, attached to the test's network namespace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from svcctl.bpf.link import Link
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.maps import catalog
from svcctl.state.programs import object_path


class Attached(NamedTuple):
    program_id: int
    link_id: int


@contextlib.contextmanager
def attached_copy(pin: str | None = None) -> Iterator[Attached]:
    """A second dispatcher with maps of its own, held by a descriptor, or with `pin` by that."""
    with Object.open(object_path("dispatch")) as loaded:
        for name in catalog.dispatch_sizes(1, 1):
            loaded.resize(name, 16)
        loaded.load()
        with loaded.program("dispatch") as program:
            made = _attach(program)
    with made as link:
        info = link.info
        if pin is not None:
            link.pin(pin)
            link.close()
        yield Attached(info.program_id, info.id)


@contextlib.contextmanager
def foreign_program() -> Iterator[Attached]:
    """The smallest program there is: `return SK_PASS`, made without any file."""
    with _pass_program() as program, _attach(program) as link:
        yield Attached(program.info.id, link.info.id)


def _attach(program: Program) -> Link:
    fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Link.create(program, fd, catalog.SK_LOOKUP)
    finally:
        os.close(fd)


def _pass_program() -> Program:
    """bpf_prog_load of two instructions: r0 = 1; exit. Through libbpf, whose function bpf/lib.py has no need of."""
    import ctypes
    import struct

    from svcctl.bpf.lib import opts

    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    code = struct.pack("=BBhi", 0xB7, 0, 0, 1) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    # struct bpf_prog_load_opts: attempts, expected_attach_type.
    settings = opts("iI", 0, catalog.SK_LOOKUP)
    load = library.bpf_prog_load
    load.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
    ]
    fd = load(30, b"stranger", b"GPL", ctypes.create_string_buffer(code, len(code)), len(code) // 8, settings)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), "bpf_prog_load")
    return Program.from_fd(fd)
