"""What this process may do, and which kernel it runs on."""

from __future__ import annotations

import os

# Order and numbers of <linux/capability.h>.
# fmt: off
_NAMES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control",
    "setfcap", "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read",
    "perfmon", "bpf", "checkpoint_restore",
)
# fmt: on


def effective() -> set[str]:
    """Names (`CAP_BPF`) of the calling thread's effective capabilities; `CAP_63` if unnamed."""
    with open("/proc/thread-self/status", "rb") as lines:
        for line in lines:
            if line.startswith(b"CapEff:"):
                bits = int(line.split()[1], 16)
                return {_name(number) for number in range(bits.bit_length()) if bits >> number & 1}
    return set()


def has(name: str) -> bool:
    """Whether the capability is effective; `CAP_BPF`, `cap_bpf` and `bpf` name the same one.

    CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON, which it was split into in Linux 5.8.
    """
    wanted = name.upper()
    if not wanted.startswith("CAP_"):
        wanted = f"CAP_{wanted}"
    have = effective()
    # So does the kernel itself: bpf_capable(), perfmon_capable().
    return wanted in have or (wanted in ("CAP_BPF", "CAP_PERFMON") and "CAP_SYS_ADMIN" in have)


def kernel_release() -> tuple[int, ...]:
    """The running kernel's version: (6, 18, 44) for `6.18.44-cloud`, (7, 0) for `7.0-rc1`."""
    numbers = []
    for part in os.uname().release.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def sysctl(name: str) -> str | None:
    """Value of a sysctl (`kernel.unprivileged_bpf_disabled`), None when it is not there or not readable.

    A dot within a part, as in an interface's name, is written `/`, as sysctl(8) has it.
    """
    path = "/proc/sys/" + name.translate({ord("."): "/", ord("/"): "."})
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _name(number: int) -> str:
    return f"CAP_{_NAMES[number].upper()}" if number < len(_NAMES) else f"CAP_{number}"
