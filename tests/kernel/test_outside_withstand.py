"""Tunnelled packets that should not be, nodes that disagree, and others who use the same port."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from socket import AF_INET

import pytest

from svcctl.maps.packet_layouts import TUNNEL_PORT
from tests.lib.nodes import VIP, VIP6, Bed, Node, at, backend_of, bed, wait
from tests.lib.outside import FAMILIES, exchange, refusal, talk
from tests.lib.tunnelled import (
    await_error,
    datagram,
    hops,
    listen_to_errors,
    receive_tos,
    segment,
    send,
    tell_tos,
    wrapped,
)
from tests.lib.world import world

NODE_PORT = 30080
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
BOTH = pytest.mark.parametrize("kind", ["tcp", "udp"])
CLIENT_PORT = 12000


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Three nodes with a pod each."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with world(), bed(1, 1, 1) as one:
        yield one


@contextlib.contextmanager
def asked(made: Bed, family: int, **options: object) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """A service whose backend is the second node's pod: its UDP socket, and the place at the first node."""
    backend = made.nodes[1].pods[0]
    options = {"node_port": NODE_PORT, "kind": "load-balancer"} | options
    with (
        made.serving("web", *at(VIP, VIP6), backends=backend_of(backend), **options),
        backend.listen(8080, "udp", family) as listener,
    ):
        yield listener, (made.nodes[0].own(family), NODE_PORT)


@contextlib.contextmanager
def counted(node: Node, reason: str) -> Iterator[None]:
    """In the block a packet is dropped for a reason, and no flow is opened."""
    goal, flows = node.drops(reason) + 1, node.flows().keys()
    yield
    wait(lambda: node.drops(reason) >= goal, f"{reason}: {node.counters()}")
    assert node.drops(reason) == goal
    assert node.flows().keys() == flows


def is_next(made: Bed, listener: socket.socket, where: tuple[str, int]) -> None:
    """Nothing has come to the backend before what is sent now, by the client."""
    with made.client.socket("udp", listener.family) as one:
        one.sendto(b"the next", where)
        data, _ = listener.recvfrom(64)
        assert data == b"the next"


@FAMILY
def test_tunnelled_by_who_is_no_node(made: Bed, family: int) -> None:
    """From a host outside, from a pod, and with a checksum that we never put in."""
    second = made.nodes[1]
    with asked(made, family) as (listener, where):
        inner = wrapped(datagram((made.client.own(family), CLIENT_PORT), where))
        for sender, checksum in (
            (made.elsewhere, False),
            (made.nodes[2].pods[0], False),
            (made.nodes[0], True),
        ):
            with counted(second, "not_a_peer"):
                send(sender, family, second.own(family), inner, checksum=checksum)
        is_next(made, listener, where)


@FAMILY
def test_to_no_service(made: Bed, family: int) -> None:
    """The tunnel is for services: it is no way into the cluster's network."""
    first, second, third = made.nodes
    source = (made.client.own(family), CLIENT_PORT)
    pod = second.pods[0]
    with (
        asked(made, family) as (listener, where),
        pod.listen(9000, "udp", family) as other,
    ):
        for inner in (
            datagram(source, (where[0], 9)),
            datagram(source, (pod.own(family), 9000)),
            datagram(source, (pod.own(family), 8080)),
            datagram(source, (third.pods[0].own(family), 9000)),
            datagram(source, (made.elsewhere.own(family), 9000)),
            segment(source, (pod.own(family), 22)),
        ):
            with counted(second, "not_a_flow"):
                send(first, family, second.own(family), wrapped(inner))
        with counted(second, "unknown_flow"):
            send(first, family, second.own(family), wrapped(segment(source, where, "A")))
        is_next(made, listener, where)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(16)


@FAMILY
def test_what_is_no_packet(made: Bed, family: int) -> None:
    """Cut short, of another family than it says, or noise: nothing comes of it, and traffic goes on."""
    first, second, _ = made.nodes
    dice = random.Random(family)
    with asked(made, family) as (listener, where):
        whole = datagram((made.client.own(family), CLIENT_PORT), where)
        other = (
            datagram(("192.0.2.2", 1), ("192.0.2.9", 2))
            if family != AF_INET
            else datagram(("fd00::1", 1), ("fd00::2", 2))
        )
        payloads = [wrapped(whole[:length]) for length in range(0, len(whole) - 1, 5)]
        payloads += [wrapped(other), wrapped(whole, kind=0x0806), wrapped(whole, kind=0x88CC)]
        payloads += [wrapped(b"")[:length] for length in (0, 4, 8, 21)]
        payloads += [wrapped(whole[:1] + dice.randbytes(dice.randrange(20, 90))) for _ in range(100)]
        payloads += [wrapped(whole, flags=0), wrapped(whole, flags=0x88)]
        before = second.flows().keys()
        for payload in payloads:
            send(first, family, second.own(family), payload)
        is_next(made, listener, where)
        assert len(second.flows().keys() - before) == 2


