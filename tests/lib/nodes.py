"""Nodes of a cluster and a client outside, each in a network namespace of its own, and a router between them.

The router is the world the test is in. A node has its own state of svcctl, the host role on its uplink and the
workload role on its pods; pods of different nodes reach each other by plain routing, so what a service does is seen
by itself. All links are veths of 1500 bytes.
"""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from socket import AF_INET, AF_INET6
from typing import Any

from svcctl.bpf.map import Map
from svcctl.maps import enums, packet_codec
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import FlowKey, FlowValue
from svcctl.maps.service_layouts import NODE_KEY, NodeKey
from svcctl.model.constants import IPV4
from svcctl.model.node import number_for
from svcctl.model.prefix import parse_prefix
from tests.lib.pods import (
    Namespace,
    Pod,
    all_icmp,
    await_running,
    batch,
    place,
    quiet_addresses,
    setting,
    switch_offloads,
)
from tests.lib.svc import Ran, svc
from tests.lib.world import World

NODE_SIZES = (
    "--max-flows", 16384, "--max-services", 128, "--max-backends", 256, "--max-sockets", 1024,
)  # fmt: skip
UPLINK = "up0"
VIP, VIP6 = "203.0.113.10", "2001:db8:113::10"
"""Of a load balancer: the router sends it to the node that `Bed.route` says."""


class Host(Namespace):
    """A namespace with one link to the router, `up0`, whose other end there is `device`."""

    def __init__(self, device: str, network: str, network6: str, *, mtu: int = 1500) -> None:
        super().__init__()
        self.device = device
        self.address, self.address6 = f"{network}.2", f"{network6}::2"
        batch(
            f"link add {device} mtu {mtu} type veth peer name {UPLINK} mtu {mtu} netns {self.path}",
            f"addr add {network}.1/24 dev {device}",
            f"addr add {network6}::1/64 dev {device} nodad",
            f"link set {device} up",
        )
        with self.inside():
            batch(
                f"addr add {self.address}/24 dev {UPLINK}",
                f"addr add {self.address6}/64 dev {UPLINK} nodad",
                f"link set {UPLINK} up",
                f"route add default via {network}.1",
                f"route add default via {network6}::1",
            )
        self.await_running()

    def await_running(self) -> None:
        """Until both ends of its link carry packets."""
        await_running(self.device)
        with self.inside():
            await_running(UPLINK)

    def run(self, *commands: str) -> None:
        """ip(8) commands in it."""
        with self.inside():
            batch(*commands)

    def offloads(self, on: bool) -> None:
        """Switch checksum and segmentation offloads of both ends of its link."""
        switch_offloads(self.device, on)
        with self.inside():
            switch_offloads(UPLINK, on)

    def close(self) -> None:
        """Take its link away, which would go some time after the namespace, and let that go."""
        batch(f"link del {self.device}")
        super().close()


