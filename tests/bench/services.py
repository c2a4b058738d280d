"""The balancer as it is measured: on a cgroup of its own, with room for 60,000 services, filled by svcctl's own code."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from svcctl.host.cgroup import mount_point
from svcctl.model.service import Member, Service, ServiceFrontend
from svcctl.model.service_endpoint import parse_backend, parse_frontend
from svcctl.state.place import Place
from svcctl.state.service_change import apply_change, plan_change
from svcctl.state.session import open_reader
from svcctl.state.writer import open_writer
from tests.bench.loaded import quietly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BACKENDS = 4
"""Of each service."""
AFFINITY = 10_800
SIZES = ("--max-services", "65536", "--max-backends", "262144")


class Balancer:
    """A loaded state directory and the cgroup whose sockets it serves."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup
        self.filled = 0
        with open_reader(Place()) as reader:
            self.path = reader.path

    def add(self, name: str, address: str, backends: Sequence[str], affinity: int = AFFINITY) -> None:
        """A service on port 80 of an address, TCP and UDP."""
        with open_writer(Place(), "bench") as writer:
            apply_change(writer, plan_change(writer, None, _service(name, address, backends, affinity)))

    def fill(self, count: int) -> None:
        """Services up to that many, with affinity and backends of their own: one change each, under one mark."""
        with open_writer(Place(), "bench") as writer, writer.changing():
            for number in range(self.filled, count):
                backends = [
                    f"10.{1 + (n >> 16)}.{n >> 8 & 255}.{n & 255}:8080"
                    for n in range(number * BACKENDS, (number + 1) * BACKENDS)
                ]
                service = _service(f"bench/service-{number}", address(number), backends, AFFINITY)
                apply_change(writer, plan_change(writer, None, service))
        self.filled = count


def _service(name: str, where: str, backends: Sequence[str], affinity: int) -> Service:
    return Service(
        name=name,
        affinity_seconds=affinity,
        frontends=tuple(
            ServiceFrontend(parse_frontend(f"{where}:80/{protocol}"), 0) for protocol in ("tcp", "udp")
        ),
        members=tuple(Member(parse_backend(each)) for each in backends),
    )


def address(number: int) -> str:
    """The address of a service that `fill` makes."""
    return f"10.{100 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


@contextlib.contextmanager
def balancer(*options: str) -> Iterator[Balancer]:
    """`svcctl load` and `attach cgroup`, with options that come after SIZES; in the end `unload`."""
    cgroup = f"{mount_point()}/svcctl-bench-{os.getpid()}"
    os.mkdir(cgroup)
    try:
        quietly("load", "--no-dispatcher")
        try:
            quietly("attach", "cgroup", cgroup, *SIZES, *options)
            yield Balancer(cgroup)
        finally:
            quietly("unload", "--yes")
    finally:
        os.rmdir(cgroup)
