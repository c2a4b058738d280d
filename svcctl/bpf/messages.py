"""What libbpf has to say while it works on an object: collected for the error instead of printed."""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from typing import TYPE_CHECKING

from svcctl.bpf.lib import require

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_DEBUG = 2
_LINE = 4096


class Messages:
    """While entered, libbpf's warnings and notes go to `lines`; with `verbose` all goes to stderr too.

    libbpf has one print function for the whole process, so enter one at a time; outside it is silent.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self.lines: list[str] = []
        self._verbose = verbose
        # int print(level, format, va_list): a va_list fits a pointer argument on every ABI with libbpf.
        self._callback = ctypes.CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)(self._print)
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = (c_char_p, c_size_t, c_void_p, c_void_p)

    def _print(self, level: int, template: int, arguments: int) -> int:
        if level >= _DEBUG and not self._verbose:
            return 0
        buffer = ctypes.create_string_buffer(_LINE)
        self._format(buffer, _LINE, template, arguments)
        text = buffer.value.decode(errors="replace").rstrip("\n")
        if level < _DEBUG:
            self.lines.append(text.removeprefix("libbpf: "))
        if self._verbose:
            print(text, file=sys.stderr)
        return 0

    def __enter__(self) -> Self:
        """Listen."""
        require("libbpf_set_print")(self._callback)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Silence again."""
        require("libbpf_set_print")(None)