class Node(Host):
    """A node with pods and its own state of svcctl."""

    def __init__(self, number: int, pods: int, *, mtu: int = 1500, pod_mtu: int = 1500) -> None:
        self.name = f"node{number}"
        self.number = number_for(self.name, ())  # as other nodes have it
        super().__init__(f"to_n{number}", f"10.10.{number}", f"fd00:10:{number:x}", mtu=mtu)
        self.pods: list[Pod] = []
        self.prefixes = (f"10.244.{number}.0/24", f"fd00:244:{number:x}::/64")
        batch(*self.routes())
        with self.inside():
            setting("net/ipv4/ip_forward", "1")
            setting("net/ipv6/conf/all/forwarding", "1")
            self.pods.extend(Pod(one, number, pod_mtu) for one in range(1, pods + 1))
        self.state_dir = f"{World.bpffs}/{self.netns.inode}_svcctl"

    def routes(self) -> list[str]:
        """What the router has to be told when the link has come up: it forgets all but its IPv4 address."""
        gateway = f"{self.address6.rpartition('::')[0]}::1"
        return [
            f"addr replace {gateway}/64 dev {self.device} nodad",
            *(
                f"route replace {prefix} via {via} dev {self.device}"
                for prefix, via in zip(self.prefixes, (self.address, self.address6), strict=True)
            ),
        ]

    def svc(self, *words: object, code: int | None = 0) -> Ran:
        """A command of svcctl for this node."""
        with self.inside():
            return svc(*words, code=code)

    def source_check(self, value: int) -> None:
        """rp_filter of all its interfaces: 0 none, 1 strict, 2 loose."""
        with self.inside():
            for name in ("all", "default", UPLINK, *(pod.device for pod in self.pods)):
                setting(f"net/ipv4/conf/{name}/rp_filter", str(value))

    def load(self) -> None:
        """The state, and the packet path on all interfaces."""
        self.svc("load", "--no-dispatcher", "--max-bindings", 100, "--max-destinations", 16)
        self.svc("attach", "dev", UPLINK, "--role", "host", *NODE_SIZES)
        if self.pods:
            self.svc("attach", "dev", "pod*", "--role", "workload")

    @contextlib.contextmanager
    def map(self, name: str) -> Iterator[Map]:
        """One of its maps."""
        with Map.open_pinned(f"{self.state_dir}/{name}") as opened:
            yield opened

    def entry(self) -> dict[str, object]:
        """As a file for all nodes has it."""
        return {
            "name": self.name,
            "addresses": [self.address, self.address6],
            "pod_prefixes": list(self.prefixes),
        }

    def meet(self, nodes: Iterable[Node]) -> None:
        """Say to svcctl which nodes there are, itself included: it knows by the addresses which one it is."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "nodes": [one.entry() for one in nodes]}, file)
            file.flush()
            self.svc("apply", "-f", file.name)

    def numbers(self) -> dict[str, int]:
        """Name -> number of the other nodes."""
        return {one["node"]: one["number"] for one in self.svc("nodes", "-o", "json").json["nodes"]}

    def settings(self, *words: object) -> None:
        """What `load` says of packets."""
        self.svc("load", "--no-dispatcher", *words)

    @contextlib.contextmanager
    def no_dsr(self, *prefixes: str) -> Iterator[None]:
        """Clients whose answers go back through the tunnel for the length of a block."""
        self.settings(*(word for one in prefixes for word in ("--no-dsr", one)))
        try:
            yield
        finally:
            self.settings("--no-dsr", "none")

    def flows(self) -> dict[FlowKey, FlowValue]:
        """Every entry that counts."""
        with self.map("flows") as flows, self.map("halfopen") as halfopen:
            return packet_codec.merge(flows.items(), halfopen.items())

    def forget(self) -> None:
        """Empty its flow maps."""
        for name in ("flows", "halfopen", "fragments"):
            with self.map(name) as table:
                for key, _ in list(table.items()):
                    table.delete(key)

    def drops(self, reason: str) -> int:
        """How often a packet was refused for a reason, as `no_backend`."""
        return self._count("drop_stats", enums.DROP_REASONS.index(reason))

    def event(self, name: str) -> int:
        """A counter of packet_stats, as `opened`."""
        return self._count("packet_stats", enums.PACKET_EVENTS.index(name))

    def counters(self) -> dict[str, int]:
        """Every counter that is not zero, for messages."""
        drops = {f"drop {name}": self.drops(name) for name in enums.DROP_REASONS}
        events = {name: self.event(name) for name in enums.PACKET_EVENTS}
        return {name: value for name, value in (events | drops).items() if value}

    def _count(self, table: str, index: int) -> int:
        with self.map(table) as opened:
            data = opened.lookup(U32.pack(index))
        assert data is not None
        return sum(struct.unpack(f"={len(data) // 8}Q", data))

    def close(self) -> None:
        """Detach all, and let its namespaces go."""
        with contextlib.suppress(FileNotFoundError):
            self.svc("unload", "--yes", code=None)
        for pod in self.pods:
            pod.close()
        super().close()


class Bed:
    """A client, nodes and the router between them. `elsewhere` is a host outside that no node knows of."""

    def __init__(self, client: Host, elsewhere: Host, nodes: list[Node]) -> None:
        self.client, self.elsewhere, self.nodes = client, elsewhere, nodes

    def service(
        self,
        name: str,
        *frontends: str,
        backends: Sequence[str],
        nodes: Sequence[Node] = (),
        **options: object,
    ) -> None:
        """`service add` on every node (or some), backends marked local where they are; options as `node_port=30080`."""
        for node in nodes or self.nodes:
            words: list[object] = ["service", "add", name]
            for one in frontends:
                words += ["--frontend", one]
            for one in backends:
                words += ["--backend", one + (",local" if is_on(one, node) else "")]
            for option, value in options.items():
                words += [f"--{option.replace('_', '-')}", *([] if value is True else [value])]
            node.svc(*words)

    def delete(self, *names: str, nodes: Sequence[Node] = ()) -> None:
        """`service delete` on every node, and no flow is left."""
        for node in nodes or self.nodes:
            for name in names:
                node.svc("service", "delete", name)
            node.forget()

    @contextlib.contextmanager
    def serving(self, name: str, *frontends: str, **options: Any) -> Iterator[None]:
        """A `service` for the length of a block."""
        self.service(name, *frontends, **options)
        try:
            yield
        finally:
            self.delete(name, nodes=options.get("nodes", ()))

    def route(self, node: Node) -> None:
        """The load balancer's addresses to a node from now on."""
        batch(
            f"route replace {VIP}/32 via {node.address} dev {node.device}",
            f"route replace {VIP6}/128 via {node.address6} dev {node.device}",
        )

    def cut(self, node: Node) -> None:
        """Nothing comes to a node any more, and nothing from it."""
        batch(f"link set {node.device} down")

    def mend(self, node: Node) -> None:
        """The contrary."""
        batch(f"link set {node.device} up", *node.routes())
        node.await_running()

    def counters(self) -> dict[str, dict[str, int]]:
        """Of every node, for messages."""
        return {node.name: node.counters() for node in self.nodes}


