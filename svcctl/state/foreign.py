"""Programs at the dispatcher's hook that this state directory does not own: other people's, and strays of ours."""

from __future__ import annotations

import os
from errno import EACCES, ENOENT, EPERM
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import iter_links, query_programs
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.errors import PermissionProblem
from svcctl.host import tc
from svcctl.maps import catalog
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.host.netns import Netns


class Foreign(Record):
    """A program attached to the namespace. What may not be looked at is None; `position` counts from 1.

    `ours` is True when it is a dispatcher of svcctl, judged by its name and those of its maps. `load_time_ns`
    is on the boot time clock.
    """

    program_id: int
    name: str | None
    link_id: int | None
    ours: bool
    position: int
    load_time_ns: int


def attached(netns: Netns) -> list[int] | None:
    """Ids of the sk_lookup programs of a namespace in the order they run; None without CAP_NET_ADMIN."""
    try:
        return query_programs(netns.fd, catalog.SK_LOOKUP)
    except BpfError as error:
        if error.errno in (EPERM, EACCES):
            return None
        raise


def others(netns: Netns, own: int | None) -> list[Foreign] | None:
    """The programs of the namespace except `own`, in the order they run; None when they may not be listed."""
    ids = attached(netns)
    if ids is None:
        return None
    return [describe(netns, number, position) for position, number in enumerate(ids, 1) if number != own]


def others_on_cgroup(path: str, hook: str, own: int) -> list[Foreign]:
    """The programs at one hook (`connect4` ...) of a cgroup except `own`, in the order they run.

    None of them where they may not be listed, or when the cgroup has gone.
    """
    number = next(shape.hook for shape in catalog.CONNECT if shape.name == hook)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        ids = query_programs(fd, number)
    except BpfError:
        return []
    finally:
        os.close(fd)
    found = []
    for position, program in enumerate(ids, 1):
        if program != own:
            name, ours = None, False
            try:
                with Program.open_id(program) as opened:
                    name = opened.info.name
                    ours = {"frontends", "current"} <= set(map_names(opened.info.map_ids))
            except BpfError:
                pass
            found.append(Foreign(program, name, None, ours, position, 0))
    return found


def others_on_device(netns: Netns, ifindex: int, hook: int, own: set[int]) -> list[Foreign]:
    """The programs at one side of an interface except `own`, in the order they run: tcx first, then filters.

    None of them where they may not be listed, or when the interface has gone.
    """
    ids: list[int] = []
    try:
        with netns.entered():
            ids += query_programs(ifindex, hook)
    except (BpfError, PermissionProblem):
        pass  # no tcx, or not to be seen
    parent = tc.INGRESS if hook == catalog.TCX_INGRESS else tc.EGRESS
    try:
        ids += [one.program_id for one in tc.filters(netns, ifindex, parent) if one.program_id]
    except PermissionProblem:
        return []  # without CAP_SYS_ADMIN another namespace is not entered
    found = []
    for position, program in enumerate(ids, 1):
        if program not in own:
            name, ours = None, False
            try:
                with Program.open_id(program) as opened:
                    name = opened.info.name
                    ours = name in PACKET_NAMES and _is_packet_path(opened.info.map_ids)
            except BpfError:
                pass
            found.append(Foreign(program, name, None, ours, position, 0))
    return found


PACKET_NAMES = frozenset(shape.name for shape in catalog.PACKET)


def _is_packet_path(ids: tuple[int, ...]) -> bool:
    """Whether maps are those of a packet path; some of its programs read none."""
    return not ids or {"flows", "halfopen"} <= set(map_names(ids))


def describe(netns: Netns, program_id: int, position: int = 0) -> Foreign:
    """What the kernel says of an attached program."""
    name, ours, loaded = None, False, 0
    try:
        with Program.open_id(program_id) as program:
            info = program.info
        name, loaded = info.name, info.load_time_ns
        ours = name == catalog.DISPATCH.name and set(map_names(info.map_ids)) >= set(catalog.PROGRAM_READS)
    except BpfError as error:
        if error.errno not in (EPERM, EACCES, ENOENT):
            raise
    return Foreign(program_id, name, _link_of(netns, program_id), ours, position, loaded)


def map_names(ids: tuple[int, ...]) -> dict[str, int]:
    """Kernel name -> id of maps that still exist. Needs CAP_SYS_ADMIN."""
    names = {}
    for number in ids:
        try:
            with Map.open_id(number) as opened:
                names[opened.info.name] = number
        except BpfError as error:
            if error.errno != ENOENT:
                raise
    return names


def _link_of(netns: Netns, program_id: int) -> int | None:
    """Id of the link that holds a program at the namespace; None: by no link, or not to be seen."""
    try:
        for link in iter_links():
            if link.program_id == program_id and link.netns_inode == netns.inode:
                return link.id
    except BpfError as error:
        if error.errno not in (EPERM, EACCES):
            raise
    return None
