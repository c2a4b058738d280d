"""Doctor's lines about what the connect balancer meets in older kernels: errno, kernel sockets, cgroup v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.state.doctor.line import OK, WARN, Line, unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.doctor.probe import Probe

KEEPS_ADDRESS = (6, 6)
"""kernel_connect() hands a copy of the address to the hooks (commit 0bdf399342c5)."""
CLASSES_APART = (5, 15)
"""A socket has room for its cgroup2 beside what net_cls and net_prio say (commit 8520e224f547)."""


def lines(probe: Probe) -> Iterator[Line]:
    """Refusals, kernel clients, cgroup v1."""
    yield _refusals(probe)
    yield _kernel_clients(probe)
    yield _cgroup_v1(probe)


def _refusals(probe: Probe) -> Line:
    name = "refusals"
    try:
        chosen = probe.chooses_errno()
    except BpfError as error:
        return unseen(name, str(error), None)
    if chosen is None:
        return unseen(name, "needs CAP_BPF and CAP_NET_ADMIN")
    if chosen:
        return Line(name, OK, "sockets get EHOSTUNREACH from a service without a backend")
    return Line(
        name,
        WARN,
        "sockets get EPERM from a service without a backend: the kernel lets no program choose",
        "came with Linux 6.1: EHOSTUNREACH",
    )


def _kernel_clients(probe: Probe) -> Line:
    name = "kernel clients"
    if probe.kernel_release() >= KEEPS_ADDRESS:
        return Line(name, OK, "NFS and others in the kernel keep the service's address")
    return Line(
        name,
        WARN,
        "NFS and others in the kernel may keep the backend's address and connect to it again when it has gone",
        "Linux 6.6 does not; their sockets are the root cgroup's: 'svcctl attach cgroup' to one below it",
    )


def _cgroup_v1(probe: Probe) -> Line:
    name = "cgroup v1"
    mounts = probe.class_mounts()
    if not mounts:
        return Line(name, OK, "neither net_cls nor net_prio is mounted")
    text = f"net_cls or net_prio is mounted on {', '.join(mounts)}"
    if probe.kernel_release() >= CLASSES_APART:
        return Line(name, OK, f"{text}: sockets keep their cgroup all the same")
    return Line(
        name,
        WARN,
        f"{text}: once a class or priority is set there, sockets count as the root cgroup's",
        "Linux 5.15 keeps them apart; do without these controllers: nftables matches cgroups ('socket cgroupv2')",
    )
