"""explain: held against the loaded program on random states, and against real connections."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from svcctl.bpf.program import Program
from svcctl.errors import Conflict, Full, NotFound
from svcctl.maps.layouts import U32
from svcctl.model.binding import Binding
from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.destination import Destination, DestinationKey
from svcctl.model.endpoint import Endpoint, parse_endpoint
from svcctl.model.prefix import parse_address, parse_prefix
from svcctl.state import destinations
from svcctl.state.bindings import apply_plan, plan_bind, plan_unbind
from svcctl.state.explain import PASS, REFUSE, SOCKET, explain
from svcctl.state.place import Place
from svcctl.state.writer import Writer, open_writer
from tests.lib.foreign import foreign_program
from tests.lib.look_up import SK_DROP, SK_PASS, Answer, look_up
from tests.lib.run import ok, svcctl
from tests.lib.sockets import cookie, put_socket, register, tcp, udp, writer
from tests.lib.svc import svc, svc_process
from tests.lib.world import World

STATES = int(os.environ.get("SVCCTL_STATES", "1000"))
# As hypothesis: always the same walk, another one only where randomness is asked for.
SEED = random.randrange(1, 1 << 32) if os.environ.get("SVCCTL_RANDOM") == "1" else 20240229

PREFIXES = {
    IPV4: ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3", "10.1.2.4", "0.0.0.0/0", "127.0.0.1"),
    IPV6: ("::/0", "2001:db8::/32", "2001:db8::/64", "2001:db8::1", "2001:db8::2", "::1", "fe80::/10"),
}
ADDRESSES = {
    IPV4: ("10.1.2.3", "10.1.2.4", "10.1.2.200", "10.1.9.9", "10.200.0.1", "192.0.2.1", "127.0.0.1"),
    IPV6: ("2001:db8::1", "2001:db8::2", "2001:db8::ffff", "2001:db8:1::1", "2001:db9::1", "::1", "fe80::1"),
}
PORTS = (0, 80, 443)
LABELS = ("web", "dns", "api", "überall")


class Random:
    """One random walk through states: each step changes one thing."""

    def __init__(self, state: Writer, seed: int) -> None:
        self.state = state
        self.random = random.Random(seed)
        self.sockets: list[socket.socket] = []

    def step(self) -> None:
        actions = [self.bind] * 5 + [self.unbind] * 3 + [self.register] * 4
        actions += [self.close, self.shutdown, self.connect, self.unregister, self.hint]
        with contextlib.suppress(Conflict, NotFound, Full):
            self.random.choice(actions)()

    def binding(self) -> Binding:
        family = self.random.choice((IPV4, IPV6))
        prefix = parse_prefix(self.random.choice(PREFIXES[family]))
        protocol = self.random.choice((TCP, UDP))
        return Binding(self.random.choice(LABELS), protocol, *prefix, self.random.choice(PORTS))

    def bind(self) -> None:
        apply_plan(self.state, plan_bind(self.state, self.binding(), replace=self.random.random() < 0.5))

    def unbind(self) -> None:
        apply_plan(self.state, plan_unbind(self.state, self.binding(), force=True))

    def any_destination(self) -> Destination | None:
        found = sorted(destinations.read_all(self.state).values(), key=lambda one: one.id)
        return self.random.choice(found) if found else None

    def register(self) -> None:
        """A socket into a random slot: mostly one that fits, at times one of another family or protocol."""
        one = self.any_destination()
        if one is None:
            return
        fits = self.random.random() < 0.8
        family = one.key.family if fits else self.random.choice((IPV4, IPV6))
        protocol = one.key.protocol if fits else self.random.choice((TCP, UDP))
        address = "127.0.0.1" if family == IPV4 else self.random.choice(("::1", "::"))
        sock = self.make(protocol, address)
        put_socket(self.state, one, self.random.randrange(16), sock)

    def make(self, protocol: int, address: str) -> socket.socket:
        if address == "::":  # dual-stack
            kind = socket.SOCK_STREAM if protocol == TCP else socket.SOCK_DGRAM
            sock = socket.socket(socket.AF_INET6, kind)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, self.random.random() < 0.5)
            sock.bind(("::", 0))
            if protocol == TCP:
                sock.listen()
        else:
            sock = tcp(address) if protocol == TCP else udp(address)
        self.sockets.append(sock)
        return sock

    def close(self) -> None:
        if self.sockets:
            self.sockets.pop(self.random.randrange(len(self.sockets))).close()

    def shutdown(self) -> None:
        """A listener that was shut down stays in its slot and takes nothing."""
        tcp_sockets = [one for one in self.sockets if one.type == socket.SOCK_STREAM]
        if tcp_sockets:
            with contextlib.suppress(OSError):
                self.random.choice(tcp_sockets).shutdown(socket.SHUT_RDWR)

    def connect(self) -> None:
        """A UDP socket that connects stays in its slot and takes nothing."""
        udp_sockets = [one for one in self.sockets if one.type == socket.SOCK_DGRAM]
        if udp_sockets:
            sock = self.random.choice(udp_sockets)
            sock.connect((sock.getsockname()[0], 9))

    def unregister(self) -> None:
        one = self.any_destination()
        if one is not None:
            destinations.clear_slots(self.state, one.id, one.slots)
            destinations.put(self.state, one._replace(slots=0))

    def hint(self) -> None:
        one = self.any_destination()
        if one is not None:
            self.state.map("hints").update(U32.pack(one.id), U32.pack(self.random.randrange(16)))

    def endpoint(self) -> Endpoint:
        family = self.random.choice((IPV4, IPV6))
        address = parse_address(self.random.choice(ADDRESSES[family]))[1]
        return Endpoint(family, address, self.random.choice((80, 443, 8080)), self.random.choice((TCP, UDP)))

    def close_all(self) -> None:
        for one in self.sockets:
            one.close()


def test_explain_is_what_the_program_does(world: World) -> None:
    seed = int(os.environ.get("SVCCTL_SEED", "0")) or SEED
    ok("load", "--max-bindings", "1000", "--max-destinations", "64")
    verdicts: Counter[str] = Counter()
    with (
        open_writer(Place(), "test") as state,
        Program.open_pinned(f"{world.state_dir}/prog_dispatch") as program,
    ):
        walk = Random(state, seed)
        try:
            for number in range(STATES):
                walk.step()
                endpoint = walk.endpoint()
                said = explain(state, endpoint)
                met = look_up(program, endpoint.protocol, endpoint.family, endpoint.address, endpoint.port)
                want = {
                    PASS: Answer(SK_PASS, 0),
                    REFUSE: Answer(SK_DROP, 0),
                    SOCKET: Answer(SK_PASS, said.chosen.cookie if said.chosen else 0),
                }[said.verdict]
                assert met == want, f"seed {seed}, state {number}: {endpoint}: {said}"
                verdicts[said.verdict] += 1
        finally:
            walk.close_all()
    # The walk must have met all three often, or it proves nothing.
    assert min(verdicts[PASS], verdicts[REFUSE], verdicts[SOCKET]) > STATES // 25, (seed, verdicts)


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "10")
    return world


def explained(*words: str) -> dict[str, object]:
    (found,) = ok("explain", *words, "-o", "json").json["explain"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def web(loaded: World) -> Iterator[socket.socket]:
    ok("bind", "web", "tcp", "127.0.0.0/8", "80")
    ok("bind", "web", "tcp", "127.0.0.1", "80")
    ok("bind", "other", "tcp", "127.0.0.0/8", "0")
    with tcp() as sock:
        register("web", 4, 6, sock)
        yield sock


def test_a_socket(web: socket.socket) -> None:
    found = explained("127.0.0.1:80/tcp")
    port = web.getsockname()[1]
    assert found["verdict"] == "socket"
    assert found["binding"] == "web#tcp:[127.0.0.1/32]:80"
    assert found["socket"] == {
        "slot": 0,
        "cookie": cookie(web),
        "live": True,
        "address": f"127.0.0.1:{port}",
        "uid": 0,
    }
    assert found["losers"] == ["web#tcp:[127.0.0.0/8]:80", "other#tcp:[127.0.0.0/8]:0"]
    assert found["local"] is True
    assert found["attached"] is True
    with socket.create_connection(("127.0.0.1", 80), timeout=60):
        web.accept()[0].close()
    assert explained("127.0.0.1:80/tcp")["counters"] == {"lookups": 1, "no_socket": 0, "errors": 0}
    text = ok("explain", "127.0.0.1:80/tcp", "--from", "127.0.0.9").out
    assert text.startswith("127.0.0.1:80/tcp from 127.0.0.9\n")
    assert f"goes to the socket on 127.0.0.1:{port}" in text
    assert "loses: its prefix is shorter: /8 against /32" in text


def test_a_refusal(web: socket.socket) -> None:
    found = explained("127.0.0.2:81/tcp")
    assert (found["verdict"], found["label"], found["members"]) == ("refuse", "other", [])
    assert "no socket of the label is live" in ok("explain", "127.0.0.2:81/tcp").out
    web.shutdown(socket.SHUT_RDWR)
    found = explained("127.0.0.1:80/tcp")
    assert found["verdict"] == "refuse"
    assert found["members"] == [
        {
            "slot": 0,
            "cookie": cookie(web),
            "live": False,
            "fault": "does not listen any more, or is connected, or is of another protocol",
        }
    ]


def test_a_binding_without_a_label(web: socket.socket) -> None:
    with writer() as state:
        one = destinations.find(state, DestinationKey("web", 4, 6))
        assert one is not None
        state.map("destinations").delete(destinations.encode_key(one.key))
    found = explained("127.0.0.1:80/tcp")
    assert found["label"] == "?0"
    assert found["verdict"] == "socket"  # the program does not ask for labels
    assert "no label has it" in ok("explain", "127.0.0.1:80/tcp").out


def test_ordinary_listeners_in_the_kernels_order(loaded: World) -> None:
    """The one that the kernel chooses comes first: it is asked with real connections."""
    with contextlib.ExitStack() as stack:
        dual = stack.enter_context(socket.socket(socket.AF_INET6))
        dual.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        dual.bind(("::", 0))
        dual.listen()
        port = dual.getsockname()[1]
        assert first_listener(f"127.0.0.1:{port}/tcp") == cookie(dual)
        assert met("127.0.0.1", port, dual)
        dual.close()

        dual = stack.enter_context(socket.socket(socket.AF_INET6))
        dual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        dual.bind(("::", 0))
        dual.listen()
        port = dual.getsockname()[1]
        wild = stack.enter_context(socket.socket())
        wild.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        wild.bind(("0.0.0.0", port))
        wild.listen()
        assert first_listener(f"127.0.0.1:{port}/tcp") == cookie(wild)
        assert met("127.0.0.1", port, wild)
        exact = stack.enter_context(socket.socket())
        exact.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        exact.bind(("127.0.0.1", port))
        exact.listen()
        assert first_listener(f"127.0.0.1:{port}/tcp") == cookie(exact)
        assert met("127.0.0.1", port, exact)
        assert first_listener(f"127.0.0.2:{port}/tcp") == cookie(wild)
        assert met("127.0.0.2", port, wild)
        assert first_listener(f"[::1]:{port}/tcp") == cookie(dual)
        assert met("::1", port, dual)
    assert explained(f"127.0.0.1:{port}/tcp")["listeners"] == []
    assert "nobody listens" in ok("explain", f"127.0.0.1:{port}/tcp").out


def test_what_is_not_local_goes_where_the_routes_lead(loaded: World) -> None:
    """A wildcard listener gets nothing that is for elsewhere, and nobody refuses it here."""
    with socket.create_server(("0.0.0.0", 0)) as wild:
        for port in (wild.getsockname()[1], 9):
            *_, result = ok("explain", f"192.0.2.1:{port}/tcp").out.splitlines()
            assert result.split()[0] == "result"
            assert "where the host's routes lead" in result


def first_listener(endpoint: str) -> int:
    found = explained(endpoint)
    assert found["verdict"] == "pass"
    listeners = found["listeners"]
    assert isinstance(listeners, list)
    return int(listeners[0]["cookie"])


def met(address: str, port: int, expected: socket.socket) -> bool:
    expected.settimeout(60)
    with socket.create_connection((address, port), timeout=60):
        expected.accept()[0].close()
    return True


def test_not_attached(web: socket.socket) -> None:
    ok("detach", "netns")
    found = explained("127.0.0.1:80/tcp")
    assert (found["verdict"], found["attached"]) == ("pass", False)
    assert found["label"] == "web"
    assert "bindings have no effect" in ok("explain", "127.0.0.1:80/tcp").out


def test_without_maps(world: World) -> None:
    ok("load", "--no-dispatcher")
    assert explained("127.0.0.1:80/tcp")["verdict"] == "pass"


def test_addresses_that_are_not_local(loaded: World) -> None:
    loaded.sh("ip address add 192.0.2.1/24 dev lo; ip -6 address add 2001:db8::1/64 dev lo nodad")
    loaded.sh("ip route add local 198.51.100.0/24 dev lo; ip -6 route add local 2001:db8:5::/48 dev lo")
    loaded.sh("ip route add blackhole 203.0.113.0/24; ip route add prohibit 203.0.114.0/24")
    for address in ("192.0.2.1", "198.51.100.77", "[2001:db8::1]", "[2001:db8:5::9]", "127.3.4.5", "[::1]"):
        assert explained(f"{address}:80/tcp")["local"] is True, address
    for address in (
        "192.0.3.2",
        "198.51.101.1",
        "[2001:db8::2]",
        "[2001:db9::1]",
        "203.0.113.1",
        "203.0.114.1",
    ):
        assert explained(f"{address}:80/tcp")["local"] is False, address
    assert "ip route add local 203.0.113.1 dev lo" in ok("explain", "203.0.113.1:80/tcp").out


def test_foreign_programs_are_named(loaded: World) -> None:
    with foreign_program() as foreign:
        assert explained("127.0.0.1:80/tcp")["foreign"] == [f"stranger ({foreign.program_id})"]


def test_a_group_member_may_ask(world: World) -> None:
    ok("load", "--group", "65534", "--max-bindings", "100")
    ok("bind", "web", "tcp", "127.0.0.1", "80")
    ran = svc_process(
        "explain", "127.0.0.1:80/tcp", prefix=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    )
    assert "refused: no socket of the label is live" in ran.out


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1/tcp",
        ":80/tcp",
        "::1:80/tcp",
        "[127.0.0.1]:80/tcp",
        "[::1:80/tcp",
        "127.0.0.1:0/tcp",
        "127.0.0.1:65536/tcp",
        "127.0.0.1:80/sctp",
        "[::ffff:1.2.3.4]:80/tcp",
        "10.0.0.0/8:80/tcp",
        "",
        "/",
        ":/",
    ],
)
def test_bad_endpoints(world: World, text: str) -> None:
    done = svcctl("explain", text)
    assert done.code == 2
    assert done.err.startswith("svcctl: error: explain: ")


def test_usage(world: World) -> None:
    assert svcctl("explain", "127.0.0.1:80/tcp").code == 3
    assert svcctl("explain", "127.0.0.1:80/tcp", "--from", "::1").code == 2
    assert svcctl("explain", "127.0.0.1:80/tcp", "--from", "10.0.0.0/8").code == 2
    for text in ("192.0.2.1:443/tcp", "[2001:db8::1]:53/udp"):
        assert str(parse_endpoint(text)) == text


def test_the_cost_does_not_grow_with_the_bindings(loaded: World, tmp_path: Path) -> None:
    """Single keys are asked for: as many bpf() calls beside 5,000 bindings as beside one."""
    file, log = tmp_path / "bindings.json", tmp_path / "log"
    svc("upgrade", "--max-bindings", 20_000)
    calls = []
    for count in (1, 5000):
        wanted = [{"label": "l", "prefix": f"10.{n >> 8}.{n & 255}.0/25", "port": 80} for n in range(count)]
        file.write_text(json.dumps({"bindings": wanted}))
        svc("load-bindings", file)
        svc_process("explain", "10.0.0.0:80/tcp", prefix=("strace", "-f", "-e", "trace=bpf", "-o", str(log)))
        calls.append(log.read_text().count("bpf(BPF_"))
    assert calls[0] == calls[1] < 200
