"""Flows as the program keeps them, by BPF_PROG_TEST_RUN: what makes one, what ends one, what is never forgotten.

Faults that other packet paths had, and the tests that hold this one against them. Without a file: here.

* A SYN that is sent again is balanced anew: test_syn_again_uses_the_entry.
* A port that is used again at once hangs or is reset: test_syn_on_a_closed_connection_is_a_new_one,
  test_packet_changes.py test_a_port_is_used_again_and_again.
* Two flows that are the same once translated: test_no_port_left, test_a_port_that_goes_to_the_backend_itself,
  test_packet_changes.py test_two_services_with_one_backend and test_by_service_and_directly_in_turns.
* A flow forgotten too early after a RST, or kept for an hour: test_traffic_after_a_reset, test_expiry_is_the_models.
* A RST noted in one direction's entry only: test_syn_on_a_closed_connection_is_a_new_one (either side ends).
* UDP stays with a backend that is gone, TCP hangs on it: test_backend_gone, test_packet_changes.py
  test_backend_that_leaves; the backend is another service's still: test_backend_gone_but_another_services.
* A datagram before the service was made pins its client to nowhere: test_datagrams_from_before_the_service.
* A RST's numbers from the frame's length, padding and all: test_packet_errors.py test_answers.
* Errors that are not translated inside, or have wrong sums: test_packet_errors.py test_errors, test_a_narrow_way.
* Later fragments are lost: test_packet_errors.py test_fragments and test_fragments_out_of_order.
* A source range of everything drops everything, ranges hold for pods: test_packet_choice.py
  test_sources_that_are_not_admitted, test_source_ranges.
* The internal policy is for node ports only: test_internal_policy.
* Affinity to a backend that is gone, or not from this set: test_affinity, test_packet_traffic.py
  test_affinity_of_an_address.
* One direction's entry evicted alone: test_one_direction_evicted. A flood evicts idle ones:
  test_a_flood_evicts_only_its_like.
* Connections from before are cut: test_packet_changes.py test_connections_that_were_there_go_on.
* A service without a backend times out: test_packet_traffic.py test_nobody_there.
* Writing back whole entries loses what programs wrote: test_upgrade_flows.py test_what_changed_last_counts.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from svcctl.maps import enums, packet_codec
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import FILTER_BUCKET, FILTER_MARKS, FLOW, FLOW_KEY, FlowKey, FlowValue
from svcctl.model.conntrack import Timeouts, expired, idle_limit_ms
from svcctl.model.constants import TCP, UDP
from tests.lib.balanced import SMALL, VIP, VIP6, Balanced
from tests.lib.flow_table import ROWS, Row
from tests.lib.frames import TCP as TCPLayer
from tests.lib.frames import Packet, addresses, check, flow, mapped, read
from tests.lib.nodes import node_key
from tests.lib.packet_path import DROP, PASS, REDIRECT, PacketPath, packet_path, serviced
from tests.lib.svc import svc
from tests.lib.world import World

CLIENT, BACKEND, OTHER = "10.244.0.1", "10.244.0.2", "10.244.0.3"
CLIENT6, BACKEND6 = "fd00:244::1", "fd00:244::2"
LONG = os.environ.get("SVCCTL_LONG") == "1"


class Lab:
    """A service of one backend in each family, and packets of one client to and fro."""

    def __init__(self, made: Balanced, path: PacketPath) -> None:
        self.made, self.path = made, path
        made.add("web", f"{VIP}:80/tcp", f"{VIP}:80/udp", backends=[f"{BACKEND}:8080"])
        made.add("web6", f"[{VIP6}]:80/tcp", f"[{VIP6}]:80/udp", backends=[f"[{BACKEND6}]:8080"])

    def out(
        self, kind: str = "tcp", port: int = 5000, client: str = CLIENT, vip: str = VIP, **tcp: Any
    ) -> Sent:
        """A packet from the client to the service."""
        frame = flow(
            kind, client, port, vip, 80, b"request", **(tcp or ({"flags": "A"} if kind == "tcp" else {}))
        )
        return Sent(*self.path.run("from_workload", frame), frame)

    def back(
        self, kind: str = "tcp", port: int = 5000, backend: str = BACKEND, client: str = CLIENT, **tcp: Any
    ) -> Sent:
        """A packet from a backend, on its way out to the client."""
        frame = flow(
            kind, backend, 8080, client, port, b"answer", **(tcp or ({"flags": "A"} if kind == "tcp" else {}))
        )
        return Sent(*self.path.run("to_workload", frame), frame)

    def connect(self, port: int = 5000) -> None:
        """A handshake: the flow is answered after it."""
        assert self.out(port=port, flags="S", seq=100).destination == BACKEND
        assert self.back(port=port, flags="SA", seq=500, ack=101).source == VIP
        assert self.out(port=port, flags="A", seq=101, ack=501).destination == BACKEND


class Sent:
    """What became of a packet."""

    def __init__(self, verdict: int, frame: bytes, before: bytes) -> None:
        self.verdict, self.frame, self.untouched = verdict, frame, frame == before
        check(frame)
        self.source, self.destination = addresses(frame)

    @property
    def packet(self) -> Packet:
        """Dissected."""
        return read(self.frame)


@pytest.fixture
def lab(world: World) -> Iterator[Lab]:
    with serviced(world, *SMALL) as made, packet_path(made.state_dir) as path:
        yield Lab(made, path)


def key(kind: int, reply: bool = False, port: int = 5000) -> FlowKey:
    if reply:
        return FlowKey(mapped(BACKEND), mapped(CLIENT), 8080, port, kind, bytes(3))
    return FlowKey(mapped(CLIENT), mapped(VIP), port, 80, kind, bytes(3))


def rewrite(path: PacketPath, table: str, where: FlowKey, **fields: Any) -> None:
    """Change an entry."""
    packed = FLOW_KEY.pack(where)
    data = path.map(table).lookup(packed)
    assert data is not None
    path.map(table).update(packed, FLOW.pack(FLOW.unpack(data)._replace(**fields)))


@pytest.mark.parametrize(
    ("client", "vip", "backend"), [(CLIENT, VIP, BACKEND), (CLIENT6, VIP6, BACKEND6)], ids=["v4", "v6"]
)
def test_entries(lab: Lab, client: str, vip: str, backend: str) -> None:
    """Half open until the client answers the answer, then in `flows`; both directions with all that they need."""
    for kind, protocol in (("tcp", TCP), ("udp", UDP)):
        there = FlowKey(mapped(client), mapped(vip), 5000, 80, protocol, bytes(3))
        back = FlowKey(mapped(backend), mapped(client), 8080, 5000, protocol, bytes(3))
        is_tcp = kind == "tcp"
        syn: dict[str, Any] = {"flags": "S", "seq": 100} if is_tcp else {}
        answer: dict[str, Any] = {"flags": "SA", "seq": 7, "ack": 101} if is_tcp else {}
        ack: dict[str, Any] = {"flags": "A", "seq": 101, "ack": 8} if is_tcp else {}
        sent = lab.out(kind, client=client, vip=vip, **syn)
        assert (sent.verdict, sent.source, sent.destination) == (PASS, client, backend)
        assert lab.path.table("halfopen").keys() == {there, back}
        for where, value in lab.path.table("halfopen").items():
            assert packet_codec.is_whole(where, value)
            assert packet_codec.other_key(where, value) == (back if where == there else there)
        sent = lab.back(kind, backend=backend, client=client, **answer)
        assert (sent.verdict, sent.source, sent.destination) == (PASS, vip, client)
        assert lab.path.table("flows") == {}
        lab.out(kind, client=client, vip=vip, **ack)
        assert lab.path.table("flows").keys() == {there, back} == lab.path.flows().keys()
        value = lab.path.flows()[there]
        assert (value.destination, value.destination_port, value.kind) == (mapped(backend), 8080, 0)
        assert packet_codec.other_value(there, value)._replace(seen=0, other=0) == lab.path.flows()[back]._replace(
            created_ns=value.created_ns, seen_ns=value.seen_ns, block=value.block, sequence=value.sequence,
            route=0, route_time=0, device=0, seen=0, other=0,
        )  # fmt: skip
        lab.path.forget()


def test_syn_again_uses_the_entry(lab: Lab) -> None:
    """However many backends there are now."""
    assert lab.out(flags="S").destination == BACKEND
    for n in range(3, 20):
        svc("backend", "add", "web", f"10.244.0.{n}:8080")
    assert {lab.out(flags="S").destination for _ in range(20)} == {BACKEND}
    others = {lab.out(port=port, flags="S").destination for port in range(6000, 6500)}
    assert len(others) == 18
    assert lab.path.event("opened") == 501 == lab.made.stats("web").connections
    assert lab.made.picks(f"{BACKEND}:8080") > 1


def test_what_nobody_opened_is_left_alone(lab: Lab) -> None:
    """TCP in the middle of a connection, unless it is asked for: then it is reset."""
    for flags in ("A", "PA", "F", "FA", "R", "RA", "SA", ""):
        sent = lab.out(flags=flags)
        assert (sent.verdict, sent.untouched) == (PASS, True), flags
    lab.path.configure(flags=enums.PACKET_RESET_UNKNOWN)
    sent = lab.out(flags="A", seq=1, ack=2)
    assert (sent.verdict, sent.source, sent.packet[TCPLayer].flags, sent.packet[TCPLayer].seq) == (
        REDIRECT,
        VIP,
        "R",
        2,
    )
    assert lab.out(flags="R").untouched
    assert lab.path.flows() == {}


@pytest.mark.parametrize("ends", ["FF", "R", "r"])
def test_syn_on_a_closed_connection_is_a_new_one(lab: Lab, ends: str) -> None:
    """Both FINs or a RST; with one FIN, or none, it goes where the connection is."""
    lab.connect()
    svc("backend", "add", "web", f"{OTHER}:8080")
    svc("backend", "drain", "web", f"{BACKEND}:8080")
    assert lab.out(flags="S", seq=900).destination == BACKEND
    if ends == "FF":
        lab.out(flags="FA")
        assert lab.out(flags="S", seq=900).destination == BACKEND
        lab.back(flags="FA")
    elif ends == "R":
        lab.out(flags="R")
    else:
        lab.back(flags="R")
    assert lab.out(flags="S", seq=900).destination == OTHER
    assert lab.path.event("recycled") == 1
    assert len(lab.path.flows()) == 2


def test_a_port_that_goes_to_the_backend_itself(lab: Lab) -> None:
    """After a connection by the service, one from the same port to the backend's own address: that is nobody's."""
    lab.connect()
    lab.out(flags="R")
    frame = flow("tcp", CLIENT, 5000, BACKEND, 8080, flags="S", seq=900)
    assert lab.path.run("from_workload", frame) == (PASS, frame)
    for flags in ("SA", "A"):
        for program in ("from_workload", "to_workload"):
            frame = flow("tcp", BACKEND, 8080, CLIENT, 5000, flags=flags, seq=77, ack=901)
            assert lab.path.run(program, frame) == (PASS, frame)
    assert lab.path.flows() == {}


def test_traffic_after_a_reset(lab: Lab) -> None:
    """A RST that somebody did not believe: the flow goes on, for a shorter time, and longer once it has proved to live."""
    lab.connect()
    lab.out(flags="R")
    assert lab.path.flows()[key(TCP)].seen & enums.SEEN_RST
    assert lab.path.flows()[key(TCP, reply=True)].other & enums.SEEN_RST
    lab.back(flags="A")
    for value in lab.path.flows().values():
        assert not (value.seen | value.other) & enums.SEEN_RST
        assert value.reset_ns
    for where in (key(TCP), key(TCP, reply=True)):
        now = time.monotonic_ns()
        rewrite(lab.path, "flows", where, reset_ns=now - 121 * 10**9, seen_ns=now - 10**9)
    lab.out(flags="A")
    lab.back(flags="A")
    assert [value.reset_ns for value in lab.path.flows().values()] == [0, 0]


def test_expiry_is_the_models(lab: Lab) -> None:
    """Each row of the table, either way round: alive just before its time, a new flow just after; times as configured."""
    for row in ROWS:
        for swapped in (False, True):
            _expires_as_the_model_says(lab, row, swapped)


def _expires_as_the_model_says(lab: Lab, row: Row, swapped: bool) -> None:
    path, times = lab.path, Timeouts(2_000_000, 3_000_000, 4_000_000, 5_000_000, 6_000_000, 7_000_000)
    path.configure(times)
    table = "flows" if row.answered else "halfopen"
    seen, other = (row.other, row.seen) if swapped else (row.seen, row.other)
    limit = idle_limit_ms(
        times, row.protocol, seen=seen, other=other, answered=row.answered, was_reset=row.was_reset,
        one_sided=row.one_sided,
    )  # fmt: skip
    young, old = limit - 60_000, limit + 60_000
    for ages in ((young, old), (old, young), (old, old), (old,), (young,)):
        path.forget()
        now = time.monotonic_ns()
        times_ns = [now - age * 10**6 for age in ages]
        for (where, value), seen_ns in zip(entries(row, seen, other), times_ns, strict=False):
            value = value._replace(seen_ns=seen_ns, reset_ns=now if row.was_reset else 0)
            path.put(table, where, value)
        over = expired(limit, now, *times_ns)
        before = path.event("expired")
        lab.out("udp" if row.protocol == UDP else "tcp")
        assert path.event("expired") - before == over, (row, ages, swapped)


def entries(row: Row, seen: int, other: int) -> list[tuple[FlowKey, FlowValue]]:
    """Both entries of a flow in a state, as if the backend was still there."""
    kind = enums.FLOW_ONE_SIDED if row.one_sided else 0
    block = 1
    where = key(row.protocol)
    value = packet_codec.with_check(
        where,
        FlowValue(mapped(CLIENT), mapped(BACKEND), 5000, 8080, kind, 1, 1, 1, 0, 0, 0, 0, block, 0, 0, 0, seen, other),
    )  # fmt: skip
    return [(where, value), (packet_codec.other_key(where, value), packet_codec.other_value(where, value))]


def test_a_flood_evicts_only_its_like(world: World) -> None:
    """Connections that are idle stay, however many SYNs from nowhere come; answered or not."""
    flood = 1_000_000 if LONG else 30_000
    with serviced(world, *SMALL) as made, packet_path(made.state_dir, 4096, 4096) as path:
        lab = Lab(made, path)
        idle = range(2000, 3000)
        for port in idle:
            lab.connect(port)
        kept = path.table("flows")
        assert len(kept) == 2000
        program, frame = path.program("from_workload"), bytearray(flow("tcp", CLIENT, 1, VIP, 80, flags="S"))
        answer = bytearray(flow("tcp", BACKEND, 8080, CLIENT, 1, flags="SA"))
        for n in range(flood):
            struct.pack_into("!I", frame, 26, 0x0B000000 + n)  # checksums are not looked at
            program.test_run(b"", bytes(frame))
            if n % 10 == 0:
                struct.pack_into("!I", answer, 30, 0x0B000000 + n)
                path.program("to_workload").test_run(b"", bytes(answer))
        assert path.event("opened") == flood + len(idle)
        assert path.table("flows").keys() == kept.keys()
        _filter_is_right(path)
        for port in idle:
            assert lab.out(port=port).destination == BACKEND


def _filter_is_right(path: PacketPath) -> None:
    """It names all of `halfopen`, and after so many flows nearly nothing else: what is not ours is let by at a look."""
    marks = path.map("flow_filter")

    def is_named(key: bytes) -> bool:
        bucket, mark = packet_codec.filter_place(key)
        recent = FILTER_BUCKET.unpack(marks.lookup(U32.pack(bucket)) or b"").recent
        return mark in struct.unpack(f"={FILTER_MARKS}I", recent)

    assert all(is_named(FLOW_KEY.pack(key)) for key in path.table("halfopen"))
    rng = random.Random(1)
    assert sum(is_named(rng.randbytes(FLOW_KEY.size)) for _ in range(2000)) < 20


def test_a_crowded_bucket(lab: Lab) -> None:
    """What is used now and then stays in the filter, however many others come; what is idle begins anew, as evicted."""
    lab.path.configure(Timeouts(*[2**31] * 7))
    bucket, _ = packet_codec.filter_place(FLOW_KEY.pack(key(TCP)))
    marks = lab.path.map("flow_filter")

    def crowd(count: int) -> None:
        for number in range(count):
            have = marks.lookup(U32.pack(bucket)) or b""
            marks.update(U32.pack(bucket), packet_codec.add_mark(have, number * 2 + 1))

    lab.out(flags="S")
    for _ in range(20):
        crowd(FILTER_MARKS - 1)
        rewrite(lab.path, "halfopen", key(TCP), seen_ns=1)
        assert lab.out(flags="S").destination == BACKEND
    assert lab.path.table("halfopen")[key(TCP)].seen_ns > 1
    crowd(FILTER_MARKS)
    rewrite(lab.path, "halfopen", key(TCP), seen_ns=1)
    assert lab.out(flags="S").destination == BACKEND
    assert lab.path.table("halfopen")[key(TCP)].seen_ns == 1
    assert lab.path.event("opened") == 1


def test_a_mark_moves_to_the_front(lab: Lab) -> None:
    """A flow that is used again takes no room of others in its bucket."""
    lab.path.configure(Timeouts(*[2**31] * 7))
    bucket, mark = packet_codec.filter_place(FLOW_KEY.pack(key(TCP)))
    marks = lab.path.map("flow_filter")

    def recent() -> list[int]:
        packed = FILTER_BUCKET.unpack(marks.lookup(U32.pack(bucket)) or b"").recent
        return list(struct.unpack(f"={FILTER_MARKS}I", packed))

    lab.out(flags="S")
    for before in range(FILTER_MARKS):
        others = [2 * number + 1 for number in range(FILTER_MARKS - 1)]
        have = bytes(FILTER_BUCKET.size)
        for one in reversed([*others[:before], mark, *others[before:]]):
            have = packet_codec.add_mark(have, one)
        marks.update(U32.pack(bucket), have)
        rewrite(lab.path, "halfopen", key(TCP), seen_ns=1)
        assert lab.out(flags="S").destination == BACKEND
        # Among the first ones it stays where it is.
        assert recent() == ([mark, *others] if before > 2 else [*others[:before], mark, *others[before:]])
    assert lab.path.event("opened") == 1


def test_a_mark_that_was_lost(lab: Lab) -> None:
    """A flow whose mark was pushed out begins anew: its old entry is no reason to go to a backend that has left."""
    lab.out(flags="S")
    lab.out("udp")
    _lose_mark(lab.path, key(TCP))
    _lose_mark(lab.path, key(UDP))
    svc("backend", "add", "web", f"{OTHER}:8080")
    svc("backend", "delete", "web", f"{BACKEND}:8080")
    assert lab.out("udp").destination == OTHER
    assert lab.back("udp", backend=OTHER).source == VIP
    assert lab.out(flags="S").destination == OTHER
    assert lab.back(backend=OTHER, flags="SA", seq=500, ack=101).source == VIP


def test_a_lost_mark_of_a_flow_that_goes_on(lab: Lab) -> None:
    """An entry that still holds is kept, and the answers of its backend are known again."""
    svc("backend", "add", "web", f"{OTHER}:8080")
    for port in range(5000, 5020):
        first = lab.out("udp", port=port).destination
        _lose_mark(lab.path, key(UDP, port=port))
        (back,) = (where for where in lab.path.table("halfopen") if where.destination_port == port)
        _lose_mark(lab.path, back)
        assert lab.out("udp", port=port).destination == first
        assert lab.back("udp", port=port, backend=first).source == VIP
    assert lab.path.event("opened") < 40


def _lose_mark(path: PacketPath, where: FlowKey) -> None:
    """Its whole bucket of the filter is another's."""
    bucket, _ = packet_codec.filter_place(FLOW_KEY.pack(where))
    path.map("flow_filter").update(U32.pack(bucket), bytes(FILTER_BUCKET.size))


