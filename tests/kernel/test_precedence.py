"""Which binding gets a connection: the loaded program against the plain rule of svcctl.model.precedence.

Random sets of bindings are made with `svcctl bind`, every label has real sockets of its own, and the loaded
program is asked with BPF_PROG_TEST_RUN, so its answer names exactly one binding. The listing's order is held
against the same answers: the first row that matches a connection is the one that gets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svcctl.bpf.program import Program
from svcctl.model.binding import Binding, parse_binding
from svcctl.model.constants import FAMILY_NAMES, IPV4, IPV6, PROTOCOL_NAMES, TCP, UDP
from svcctl.model.precedence import choose
from svcctl.model.prefix import MAPPED, format_prefix, mask_address
from tests.lib.look_up import PASSED, SK_PASS, Answer, look_up
from tests.lib.servers import REFUSED, Server, ask
from tests.lib.svc import svc
from tests.lib.world import World

MOST = 12
PORTS = (0, 1, 80, 443, 65535)
V4_BASES = (0x7F000001, 0x0A010203, 0x0A010280, 0xC0000200, 0xFFFFFFFF, 0)
V6_BASES = (
    0,
    1,
    0x20010DB8000000000000000000000001,
    0x20010DB8000000000000000100000001,
    0x00000000000000000000FFFE0A010203,  # one bit away from the v4-mapped addresses
    (1 << 128) - 1,
)
WIDTH = {IPV4: 32, IPV6: 128}


class Query(NamedTuple):
    protocol: int
    family: int
    address: bytes
    port: int


def to_bytes(family: int, number: int) -> bytes:
    return MAPPED + number.to_bytes(4, "big") if family == IPV4 else number.to_bytes(16, "big")


@st.composite
def prefixes(draw: st.DrawFn) -> tuple[int, bytes, int]:
    family = draw(st.sampled_from((IPV4, IPV6)))
    width = WIDTH[family]
    base = draw(st.sampled_from(V4_BASES if family == IPV4 else V6_BASES) | st.integers(0, (1 << width) - 1))
    # One bit flipped makes siblings: same length, other branch.
    base ^= draw(st.just(0) | st.integers(0, width - 1).map(lambda bit: 1 << bit))
    length = draw(st.integers(0, width) | st.sampled_from((0, width)))
    shift = width - length
    address = to_bytes(family, base >> shift << shift)
    if family == IPV6 and address.startswith(MAPPED):  # cannot be written: it would mean either family
        return IPV4, address, max(length - 96, 0) if length >= 96 else 0
    return family, address, length


@st.composite
def binding_sets(draw: st.DrawFn) -> list[Binding]:
    keys = draw(
        st.lists(
            st.tuples(prefixes(), st.sampled_from((TCP, UDP)), st.sampled_from(PORTS)),
            min_size=1,
            max_size=MOST,
            unique=True,
        )
    )
    labels = draw(st.permutations(range(MOST)))
    made = []
    for ((family, address, length), protocol, port), label in zip(keys, labels, strict=False):
        masked = mask_address(address, length + 96 if family == IPV4 else length)
        made.append(Binding(f"label{label}", protocol, family, masked, length, port))
    unique = {binding.key(): binding for binding in made}
    return list(unique.values())


def queries(bindings: list[Binding], salt: int) -> Iterator[Query]:
    """Addresses in, at the edges of and just outside every prefix, with every protocol, and several ports."""
    seen = set()
    for number, binding in enumerate(bindings):
        width = WIDTH[binding.family]
        size = 1 << (width - binding.length)
        low = int.from_bytes(binding.address[12:] if binding.family == IPV4 else binding.address, "big")
        inside = low + (salt * (number + 1) * 0x9E3779B97F4A7C15) % size
        for value in {low, low + size - 1, inside, low - 1, low + size}:
            if not 0 <= value < 1 << width:
                continue
            address = to_bytes(binding.family, value)
            if binding.family == IPV6 and address.startswith(MAPPED):
                continue
            for port in {binding.port or 80, 80, (binding.port + 1) % 65535 or 1}:
                for protocol in (TCP, UDP):
                    query = Query(protocol, binding.family, address, port)
                    if query not in seen:
                        seen.add(query)
                        yield query
    # The other family at the same ports: ::/0 must not take it, nor 0.0.0.0/0.
    for port in {binding.port or 80 for binding in bindings}:
        yield Query(TCP, IPV4, MAPPED + b"\x7f\0\0\x01", port)
        yield Query(UDP, IPV4, MAPPED + bytes(4), port)
        yield Query(TCP, IPV6, bytes(15) + b"\x01", port)
        yield Query(UDP, IPV6, bytes(16), port)


Cookies = dict[tuple[str, int, int], int]


def register_everything(server: Server, labels: int) -> Cookies:
    """One socket a label, protocol and family, each on a port of its own."""
    cookies: Cookies = {}
    for number in range(labels):
        for family, address in ((IPV4, "127.0.0.1"), (IPV6, "::1")):
            for protocol in (TCP, UDP):
                kind, label = PROTOCOL_NAMES[protocol], f"label{number}"
                opened = server.open(f"{label}{kind}{family}", kind, family=family, address=address)
                svc("register-pid", server.pid, label, kind, address, opened.port)
                cookies[label, protocol, family] = opened.cookie
    return cookies


def bind(binding: Binding) -> None:
    prefix = format_prefix(binding.family, binding.address, binding.length)
    svc("bind", binding.label, PROTOCOL_NAMES[binding.protocol], prefix, binding.port)


def unbind(binding: Binding) -> None:
    prefix = format_prefix(binding.family, binding.address, binding.length)
    svc("unbind", binding.label, PROTOCOL_NAMES[binding.protocol], prefix, binding.port)


def listed() -> list[Binding]:
    """The bindings in the order in which `svcctl bindings` shows them."""
    return [
        parse_binding(row["label"], row["protocol"], row["prefix"], str(row["port"]))
        for row in svc("bindings", "-o", "json").json["bindings"]
    ]


def check(program: Program, cookies: Cookies, bindings: list[Binding], query: Query) -> None:
    """The rule, the listing and the kernel agree about one connection."""
    winner, losers = choose(bindings, *query)
    expected = PASSED if winner is None else Answer(SK_PASS, cookies[winner.label, *query[:2]])
    assert look_up(program, *query) == expected, (query, winner, losers)


def first_match(rows: list[Binding], query: Query) -> Binding | None:
    """The first row whose prefix and port the connection has: what a reader of the listing would conclude."""
    for row in rows:
        bits = row.length + 96 if row.family == IPV4 else row.length
        if (
            (row.protocol, row.family) == query[:2]
            and row.port in (0, query.port)
            and mask_address(query.address, bits) == row.address
        ):
            return row
    return None


def test_random_sets_against_the_plain_rule(loaded: World, server: Server) -> None:
    cookies = register_everything(server, MOST)
    count = winners = 0

    with Program.open_pinned(f"{loaded.state_dir}/prog_dispatch") as program:

        @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(binding_sets(), st.integers(1, 1 << 64))
        def run(bindings: list[Binding], salt: int) -> None:
            nonlocal count, winners
            for binding in bindings:
                bind(binding)
            try:
                rows = listed()
                assert sorted(rows) == sorted(bindings)
                for query in queries(bindings, salt):
                    check(program, cookies, bindings, query)
                    winner = choose(bindings, *query)[0]
                    assert first_match(rows, query) == winner
                    count += 1
                    winners += winner is not None
            finally:
                for binding in bindings:
                    unbind(binding)

        run()
    print(f"{count} look-ups, {winners} of them bound")
    assert count >= 5000
    assert count > winners > count // 4
    assert svc("bindings", "-o", "json").json["bindings"] == []


def test_every_prefix_length_beats_the_shorter_ones(loaded: World, server: Server) -> None:
    """One nest of all lengths in each family; the innermost goes first, so each in turn must be found."""
    cookies = register_everything(server, 3)
    with Program.open_pinned(f"{loaded.state_dir}/prog_dispatch") as program:
        for family, width, text in ((IPV4, 32, "10.77.255.129"), (IPV6, 128, "2001:db8:ff:1::8001")):
            nest = [parse_binding(f"label{n % 3}", "tcp", f"{text}/{n}", "443") for n in range(width + 1)]
            for binding in nest:
                bind(binding)
            address = nest[-1].address
            while nest:
                query = Query(TCP, family, address, 443)
                check(program, cookies, nest, query)
                assert look_up(program, *query).cookie == cookies[nest[-1].label, TCP, family]
                unbind(nest.pop())
            assert look_up(program, TCP, family, address, 443) == PASSED


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_zero_of_ipv6_never_takes_ipv4(loaded: World, server: Server, kind: str) -> None:
    """tubular 6.2, 4: there a binding of ::/0 took all IPv4 traffic of the port and dropped it."""
    v4 = server.open("v4", kind, address="127.0.0.1")
    server.open("v6", kind, family=6, address="::1", port=v4.port, v6only=True)
    svc("bind", "six", kind, "::/0", v4.port)
    if kind == "tcp":  # of UDP, a binding of every port takes the client's own errors as well
        svc("bind", "six", kind, "::/0", 0)
    svc("bind", "six", kind, "::fffe:0:0/95", v4.port)
    assert ask(kind, "127.0.0.1", v4.port) == "v4"
    assert ask(kind, "::1", v4.port) == REFUSED
    svc("register-pid", server.pid, "six", kind, "::1", v4.port)
    assert ask(kind, "127.0.0.1", v4.port) == "v4"
    assert ask(kind, "::1", v4.port) == "v6"
    # The v4-mapped form on the wire is IPv4 as well.
    assert ask(kind, "::ffff:127.0.0.1", v4.port) == "v4"


def test_zero_of_ipv4_never_takes_ipv6(loaded: World, server: Server) -> None:
    v6 = server.open("v6", "tcp", family=6, address="::1", v6only=True)
    svc("bind", "four", "tcp", "0.0.0.0/0", 0)
    assert ask("tcp", "::1", v6.port) == "v6"
    assert ask("tcp", "127.0.0.1", v6.port) == REFUSED


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_real_connections_follow_the_listing(loaded: World, server: Server, family: int) -> None:
    """The peer's cases with real traffic: port beats wildcard, longer beats shorter whatever the port."""
    one, net, wide = ("127.1.1.1", "127.1.1.0/24", "127.1.0.0/16") if family == IPV4 else (
        "2001:db8::1", "2001:db8::/64", "2001:db8::/48")  # fmt: skip
    other, outside = ("127.1.1.2", "127.1.2.1") if family == IPV4 else ("2001:db8::2", "2001:db8:0:1::1")
    if family == IPV6:
        loaded.sh("ip -6 route add local 2001:db8::/32 dev lo")
    bindings = [
        ("host-port", one, 80),
        ("host-any", one, 0),
        ("net-port", net, 80),
        ("net-any", net, 0),
        ("wide-port", wide, 80),
        ("wide-any", wide, 0),
    ]
    loopback = "127.0.0.1" if family == IPV4 else "::1"
    for label, prefix, port in reversed(bindings):
        opened = server.open(label, "tcp", family=family, address=loopback)
        svc("register-pid", server.pid, label, "tcp", loopback, opened.port)
        svc("bind", label, "tcp", prefix, port)
    assert [row["label"] for row in svc("bindings", "-o", "json").json["bindings"]] == [
        b[0] for b in bindings
    ]
    assert FAMILY_NAMES[family] in svc("destinations").out
    assert ask("tcp", one, 80) == "host-port"
    assert ask("tcp", one, 81) == "host-any"
    assert ask("tcp", other, 80) == "net-port"
    assert ask("tcp", other, 81) == "net-any"
    assert ask("tcp", outside, 80) == "wide-port"
    assert ask("tcp", outside, 81) == "wide-any"
    for label, prefix, port in bindings[:4]:
        svc("unbind", label, "tcp", prefix, port)
    assert ask("tcp", one, 80) == "wide-port"
    assert ask("tcp", one, 81) == "wide-any"
    svc("unregister", "wide-any", FAMILY_NAMES[family], "tcp")
    assert ask("tcp", one, 80) == "wide-port"
    assert ask("tcp", one, 81) == REFUSED
