"""BPF object files: open, choose, resize, load, take programs and maps out."""

from __future__ import annotations

import mmap
import os
from ctypes import addressof, c_char
from errno import EINVAL, ENOENT
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.errors import BpfError, VerifierRejected
from svcctl.bpf.lib import check, opts, require
from svcctl.bpf.map import Map
from svcctl.bpf.messages import Messages
from svcctl.bpf.program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

# Before Linux 6.4 a log that does not fit gives ENOSPC instead of the reason. Untouched pages cost nothing.
_LOG_BYTES = 16 << 20


class MapSpec(NamedTuple):
    """A map as the object file (and `resize`) wants it."""

    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class Object:
    """An opened object file. `load` puts it into the kernel; what `program` and `map` give outlives it.

    Errors are BpfError with libbpf's own words in `log`.
    """

    def __init__(self, path: str, *, verbose: bool = False) -> None:
        self.path = path
        self._verbose = verbose
        self._pointer: int | None = None
        self._log = mmap.mmap(-1, _LOG_BYTES)
        self._log_start = c_char.from_buffer(self._log)
        # struct bpf_object_open_opts: object_name, relaxed_maps, pin_root_path, gap, kconfig,
        # btf_custom_path, kernel_log_buf, kernel_log_size, kernel_log_level.
        settings = opts("P?PI3PNI", 0, False, 0, 0, 0, 0, addressof(self._log_start), _LOG_BYTES, 0)
        with Messages(verbose=verbose) as messages:
            pointer = require("bpf_object__open_file")(os.fsencode(path), settings)
        try:
            self._pointer = check(pointer, "open", path)
            self._maps = self._find_maps()
            self._programs = self._find_programs()
        except BaseException as problem:
            self.close()
            if isinstance(problem, BpfError):
                problem.log = "\n".join(messages.lines) or None
            raise

    @classmethod
    def open(cls, path: str, *, verbose: bool = False) -> Self:
        """Open an ELF file. With `verbose` libbpf's debug lines go to stderr."""
        return cls(path, verbose=verbose)

    def _find_maps(self) -> dict[str, int]:
        found = {}
        pointer = require("bpf_object__next_map")(self._pointer, None)
        while pointer:
            name: str = require("bpf_map__name")(pointer).decode()
            if require("bpf_map__is_internal")(pointer):
                # libbpf calls the map of a section "<file name up to the dot, cut>.bss".
                name = name[max(0, name.find(".")) :]
            found[name] = pointer
            pointer = require("bpf_object__next_map")(self._pointer, pointer)
        return found

    def _find_programs(self) -> dict[str, int]:
        found = {}
        pointer = require("bpf_object__next_program")(self._pointer, None)
        while pointer:
            found[require("bpf_program__name")(pointer).decode()] = pointer
            pointer = require("bpf_object__next_program")(self._pointer, pointer)
        return found

    def _map(self, name: str) -> int:
        return self._get(self._maps, name, "map")

    def _get(self, known: dict[str, int], name: str, kind: str) -> int:
        if self._pointer is None:
            raise ValueError(f"{self.path} is closed")
        if name not in known:
            raise BpfError(ENOENT, "find", f"{kind} {name}", reason=f"not in {self.path}")
        return known[name]

    @property
    def map_specs(self) -> dict[str, MapSpec]:
        """The maps the file declares. Those of its sections (".bss", ".rodata") are in `section_specs`."""
        return {name: self._spec(name) for name in self._maps if not name.startswith(".")}

    @property
    def section_specs(self) -> dict[str, MapSpec]:
        """The maps that hold the file's global variables, by section name."""
        return {name: self._spec(name) for name in self._maps if name.startswith(".")}

    @property
    def program_sections(self) -> dict[str, str]:
        """Program name to the ELF section it stands in, which says its type."""
        section = require("bpf_program__section_name")
        return {name: section(self._get(self._programs, name, "program")).decode() for name in self._programs}

    def _spec(self, name: str) -> MapSpec:
        pointer = self._map(name)
        asked = ("type", "key_size", "value_size", "max_entries", "map_flags")
        return MapSpec(*(require(f"bpf_map__{field}")(pointer) for field in asked))

    def resize(self, name: str, max_entries: int) -> None:
        """Change the size of a map before `load`."""
        check(require("bpf_map__set_max_entries")(self._map(name), max_entries), "resize", f"map {name}")

    def reuse(self, name: str, existing: Map) -> None:
        """Use an existing map instead of making one; before `load`. The caller may close it afterwards.

        Raises BpfError EINVAL naming all differences in type and sizes: libbpf would not notice them.
        """
        pointer = self._map(name)
        spec = self._spec(name)
        differences = [
            f"{field} {getattr(existing.info, field)} instead of {getattr(spec, field)}"
            for field in ("type", "key_size", "value_size")
            if getattr(existing.info, field) != getattr(spec, field)
        ]
        if differences:
            raise BpfError(EINVAL, "reuse", existing.subject, reason=", ".join(differences))
        check(require("bpf_map__reuse_fd")(pointer, existing.fd), "reuse", existing.subject)

    def only_program(self, *names: str) -> None:
        """Load these programs and no other."""
        for name in names:
            self._get(self._programs, name, "program")
        for name, pointer in self._programs.items():
            check(require("bpf_program__set_autoload")(pointer, name in names), "choose", f"program {name}")

    def load(self) -> None:
        """Make the maps and load the programs. VerifierRejected has the verifier's log."""
        if self._pointer is None:
            raise ValueError(f"{self.path} is closed")
        self._log[0] = 0
        with Messages(verbose=self._verbose) as messages:
            result = require("bpf_object__load")(self._pointer)
        if result == 0:
            return
        program = _rejected_program(messages.lines)
        log = self._log[: max(0, self._log.find(b"\0"))].decode(errors="replace")
        if program and log:
            raise VerifierRejected(-result, "load", f"program {program} of {self.path}", log=log)
        said = "\n".join(messages.lines) or None
        raise BpfError(
            -result, "load", f"program {program} of {self.path}" if program else self.path, log=said
        )

    def program(self, name: str) -> Program:
        """A loaded program."""
        pointer = self._get(self._programs, name, "program")
        return Program(
            os.dup(self._loaded(require("bpf_program__fd")(pointer), f"program {name}")), f"program {name}"
        )

    def map(self, name: str) -> Map:
        """A map of the loaded object; sections by their name."""
        pointer = self._map(name)
        return Map(os.dup(self._loaded(require("bpf_map__fd")(pointer), f"map {name}")), f"map {name}")

    def _loaded(self, fd: int, subject: str) -> int:
        if fd < 0:
            raise BpfError(ENOENT, "take", subject, reason=f"{self.path} is not loaded, or without it")
        return fd

    def close(self) -> None:
        """Free everything that is not pinned or held elsewhere. Harmless when done twice."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            require("bpf_object__close")(pointer)
        if not self._log.closed:
            del self._log_start
            self._log.close()

    def __enter__(self) -> Self:
        """Close on exit."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close what was forgotten, and say so."""
        if getattr(self, "_pointer", None) is not None:
            import warnings

            try:  # a warning can be an error
                warnings.warn(f"{self.path} was never closed", ResourceWarning, stacklevel=2, source=self)
            finally:
                self.close()


def _rejected_program(lines: list[str]) -> str | None:
    # "prog 'NAME': BPF program load failed: Permission denied", in all of 1.1 to 1.6.
    for line in lines:
        if line.startswith("prog '") and "load failed" in line:
            return line.split("'")[1]
    return None
