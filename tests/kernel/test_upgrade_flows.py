"""Flow maps made anew under traffic: whatever begins at any point of the swap is served, and what is there goes on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from svcctl.bpf.map import Map
from svcctl.maps import enums
from svcctl.maps.layouts import U32
from svcctl.maps.packet_codec import filter_place
from svcctl.maps.packet_layouts import (
    FILTER_BUCKET,
    FILTER_MARKS,
    FLOW,
    FLOW_KEY,
    PACKET_CONFIG,
    FlowKey,
    FlowValue,
)
from svcctl.state import carry, swap
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.upgrade import upgrade
from svcctl.state.upgrade_maps import UpgradeOptions
from svcctl.state.writer import lock_state
from tests.lib.balanced import VIP
from tests.lib.pods import Pod, pods
from tests.lib.svc import svc
from tests.lib.veths import wait
from tests.lib.world import World

SMALL = ("--max-flows", 20000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)
HERE = "/proc/thread-self/ns/net"


class Talk:
    """A client and a backend; at each point of the swap a connection and a datagram more, and a word on the others."""

    def __init__(self, client: Pod, backend: Pod) -> None:
        self.client = client
        self.tcp, self.udp = backend.listen(8080), backend.listen(8080, "udp")
        for one in (self.tcp, self.udp):
            one.setblocking(False)
        self.begun: list[socket.socket] = []
        self.servers: dict[tuple[str, int], socket.socket] = {}
        self.datagrams = client.socket("udp")
        self.datagrams.connect((VIP, 80))
        self.echoed = 0

    def point(self) -> None:
        """Whatever can be done without waiting for anybody."""
        one = self.client.socket()
        one.setblocking(False)
        one.connect_ex((VIP, 80))
        self.begun.append(one)
        self.accept()
        for server in self.servers.values():
            server.send(b"s")
        for each in self.begun:
            try:
                each.send(b"c")
            except BlockingIOError:
                continue  # not connected yet
        self.datagrams.send(b"?")
        self.echo()

    def accept(self) -> None:
        while True:
            try:
                server, peer = self.tcp.accept()
            except BlockingIOError:
                return
            server.setblocking(False)
            server.send(b"s")
            self.servers[peer] = server

    def echo(self) -> None:
        """Answer the datagrams that came."""
        while True:
            try:
                data, peer = self.udp.recvfrom(64)
            except BlockingIOError:
                return
            self.udp.sendto(data, peer)
            self.echoed += 1

    def finish(self) -> None:
        """Every connection that was begun has been made, and bytes go both ways."""

        def all_made() -> bool:
            self.accept()
            return len(self.servers) == len(self.begun)

        wait(all_made)
        for one in self.begun:
            server = self.servers[one.getsockname()]
            for end in (one, server):
                end.settimeout(60)
                end.sendall(b"!")
            for end in (one, server):
                while not (data := end.recv(64)).endswith(b"!"):
                    assert data, "closed early"
        self.datagrams.send(b"!")
        wait(self.has_answer)

    def has_answer(self) -> bool:
        """Whether the last datagram was answered."""
        self.echo()
        self.datagrams.setblocking(False)
        try:
            return self.datagrams.recv(8) == b"!"
        except BlockingIOError:
            return False

    def close(self) -> None:
        for one in (*self.begun, *self.servers.values(), self.tcp, self.udp, self.datagrams):
            one.close()


@pytest.fixture
def talk(world: World) -> Iterator[Talk]:
    svc("load", "--no-dispatcher")
    with pods(2) as (client, backend):
        svc("attach", "dev", "pod*", "--role", "workload", *SMALL)
        svc(
            "service", "add", "web", "--frontend", f"{VIP}:80/tcp", "--frontend", f"{VIP}:80/udp",
            "--backend", f"{backend.address}:8080",
        )  # fmt: skip
        made = Talk(client, backend)
        try:
            yield made
        finally:
            made.close()


def before_each(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, step: Callable[[], None]) -> None:
    """Have `step` run before each call of a function."""
    real = getattr(owner, name)

    def wrapped(*words: Any, **named: Any) -> Any:
        step()
        return real(*words, **named)

    monkeypatch.setattr(owner, name, wrapped)


def test_what_begins_at_the_swap(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every copy and before each link: flows of both maps are never torn between the programs of both."""
    talk.point()
    for owner, name in (
        (carry.Flows, "add_since"),
        (carry, "rcu_barrier"),
        (swap, "_update_links"),
        (swap, "_update_link"),
    ):
        before_each(monkeypatch, owner, name, talk.point)
    monkeypatch.setattr(carry, "HOLD_NS", 600 * 10**9)  # however slow this is
    upgrade(Place(HERE), UpgradeOptions(max_flows=30000), "test")
    monkeypatch.undo()
    assert len(talk.begun) > 6
    talk.finish()
    with open_reader(Place(HERE)) as reader:
        assert reader.map("flows").info.max_entries == 60000
        held = reader.map("packet_stats").lookup(U32.pack(enums.PACKET_EVENTS.index("held"))) or b""
        assert sum(struct.unpack(f"={len(held) // 8}Q", held)) >= 2
    assert svc("check").out == "no problems found\n"
    assert talk.echoed > 1