def test_an_acknowledgement_must_fit(lab: Lab) -> None:
    """Who has not seen the answer cannot make a flow answered."""
    lab.out(flags="S", seq=100)
    lab.out(flags="A", seq=101, ack=501)
    assert lab.path.table("flows") == {}
    lab.back(flags="SA", seq=500, ack=101)
    for wrong in (500, 0, 500 + (1 << 21), 1 << 31):
        assert lab.out(flags="A", seq=101, ack=wrong).destination == BACKEND
        assert lab.path.table("flows") == {}
    lab.out(flags="PA", seq=101, ack=700)
    assert len(lab.path.table("flows")) == 2


def test_one_direction_evicted(lab: Lab) -> None:
    """The other one makes it anew."""
    for number, (lost, kind) in enumerate(product(("there", "back"), ("tcp", "udp")), 1):
        lab.path.forget()
        _evicted(lab, lost, kind)
        assert lab.path.event("healed") == number


def _evicted(lab: Lab, lost: str, kind: str) -> None:
    protocol = TCP if kind == "tcp" else UDP
    if kind == "tcp":
        lab.connect()
    else:
        lab.out(kind)
        lab.back(kind)
        lab.out(kind)
    before = lab.path.table("flows")
    for table in ("flows", "halfopen"):
        lab.path.map(table).delete(FLOW_KEY.pack(key(protocol, reply=lost == "back")))
    for where in lab.path.table("flows"):
        rewrite(lab.path, "flows", where, route_time=0)
    if lost == "back":
        lab.out(kind)
    else:
        frame = flow(kind, BACKEND, 8080, CLIENT, 5000, b"x", **({"flags": "A"} if kind == "tcp" else {}))
        assert lab.path.run("from_workload", frame)[0] == PASS
    after = lab.path.table("flows")
    assert after.keys() == before.keys()
    for where, value in after.items():
        assert packet_codec.is_whole(where, value)
        assert value[:8] == before[where][:8]


