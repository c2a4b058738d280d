"""Capabilities, kernel release and sysctls, as the kernel tells them."""

from __future__ import annotations

import os
import types

import pytest

from svcctl.host import capability


def test_effective_agrees_with_proc() -> None:
    with open("/proc/thread-self/status", encoding="ascii") as lines:
        bits = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    assert len(capability.effective()) == bits.bit_count()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_known_names() -> None:
    have = capability.effective()
    assert {"CAP_CHOWN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"} <= have
    assert capability.has("net_admin")
    assert capability.has("CAP_NET_ADMIN")
    assert not capability.has("CAP_NO_SUCH")


def test_last_name_is_the_kernels_last() -> None:
    """Number 40 is CAP_CHECKPOINT_RESTORE: a name left out of the table would shift all that follow."""
    assert capability._name(0) == "CAP_CHOWN"
    assert capability._name(19) == "CAP_SYS_PTRACE"
    assert capability._name(21) == "CAP_SYS_ADMIN"
    assert capability._name(24) == "CAP_SYS_RESOURCE"
    assert capability._name(39) == "CAP_BPF"
    assert capability._name(40) == "CAP_CHECKPOINT_RESTORE"
    assert capability._name(63) == "CAP_63"


def test_sys_admin_stands_for_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "effective", lambda: {"CAP_SYS_ADMIN"})
    assert capability.has("bpf")
    assert capability.has("CAP_PERFMON")
    assert not capability.has("net_admin")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.18.44-fc", (6, 18, 44)),
        ("5.10.0-46-cloud-amd64", (5, 10, 0)),
        ("7.0-rc1", (7, 0)),
        ("6.12.118+deb13-cloud-amd64", (6, 12, 118)),
        ("6.18.44.el9", (6, 18, 44)),
    ],
)
def test_kernel_release(monkeypatch: pytest.MonkeyPatch, release: str, expected: tuple[int, ...]) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(release=release))
    assert capability.kernel_release() == expected


def test_sysctl() -> None:
    assert capability.sysctl("kernel.osrelease") == os.uname().release
    assert capability.sysctl("net.ipv4.no_such_thing") is None
    assert capability.sysctl("net.ipv4.conf.lo.forwarding") in ("0", "1")
