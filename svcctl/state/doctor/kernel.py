"""Doctor's lines about the kernel and libbpf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.bpf.probe import FEATURES
from svcctl.errors import SvcctlError
from svcctl.model.constants import PROTOCOL_NAMES, TCP, UDP
from svcctl.state.doctor.line import FAIL, OK, WARN, Line, unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.doctor.probe import Probe

OLDEST_KERNEL = (5, 10)
OLDEST_LIBBPF = (1, 1)
NEEDED_FEATURES = frozenset({"sk_lookup programs"})
SLOWLY = "entries are written one by one"
WITHOUT = {"tcx links": "interfaces get filters on clsact, by pyroute2"}
"""What happens without a feature, where it is something else than SLOWLY."""


def lines(probe: Probe) -> Iterator[Line]:
    """libbpf, kernel version, features, sysctls, and the system calls that finding sockets needs."""
    yield _libbpf(probe)
    yield _version(probe)
    for name in FEATURES:
        yield _feature(probe, name)
    yield _cookie(probe)
    yield _unprivileged(probe)
    yield _jit(probe)
    for protocol in (TCP, UDP):
        yield _sock_diag(probe, protocol)
    yield _pidfd(probe)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _libbpf(probe: Probe) -> Line:
    try:
        version = probe.libbpf_version()
    except BpfError as error:
        return Line("libbpf", FAIL, str(error), "install libbpf 1.1 or later (Debian: libbpf1)")
    if version < OLDEST_LIBBPF:
        return Line("libbpf", FAIL, f"version {_dotted(version)}", "install libbpf 1.1 or later")
    return Line("libbpf", OK, f"version {_dotted(version)}")


def _version(probe: Probe) -> Line:
    version = probe.kernel_release()
    text = f"Linux {_dotted(version)}"
    if version < OLDEST_KERNEL:
        return Line("kernel", FAIL, text, f"svcctl needs Linux {_dotted(OLDEST_KERNEL)}")
    return Line("kernel", OK, text)


def _feature(probe: Probe, name: str) -> Line:
    try:
        there = probe.feature(name)
    except BpfError as error:
        return Line(name, WARN, f"not looked at: {error}")
    since = FEATURES[name][1]
    if there is None:
        return unseen(name, "needs CAP_BPF and CAP_NET_ADMIN")
    if there:
        return Line(name, OK, "the kernel has them")
    if name in NEEDED_FEATURES:
        return Line(
            name, FAIL, "the kernel has none", f"needs Linux {since} with CONFIG_BPF_SYSCALL and CONFIG_INET"
        )
    if name == "tcx links" and not probe.has_pyroute2():
        return Line(
            name,
            WARN,
            f"the kernel has none, and pyroute2 is missing: interfaces cannot be attached (came with Linux {since})",
            "apt install python3-pyroute2, or pip install pyroute2",
        )
    return Line(name, WARN, f"the kernel has none: {WITHOUT.get(name, SLOWLY)}", f"came with Linux {since}")


def _cookie(probe: Probe) -> Line:
    name = "namespace cookie"
    try:
        cookie = probe.netns_cookie()
    except SvcctlError as error:
        return Line(name, FAIL, error.message, error.hint)
    if cookie is None:
        return Line(
            name,
            WARN,
            "the kernel has none: members of the state's group cannot tell a namespace from an earlier one",
            "came with Linux 5.14",
        )
    return Line(name, OK, f"namespace {probe.netns_inode()} has cookie {cookie}")


def _unprivileged(probe: Probe) -> Line:
    name = "kernel.unprivileged_bpf_disabled"
    value = probe.sysctl(name)
    if value is None:
        return Line(name, WARN, "not looked at: not readable, or not there")
    if value == "0":
        return Line(
            name, WARN, "0: any user may load programs", "sysctl -w kernel.unprivileged_bpf_disabled=2"
        )
    return Line(name, OK, value)


def _jit(probe: Probe) -> Line:
    name = "net.core.bpf_jit_enable"
    value = probe.sysctl(name)
    if value is None:
        return Line(
            name,
            WARN,
            "not looked at: readable by root only, and in the host's network namespace only",
            "run 'svcctl doctor' on the host, with --netns for another namespace",
        )
    if value == "0":
        return Line(name, WARN, "0: programs are interpreted, several times slower", f"sysctl -w {name}=1")
    if value == "2":
        return Line(name, WARN, "2: each program's machine code is printed to the log", f"sysctl -w {name}=1")
    return Line(name, OK, value)


def _sock_diag(probe: Probe, protocol: int) -> Line:
    name = f"{PROTOCOL_NAMES[protocol]}_diag"
    try:
        probe.sock_diag(protocol)
    except OSError as error:
        return Line(
            name,
            WARN,
            f"sockets cannot be listed ({error.strerror}): register-pid looks at every descriptor instead",
            f"modprobe {name}",
        )
    return Line(name, OK, "the kernel lists sockets")


def _pidfd(probe: Probe) -> Line:
    try:
        probe.pidfd_getfd()
    except (SvcctlError, OSError) as error:
        return Line(
            "pidfd_getfd",
            WARN,
            f"register-pid will not work: {error}",
            "needs Linux 5.6, and a seccomp filter that lets pidfd_getfd pass",
        )
    return Line("pidfd_getfd", OK, "descriptors of other processes can be taken")
