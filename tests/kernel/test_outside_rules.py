"""Who is served where, by whom, and as whom: node ports inside and outside, policies, ranges, refusals, masquerading."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from socket import AF_INET

import pytest

from svcctl.maps import enums
from svcctl.maps.layouts import U32
from tests.lib.balanced import inside, own_cgroup
from tests.lib.nodes import VIP, VIP6, Bed, Node, at, backend_of, bed, node_key, wait
from tests.lib.outside import FAMILIES, datagrams, exchange, refusal, talk
from tests.lib.pods import Namespace, batch, place
from tests.lib.world import world

KINDS = ("tcp", "udp")
NODE_PORT = 30080
BOTH = pytest.mark.parametrize("kind", KINDS)
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
VIPS: dict[int, str] = {FAMILIES["v4"]: VIP, FAMILIES["v6"]: VIP6}
SILENCE = 0.25
"""Seconds that somebody waits who is not to be answered."""


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Three nodes; two pods on the first, one on each of the others."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with world(), bed(2, 1, 1) as one:
        one.client.run(
            "addr add 192.0.2.3/24 dev up0", "addr add 2001:db8:2::3/64 dev up0 nodad preferred_lft 0"
        )
        yield one


def serving(made: Bed, *backends: Namespace, **options: object) -> contextlib.AbstractContextManager[None]:
    """A service with a node port and load-balancer addresses, and these backends."""
    places = [place for one in backends for place in backend_of(one)]
    options = {"node_port": NODE_PORT, "kind": "load-balancer"} | options
    return made.serving("web", *at(VIP, VIP6), backends=places, **options)


@BOTH
@FAMILY
def test_pods_reach_node_ports_of_every_node(made: Bed, kind: str, family: int) -> None:
    """Any node's address will do, and the pod goes to the backend directly: no other node has a flow of it."""
    first, second, third = made.nodes
    before = first.event("tunnelled")
    for backend in (first.pods[1], third.pods[0]):
        with serving(made, backend), backend.listen(8080, kind, family) as listener:
            for node in made.nodes:
                talk(first.pods[0], kind, listener, (node.own(family), NODE_PORT))
            assert not second.flows()
            assert not third.flows() or backend is not first.pods[1]
            assert all(value.node == 0 for value in third.flows().values())
            assert first.event("tunnelled") == before


@FAMILY
def test_the_node_itself_reaches_node_ports_of_every_node(made: Bed, family: int) -> None:
    """The balancer for sockets of the node knows the other nodes' addresses, too."""
    first, _, third = made.nodes
    backend = third.pods[0]
    with own_cgroup() as path:
        first.svc("attach", "cgroup", path, "--sockets", "host")
        try:
            with serving(made, backend), backend.listen(8080, "tcp", family) as listener, inside(path):
                for node in made.nodes:
                    talk(first, "tcp", listener, (node.own(family), NODE_PORT))
        finally:
            first.svc("detach", "cgroup")


@BOTH
@FAMILY
def test_the_external_policy_is_not_for_clients_inside(made: Bed, kind: str, family: int) -> None:
    """Without a backend here a client outside gets no answer; a pod, and another node, get all backends."""
    first, second, third = made.nodes
    backend = second.pods[0]
    with (
        serving(made, backend, external_policy="local"),
        backend.listen(8080, kind, family) as listener,
    ):
        for place in ((first.own(family), NODE_PORT), (VIPS[family], 80)):
            assert refusal(made.client, kind, family, place, SILENCE) == "silence"
            talk(first.pods[0], kind, listener, place)
        talk(made.client, kind, listener, (second.own(family), NODE_PORT))
        for node in (second, third):
            talk(node, kind, listener, (first.own(family), NODE_PORT))


@BOTH
@FAMILY
def test_source_ranges(made: Bed, kind: str, family: int) -> None:
    """At the load balancer's addresses, not at node ports; a range of one family admits nobody of the other."""
    backend = made.nodes[1].pods[0]
    own, other = made.client.own(family), "192.0.2.3" if family == AF_INET else "2001:db8:2::3"
    bits = 32 if family == AF_INET else 128
    vip = (VIPS[family], 80)
    before = made.nodes[0].drops("filtered")
    with serving(made, backend, source=f"{own}/{bits}"), backend.listen(8080, kind, family) as listener:
        talk(made.client, kind, listener, vip)
        assert refusal(made.client, kind, family, vip, SILENCE, other) == "silence"
        talk(made.elsewhere, kind, listener, (made.nodes[0].own(family), NODE_PORT))
        stranger = next(one for one in FAMILIES.values() if one != family)
        assert refusal(made.client, kind, stranger, (VIPS[stranger], 80), SILENCE) == "silence"
    wait(lambda: made.nodes[0].drops("filtered") >= before + 2)