def test_an_entry_that_is_not_whole_is_not_there(lab: Lab) -> None:
    """The kernel gives elements to other keys while they are read; nothing of another flow is believed."""
    lab.connect()
    for table in ("flows", "halfopen"):
        rewrite(lab.path, table, key(TCP), destination=mapped("10.244.0.99"))
    assert lab.out(flags="A").untouched
    assert lab.out(flags="S").destination == BACKEND


@pytest.mark.parametrize("kept", [False, True])
def test_backend_gone(lab: Lab, kept: bool) -> None:
    """TCP is told by a RST, a SYN goes elsewhere, of a half-open one or anew; so does UDP; or TCP is left alone."""
    lab.path.configure(flags=enums.PACKET_KEEP if kept else 0)
    lab.connect()
    lab.connect(5002)
    lab.out(port=5001, flags="S")
    lab.out("udp")
    svc("backend", "add", "web", f"{OTHER}:8080")
    svc("backend", "delete", "web", f"{BACKEND}:8080")
    assert lab.out(port=5002, flags="S", seq=900).destination == (BACKEND if kept else OTHER)
    assert lab.out("udp").destination == OTHER
    assert lab.out(port=5001, flags="S").destination == OTHER
    sent = lab.out(flags="PA", seq=200, ack=700)
    if kept:
        assert (sent.verdict, sent.destination) == (PASS, BACKEND)
        return
    tcp = sent.packet[TCPLayer]
    assert (sent.verdict, sent.source, sent.destination, tcp.flags, tcp.seq) == (
        REDIRECT,
        VIP,
        CLIENT,
        "R",
        700,
    )
    assert lab.out(flags="R").verdict == DROP
    assert lab.out(flags="S").destination == OTHER
    assert lab.path.drops("backend_gone") == 2


