"""tc filters on clsact, for kernels without tcx links (before Linux 6.6): pyroute2, imported when it is needed.

A filter has no pin: it goes by its interface, its side (parent), and the priority and handle found by its name.
Replacing without a handle adds another filter, so a filter is always looked for before.
"""

from __future__ import annotations

import os
import struct
import sys
from errno import EEXIST, EINVAL, ENODEV, ENOENT, ENOTSUP
from typing import TYPE_CHECKING, Any

from svcctl.errors import NotFound, SvcctlError
from svcctl.host.rtnetlink import attributes, dump
from svcctl.record import Record

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from svcctl.host.netns import Netns

INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
"""Parents of the two sides of a clsact qdisc."""
PREFIX = "svcctl_"
"""What the names of svcctl's filters begin with; the program's name follows."""

_RTM_NEWTFILTER, _RTM_GETTFILTER = 44, 46
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_NAME, _TCA_BPF_ID = 7, 11
_TCMSG = struct.Struct("=B3xiIII")  # family, interface, handle, parent, info
_ALL_PROTOCOLS = 0x0003
_FIRST_PRIORITY = 7700
_HANDLE = 1
_GONE = (ENODEV, ENOENT, EINVAL)
"""What the kernel says of an interface, a qdisc or a filter that is not there."""


class Filter(Record):
    """A filter: its priority and handle, its name and the id of its program ("" and 0: of another kind)."""

    priority: int
    handle: int
    name: str
    program_id: int

    @property
    def ours(self) -> bool:
        """Whether svcctl named it."""
        return self.name.startswith(PREFIX)


def filters(netns: Netns, index: int, parent: int) -> list[Filter]:
    """The filters on one side of an interface, in the order they run; none of an interface that is gone.

    By raw netlink: whoever only looks need not import pyroute2. Raises OSError.
    """
    request = _TCMSG.pack(0, index, 0, parent, 0)
    try:
        answers = dump(netns, _RTM_GETTFILTER, request, _RTM_NEWTFILTER)
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise
    return [one for one in map(_filter, answers) if one is not None]


def _filter(body: bytes) -> Filter | None:
    """One message of the list. The first of each priority stands for the chain and has no handle."""
    _, _, handle, _, info = _TCMSG.unpack_from(body)
    found = dict(attributes(body, _TCMSG.size))
    kind = found.get(_TCA_KIND, b"").rstrip(b"\0")
    name, program = "", 0
    if kind == b"bpf":
        if not handle:
            return None
        options = dict(attributes(found.get(_TCA_OPTIONS, b"")))
        name = options.get(_TCA_BPF_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        program = int.from_bytes(options.get(_TCA_BPF_ID, b""), sys.byteorder)
    return Filter(info >> 16, handle, name, program)


def mine(netns: Netns, index: int, parent: int) -> list[Filter]:
    """svcctl's filters on one side of an interface."""
    return [one for one in filters(netns, index, parent) if one.ours]


def need_pyroute2() -> Any:
    """pyroute2's IPRoute. Raises SvcctlError where the package is missing."""
    try:
        from pyroute2 import IPRoute
    except ImportError:
        raise SvcctlError(
            "tc filters: the Python package pyroute2 is missing, which kernels before Linux 6.6 need",
            hint="apt install python3-pyroute2, or pip install pyroute2",
        ) from None
    return IPRoute


class Filters:
    """A connection to the traffic control of one network namespace. Raises SvcctlError without pyroute2."""

    def __init__(self, netns: Netns) -> None:
        connect = need_pyroute2()
        self._netns = netns
        with netns.entered():  # the socket stays with the namespace it was made in
            self._kernel: Any = connect()

    def close(self) -> None:
        """End the connection."""
        self._kernel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ensure_clsact(self, index: int) -> None:
        """Add the clsact qdisc if there is none. It is never taken away: other filters may be on it."""
        try:
            self._kernel.tc("add", "clsact", index)
        except Exception as error:
            if _errno(error) != EEXIST:
                raise _problem(error, "add clsact to", index) from error

    def put(self, index: int, parent: int, program_fd: int, name: str, own: set[int]) -> None:
        """Add svcctl's filter, or put a program in the place of the one it has without a gap.

        `own` are the programs it may have: another state's filter is another's. A new one gets a priority of its
        own, so that it never takes another filter's place.
        """
        there = filters(self._netns, index, parent)
        have = [one for one in there if one.ours and one.program_id in own]
        if have:
            priority, handle = have[0].priority, have[0].handle
        else:
            taken = {one.priority for one in there}
            self.ensure_clsact(index)
            priority, handle = _FIRST_PRIORITY, _HANDLE
            while priority in taken:
                priority += 1
        try:
            self._kernel.tc(
                "replace-filter",
                "bpf",
                index,
                handle,
                fd=program_fd,
                name=PREFIX + name,
                parent=parent,
                prio=priority,
                protocol=_ALL_PROTOCOLS,
                direct_action=True,
            )
        except Exception as error:
            raise _problem(error, "put a filter on", index) from error
        for other in have[1:]:  # an interrupted hand left it
            self.delete(index, parent, other)

    def delete(self, index: int, parent: int, one: Filter) -> None:
        """Take a filter away; gone already is as good."""
        try:
            self._kernel.tc(
                "del-filter",
                "bpf",
                index,
                one.handle,
                parent=parent,
                prio=one.priority,
                protocol=_ALL_PROTOCOLS,
            )
        except Exception as error:
            if _errno(error) not in _GONE:
                raise _problem(error, "delete a filter of", index) from error


def _errno(error: Exception) -> int:
    """The number in pyroute2's error, which has been an OSError only in some versions."""
    code = getattr(error, "code", None) or getattr(error, "errno", None)
    return code if isinstance(code, int) else 0


def _problem(error: Exception, what: str, index: int) -> SvcctlError:
    code = _errno(error)
    if not code:
        return SvcctlError(f"{what} interface {index}: {error}")
    if code == ENODEV:
        return NotFound(f"{what} interface {index}: it is gone")
    if code == ENOTSUP:
        return SvcctlError(
            f"{what} interface {index}: this kernel has no clsact",
            hint="it needs CONFIG_NET_CLS_ACT and CONFIG_NET_SCH_INGRESS, or Linux 6.6 for tcx",
        )
    return SvcctlError(f"{what} interface {index}: {os.strerror(code)}")