@BOTH
@FAMILY
def test_node_ports_are_served_on_some_addresses_only(made: Bed, kind: str, family: int) -> None:
    """An address of the node outside the nets for node ports is the node's own business."""
    node, other = made.nodes[2], "10.10.3.9" if family == AF_INET else "fd00:10:3::9"
    bits = 24 if family == AF_INET else 64
    node.run(f"addr add {other}/{bits} dev up0" + (" nodad preferred_lft 0" if ":" in other else ""))
    backend = node.pods[0]
    with contextlib.ExitStack() as stack:
        stack.callback(node.run, f"addr del {other}/{bits} dev up0")
        listener = stack.enter_context(backend.listen(8080, kind, family))
        with serving(made, backend):
            for address in (node.own(family), other):
                talk(made.client, kind, listener, (address, NODE_PORT))
        with node.map("node_port_nets") as nets:
            nets.update(node_key(node.own(family)), U32.pack(1))
            stack.callback(_clear, node)
        with serving(made, backend):
            talk(made.client, kind, listener, (node.own(family), NODE_PORT))
            before = node.counters()
            assert refusal(made.client, kind, family, (other, NODE_PORT)) == "refused"
            assert node.counters() == before


def _clear(node: Node) -> None:
    with node.map("node_port_nets") as nets:
        for key, _ in list(nets.items()):
            nets.delete(key)


@FAMILY
@pytest.mark.parametrize("policy", ["cluster", "local"])
def test_a_prefix_of_another_node_over_pods_of_this_one(made: Bed, family: int, policy: str) -> None:
    """A backend that is known to be here is not tunnelled away, though no prefix of its own says so."""
    first = made.nodes[0]
    backend = first.pods[0]
    first.settings("--pod-prefix", "none")
    before = first.event("tunnelled")
    try:
        wide = ("--address", "10.10.77.2", "--pod-prefix", "10.244.0.0/16", "--pod-prefix", "fd00:244::/32")
        assert "has in it" in first.svc("nodes", "add", "wide", *wide).err
        with serving(made, backend, external_policy=policy), backend.listen(8080, "udp", family) as listener:
            talk(made.client, "udp", listener, (first.own(family), NODE_PORT))
            explained = first.svc(
                "explain", f"{place(first.own(family), NODE_PORT)}/udp", "--from", made.client.own(family)
            )
            assert "a workload of this node" in explained.out, explained.out
        assert first.event("tunnelled") == before
    finally:
        first.svc("nodes", "delete", "wide")
        first.settings(*(word for one in first.prefixes for word in ("--pod-prefix", one)))


@BOTH
@FAMILY
def test_nobody_there(made: Bed, kind: str, family: int) -> None:
    """Refused at once, by whoever is asked: RST, or an ICMP error."""
    first = made.nodes[0]
    before = first.drops("no_backend")
    with serving(made):
        for place in ((first.own(family), NODE_PORT), (VIPS[family], 80)):
            for client in (made.client, made.elsewhere, first.pods[0]):
                assert refusal(client, kind, family, place) == "refused"
    assert first.drops("no_backend") >= before + 6


@BOTH
@FAMILY
def test_masqueraded_where_no_node_is_known(made: Bed, kind: str, family: int) -> None:
    """A backend that plain routing reaches sees the node, at a port of the range for that, so that it answers the node."""
    first = made.nodes[0]
    before = first.event("masqueraded")
    with (
        serving(made, made.elsewhere),
        made.elsewhere.listen(8080, kind, family) as listener,
    ):
        for place in ((first.own(family), NODE_PORT), (VIPS[family], 80)):
            _, port = talk(made.client, kind, listener, place, source=first.own(family))
            assert 20_000 <= port < 30_000
    assert first.event("masqueraded") == before + 2


@BOTH
@FAMILY
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
@pytest.mark.parametrize("mode", ["tunnel", "dsr"])
def test_a_process_of_a_node_as_backend(made: Bed, kind: str, family: int, where: int, mode: str) -> None:
    """Of the node that is asked, and of another one; it sees the client."""
    backend = made.nodes[where]
    with serving(made, backend, external_mode=mode), backend.listen(8080, kind, family) as listener:
        talk(made.client, kind, listener, (made.nodes[0].own(family), NODE_PORT))


@BOTH
@pytest.mark.parametrize("check", [0, 2], ids=["unchecked", "loose"])
def test_source_checks_of_the_nodes(made: Bed, kind: str, check: int) -> None:
    """All other tests have the strictest; none of them must matter."""
    for node in made.nodes:
        node.source_check(check)
    try:
        for mode in ("tunnel", "dsr"):
            for backend in (made.nodes[0].pods[0], made.nodes[1].pods[0], made.nodes[1]):
                with serving(made, backend, external_mode=mode), backend.listen(8080, kind) as listener:
                    talk(made.client, kind, listener, (made.nodes[0].address, NODE_PORT))
    finally:
        for node in made.nodes:
            node.source_check(1)