@FAMILY
def test_the_port_is_not_ours_alone(made: Bed, family: int) -> None:
    """To an address that is no end of our tunnels, or with another network number: whoever listens there gets it."""
    first, second, _ = made.nodes
    pod = second.pods[0]
    payload = wrapped(datagram((made.client.own(family), CLIENT_PORT), (first.own(family), NODE_PORT)))
    with asked(made, family):
        for to, vni in ((pod, None), (second, 42)):
            sent = payload if vni is None else wrapped(b"whatever", vni)
            with to.listen(TUNNEL_PORT, "udp", family) as listener:
                before = second.counters()
                send(first, family, to.own(family), sent, checksum=True)
                assert listener.recv(2048) == sent
                assert second.counters() == before


@FAMILY
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_a_service_on_the_tunnels_port(made: Bed, family: int, where: int) -> None:
    """Its addresses are no end of a tunnel: clients outside are served there as on any other port."""
    backend = made.nodes[where].pods[0]
    vip = VIP if family == AF_INET else VIP6
    fronts = at(VIP, VIP6, port=TUNNEL_PORT)
    with (
        made.serving("vxlan", *fronts, backends=backend_of(backend), kind="load-balancer"),
        backend.listen(8080, "udp", family) as listener,
    ):
        talk(made.client, "udp", listener, (vip, TUNNEL_PORT))


@FAMILY
def test_beside_a_vxlan_device(made: Bed, family: int) -> None:
    """The kernel's own, with another number, on the same port between the same nodes: both carry traffic at once."""
    first, second, _ = made.nodes
    inner = {"first": "172.16.42.1", "second": "172.16.42.2"}
    with contextlib.ExitStack() as stack:
        for node, other, address in ((first, second, inner["first"]), (second, first, inner["second"])):
            node.run(
                f"link add vx42 type vxlan id 42 dstport {TUNNEL_PORT} local {node.own(family)}"
                f" remote {other.own(family)} dev up0",
                f"addr add {address}/24 dev vx42",
                "link set vx42 up",
            )
            stack.callback(node.run, "link del vx42")
        listener, where = stack.enter_context(asked(made, family))
        server = stack.enter_context(second.socket("tcp"))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((inner["second"], 9000))
        server.listen()
        one = stack.enter_context(first.socket("tcp"))
        one.bind((inner["first"], 0))
        one.connect((inner["second"], 9000))
        accepted = stack.enter_context(server.accept()[0])
        accepted.settimeout(30)
        for _ in range(3):
            exchange(one, accepted, 1 << 19)
            talk(made.client, "udp", listener, where)
            with second.pods[0].listen(8080, "tcp", family) as tcp:
                talk(made.client, "tcp", tcp, where)


@FAMILY
@pytest.mark.parametrize("algorithm", ["random", "maglev"])
def test_another_node_in_a_flow(made: Bed, family: int, algorithm: str) -> None:
    """One node's flow is not another's to send into, unless a table makes all nodes choose alike."""
    _, second, third = made.nodes
    with (
        asked(made, family, algorithm=algorithm) as (listener, where),
        made.client.socket("udp", family) as one,
    ):
        one.sendto(b"one", where)
        data, peer = listener.recvfrom(64)
        assert data == b"one"
        inner = wrapped(datagram((made.client.own(family), one.getsockname()[1]), where, b"two"))
        if algorithm == "random":
            with counted(second, "other_node"):
                send(third, family, second.own(family), inner)
        else:
            changed = second.event("node_changed")
            send(third, family, second.own(family), inner)
            assert listener.recvfrom(64) == (b"two", peer)
            assert second.event("node_changed") == changed + 1
        one.sendto(b"three", where)
        assert listener.recvfrom(64) == (b"three", peer)
        listener.sendto(b"answer", peer)
        data, who = one.recvfrom(64)
        assert (data, who[:2]) == (b"answer", where)


