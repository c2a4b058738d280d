"""The oracle and its explanation, against a brute force that shares no code with them."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from svcctl.model.binding import Binding, parse_binding
from svcctl.model.constants import IPV4, IPV6, TCP
from svcctl.model.explain import candidates, explain
from svcctl.model.precedence import choose
from svcctl.model.prefix import parse_address
from tests.unit.model_values import SMALL_PORTS, Address, bytes16, small_addresses, small_bindings

sets = st.lists(small_bindings, max_size=16, unique_by=Binding.key)
queries = st.tuples(small_addresses, st.sampled_from([*SMALL_PORTS, 82, 0]))


def ranking(some: list[Binding], address: Address, port: int) -> list[Binding]:
    """From most to least entitled: try each length from the longest, the concrete port before all ports."""
    order = []
    for length in range(128, -1, -1):
        for wanted_port in dict.fromkeys((port, 0)):
            for each in some:
                text = str(each.prefix)
                network = ipaddress.ip_network(text)
                if (
                    each.protocol == TCP
                    and network.version == address.version
                    and address in network
                    and network.prefixlen == length
                    and each.port == wanted_port
                ):
                    order.append(each)
    return order


def number(address: Address) -> int:
    return IPV4 if address.version == 4 else IPV6


@given(sets, queries)
def test_oracle(some: list[Binding], query: tuple[Address, int]) -> None:
    address, port = query
    expected = ranking(some, address, port)
    winner, losers = choose(iter(some), TCP, number(address), bytes16(address), port)
    assert ([winner] if winner else []) + losers == expected


@given(sets, queries)
def test_explanation(some: list[Binding], query: tuple[Address, int]) -> None:
    """From all bindings or from look-ups of single keys: the same, with a line for each that matches."""
    address, port = query
    expected = ranking(some, address, port)
    labels = {each.key(): each.label for each in some}
    where = (TCP, number(address), bytes16(address), port)
    told = explain(some, *where)
    assert told == explain(labels.get, *where)
    assert ([told.winner] if told.winner else []) + told.losers == expected
    assert len(told.reasons) == max(len(expected), 1)
    for binding, line in zip(expected, told.reasons, strict=False):
        assert line.startswith(f"{binding} ")
    assert candidates(labels.get, *where) == expected


def test_documented_example() -> None:
    """Seven addresses against six overlapping bindings."""
    some = [
        parse_binding("any", "tcp", "127.0.0.0/8", "0"),
        parse_binding("web", "tcp", "127.0.0.0/8", "80"),
        parse_binding("net", "tcp", "127.0.0.0/24", "0"),
        parse_binding("host", "tcp", "127.0.0.1", "80"),
        parse_binding("six", "tcp", "::/0", "80"),
        parse_binding("dns", "udp", "127.0.0.1", "0"),
    ]
    expected = {
        ("127.0.0.1", 80): "host",
        ("127.0.0.1", 81): "net",
        ("127.0.0.2", 80): "net",
        ("127.0.1.1", 80): "web",
        ("127.0.1.1", 81): "any",
        ("128.0.0.1", 80): None,
        ("::1", 80): "six",
    }
    for (address, port), label in expected.items():
        winner, _ = choose(some, TCP, *parse_address(address), port)
        assert (winner.label if winner else None) == label, (address, port)


def test_reasons() -> None:
    some = [
        parse_binding("any", "tcp", "10.0.0.0/8", "0"),
        parse_binding("web", "tcp", "10.0.0.0/8", "80"),
        parse_binding("all", "tcp", "0.0.0.0/0", "80"),
    ]
    address = parse_address("10.1.1.1")
    assert explain(some, TCP, *address, 80).reasons == [
        "web#tcp:[10.0.0.0/8]:80 wins: of the longest prefix that matches, port 80 beats all ports",
        "any#tcp:[10.0.0.0/8]:0 loses: same prefix, but for all ports: port 80 is closer",
        "all#tcp:[0.0.0.0/0]:80 loses: its prefix is shorter: /0 against /8",
    ]
    assert explain(some[:1], TCP, *address, 80).reasons == [
        "any#tcp:[10.0.0.0/8]:0 wins: it is the only binding that matches"
    ]
    assert explain(some[::2], TCP, *address, 80).reasons[0] == (
        "any#tcp:[10.0.0.0/8]:0 wins: it has the longest prefix that matches"
    )
    assert explain([], TCP, *address, 80).winner is None
