"""A bpf descriptor that is owned: closed once, never reused, missed when it leaks."""

from __future__ import annotations

import os
from ctypes import byref, c_char, c_uint32
from errno import EINVAL
from typing import TYPE_CHECKING

from svcctl.bpf.constants import F_RDONLY
from svcctl.bpf.errors import BpfError, WrongKind
from svcctl.bpf.lib import check, opts, require

if TYPE_CHECKING:
    from ctypes import Array
    from types import TracebackType
    from typing import Self

_KINDS = {"bpf-map": "map", "bpf-prog": "program", "bpf_link": "link", "bpf-link": "link", "btf": "btf"}


class Handle:
    """Base of maps, programs and links. `fd` is the descriptor, -1 once closed (operations then give EBADF).

    The constructor takes the descriptor over: it is closed even when the constructor raises. `label` is what
    errors call the object: the path of its pin, or a name.
    """

    KIND = ""

    def __init__(self, fd: int, label: str | None = None) -> None:
        self.fd = fd
        self._label = label
        try:
            self._check_kind()
            self._opened()
        except BaseException:
            self.close()
            raise

    def _opened(self) -> None:
        """What a subclass wants to know of its descriptor at once."""

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Take over an open descriptor. Raises `WrongKind` when it is something else."""
        return cls(fd)

    @classmethod
    def _open_pinned(cls, path: str, read_only: bool) -> Self:
        flags = opts("I", F_RDONLY if read_only else 0)
        return cls(check(require("bpf_obj_get_opts")(os.fsencode(path), flags), "open", path), path)

    @classmethod
    def _open_id(cls, function: str, object_id: int) -> Self:
        return cls(check(require(function)(object_id), "open", f"{cls.KIND} id {object_id}"))

    def _check_kind(self) -> None:
        # A rename can exchange pins of different kinds, and most calls on the wrong one just say EINVAL.
        try:
            link = os.readlink(f"/proc/self/fd/{self.fd}")
        except OSError as problem:
            raise BpfError(problem.errno or EINVAL, "identify", self.subject) from problem
        found = _KINDS.get(link.removeprefix("anon_inode:").strip("[]"))
        if found != self.KIND:
            what = f"is a {found}" if found else "is no bpf object"
            raise WrongKind(EINVAL, "open", self.subject, reason=f"{what}, expected a {self.KIND}")

    @property
    def subject(self) -> str:
        """How errors call this object."""
        return self._label or f"{self.KIND} descriptor {self.fd}"

    def _read_info(self, buffer: Array[c_char]) -> None:
        """Fill `buffer` from BPF_OBJ_GET_INFO_BY_FD; fields the kernel does not know stay zero."""
        size = c_uint32(len(buffer))
        check(require("bpf_obj_get_info_by_fd")(self.fd, buffer, byref(size)), "read info of", self.subject)

    def pin(self, path: str) -> None:
        """Pin at `path`, which must not exist and be on a bpffs. The pin is born with mode 0600.

        Raises BpfError: EEXIST, ENOENT (no such directory), EPERM (not a bpffs, or a dot in the name).
        """
        check(require("bpf_obj_pin")(self.fd, os.fsencode(path)), "pin", path)

    def close(self) -> None:
        """Close the descriptor. Harmless when done twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

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
        if getattr(self, "fd", -1) >= 0:
            import warnings

            try:  # a warning can be an error
                warnings.warn(f"{self.subject} was never closed", ResourceWarning, stacklevel=2, source=self)
            finally:
                self.close()