def test_what_changed_last_counts(world: World) -> None:
    """A flow that the old programs go on with, one that the new ones do, one that is closed or goes meanwhile."""
    svc("load", "--no-dispatcher")
    with pods(1):
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        with open_reader(Place(HERE)) as reader, Map.open_id(reader.map("flows").info.id) as old:
            info = old.info
            with Map.create(info.type, "later", info.key_size, info.value_size, info.max_entries) as new:
                _bring(old, new)


def _bring(old: Map, new: Map) -> None:
    def put(table: Map, number: int, seen_ns: int, seen: int = 0) -> None:
        value = FlowValue(bytes(16), bytes(16), 1, 2, 0, 1, 1, 1, 7, 1, seen_ns, 0, 1, 0, 0, 0, seen, 0)
        table.update(key(number), FLOW.pack(value))

    def key(number: int) -> bytes:
        return FLOW_KEY.pack(FlowKey(bytes(16), bytes(16), number, 80, 6))

    def have() -> dict[int, tuple[int, int]]:
        return {
            FLOW_KEY.unpack(each).source_port: (FLOW.unpack(value).seen_ns, FLOW.unpack(value).seen)
            for each, value in new.items()
        }

    for number in range(1, 6):
        put(old, number, 100)
    copied = carry.Flows("flows", old, new)
    copied.copy()
    assert have() == dict.fromkeys(range(1, 6), (100, 0))
    put(old, 1, 100, enums.SEEN_FIN)  # closed within the grain of times
    put(old, 2, 200)
    put(new, 2, 150)
    put(old, 3, 200)
    put(new, 3, 250)
    old.delete(key(4))
    put(old, 6, 300)  # new
    copied.add_since()
    wanted = {1: (100, enums.SEEN_FIN), 2: (200, 0), 3: (250, 0), 5: (100, 0), 6: (300, 0)}
    assert have() == wanted
    copied.add_since()
    assert have() == wanted


def test_a_filter_is_made_from_what_it_is_for(world: World) -> None:
    """Each key of `halfopen` that there was, and each that came later, beside what programs wrote meanwhile."""
    keys = [FLOW_KEY.pack(FlowKey(bytes(16), bytes(16), number, 80, 6)) for number in range(1, 40)]
    svc("load", "--no-dispatcher")
    with pods(1):
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        with (
            open_reader(Place(HERE)) as reader,
            Map.open_id(reader.map("halfopen").info.id) as old,
            Map.open_id(reader.map("flow_filter").info.id) as new,
        ):
            for key in keys[:20]:
                old.update(key, bytes(FLOW.size))
            copied = carry.Filter("halfopen", old, new)
            copied.copy()
            for key in keys[20:]:
                old.update(key, bytes(FLOW.size))
            copied.add_since()
            copied.add_since()
            for key in keys:
                bucket, mark = filter_place(key)
                marks = FILTER_BUCKET.unpack(new.lookup(U32.pack(bucket)) or b"")
                assert mark in struct.unpack(f"={FILTER_MARKS}I", marks.recent)


def test_a_hold_ends_by_itself(talk: Talk) -> None:
    """A command that dies in the middle keeps nobody from opening flows for longer than a while."""
    with lock_settings() as table:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(carry, "HOLD_NS", 1_500_000_000)
            held = carry.holding([table])
            held.__enter__()  # and never left
        talk.point()
        talk.finish()
        held.__exit__(None, None, None)


def lock_settings() -> Map:
    """`packet_config`, to be written."""
    with open_reader(Place(HERE)) as reader:
        return Map.open_pinned(reader.pin("packet_config"))


def test_who_repairs_ends_a_hold(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command after one that died in the middle."""
    monkeypatch.setattr(carry, "HOLD_NS", 600 * 10**9)
    with lock_settings() as table:
        held = carry.holding([table])
        held.__enter__()
        with lock_state(Place(HERE), "test") as writer:
            writer.put_meta(writer.meta()._replace(generation=writer.meta().generation | 1))
        svc("backend", "add", "web", "10.244.0.77:8080,weight=0")
        assert PACKET_CONFIG.unpack(table.lookup(bytes(4)) or b"").hold_until_ns == 0
        talk.point()
        talk.finish()
        held.__exit__(None, None, None)
    assert svc("check").out == "no problems found\n"
