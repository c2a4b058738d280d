"""What `gc` removes of services: memories of sockets and clients that are no more, drains that are over.

Sockets take their reverse entries with them, but for those of the kernel itself and of MPTCP, which never come by
sock_release. They are found by comparing with the sockets the kernel lists in every network namespace.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.errors import PermissionProblem, SvcctlError
from svcctl.host.all_netns import Namespaces
from svcctl.host.sock_destroy import Diag
from svcctl.maps import catalog
from svcctl.maps.layouts import U64
from svcctl.maps.service_layouts import AFFINITY, AFFINITY_KEY
from svcctl.model.service import overdue
from svcctl.model.service_endpoint import format_backend
from svcctl.record import Record
from svcctl.state.drains import end_overdue, find_overdue
from svcctl.state.remembered import Names, affinity_seconds

if TYPE_CHECKING:
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

SECOND_LOOK = 0.05
"""Seconds between two looks at the sockets: one that is being connected is remembered before it is listed."""


class Garbage(Record):
    """What can go. `reverse` are socket cookies, `affinity` keys; `drains` are (service, backend) as text.

    `unsure` says why reverse entries were not judged, if so.
    """

    reverse: tuple[int, ...]
    affinity: tuple[bytes, ...]
    drains: tuple[tuple[str, str], ...]
    unsure: str | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.reverse or self.affinity or self.drains)


def find(state: State) -> Garbage:
    """What `collect` would remove. Needs root to look into all namespaces; others get `unsure`."""
    if not state.has_half(catalog.BALANCER):
        return Garbage((), (), (), None)
    state.need_maps(catalog.BALANCER)
    reverse, unsure = _dead_sockets(state)
    now = time.time_ns()
    drains = tuple(
        (one.service.name, format_backend(member.backend))
        for one in find_overdue(state, now)
        for member in overdue(one.service, now)
    )
    return Garbage(reverse, tuple(_dead_clients(state)), drains, unsure)


def collect(writer: Writer) -> Garbage:
    """Remove it; what was removed. An entry that came to life meanwhile stays.

    Drains come first: the sockets they end leave entries behind.
    """
    if not writer.has_half(catalog.BALANCER):
        return Garbage((), (), (), None)
    writer.need_maps(catalog.BALANCER)
    unsure = None
    drains: tuple[tuple[str, str], ...] = ()
    try:
        drains = tuple((service, format_backend(backend)) for service, backend in end_overdue(writer))
    except PermissionProblem as error:
        unsure = f"drains that are over: {error.message}"
    garbage = find(writer)._replace(drains=drains)
    if unsure is not None:
        garbage = garbage._replace(unsure=unsure)
    if not (garbage.reverse or garbage.affinity):
        return garbage
    with writer.changing():
        keys = b"".join(map(U64.pack, garbage.reverse))
        writer.map("reverse").delete_many(keys, len(garbage.reverse))
        affinity = writer.map("affinity")
        names = Names(writer)
        for key in garbage.affinity:
            data = affinity.lookup(key)
            if data is not None and _is_over(names, key, data, time.monotonic_ns()):
                affinity.delete(key)
    return garbage


def describe(garbage: Garbage) -> list[tuple[str, str, str]]:
    """(kind, name, why) of each thing, as `gc` prints it; memories are counted, not listed."""
    rows = [
        ("drain", f"drain of {service} {backend}", "its time is over") for service, backend in garbage.drains
    ]
    if garbage.reverse:
        rows.append(("reverse", _count(len(garbage.reverse), "reverse"), "no socket needs them"))
    if garbage.affinity:
        rows.append(
            ("affinity", _count(len(garbage.affinity), "affinity"), "expired, or of services that are gone")
        )
    return rows


def _count(number: int, what: str) -> str:
    return f"{number} {what} {'entry' if number == 1 else 'entries'}"


def _dead_sockets(state: State) -> tuple[tuple[int, ...], str | None]:
    """Cookies in `reverse` that no socket has, and why they could not be told."""
    # The keys first: a socket made after this has none among them.
    found = {U64.unpack(key)[0] for key, _ in state.map("reverse").items()}
    if not found:
        return (), None
    for thorough in (False, True):
        try:
            namespaces = Namespaces(thorough=thorough)
            if not namespaces.complete:
                return (), "entries of sockets that are gone: not every process of the host can be looked at"
            for netns in namespaces:
                with Diag(netns) as diag:
                    found -= diag.cookies()
        except (OSError, SvcctlError) as error:
            return (), f"entries of sockets that are gone: {error}"
        if not found:
            break
        if not thorough:
            time.sleep(SECOND_LOOK)
    return tuple(sorted(found)), None


def _dead_clients(state: State) -> list[bytes]:
    names = Names(state)
    now = time.monotonic_ns()
    return sorted(key for key, data in state.map("affinity").items() if _is_over(names, key, data, now))


def _is_over(names: Names, key: bytes, data: bytes, now: int) -> bool:
    seconds = affinity_seconds(names, names.service(AFFINITY_KEY.unpack(key).service))
    return now - AFFINITY.unpack(data).used_ns >= seconds * 1_000_000_000