@pytest.mark.parametrize(
    "how",
    [("--state", "draining"), ("--state", "down"), ("--weight", 0)],
    ids=["draining", "down", "no-weight"],
)
def test_backend_gone_but_another_services(lab: Lab, how: tuple[object, ...]) -> None:
    """A member that rests keeps its flows, first and when others come and go; one that left does not, whoever else
    has it."""
    lab.made.add("other", "10.96.0.50:80/tcp", backends=[f"{BACKEND}:8080"])
    lab.connect()
    lab.out("udp")
    svc("backend", "add", "web", f"{OTHER}:8080")
    svc("backend", "set", "web", f"{BACKEND}:8080", *how)
    for _ in range(2):
        assert lab.out("udp").destination == BACKEND
        assert lab.out(flags="A").destination == BACKEND
        assert lab.back(flags="A").source == VIP
        assert {lab.out("udp", port=port).destination for port in range(6000, 6020)} == {OTHER}
        svc("backend", "add", "web", "10.244.0.98:8080,weight=0")
        svc("backend", "delete", "web", "10.244.0.98:8080")
    assert svc("check").out == "no problems found\n"
    svc("backend", "delete", "web", f"{BACKEND}:8080")
    assert lab.out("udp").destination == OTHER
    sent = lab.out(flags="PA", seq=200, ack=700)
    assert (sent.verdict, sent.packet[TCPLayer].flags) == (REDIRECT, "R")
    assert svc("check").out == "no problems found\n"


