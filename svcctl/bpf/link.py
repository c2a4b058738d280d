"""BPF links: what keeps a program attached, and how one program replaces another without a gap."""

from __future__ import annotations

from ctypes import byref, c_char, c_uint32
from errno import EAGAIN, ENOENT, ENOSPC
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.constants import (
    F_REPLACE,
    LINK_CGROUP,
    LINK_NETKIT,
    LINK_NETNS,
    LINK_TCX,
    LINK_TRACING,
    LINK_XDP,
)
from svcctl.bpf.errors import BpfError
from svcctl.bpf.handle import Handle
from svcctl.bpf.lib import check, opts, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from svcctl.bpf.program import Program

_INFO_SIZE = 64
# struct bpf_link_info: type, id, prog_id, padding, then a union per type.
_UNION_AT = 16


# Not as a class: with postponed annotations that compiles one string per field when it is imported.
LinkInfo = NamedTuple(  # noqa: UP014
    "LinkInfo",
    [
        ("type", int),
        ("id", int),
        ("program_id", int),
        ("attach_type", int | None),
        ("netns_inode", int | None),
        ("cgroup_id", int | None),
        ("ifindex", int | None),
    ],
)
"""What the kernel knows of a link. Only the target that fits the type is set, the others are None.

A target that is 0 has died (or the link was detached); the kernel keeps the program id all the same.
"""


class Link(Handle):
    """An attachment. It lives as long as a descriptor or a pin of it does."""

    KIND = "link"

    @classmethod
    def create(cls, program: Program, target_fd: int, attach_type: int, flags: int = 0) -> Self:
        """Attach `program` to a namespace file, cgroup directory or (as a number) interface.

        Raises BpfError: EPERM without capabilities, EINVAL for a target or type this kernel cannot link.
        """
        result = require("bpf_link_create")(program.fd, target_fd, attach_type, opts("I", flags))
        return cls(check(result, "attach", program.subject))

    @classmethod
    def open_pinned(cls, path: str) -> Self:
        """Open a pin. Needs read and write permission: the kernel opens links no other way."""
        return cls._open_pinned(path, read_only=False)

    @classmethod
    def open_id(cls, link_id: int) -> Self:
        """Open by kernel id. Needs CAP_SYS_ADMIN; ENOENT when there is none."""
        return cls._open_id("bpf_link_get_fd_by_id", link_id)

    def update(self, new_program: Program, old_program: Program | None = None) -> None:
        """Put `new_program` in place, atomically; with `old_program` only if that is what is attached.

        Raises BpfError: EPERM for another old program (and for missing rights), ENOLINK when the target has
        died, EINVAL for a program of another type.
        """
        # struct bpf_link_update_opts: flags, old_prog_fd.
        settings = opts("2I", F_REPLACE, old_program.fd) if old_program else opts("2I", 0, 0)
        check(require("bpf_link_update")(self.fd, new_program.fd, settings), "update", self.subject)

    def detach(self) -> None:
        """Detach now, whoever else holds the link. The link object stays, without a target."""
        check(require("bpf_link_detach")(self.fd), "detach", self.subject)

    @property
    def info(self) -> LinkInfo:
        """Read from the kernel each time: program and target change."""
        raw = (c_char * _INFO_SIZE)()
        self._read_info(raw)
        return _decode(raw.raw)


def _decode(raw: bytes) -> LinkInfo:
    kind, number, program = unpack_from("=3I", raw)
    attach = netns = cgroup = ifindex = None
    if kind == LINK_NETNS:
        netns, attach = unpack_from("=2I", raw, _UNION_AT)
    elif kind == LINK_CGROUP:
        cgroup, attach = unpack_from("=QI", raw, _UNION_AT)
    elif kind in (LINK_TCX, LINK_NETKIT):
        ifindex, attach = unpack_from("=2I", raw, _UNION_AT)
    elif kind == LINK_XDP:
        (ifindex,) = unpack_from("=I", raw, _UNION_AT)
    elif kind == LINK_TRACING:
        (attach,) = unpack_from("=I", raw, _UNION_AT)
    return LinkInfo(kind, number, program, attach, netns, cgroup, ifindex)


def iter_links() -> Iterator[LinkInfo]:
    """All links of the host, by rising id. Needs CAP_SYS_ADMIN.

    Links that go meanwhile are left out, and those that somebody is making (EAGAIN: they have an id already).
    """
    number = c_uint32(0)
    while True:
        result = require("bpf_link_get_next_id")(number.value, byref(number))
        if result == -ENOENT:
            return
        check(result, "list", "links")
        try:
            with Link.open_id(number.value) as link:
                info = link.info
        except BpfError as problem:
            if problem.errno not in (ENOENT, EAGAIN):
                raise
        else:
            yield info


def query_programs(target_fd: int, attach_type: int, flags: int = 0) -> list[int]:
    """Ids of the programs attached to a namespace, cgroup or interface, in the order they run.

    Needs CAP_NET_ADMIN. `flags`: F_QUERY_EFFECTIVE adds what a cgroup inherits.
    """
    room = 64
    while True:
        ids = (c_uint32 * room)()
        count = c_uint32(room)
        result = require("bpf_prog_query")(target_fd, attach_type, flags, None, ids, byref(count))
        if result == -ENOSPC and count.value > room:
            room = count.value
            continue
        check(result, "query", f"programs attached with type {attach_type}")
        return ids[: count.value]
