"""Looks at state from outside of any command: what is attached, who owns it, what the audit finds."""

from __future__ import annotations

import os

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link, query_programs
from svcctl.maps import catalog
from svcctl.state.audit import audit
from svcctl.state.place import SUFFIX, TEMPORARY, Place
from svcctl.state.writer import lock_state
from tests.lib.until import until

BPFFS = "/sys/fs/bpf"


def attached_programs() -> list[int]:
    """Ids of the sk_lookup programs attached to the calling thread's network namespace."""
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sorted(query_programs(fd, catalog.SK_LOOKUP))
    finally:
        os.close(fd)


def pinned_programs() -> list[int]:
    """Ids of the programs under the links that are pinned in state directories, published or temporary."""
    found = []
    for name in os.listdir(BPFFS):
        if name.endswith(SUFFIX) or name.startswith(TEMPORARY):
            try:
                with Link.open_pinned(f"{BPFFS}/{name}/{catalog.DISPATCH.link_pin}") as link:
                    found.append(link.info.program_id)
            except BpfError as error:
                if error.errno != 2:
                    raise
    return sorted(found)


def balancer_programs(path: str) -> dict[str, list[int]]:
    """Ids of the programs attached to exactly this cgroup, by the balancer's hooks."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return {shape.name: sorted(query_programs(fd, shape.hook)) for shape in catalog.CONNECT}
    finally:
        os.close(fd)


def pinned_balancers() -> dict[str, list[int]]:
    """As `pinned_programs`, of the balancer's links that are alive."""
    found: dict[str, list[int]] = {shape.name: [] for shape in catalog.CONNECT}
    for name in directories():
        for shape in catalog.CONNECT:
            try:
                with Link.open_pinned(f"{BPFFS}/{name}/{shape.link_pin}") as link:
                    if link.info.cgroup_id:
                        found[shape.name].append(link.info.program_id)
            except BpfError as error:
                if error.errno != 2:
                    raise
    return found


def assert_owned(cgroup: str | None = None) -> None:
    """Everything attached is held by a pin. A link that lost its last holder goes a moment later."""
    until(
        lambda: (
            attached_programs() == pinned_programs()
            and (cgroup is None or balancer_programs(cgroup) == pinned_balancers())
        ),
        lambda: (
            f"attached are {attached_programs()}, pinned {pinned_programs()};"
            f" {cgroup and (balancer_programs(cgroup), pinned_balancers())}"
        ),
    )


def directories() -> list[str]:
    """Names of svcctl's directories under the bpffs root."""
    return sorted(name for name in os.listdir(BPFFS) if name.endswith(SUFFIX) or name.startswith(TEMPORARY))


def generation() -> int:
    """meta.generation of the calling thread's namespace; odd while a writer is at work, or died at it."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return writer.meta().generation


def problems() -> list[str]:
    """What the audit finds, as texts."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return [f"{one.invariant}: {one.message}" for one in audit(writer)]


def max_entries(name: str) -> int:
    """Size of a pinned map."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return writer.map(name).info.max_entries