def test_datagrams_from_before_the_service(lab: Lab) -> None:
    """What went to the address when it was nobody's leaves no trace that keeps the client from the service."""
    vip = "10.96.0.51"
    for _ in range(2):
        assert lab.out("udp", vip=vip).untouched
        assert lab.path.flows() == {}
        lab.made.add("late", f"{vip}:80/udp", backends=[f"{BACKEND}:8080"])
        assert lab.out("udp", vip=vip).destination == BACKEND
        svc("service", "delete", "late")
        assert lab.out("udp", vip=vip).untouched


def test_reset_by_command(lab: Lab) -> None:
    """A bit in the client's entry: its next packet is answered by a RST."""
    lab.connect()
    rewrite(lab.path, "flows", key(TCP), seen=enums.SEEN_RESET)
    sent = lab.out(flags="PA", seq=200, ack=700)
    assert (sent.verdict, sent.packet[TCPLayer].flags) == (REDIRECT, "R")


def test_no_port_left(lab: Lab) -> None:
    """Two services, one backend, one client port: another port, from the range; none: refused and counted."""
    lab.made.add("two", "10.96.0.22:80/tcp", backends=[f"{BACKEND}:8080"])
    lab.path.configure(ports=(22222, 1))
    lab.out(flags="S")
    sent = lab.out(vip="10.96.0.22", flags="S")
    assert sent.packet[TCPLayer].sport == 22222
    assert lab.out(vip="10.96.0.22", flags="S").packet[TCPLayer].sport == 22222
    back = lab.back(port=22222, flags="SA", seq=1)
    assert (back.source, back.packet[TCPLayer].dport) == ("10.96.0.22", 5000)
    back = lab.back(flags="SA", seq=1)
    assert (back.source, back.packet[TCPLayer].dport) == (VIP, 5000)
    lab.made.add("three", "10.96.0.23:80/tcp", backends=[f"{BACKEND}:8080"])
    assert lab.out(vip="10.96.0.23", flags="S").verdict == DROP
    lab.path.configure(ports=(0, 0))
    assert lab.out(vip="10.96.0.23", flags="S").verdict == DROP
    assert lab.path.drops("no_port") == 2
    lab.path.configure()
    assert 20000 <= lab.out(vip="10.96.0.23", flags="S").packet[TCPLayer].sport < 30000