@FAMILY
def test_answers_of_another_node(made: Bed, family: int) -> None:
    """Who is not the backend's node cannot answer for it."""
    first, _, third = made.nodes
    with asked(made, family) as (listener, where), made.client.socket("udp", family) as one:
        one.sendto(b"one", where)
        _, peer = listener.recvfrom(64)
        client = (made.client.own(family), one.getsockname()[1])
        with counted(first, "other_node"):
            send(third, family, first.own(family), wrapped(datagram(where, client, b"forged")))
        listener.sendto(b"answer", peer)
        assert one.recvfrom(64)[0] == b"answer"


@BOTH
@FAMILY
def test_nodes_that_disagree(made: Bed, kind: str, family: int) -> None:
    """Each believes that the other one has the backend: the client is refused at once, and nothing goes in circles."""
    first, second, _ = made.nodes
    frontends = at(VIP, VIP6)
    options = {"kind": "load-balancer", "node_port": NODE_PORT}
    with (
        made.serving("web", *frontends, backends=backend_of(second.pods[0]), nodes=[first], **options),
        made.serving("web", *frontends, backends=backend_of(first.pods[0]), nodes=[second], **options),
    ):
        sent = first.event("tunnelled"), second.event("tunnelled")
        for node in (first, second):
            assert refusal(made.client, kind, family, (node.own(family), NODE_PORT)) == "refused"
        assert (first.event("tunnelled"), second.event("tunnelled")) == (sent[0] + 1, sent[1] + 1)


@BOTH
@FAMILY
def test_a_node_without_the_service(made: Bed, kind: str, family: int) -> None:
    """It does not know yet, or no more, what another one sends it: counted, and the packet is gone."""
    first, second, _ = made.nodes
    with made.serving(
        "web", *at(VIP, VIP6), backends=backend_of(second.pods[0]), nodes=[first], node_port=NODE_PORT
    ):
        before = second.drops("not_a_flow")
        assert refusal(made.client, kind, family, (first.own(family), NODE_PORT), 0.25) == "silence"
        wait(lambda: second.drops("not_a_flow") > before)


@FAMILY
def test_a_node_without_an_address(made: Bed, family: int) -> None:
    """No tunnel without both ends: counted as such, for this family only."""
    first = made.nodes[0]
    stranger = next(one for one in FAMILIES.values() if one != family)
    first.settings("--node-address", first.own(stranger))
    try:
        with asked(made, stranger) as (listener, where):
            talk(made.client, "udp", listener, where)
            lost = first.drops("no_node")
            place = (first.own(family), NODE_PORT)
            assert refusal(made.client, "udp", family, place, 0.25) in ("silence", "refused")
            wait(lambda: first.drops("no_node") > lost)
    finally:
        first.settings("--node-address", f"{first.address},{first.address6}")


@FAMILY
def test_marks_of_congestion(made: Bed, family: int) -> None:
    """A mark that the tunnel's packet was given is the inner packet's (RFC 6040); who takes no marks loses the packet."""
    first, second, _ = made.nodes
    not_ect, ect1, ect0, ce = range(4)
    with asked(made, family) as (listener, where):
        tell_tos(listener)
        source = (made.client.own(family), CLIENT_PORT)
        for inner in (not_ect, ect1, ect0, ce):
            for outer in (not_ect, ect1, ect0, ce):
                dscp, text = 0x68, b"%d %d" % (inner, outer)
                lost = second.drops("congestion")
                packet = wrapped(datagram(source, where, text, tos=dscp | inner))
                send(first, family, second.own(family), packet, tos=dscp | outer)
                if (inner, outer) == (not_ect, ce):
                    wait(lambda: second.drops("congestion") > lost)  # noqa: B023
                else:
                    expected = ce if outer == ce else inner
                    assert receive_tos(listener) == (text, dscp | expected)
                    assert second.drops("congestion") == lost


@FAMILY
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_the_last_hop(made: Bed, family: int, where: int) -> None:
    """A packet that has one hop left when it comes is told so; with enough of them it arrives."""
    first, backend = made.nodes[0], made.nodes[where].pods[0]
    to = (first.own(family), NODE_PORT)
    with (
        made.serving("web", *at(VIP, VIP6), backends=backend_of(backend), node_port=NODE_PORT),
        backend.listen(8080, "udp", family) as listener,
        made.client.socket("udp", family) as one,
    ):
        listen_to_errors(one)
        hops(one, 2)  # the router takes one
        lost = first.drops("hops")
        one.sendto(b"short", to)
        error = await_error(one)
        assert (error.type, error.code) == ((11, 0) if family == AF_INET else (3, 0))
        assert error.destination == to
        assert error.offender == to[0]
        assert first.drops("hops") == lost + (backend not in first.pods)  # the stack says it by itself
        hops(one, 5)
        one.sendto(b"far", to)
        assert listener.recv(16) == b"far"
