"""Frontends and backends: every accepted spelling, every refused one, against the standard library."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import Exit, UsageProblem
from svcctl.model import service_endpoint as endpoint
from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.prefix import parse_address
from svcctl.model.service_endpoint import (
    ACTIVE,
    DOWN,
    DRAINING,
    Backend,
    BackendSpec,
    Frontend,
    format_backend,
    format_frontend,
    is_loopback,
    is_zero,
    parse_backend,
    parse_backend_spec,
    parse_frontend,
    parse_state,
    parse_weight,
    zero_address,
)
from tests.unit.model_values import MAPPED, Address, bytes16

pytestmark = pytest.mark.unit

real_ports = st.one_of(st.sampled_from([1, 80, 65535]), st.integers(1, 65535))
addresses: st.SearchStrategy[Address] = st.one_of(
    st.ip_addresses(v=4).filter(lambda each: not each.is_multicast and int(each) != 0xFFFFFFFF),
    st.ip_addresses(v=6).filter(lambda each: not each.is_multicast and int(each) >> 32 != MAPPED >> 32),
)


def place_of(address: Address, port: int) -> str:
    """As the standard library writes it."""
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


@given(addresses, real_ports, st.sampled_from(["tcp", "udp"]))
def test_every_frontend_is_read_and_written(address: Address, port: int, protocol: str) -> None:
    frontend = parse_frontend(f"{place_of(address, port)}/{protocol}")
    family = IPV4 if address.version == 4 else IPV6
    assert frontend == Frontend(family, bytes16(address), port, TCP if protocol == "tcp" else UDP)
    assert parse_frontend(format_frontend(frontend)) == frontend


@given(
    addresses.filter(lambda each: int(each) != 0 and not (each.version == 6 and each.is_link_local)),
    real_ports,
)
def test_every_backend_is_read_and_written(address: Address, port: int) -> None:
    backend = parse_backend(place_of(address, port))
    assert backend == Backend(IPV4 if address.version == 4 else IPV6, bytes16(address), port)
    assert parse_backend(format_backend(backend)) == backend


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1:80/tcp", "10.0.0.1:80/tcp"),
        ("[2001:DB8:0::1]:53/udp", "[2001:db8::1]:53/udp"),
        ("0.0.0.0:30080/tcp", "0.0.0.0:30080/tcp"),
        ("[::]:30080/tcp", "[::]:30080/tcp"),
        ("127.0.0.1:65535/udp", "127.0.0.1:65535/udp"),
        ("[fe80::1]:1/tcp", "[fe80::1]:1/tcp"),
        ("[64:ff9b::1.2.3.4]:1/tcp", "[64:ff9b::102:304]:1/tcp"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert format_frontend(parse_frontend(text)) == canonical


BAD_PLACES = [
    "",
    ":80",
    "10.0.0.1",
    "10.0.0.1:",
    "10.0.0.1:0",
    "10.0.0.1:65536",
    "10.0.0.1:080",
    "10.0.0.1:+80",
    "10.0.0.1: 80",
    "10.0.0.1:80 ",
    " 10.0.0.1:80",
    "10.0.0.1:8_0",
    "10.0.0.1:٣",
    "10.0.0.1:http",
    "10.0.0.1:80:80",
    "10.1:80",
    "010.0.0.1:80",
    "0x0a.0.0.1:80",
    "10.0.0.1/32:80",
    "10.0.0.1\0:80",
    "[10.0.0.1]:80",
    "example.com:80",
    "2001:db8::1:80",
    "2001:db8::1",
    "[2001:db8::1]",
    "[2001:db8::1]80",
    "[2001:db8::1:80",
    "[2001:db8::1]]:80",
    "[[2001:db8::1]]:80",
    "[]:80",
    "[fe80::1%eth0]:80",
    "10.0.0.1%eth0:80",
    "[::ffff:10.0.0.1]:80",
    "[::ffff:a00:1]:80",
    "224.0.0.1:80",
    "239.255.255.255:80",
    "255.255.255.255:80",
    "[ff02::1]:80",
]


@pytest.mark.parametrize("place", BAD_PLACES)
def test_bad_places_are_no_frontend_and_no_backend(place: str) -> None:
    for parse, text in (
        (parse_frontend, f"{place}/tcp"),
        (parse_backend, place),
        (parse_backend_spec, place),
    ):
        with pytest.raises(UsageProblem) as caught:
            parse(text)
        assert caught.value.exit_code == Exit.USAGE
        assert caught.value.message.startswith("frontend " if parse is parse_frontend else "backend ")


@pytest.mark.parametrize(
    "text", ["10.0.0.1:80", "10.0.0.1:80/", "10.0.0.1:80/TCP", "10.0.0.1:80/tcp/", "/tcp"]
)
def test_bad_protocols(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_frontend(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "[fe80::1]:80", "[febf::1]:80", "10.0.0.1:80/tcp"])
def test_what_is_no_backend(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_backend(text)


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:80", "169.254.1.1:80", "[fec0::1]:80"])
def test_what_is_a_backend(text: str) -> None:
    assert format_backend(parse_backend(text)) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10.0.0.1:80", "write 10.0.0.1:80/tcp or 10.0.0.1:80/udp"),
        ("[::ffff:10.0.0.1]:80/tcp", "write 10.0.0.1:80/tcp"),
        ("2001:db8::1:80/tcp", "write [2001:db8::1]:80/tcp"),
        ("010.0.0.1:80/tcp", "leave out leading zeros: some programs read them as octal"),
        ("web.example:80/tcp", "names are not resolved: give the address"),
        ("[fe80::1%eth0]:80/tcp", "a frontend is not tied to an interface: leave it out"),
        ("10.0.0.1:0/tcp", None),
    ],
)
def test_hints(text: str, hint: str | None) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_frontend(text)
    assert caught.value.hint == hint
    if hint is not None and hint.startswith("write "):
        parse_frontend(hint.split()[1])


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_frontend, parse_backend, parse_backend_spec):
        try:
            parse(text)
        except UsageProblem as problem:
            problem.message.encode()  # printable also when the text was not UTF-8


def test_text_that_is_not_utf8_is_refused() -> None:
    for parse in (parse_frontend, parse_backend, parse_backend_spec):
        with pytest.raises(UsageProblem) as caught:
            parse("10.0.0.1\udcff:80/tcp")
        caught.value.message.encode()
        assert caught.value.hint is None or caught.value.hint.encode()


BACKEND = parse_backend("10.1.2.3:8080")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("10.1.2.3:8080", BackendSpec(BACKEND)),
        ("10.1.2.3:8080,weight=3", BackendSpec(BACKEND, 3)),
        ("10.1.2.3:8080,weight=0", BackendSpec(BACKEND, 0)),
        ("10.1.2.3:8080,weight=65535,state=active", BackendSpec(BACKEND, 65535, ACTIVE)),
        ("10.1.2.3:8080,state=draining", BackendSpec(BACKEND, None, DRAINING)),
        ("10.1.2.3:8080,state=down,local", BackendSpec(BACKEND, None, DOWN, True)),
        ("10.1.2.3:8080,local=no", BackendSpec(BACKEND, None, None, False)),
        ("[2001:db8::1]:80,weight=2,local", BackendSpec(parse_backend("[2001:db8::1]:80"), 2, None, True)),
    ],
)
def test_specs(text: str, spec: BackendSpec) -> None:
    assert parse_backend_spec(text) == spec


def test_the_order_of_attributes_does_not_matter() -> None:
    assert parse_backend_spec("10.1.2.3:8080,local=yes,state=down,weight=4") == BackendSpec(
        BACKEND, 4, DOWN, True
    )


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "weight",
        "weight=",
        "weight=-1",
        "weight=65536",
        "weight=01",
        "weight=1.5",
        "weight=1,weight=1",
        "state=",
        "state=up",
        "state=ACTIVE",
        "state=down,state=down",
        "local=",
        "local=true",
        "local,local",
        "local,local=no",
        "LOCAL",
        "weight =3",
        " weight=3",
        "port=3",
        "local,",
    ],
)
def test_bad_attributes(attributes: str) -> None:
    with pytest.raises(UsageProblem):
        parse_backend_spec(f"10.1.2.3:8080,{attributes}")


def test_weights_and_states() -> None:
    assert [parse_weight(text) for text in ("0", "1", "65535")] == [0, 1, 65535]
    assert [parse_state(text) for text in ("active", "draining", "down")] == [0, 1, 2]
    for parse in (parse_weight, parse_state):
        with pytest.raises(UsageProblem):
            parse("elsewhere")


@given(st.ip_addresses())
def test_zero_and_loopback(address: Address) -> None:
    family = IPV4 if address.version == 4 else IPV6
    if family == IPV6 and address in ipaddress.ip_network("::ffff:0:0/96"):
        return
    assert is_loopback(family, bytes16(address)) == address.is_loopback
    assert is_zero(family, bytes16(address)) == address.is_unspecified


def test_the_zero_addresses() -> None:
    for text, family in (("0.0.0.0", IPV4), ("::", IPV6)):
        assert (family, zero_address(family)) == parse_address(text)
        assert is_zero(family, zero_address(family))
    assert is_loopback(IPV4, parse_address("127.255.0.9")[1])
    assert is_loopback(IPV6, parse_address("::1")[1])


def test_the_numbers_have_names_both_ways() -> None:
    for numbers, names in (
        (endpoint.KIND_NUMBERS, endpoint.KIND_NAMES),
        (endpoint.STATE_NUMBERS, endpoint.STATE_NAMES),
    ):
        assert {number: name for name, number in numbers.items()} == names


def test_frontends_sort_as_listings_do() -> None:
    texts = [
        "9.0.0.1:80/tcp",
        "10.0.0.1:53/tcp",
        "10.0.0.1:53/udp",
        "10.0.0.1:80/tcp",
        "10.0.0.1:8080/tcp",
        "[::1]:80/tcp",
        "[2001:db8::1]:53/udp",
    ]
    assert sorted(map(parse_frontend, reversed(texts))) == [parse_frontend(text) for text in texts]
