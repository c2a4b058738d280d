"""Pods: network namespaces of child processes, each with a veth whose other end is in the test's own namespace."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections.abc import Iterator
from struct import pack
from typing import Any

from svcctl.bpf.lib import check, require
from svcctl.bpf.program import Program
from tests.lib.child import Child, child
from tests.lib.servers import SLOWNESS
from tests.lib.world import sh

DEADLINE = 60 * SLOWNESS


class Pod:
    """One pod. `host` is the name of the host's end of its veth, `ifindex` its index; inside it is `eth0`."""

    def __init__(self, process: Child, host: str) -> None:
        self.process, self.host = process, host
        self.ifindex = int(_link(host)["ifindex"])

    @property
    def pid(self) -> int:
        """Of the process that holds the namespace."""
        return self.process.pid

    def ip(self, command: str) -> None:
        """Run `ip` inside."""
        sh(f"nsenter -t {self.pid} -n ip {command}")

    def runs(self) -> bool:
        """Whether both ends carry packets: the kernel notes a carrier some time after the interface was set up."""
        inside = sh(f"nsenter -t {self.pid} -n ip -j link show dev eth0").stdout
        return all(
            "LOWER_UP" in one["flags"] and one["operstate"] == "UP"
            for one in (_link(self.host), *json.loads(inside))
        )

    def received(self) -> int:
        """Packets that came out of the pod: what the host's end has received."""
        return int(_link(self.host)["stats64"]["rx"]["packets"])

    def remove(self) -> None:
        """Delete the veth."""
        sh(f"ip link del {self.host}")


def _link(name: str) -> dict[str, Any]:
    (found,) = json.loads(sh(f"ip -j -s link show dev {name}").stdout)
    assert isinstance(found, dict)
    return found


@contextlib.contextmanager
def pod(host: str, *, number: int = 0, up: bool = True) -> Iterator[Pod]:
    """A pod at 10.200.<number>.2, whose host's end has 10.200.<number>.1; no IPv6, and so no packets but the test's."""
    with child("", prefix=("unshare", "-n")) as process:
        _wait(lambda: os.stat(f"/proc/{process.pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino)
        sh(f"ip link add {host} type veth peer name eth0 netns {process.pid}")
        one = Pod(process, host)
        if up:
            sh(
                f"echo 1 >/proc/sys/net/ipv6/conf/{host}/disable_ipv6;"
                f" ip addr add 10.200.{number}.1/24 dev {host} && ip link set {host} up"
            )
            sh(
                f"nsenter -t {one.pid} -n sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6;"
                f" ip link set lo up; ip addr add 10.200.{number}.2/24 dev eth0 && ip link set eth0 up'"
            )
            _wait(one.runs)
        try:
            yield one
        finally:
            # The veth would go with the namespace, but some time later: the next test's has the same name.
            sh(f"ip link del {host} 2>/dev/null || true")


def _wait(condition: Any) -> None:
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def wait(condition: Any) -> None:
    """Wait until something is true; fail after a minute."""
    _wait(condition)


@contextlib.contextmanager
def run_statistics() -> Iterator[None]:
    """The kernel counts the runs of programs (BPF_ENABLE_STATS, since Linux 5.8)."""
    fd = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_enable_stats(0)
    assert fd >= 0, os.strerror(-fd)
    try:
        yield
    finally:
        os.close(fd)


def runs(program: Program) -> int:
    """How often a program has run while statistics were on."""
    return program.info.run_count


def verdict_program(verdict: int = -1, name: bytes = b"stranger") -> Program:
    """A tc program that is not svcctl's: returns a verdict, by default TC_ACT_UNSPEC, so that the next one runs."""
    code = pack("=BBhiBBhi", 0xB7, 0, 0, verdict, 0x95, 0, 0, 0)
    return Program.from_fd(
        check(require("bpf_prog_load")(3, name, b"GPL", code, 2, None), "load", "stranger")
    )


FLOOD = """
import threading
flooding = True
def flood():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while flooding:
        try:
            one.sendto(b"flood", ({target!r}, 9))
        except OSError:
            pass
        global sent
        sent += 1
        if not sent % 20:
            time.sleep(0.001)  # two cores are for others, too
    one.close()
sent = 0
thread = threading.Thread(target=flood)
thread.start()
"""


@contextlib.contextmanager
def flood(one: Pod, target: str) -> Iterator[None]:
    """Some thousand datagrams a second from a pod, for the length of a block."""
    one.process.run(FLOOD.format(target=target))
    try:
        wait(lambda: one.process.run("out = sent") > 100)
        yield
    finally:
        one.process.run("flooding = False; thread.join()")