@FAMILY
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_connections_that_become_the_same(made: Bed, family: int, where: int) -> None:
    """One client port to a node port, to the load balancer, and to another node: kept apart behind one backend."""
    first, _, third = made.nodes
    backend = made.nodes[where].pods[0]
    places = [(first.own(family), NODE_PORT), (VIPS[family], 80), (third.own(family), NODE_PORT)]
    with (
        serving(made, backend),
        backend.listen(8080, "tcp", family) as listener,
        contextlib.ExitStack() as stack,
    ):
        pairs = []
        for place in places:
            one = stack.enter_context(made.client.socket("tcp", family))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # No port waits for anything at the end: the next case has the same ones.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.bind((made.client.own(family), 11000))
            one.connect(place)
            server, peer = listener.accept()
            stack.enter_context(server).settimeout(60)
            pairs.append((one, server, peer))
        for _ in range(2):
            for one, server, _ in pairs:
                exchange(one, server, 1 << 18)
        ports = {peer[1] for _, _, peer in pairs}
        assert {peer[0] for _, _, peer in pairs} == {made.client.own(family)}
        assert len(ports) == 3
        assert 11000 in ports


@FAMILY
def test_datagrams_that_become_the_same(made: Bed, family: int) -> None:
    """The same of UDP."""
    first, _, third = made.nodes
    backend = made.nodes[1].pods[0]
    places = [(first.own(family), NODE_PORT), (VIPS[family], 80), (third.own(family), NODE_PORT)]
    with (
        serving(made, backend),
        backend.listen(8080, "udp", family) as listener,
        made.client.socket("udp", family) as one,
    ):
        one.bind((made.client.own(family), 11001))
        ports = set()
        for _ in range(2):
            for place in places:
                one.sendto(b"?", place)
                _, peer = listener.recvfrom(16)
                ports.add(peer[1])
                listener.sendto(b"!", peer)
                data, who = one.recvfrom(16)
                assert (data, who[:2]) == (b"!", place)
    assert len(ports) == 3
    assert 11001 in ports


@FAMILY
def test_backends_of_several_nodes(made: Bed, family: int) -> None:
    """Each gets its share of new clients, and with affinity one client always the same."""
    backends = [node.pods[0] for node in made.nodes]
    place = (made.nodes[0].own(family), NODE_PORT)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(one.listen(8080, "udp", family)) for one in backends]
        for listener in listeners:
            listener.setblocking(False)
        with serving(made, *backends):
            assert set(_takers(made.client, listeners, place, 60)) == {0, 1, 2}
        with serving(made, *backends, affinity=600):
            assert len(_takers(made.client, listeners, place, 20)) == 1


def _takers(
    client: Namespace, listeners: list[socket.socket], place: tuple[str, int], count: int
) -> Counter[int]:
    for _ in range(count):
        with client.socket("udp", listeners[0].family) as one:
            one.sendto(b"?", place)
    taken: Counter[int] = Counter()
    until = time.monotonic() + 60
    while taken.total() < count:
        assert time.monotonic() < until, taken
        for number, listener in enumerate(listeners):
            with contextlib.suppress(BlockingIOError):
                listener.recv(16)
                taken[number] += 1
        time.sleep(0)
    return taken


@FAMILY
@pytest.mark.parametrize("where", [0, 1], ids=["local", "remote"])
def test_a_backend_that_leaves(made: Bed, family: int, where: int) -> None:
    """Its connections are reset as soon as they say something; UDP goes on with another one."""
    first, second, third = made.nodes
    leaving, staying = made.nodes[where].pods[0], third.pods[0]
    place = (first.own(family), NODE_PORT)
    with (
        serving(made, leaving),
        leaving.listen(8080, "tcp", family) as listener,
        leaving.listen(8080, "udp", family) as former,
        staying.listen(8080, "udp", family) as other,
        made.client.socket("tcp", family) as one,
        made.client.socket("udp", family) as sender,
    ):
        one.connect(place)
        sender.connect(place)
        sender.send(b"?")
        assert former.recv(16) == b"?"
        server, _ = listener.accept()
        with server:
            for node in (first, second, third):
                node.svc(
                    "backend",
                    "add",
                    "web",
                    *(f"{text}{',local' * (node is third)}" for text in backend_of(staying)),
                )
                node.svc("backend", "delete", "web", *backend_of(leaving))
            sender.send(b"again")
            data, peer = other.recvfrom(16)
            assert (data, peer[0]) == (b"again", made.client.own(family))
            with pytest.raises(ConnectionResetError):
                one.sendall(b"?")
                one.recv(16)


