"""The packet path by hand: its object loaded on the service maps of a state, its programs on interfaces by clsact."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import svcctl
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.maps import catalog, enums, packet_codec
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import (
    DEVICE,
    FLOW,
    FLOW_KEY,
    PACKET_CONFIG,
    Device,
    FlowKey,
    FlowValue,
    PacketConfig,
)
from svcctl.model.conntrack import DEFAULTS, Timeouts
from tests.lib.balanced import Balanced, Farm, own_cgroup
from tests.lib.pods import Pod
from tests.lib.svc import svc
from tests.lib.world import World

OBJECT = Path(svcctl.__file__).parent / f"objects/packet.bpf{'el' if sys.byteorder == 'little' else 'eb'}.o"
INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
SHARED = (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS)
MIN_LRU = 256
PASS, DROP, REDIRECT = -1, 2, 7
"""TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT: the only verdicts there are."""
_CONTEXT = struct.Struct("=40xI")
"""The beginning of struct __sk_buff, up to `ifindex`."""


class PacketPath:
    """Programs and maps, loaded; `attach` puts them on a pod's veth."""

    def __init__(self, loaded: Object, state_dir: str) -> None:
        self._loaded, self._state = loaded, state_dir
        self._maps: dict[str, Map] = {}
        self._programs: dict[str, Program] = {}
        self.configure()

    def map(self, name: str) -> Map:
        """A map by name; closed with the path."""
        if name not in self._maps:
            if name in SHARED:
                self._maps[name] = Map.open_pinned(f"{self._state}/{name}")
            else:
                self._maps[name] = self._loaded.map(name)
        return self._maps[name]

    def program(self, name: str) -> Program:
        """A program by name; closed with the path."""
        if name not in self._programs:
            self._programs[name] = self._loaded.program(name)
        return self._programs[name]

    def configure(
        self, timeouts: Timeouts = DEFAULTS, flags: int = 0, ports: tuple[int, int] = (20000, 10000)
    ) -> None:
        """Times in milliseconds, flags, and (first, count) of the ports for collisions."""
        value = PacketConfig(flags, *timeouts, *ports)
        self.map("packet_config").update(bytes(4), PACKET_CONFIG.pack(value))

    def attach(self, pod: Pod, flags: int = enums.DEVICE_PEER, mtu: int = 0) -> None:
        """The role of a workload for a pod's veth; `mtu` 0: not known."""
        self.attach_device(pod.ifindex, "from_workload", "to_workload")
        self.map("devices").update(U32.pack(pod.ifindex), DEVICE.pack(Device(1, flags, mtu)))

    def attach_device(self, ifindex: int, ingress: str, egress: str) -> None:
        """Filters on both sides of an interface."""
        from pyroute2 import IPRoute

        with IPRoute() as route:
            route.tc("add", "clsact", ifindex)
            for parent, name in ((INGRESS, ingress), (EGRESS, egress)):
                tc: Any = route.tc
                tc(
                    "add-filter", "bpf", ifindex, 1, fd=self.program(name).fd, name=f"svcctl_{name}", parent=parent,
                    prio=1, direct_action=True,
                )  # fmt: skip

    def flows(self) -> dict[FlowKey, FlowValue]:
        """Every entry that counts."""
        return packet_codec.merge(self.map("flows").items(), self.map("halfopen").items())

    def table(self, name: str) -> dict[FlowKey, FlowValue]:
        """`flows` or `halfopen`, as it is."""
        return {FLOW_KEY.unpack(key): FLOW.unpack(value) for key, value in self.map(name).items()}

    def put(self, table: str, key: FlowKey, value: FlowValue) -> None:
        """Write an entry, and to the filter that there is one."""
        self.map(table).update(FLOW_KEY.pack(key), FLOW.pack(value))
        bucket, mark = packet_codec.filter_place(FLOW_KEY.pack(key))
        marks = self.map("flow_filter").lookup(U32.pack(bucket)) or b""
        self.map("flow_filter").update(U32.pack(bucket), packet_codec.add_mark(marks, mark))

    def forget(self) -> None:
        """Empty both flow maps."""
        for name in ("flows", "halfopen", "fragments"):
            for key, _ in list(self.map(name).items()):
                self.map(name).delete(key)

    def drops(self, reason: str) -> int:
        """How often a packet was refused for a reason, as `no_backend`."""
        return _sum(self.map("drop_stats").lookup(U32.pack(enums.DROP_REASONS.index(reason))))

    def event(self, name: str) -> int:
        """A counter of packet_stats, as `opened`."""
        return _sum(self.map("packet_stats").lookup(U32.pack(enums.PACKET_EVENTS.index(name))))

    def run(self, program: str, frame: bytes, ifindex: int = 1) -> tuple[int, bytes]:
        """BPF_PROG_TEST_RUN on a frame that came by an interface (lo): the verdict, and the frame after it."""
        done = self.program(program).test_run(_CONTEXT.pack(ifindex), frame)
        return done.retval - (done.retval >> 31 << 32), done.data

    def close(self) -> None:
        """Close what was opened."""
        for one in (*self._maps.values(), *self._programs.values()):
            one.close()


def _sum(data: bytes | None) -> int:
    assert data is not None
    return sum(struct.unpack(f"={len(data) // 8}Q", data))


@contextlib.contextmanager
def packet_path(state_dir: str, flows: int = 16384, halfopen: int = 16384) -> Iterator[PacketPath]:
    """Load it on the service maps pinned in a state directory."""
    cpus = os.cpu_count() or 1
    with Object.open(str(OBJECT)) as opened:
        for name in SHARED:
            with Map.open_pinned(f"{state_dir}/{name}") as pinned:
                opened.reuse(name, pinned)
        opened.resize("flows", max(flows, MIN_LRU * cpus))
        opened.resize("halfopen", max(halfopen, MIN_LRU * cpus))
        opened.load()
        path = PacketPath(opened, state_dir)
        try:
            yield path
        finally:
            path.close()


@contextlib.contextmanager
def serviced(world: World, *options: object) -> Iterator[Balanced]:
    """A state with the maps of services, whose connect balancer serves a cgroup that nobody is in."""
    farm = Farm()
    with own_cgroup() as empty:
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", empty, "--exclude-udp", *options)  # the fewer programs, the faster
        try:
            yield Balanced(world, empty, farm)
        finally:
            svc("unload", "--yes", code=None)
