"""Where doctor's facts come from: one method a fact, so that a test can give another answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf import lib
from svcctl.bpf.probe import FEATURES, has_helper
from svcctl.host import bpffs, capability, cgroup, devices, process, sock_diag
from svcctl.host.netns import Netns
from svcctl.state import foreign
from svcctl.state.balancer import CONNECT4_HOOK, SET_RETVAL, SOCK_ADDR
from svcctl.state.session import Reader, open_reader
from svcctl.state.unload import dead_directories, find_leftovers

if TYPE_CHECKING:
    from svcctl.host.devices import Device
    from svcctl.state.foreign import Foreign
    from svcctl.state.place import Place


class Root(NamedTuple):
    """The bpffs root: whether it is one, its mode and owner."""

    is_bpffs: bool
    mode: int
    uid: int


class Probe:
    """Facts about this host, as the calling process sees it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def libbpf_version(self) -> tuple[int, ...]:
        """Version of the shared library. Raises svcctl.bpf.errors.Unsupported without it."""
        return lib.libbpf_version()

    def kernel_release(self) -> tuple[int, ...]:
        """Version of the running kernel."""
        return capability.kernel_release()

    def capabilities(self) -> set[str]:
        """Effective capabilities; CAP_SYS_ADMIN stands for CAP_BPF as it does for the kernel."""
        held = capability.effective()
        return held | {"CAP_BPF"} if "CAP_SYS_ADMIN" in held else held

    def is_root(self) -> bool:
        """Whether the process runs as root."""
        return os.geteuid() == 0

    def feature(self, name: str) -> bool | None:
        """Whether the kernel has a feature of svcctl.bpf.probe; None when that may not be tried.

        libbpf's probes take a refusal for want of a capability as "no", so they are not asked then.
        """
        if not {"CAP_BPF", "CAP_NET_ADMIN"} <= self.capabilities():
            return None
        return FEATURES[name][0]()

    def chooses_errno(self) -> bool | None:
        """Whether programs of connect() may say which errno a refusal is; None when that may not be tried."""
        if not {"CAP_BPF", "CAP_NET_ADMIN"} <= self.capabilities():
            return None
        return has_helper(SOCK_ADDR, SET_RETVAL, CONNECT4_HOOK)

    def class_mounts(self) -> list[str]:
        """Where cgroup v1's net_cls or net_prio is mounted."""
        return cgroup.mounts_of("net_cls", "net_prio")

    def has_pyroute2(self) -> bool:
        """Whether the package that filters on clsact need is installed."""
        from importlib.util import find_spec

        return find_spec("pyroute2") is not None

    def sysctl(self, name: str) -> str | None:
        """A sysctl's value, None when it is not there or not readable."""
        return capability.sysctl(name)

    def netns_inode(self) -> int:
        """Inode of the network namespace. Raises SvcctlError."""
        with Netns.open(self.place.netns) as netns:
            return netns.inode

    def netns_cookie(self) -> int | None:
        """Its cookie, None on a kernel without."""
        with Netns.open(self.place.netns) as netns:
            return netns.cookie()

    def sock_diag(self, protocol: int) -> None:
        """Ask for the listeners of port 1. Raises OSError when the kernel cannot answer."""
        sock_diag.listeners(protocol, 1)

    def pidfd_getfd(self) -> None:
        """Take a descriptor of this process by way of its pidfd. Raises SvcctlError or OSError."""
        pidfd = process.pidfd_open(os.getpid())
        try:
            os.close(process.pidfd_getfd(pidfd, pidfd))
        finally:
            os.close(pidfd)

    def root(self) -> Root | None:
        """The bpffs root, None when there is no such directory."""
        try:
            status = os.stat(self.place.bpffs)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Root(bpffs.is_bpffs(self.place.bpffs), status.st_mode & 0o7777, status.st_uid)

    def in_pid1_mount_namespace(self) -> bool:
        """Whether mounts made here outlive the command."""
        return bpffs.in_pid1_mount_namespace()

    def reader(self) -> Reader:
        """The loaded state. Raises NotLoaded, PermissionProblem, Incompatible."""
        return open_reader(self.place)

    def foreign_programs(self) -> list[Foreign] | None:
        """sk_lookup programs of the namespace, all of them; None when they may not be listed."""
        with Netns.open(self.place.netns) as netns:
            return foreign.others(netns, None)

    def devices(self) -> list[Device]:
        """The interfaces of the namespace."""
        with Netns.open(self.place.netns) as netns:
            return devices.devices(netns)

    def leftovers(self) -> list[str]:
        """What `gc` would remove from under the root. Raises OSError without the right to list it."""
        return find_leftovers(self.place) + dead_directories(self.place)