def _one_connection(made: Bed, listener: socket.socket, port: int, place: tuple[str, int]) -> None:
    """From a port of the client, which may be used again at once: the server is the first to close."""
    with made.client.socket("tcp", listener.family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((made.client.own(listener.family), port))
        one.connect(place)
        server, peer = listener.accept()
        assert peer[:2] == (made.client.own(listener.family), port)
        server.close()
        assert one.recv(1) == b""


@FAMILY
@pytest.mark.parametrize("mode", ["tunnel", "dsr"])
def test_a_port_is_used_again_once_the_backend_has_left(made: Bed, family: int, mode: str) -> None:
    """The new connection is nobody's but a new one, also where only one side's end came by."""
    leaving, staying = made.nodes[1].pods[0], made.nodes[2].pods[0]
    place = (made.nodes[0].own(family), NODE_PORT)
    with (
        serving(made, leaving, external_mode=mode),
        leaving.listen(8080, "tcp", family) as former,
        staying.listen(8080, "tcp", family) as other,
    ):
        _one_connection(made, former, 11020, place)
        wait(lambda: any(value.seen & enums.SEEN_FIN for value in made.nodes[0].flows().values()))
        for node in made.nodes:
            node.svc("backend", "add", "web", *backend_of(staying))
            node.svc("backend", "delete", "web", *backend_of(leaving))
        _one_connection(made, other, 11020, place)


@pytest.mark.parametrize("mode", ["tunnel", "dsr"])
def test_through_another_interface(made: Bed, mode: str) -> None:
    """A node port at an address behind a second uplink; routes to clients, and to other nodes, lead by the first."""
    node = made.nodes[0]
    addresses: dict[int, str] = {FAMILIES["v4"]: "10.20.1.2", FAMILIES["v6"]: "fd00:20:1::2"}
    batch(
        f"link add second type veth peer name up1 netns {node.path}",
        "addr add 10.20.1.1/24 dev second",
        "addr add fd00:20:1::1/64 dev second nodad",
        "link set second up",
    )
    try:
        node.run(
            "addr add 10.20.1.2/24 dev up1",
            "addr add fd00:20:1::2/64 dev up1 nodad preferred_lft 0",
            "link set up1 up",
        )
        node.svc("attach", "dev", "up1", "--role", "host")
        for backend in (node.pods[0], made.nodes[1].pods[0]):
            with serving(made, backend, external_mode=mode):
                for family, address in addresses.items():
                    for kind in KINDS:
                        with backend.listen(8080, kind, family) as listener:
                            talk(made.client, kind, listener, (address, NODE_PORT))
    finally:
        batch("link del second")
        node.svc("gc")


@FAMILY
def test_another_node_once_a_flow_is_over(made: Bed, family: int) -> None:
    """The load balancer's address moves: a flow that was over is no reason to refuse what comes through another node."""
    first, second, third = made.nodes
    backend, place = second.pods[0], (VIPS[family], 80)
    with (
        serving(made, backend),
        backend.listen(8080, "tcp", family) as stream,
        backend.listen(8080, "udp", family) as datagrams,
        made.client.socket("udp", family) as sender,
    ):
        try:
            sender.sendto(b"first", place)
            assert datagrams.recv(16) == b"first"
            _one_connection(made, stream, 11021, place)
            second.svc("load", "--no-dispatcher", "--timeout", "udp=0.3")
            for node in (third, second):
                made.route(node)
                _one_connection(made, stream, 11021, place)
                name = node.name.encode()
                until = time.monotonic() + 60
                datagrams.settimeout(0.4)
                while time.monotonic() < until:
                    sender.sendto(name, place)
                    with contextlib.suppress(TimeoutError):
                        assert datagrams.recv(16) == name
                        break
                else:
                    raise AssertionError("never came")
        finally:
            made.route(first)
            second.svc("load", "--no-dispatcher", "--timeout", "udp=60")


@FAMILY
def test_answers_of_their_own_way_but_not_for_all(made: Bed, family: int) -> None:
    """With DSR a client in the opt-out prefixes is answered through the node that it asked."""
    first, second, _ = made.nodes
    backend = second.pods[0]
    with (
        serving(made, backend, external_mode="dsr"),
        backend.listen(8080, "udp", family) as listener,
        second.no_dsr(made.elsewhere.own(family)),
    ):
        for client, direct in ((made.client, True), (made.elsewhere, False)):
            for node in made.nodes:
                node.forget()
            datagrams(client, listener, (first.own(family), NODE_PORT), bulk=0)
            assert {bool(value.kind & enums.FLOW_DSR) for value in second.flows().values()} == {direct}