def is_on(backend: str, node: Node) -> bool:
    """Whether a backend's address is one of a node's pods' or its own."""
    address = backend.rpartition(":")[0].strip("[]")
    own = [node.address, node.address6] + [text for pod in node.pods for text in (pod.address, pod.address6)]
    return address in own


def at(*addresses: str, port: int = 80) -> list[str]:
    """Frontends of both protocols at addresses."""
    return [f"{place(one, port)}/{kind}" for one in addresses for kind in ("tcp", "udp")]


def backend_of(pod: Namespace, port: int = 8080) -> list[str]:
    """Its place as a backend, in both families."""
    return [place(pod.own(family), port) for family in (AF_INET, AF_INET6)]


def node_key(prefix: str) -> bytes:
    """Its key in a trie of addresses."""
    family, address, length = parse_prefix(prefix)
    return NODE_KEY.pack(NodeKey(96 + length if family == IPV4 else length, address))


@contextlib.contextmanager
def bed(*pods: int, mtu: int = 1500, pod_mtu: int = 1500, source_check: int = 1) -> Iterator[Bed]:
    """As many nodes as numbers are given, with so many pods each, loaded and known to each other.

    Call it in a world. The nodes' `rp_filter` is `source_check`; the router has none, since answers of a backend's
    own node come from where its address is not.
    """
    setting("net/ipv4/ip_forward", "1")
    setting("net/ipv6/conf/all/forwarding", "1")
    quiet_addresses()
    all_icmp()
    for name in ("all", "default"):
        setting(f"net/ipv4/conf/{name}/rp_filter", "0")
    with contextlib.ExitStack() as stack:
        hosts = []
        for device, network, network6 in (
            ("to_c", "192.0.2", "2001:db8:2"),
            ("to_e", "198.51.100", "2001:db8:100"),
        ):
            hosts.append(Host(device, network, network6, mtu=mtu))
            stack.callback(hosts[-1].close)
        nodes: list[Node] = []
        for number, count in enumerate(pods, 1):
            nodes.append(Node(number, count, mtu=mtu, pod_mtu=pod_mtu))
            stack.callback(nodes[-1].close)
        for node in nodes:
            node.source_check(source_check)
            node.load()
            node.meet(nodes)
        made = Bed(hosts[0], hosts[1], nodes)
        if nodes:
            made.route(nodes[0])
        yield made


def wait(condition: object, what: str = "waited in vain", seconds: float = 60) -> None:
    """Until something is true."""
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.005)