def test_source_ranges(lab: Lab) -> None:
    """Of a frontend that is filtered, only sources in its block's ranges are served."""
    from svcctl.maps.service_codec import frontend_word
    from svcctl.maps.service_layouts import BLOCK, CURRENT, FRONTEND_KEY, RANGE_KEY, FrontendKey, RangeKey

    word = FRONTEND_KEY.pack(FrontendKey(mapped(VIP), 80, TCP))
    lane = 1
    lab.path.map("frontends").update(word, frontend_word(word, lane, enums.FRONTEND_FILTERED))
    assert lab.out(flags="S").verdict == DROP
    current = CURRENT.unpack(lab.path.map("current").lookup(U32.pack(lane)) or b"")
    block = BLOCK.unpack(lab.path.map("blocks").lookup(U32.pack(current.cluster)) or b"")
    lab.path.map("blocks").update(U32.pack(current.cluster), BLOCK.pack(block._replace(ranges=7)))
    assert lab.out(flags="S").verdict == DROP
    lab.path.map("source_ranges").update(
        RANGE_KEY.pack(RangeKey(32 + 96 + 24, 7, mapped("10.244.0.0"))), U32.pack(1)
    )
    assert lab.out(flags="S").destination == BACKEND
    assert lab.out(client="10.244.1.1", flags="S").verdict == DROP
    assert lab.path.drops("filtered") == 3


