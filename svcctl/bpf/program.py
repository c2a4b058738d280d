"""Loaded BPF programs: what the kernel knows of them, and running one by hand."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_char
from struct import Struct, calcsize, unpack_from
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.handle import Handle
from svcctl.bpf.lib import check, opts, require

if TYPE_CHECKING:
    from typing import Self

# struct bpf_prog_info: type, id, tag, gap, load_time, created_by_uid, nr_map_ids, map_ids (a pointer, at 56),
# name, gap, btf_id (at 128), gap, run_time_ns (at 192), run_cnt.
_INFO = Struct("=2I8s24xQ2IQ16s48xI60x2Q")
_MAP_IDS_AT = 56
_FIRST_MAP_IDS = 64


# Not as a class: with postponed annotations that compiles one string per field when it is imported.
ProgramInfo = NamedTuple(  # noqa: UP014
    "ProgramInfo",
    [
        ("type", int),
        ("id", int),
        ("tag", str),
        ("name", str),
        ("load_time_ns", int),
        ("map_ids", tuple[int, ...]),
        ("run_time_ns", int),
        ("run_count", int),
        ("btf_id", int),
    ],
)
"""What the kernel knows of a program.

`load_time_ns` is on the boot time clock, `tag` the kernel's hash of the instructions in hex (for display
only: kernels differ in it). Run times count only while BPF statistics are on.
"""


TestRun = NamedTuple(  # noqa: UP014
    "TestRun",
    [
        ("retval", int),
        ("duration_ns", int),
        ("ctx", bytes),
        ("data", bytes),
    ],
)
"""Outcome of a test run: the program's return value, ns a run on average, context and packet after it."""


class Program(Handle):
    """A loaded program."""

    KIND = "program"

    @classmethod
    def open_pinned(cls, path: str, read_only: bool = False) -> Self:
        """Open a pin. Even a read-only descriptor can run the program."""
        return cls._open_pinned(path, read_only)

    @classmethod
    def open_id(cls, program_id: int) -> Self:
        """Open by kernel id. Needs CAP_SYS_ADMIN; ENOENT when there is none."""
        return cls._open_id("bpf_prog_get_fd_by_id", program_id)

    @property
    def info(self) -> ProgramInfo:
        """Read from the kernel each time: run times move."""
        room = _FIRST_MAP_IDS
        while True:
            ids = (ctypes.c_uint32 * room)()
            raw = (c_char * _INFO.size)()
            # The number of ids there is room for goes in, the number there are comes out.
            ctypes.c_uint32.from_buffer(raw, _MAP_IDS_AT - 4).value = room
            ctypes.c_uint64.from_buffer(raw, _MAP_IDS_AT).value = addressof(ids)
            self._read_info(raw)
            kind, number, tag, load_time, _, map_count, _, name, btf_id, run_time, runs = _INFO.unpack(raw)
            if map_count <= room:
                break
            room = map_count
        return ProgramInfo(
            kind,
            number,
            tag.hex(),
            name.split(b"\0", 1)[0].decode(),
            load_time,
            tuple(ids[:map_count]),
            run_time,
            runs,
            btf_id,
        )

    def test_run(
        self, ctx_in: bytes = b"", data: bytes = b"", repeat: int = 1, ctx_size_out: int = 0
    ) -> TestRun:
        """Run it `repeat` times with BPF_PROG_TEST_RUN on a context and packet of our making.

        Raises BpfError: ENOTSUPP (524) for types without it, EINVAL for a context of the wrong size, ENOSPC
        when `ctx_size_out` is not 0 and less than the context, EOPNOTSUPP when sk_lookup chose a socket of a
        SO_REUSEPORT group.
        """
        data_out = (c_char * (len(data) + 512))() if data else None
        ctx_out = (c_char * ctx_size_out)() if ctx_size_out else None
        data_in = ctypes.create_string_buffer(data, len(data)) if data else None
        context = ctypes.create_string_buffer(ctx_in, len(ctx_in)) if ctx_in else None
        # struct bpf_test_run_opts: data_in, data_out, data_size_in, data_size_out, ctx_in, ctx_out,
        # ctx_size_in, ctx_size_out, retval, repeat, duration, flags, cpu, batch_size.
        layout = "2P2I2P3Ii4I"
        settings = opts(
            layout,
            addressof(data_in) if data_in is not None else 0,
            addressof(data_out) if data_out is not None else 0,
            len(data),
            len(data_out) if data_out is not None else 0,
            addressof(context) if context is not None else 0,
            addressof(ctx_out) if ctx_out is not None else 0,
            len(ctx_in),
            ctx_size_out,
            0,
            repeat,
            *(0, 0, 0, 0),
        )
        buffer = ctypes.create_string_buffer(settings, len(settings))
        check(require("bpf_prog_test_run_opts")(self.fd, buffer), "test run", self.subject)
        fields = unpack_from(layout, buffer.raw, calcsize("N"))
        return TestRun(
            retval=fields[8],
            duration_ns=fields[10],
            ctx=ctx_out.raw[: fields[7]] if ctx_out is not None else b"",
            data=data_out.raw[: fields[3]] if data_out is not None else b"",
        )
