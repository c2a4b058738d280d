"""Many runs of a program in a row with as little as possible between them: Python would push the caches empty."""

from __future__ import annotations

import ctypes
from struct import calcsize, unpack_from
from typing import TYPE_CHECKING

from svcctl.bpf.lib import check, opts, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.bpf.program import Program

# struct bpf_test_run_opts: data_in, data_out, data_size_in, data_size_out, ctx_in, ctx_out, ctx_size_in,
# ctx_size_out, retval, repeat, duration, flags, cpu, batch_size.
_LAYOUT = "2P2I2P3Ii4I"
_DURATION_AT = calcsize("N2P2I2P3Ii")


class TimedRuns:
    """The contexts to run programs on, made ready once."""

    def __init__(self, contexts: Sequence[bytes], repeat: int = 1, frames: Sequence[bytes] = ()) -> None:
        """`frames`: the packet of each context, for programs that have one. What they make of it is not seen."""
        self._contexts = [ctypes.create_string_buffer(each, len(each)) for each in contexts]
        self._frames = [ctypes.create_string_buffer(each, len(each)) for each in frames]
        packets = [(ctypes.addressof(each), 0, len(each), 0) for each in self._frames] or [
            (0, 0, 0, 0)
        ] * len(contexts)
        self._settings = [
            ctypes.create_string_buffer(
                opts(_LAYOUT, *packet, ctypes.addressof(each), 0, len(each), 0, 0, repeat, 0, 0, 0, 0)
            )
            for each, packet in zip(self._contexts, packets, strict=True)
        ]

    def of(self, program: Program) -> list[int]:
        """ns a run took, for each context in turn. Raises BpfError."""
        run, fd = require("bpf_prog_test_run_opts"), program.fd
        results = [run(fd, settings) for settings in self._settings]
        check(min(results), "test run", program.subject)
        return [unpack_from("I", settings, _DURATION_AT)[0] for settings in self._settings]