def test_blocked_ports_of_a_service_address(lab: Lab) -> None:
    """All other ports of such an address are refused at once, and what is in the middle of a connection is not."""
    lab.made.add("all", "10.96.0.30:80/tcp", backends=[f"{BACKEND}:8080"], block=True)
    for port, flags, verdict in ((81, "S", REDIRECT), (81, "A", PASS), (80, "S", PASS)):
        frame = flow("tcp", CLIENT, 5000, "10.96.0.30", port, flags=flags)
        assert lab.path.run("from_workload", frame)[0] == verdict
    assert lab.path.run("from_workload", flow("udp", CLIENT, 5000, "10.96.0.30", 80))[0] == REDIRECT
    assert lab.path.drops("blocked") == 2


def test_a_node_port_is_of_nodes_only(lab: Lab) -> None:
    """The number alone says nothing: at other addresses it is whoever's it was, and a blocked address's is refused."""
    vip, node, stranger = "10.96.0.31", "10.10.0.1", "192.0.2.9"
    lab.made.add("node", f"{vip}:80/tcp", backends=[f"{BACKEND}:8080"], node_port=30080, block=True)
    lab.path.map("node_addresses").update(node_key(f"{node}/32"), U32.pack(enums.NODE_OWN | enums.NODE_PORTS))
    lab.path.configure(flags=enums.PACKET_RESET_UNKNOWN)
    for program in ("from_workload", "from_outside"):
        for flags in ("S", "A", "PA"):
            frame = flow("tcp", CLIENT, 5000, stranger, 30080, b"direct", flags=flags)
            assert lab.path.run(program, frame) == (PASS, frame)
        frame = flow("tcp", CLIENT, 5001, node, 30080, flags="A")
        assert lab.path.run(program, frame)[0] == REDIRECT
        frame = flow("tcp", CLIENT, 5002, vip, 30080, flags="S")
        assert lab.path.run(program, frame)[0] == REDIRECT
    assert (lab.path.drops("blocked"), lab.path.drops("unknown_flow")) == (2, 2)
    assert not lab.path.flows()
    verdict, out = lab.path.run("from_workload", flow("tcp", CLIENT, 5003, node, 30080, flags="S"))
    assert (verdict, addresses(out)) == (PASS, (CLIENT, BACKEND))


