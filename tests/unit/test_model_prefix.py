"""Prefixes and addresses: every accepted spelling, every refused one, against the standard library."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import Exit, UsageProblem
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import (
    Prefix,
    covers,
    format_address,
    is_zero_host,
    overlaps,
    parse_address,
    parse_prefix,
    split_prefix,
)
from tests.unit.model_values import Network, bytes16, networks


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("127.0.0.1", "127.0.0.1/32"),
        ("127.0.0.1/32", "127.0.0.1/32"),
        ("127.9.9.9/8", "127.0.0.0/8"),
        ("10.255.255.255/9", "10.128.0.0/9"),
        ("0.0.0.0", "0.0.0.0/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("1.2.3.4/0", "0.0.0.0/0"),
        ("255.255.255.255", "255.255.255.255/32"),
        ("::", "::/128"),
        ("::/0", "::/0"),
        ("ffff::/0", "::/0"),
        ("::1", "::1/128"),
        ("2001:DB8::1/64", "2001:db8::/64"),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1/128"),
        ("fd::1/127", "fd::/127"),
        ("::ffff:0:0:0/64", "::/64"),
        ("64:ff9b::1.2.3.4", "64:ff9b::102:304/128"),
    ],
)
def test_accepted(text: str, canonical: str) -> None:
    prefix = parse_prefix(text)
    assert str(prefix) == canonical
    assert parse_prefix(canonical) == prefix


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/8",
        "127.1",
        "127",
        "2130706433",
        "0x7f.0.0.1",
        "127.0.0.1/",
        "127.0.0.1/33",
        "127.0.0.1/-1",
        "127.0.0.1/+8",
        "127.0.0.1/08",
        "127.0.0.1/8 ",
        "127.0.0.1/ 8",
        "127.0.0.1/8/8",
        "127.0.0.1/255.0.0.0",
        "127.0.0.1/\u0668",
        "127.0.0.1/\uff18",
        "127.0.0.01",
        "010.0.0.1",
        "256.0.0.1",
        "1.2.3.4.5",
        "1.2.3.",
        "1..2.3",
        " 127.0.0.1",
        "127.0.0.1 ",
        "127.0.0.1\n",
        "127.0.0.1\0",
        "\u0661.2.3.4",
        "127.0.0.1\udcff",
        "localhost",
        "::1/",
        "::1/129",
        "::1/0x8",
        "::1/064",
        "::1 ",
        ":",
        ":::",
        "1::2::3",
        "00001::",
        "g::",
        "[::1]",
        "[::1]/128",
        "fe80::1%lo",
        "fe80::1%lo/64",
        "fe80::1/64%lo",
        "::1\0",
        "::1\udcff",
        "::ffff:1.2.3.4",
        "::ffff:1.2.3.4/128",
        "::ffff:102:304/120",
        "0:0:0:0:0:ffff:1.2.3.4/104",
        "::ffff:0:0/96",
        "::ffff:1.2.3.4/64",
        "1" * 100_000,
        ":" * 100_000,
        "1.2.3.4/" + "1" * 100_000,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_prefix(text)
    assert caught.value.exit_code == Exit.USAGE
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    with pytest.raises(UsageProblem):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("::ffff:10.0.0.1/104", "write 10.0.0.1/8"),
        ("::ffff:10.0.0.1", "write 10.0.0.1"),
        ("::ffff:10.0.0.1/8", "write 10.0.0.1"),
        ("fe80::1%eth0", "bindings are not tied to an interface: leave out the zone"),
        ("127.1", "write all four numbers"),
        ("127.0.0.01", "leave out leading zeros: some programs read them as octal"),
        ("127.0.0.1 ", "remove the space"),
    ],
)
def test_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_prefix(text)
    assert caught.value.hint == hint


@given(networks)
def test_agrees_with_the_standard_library(network: Network) -> None:
    prefix = parse_prefix(str(network))
    assert prefix.family == {4: IPV4, 6: IPV6}[network.version]
    assert prefix.length == network.prefixlen
    assert prefix.address == bytes16(network.network_address)
    assert ipaddress.ip_network(str(prefix)) == network
    assert prefix.is_host == (network.num_addresses == 1)
    assert parse_prefix(str(prefix)) == prefix
    assert split_prefix(str(network)) == tuple(prefix)


@given(networks, st.integers(0, 2**128 - 1))
def test_host_bits_are_cleared(network: Network, noise: int) -> None:
    address = network.network_address + noise % network.num_addresses
    if network.version == 6 and getattr(address, "ipv4_mapped", None):
        return
    assert parse_prefix(f"{address}/{network.prefixlen}") == parse_prefix(str(network))
    assert parse_address(str(address))[1] == bytes16(address)
    assert ipaddress.ip_address(format_address(*parse_address(str(address)))) == address


@given(st.text(alphabet="0123456789abcdef.:/% f", max_size=24))
def test_accepts_nothing_that_the_standard_library_refuses(text: str) -> None:
    try:
        prefix = parse_prefix(text)
    except UsageProblem:
        return
    assert ipaddress.ip_interface(text).network == ipaddress.ip_network(str(prefix))


@given(networks, networks)
def test_overlap_is_containment_one_way_or_the_other(one: Network, other: Network) -> None:
    first, second = parse_prefix(str(one)), parse_prefix(str(other))
    expected = one.version == other.version and one.overlaps(other)
    assert overlaps(first, second) == expected == overlaps(second, first)


@given(networks, networks)
def test_covers(one: Network, other: Network) -> None:
    prefix = parse_prefix(str(one))
    address = other.network_address
    family = {4: IPV4, 6: IPV6}[address.version]
    assert covers(prefix, family, bytes16(address)) == (address.version == one.version and address in one)


def test_any_ipv6_never_covers_ipv4() -> None:
    assert not covers(parse_prefix("::/0"), *parse_address("10.0.0.1"))
    assert covers(parse_prefix("0.0.0.0/0"), *parse_address("10.0.0.1"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0", True),
        ("::", True),
        ("0.0.0.0/0", False),
        ("::/0", False),
        ("0.0.0.0/31", False),
        ("::1", False),
    ],
)
def test_zero_host(text: str, *, expected: bool) -> None:
    assert is_zero_host(*parse_prefix(text)) is expected


def test_address_refuses_a_mask() -> None:
    with pytest.raises(UsageProblem, match="without a mask"):
        parse_address("127.0.0.1/32")
    assert Prefix(*parse_address("127.0.0.1"), 32) == parse_prefix("127.0.0.1")