def test_internal_policy(lab: Lab) -> None:
    """Local: only backends of this node, and none of those is no backend; flows know which set they were chosen from."""
    vip, here = "10.96.0.40", f"{OTHER}:8080"
    lab.made.add(
        "near", f"{vip}:80/tcp", backends=[f"{BACKEND}:8080", f"{here},local"], **{"internal-policy": "local"}
    )
    assert {lab.out(vip=vip, port=port, flags="S").destination for port in range(5000, 5030)} == {OTHER}
    assert {value.kind & enums.FLOW_LOCAL for value in lab.path.flows().values()} == {enums.FLOW_LOCAL}
    svc("backend", "delete", "near", here)
    assert lab.out(vip=vip, port=7000, flags="S").verdict == DROP
    assert lab.path.drops("verdict") == 1


def test_affinity(lab: Lab) -> None:
    """By client address, for as long as its backend is one of the service's."""
    for n in range(3, 12):
        svc("backend", "add", "web", f"10.244.0.{n}:8080")
    svc("service", "set", "web", "--affinity", "600")
    for client in (CLIENT, "10.244.7.7"):
        first = lab.out(client=client, port=6000, flags="S").destination
        assert {lab.out(client=client, port=port, flags="S").destination for port in range(6001, 6030)} == {
            first
        }
        svc("backend", "drain", "web", f"{first}:8080")
        second = lab.out(client=client, port=6100, flags="S").destination
        assert second != first
        assert {lab.out(client=client, port=port, flags="S").destination for port in range(6101, 6130)} == {
            second
        }


def test_digest_of_python_and_c(lab: Lab) -> None:
    """For random entries, over all fields that count."""
    rng = random.Random(1)
    for _ in range(200):
        where = FlowKey(
            rng.randbytes(16), rng.randbytes(16), rng.getrandbits(16), rng.getrandbits(16), TCP, bytes(3)
        )
        port = rng.randint(1024, 65535)
        assert (
            lab.out(port=port, client=f"10.1.{rng.randint(0, 255)}.{rng.randint(1, 254)}", flags="S").verdict
            == PASS
        )
        value = FLOW.unpack(rng.randbytes(FLOW.size))
        assert packet_codec.is_whole(where, packet_codec.with_check(where, value))
    for where, value in lab.path.flows().items():
        assert packet_codec.is_whole(where, value)
    assert len(lab.path.flows()) == 2 * lab.path.event("opened")


def test_mapped_addresses_on_the_wire(lab: Lab) -> None:
    """An IPv6 packet to ::ffff:a.b.c.d is no IPv4 service's, whoever sent it and whichever way it goes."""
    sources = (CLIENT6, f"::ffff:{CLIENT}")
    for kind in ("tcp", "udp"):
        flags: dict[str, Any] = {"flags": "S"} if kind == "tcp" else {}
        lab.out(kind, **flags)
        before = lab.path.flows().keys()
        for program in ("from_workload", "to_workload", "from_outside", "to_outside"):
            for source in sources:
                for one, port, other, to in (
                    (source, 5000, f"::ffff:{VIP}", 80), (f"::ffff:{BACKEND}", 8080, source, 5000),
                ):  # fmt: skip
                    frame = flow(kind, one, port, other, to, b"?", **flags)
                    assert lab.path.run(program, frame) == (PASS, frame), (program, one, other)
        assert lab.path.flows().keys() == before


def test_lru_maps(lab: Lab) -> None:
    """One CPU can use all their room: BPF_F_NO_COMMON_LRU would give it a share."""
    for name in ("flows", "halfopen", "fragments"):
        assert (lab.path.map(name).info.type, lab.path.map(name).info.flags) == (9, 0)
