"""Bindings: labels, ports, protocols, the 24-byte key, text and order."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.errors import UsageProblem
from svcctl.model import binding as subject
from svcctl.model.binding import Binding, parse_binding
from svcctl.model.constants import IPV4, IPV6, TCP, UDP
from svcctl.model.destination import Destination, DestinationKey
from svcctl.model.label import check_label
from svcctl.model.listing import listing_rows
from svcctl.model.precedence import choose
from tests.unit.model_values import Address, bindings, bytes16, labels, small_addresses, small_bindings


@pytest.mark.parametrize(
    "text", ["web", "a", "x" * 255, "é" * 127 + "x", "два слова", "名前", "🦆" * 63, "a#b", "-", " a "]
)
def test_label_accepted(text: str) -> None:
    assert check_label(text) is text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"),
        (" ", "nothing but blanks"),
        ("   ", "nothing but blanks"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("🦆" * 64, "256 bytes"),
        ("a\tb", r"U\+0009"),
        ("a\nb", r"U\+000A"),
        ("a\0b", r"U\+0000"),
        ("a\x7fb", r"U\+007F"),
        ("a\x1b[31mb", r"U\+001B"),
        ("a\u202eb", r"U\+202E"),
        ("a\u2028b", r"U\+2028"),
        ("a\u200bb", r"U\+200B"),
        ("a\udcffb", "not valid UTF-8"),
        ("a\ud800", "not valid UTF-8"),
    ],
)
def test_label_refused(text: str, cause: str) -> None:
    with pytest.raises(UsageProblem, match=cause) as caught:
        check_label(text)
    assert caught.value.message.isprintable()
    caught.value.message.encode()


@given(st.text(max_size=300))
def test_label_is_one_or_an_error(text: str) -> None:
    try:
        check_label(text)
    except UsageProblem:
        return
    assert 1 <= len(text.encode()) <= 255


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("1", 1), ("80", 80), ("65535", 65535)])
def test_port_accepted(text: str, port: int) -> None:
    assert subject.parse_port(text) == port


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "+1",
        "65536",
        "99999",
        "100000",
        "080",
        "00",
        "80 ",
        " 80",
        "8_0",
        "0x50",
        "80.0",
        "http",
        "²",
        "٨٠",
        "８０",
        "\udcff",
        "9" * 9999,
    ],
)
def test_port_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="0-65535"):
        subject.parse_port(text)


@pytest.mark.parametrize("text", ["", "TCP", "Tcp", "tcp ", "tcp4", "6", "sctp", "any", "\udcff"])
def test_protocol_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="tcp or udp"):
        subject.parse_protocol(text)


def test_names() -> None:
    assert [subject.parse_protocol(name) for name in ("tcp", "udp")] == [TCP, UDP]
    assert [subject.parse_family(name) for name in ("ipv4", "ipv6")] == [IPV4, IPV6]
    with pytest.raises(UsageProblem, match="ipv4 or ipv6"):
        subject.parse_family("4")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("web", "tcp", "127.0.0.1", "80"), "web#tcp:[127.0.0.1/32]:80"),
        (("web", "udp", "127.9.9.9/8", "0"), "web#udp:[127.0.0.0/8]:0"),
        (("a b", "tcp", "2001:db8::1/48", "443"), "a b#tcp:[2001:db8::/48]:443"),
    ],
)
def test_text(words: tuple[str, str, str, str], text: str) -> None:
    assert str(parse_binding(*words)) == text


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("", "x", "y", "z"), "label"),
        (("web", "x", "y", "z"), "protocol"),
        (("web", "tcp", "y", "z"), "prefix"),
        (("web", "tcp", "::1", "z"), "port"),
    ],
)
def test_the_first_bad_word_is_named(words: tuple[str, str, str, str], what: str) -> None:
    with pytest.raises(UsageProblem, match=f"^{what} "):
        parse_binding(*words)


def test_key_layout() -> None:
    """Byte for byte as svc_types.h says, with holes nowhere."""
    v4 = parse_binding("web", "tcp", "10.1.0.0/16", "8080")
    assert v4.key() == struct.pack("=I", 144) + bytes([6, 4]) + struct.pack("=H", 8080) + (
        bytes(10) + b"\xff\xff" + bytes([10, 1, 0, 0])
    )
    v6 = parse_binding("web", "udp", "2001:db8::/48", "53")
    assert v6.key() == struct.pack("=I", 80) + bytes([17, 6]) + struct.pack("=H", 53) + (
        bytes.fromhex("20010db8") + bytes(12)
    )
    assert (v4.bits, v6.bits) == (144, 80)
    assert [
        subject.is_exact_key(parse_binding("x", "tcp", p, "0").key())
        for p in ("::", "0.0.0.0", "::/127", "::/0")
    ] == [
        1,
        1,
        0,
        0,
    ]


@given(bindings)
def test_key_round_trip(binding: Binding) -> None:
    key = binding.key()
    assert len(key) == 24
    assert Binding.from_key(key, binding.label) == binding
    assert subject.key_fault(key) is None
    assert subject.is_exact_key(key) == (binding.bits == 160)
    protocol, prefix, port = subject.key_fields(key)
    assert parse_binding(binding.label, protocol, prefix, str(port)) == binding
    assert str(binding) == f"{binding.label}#{protocol}:[{prefix}]:{port}"


@given(st.binary(max_size=30) | st.binary(min_size=24, max_size=24))
def test_a_key_from_a_map_is_a_binding_or_a_fault(key: bytes) -> None:
    if subject.key_fault(key) is None:
        assert Binding.from_key(key, "x").key() == key
    else:
        with pytest.raises(ValueError, match=f"^binding key {key.hex()}: "):
            Binding.from_key(key, "x")


@pytest.mark.parametrize(
    ("bits", "protocol", "family", "address", "fault"),
    [
        (160, 1, 4, "00000000000000000000ffff01020304", "unknown protocol 1"),
        (160, 6, 10, "00000000000000000000ffff01020304", "unknown family 10"),
        (127, 6, 4, "00000000000000000000ffff01020304", "out of range"),
        (161, 6, 4, "00000000000000000000ffff01020304", "out of range"),
        (31, 6, 6, "00000000000000000000000000000000", "out of range"),
        (160, 6, 4, "00000000000000000000000001020304", "other family"),
        (160, 6, 6, "00000000000000000000ffff01020304", "other family"),
        (144, 6, 4, "00000000000000000000ffff01020304", "below the prefix length"),
    ],
)
def test_faulty_keys(bits: int, protocol: int, family: int, address: str, fault: str) -> None:
    key = subject.KEY.pack(bits, protocol, family, 80, bytes.fromhex(address))
    assert fault in (subject.key_fault(key) or "")


def test_order_is_good_for_humans() -> None:
    wanted = [
        "a#tcp:[10.0.0.1/32]:80",
        "a#tcp:[10.0.0.1/32]:443",
        "a#tcp:[10.0.0.1/32]:65535",
        "a#tcp:[10.0.0.1/32]:0",
        "a#tcp:[10.0.0.2/32]:1",
        "a#tcp:[9.0.0.0/8]:0",
        "a#tcp:[10.0.0.0/8]:80",
        "a#tcp:[0.0.0.0/0]:80",
        "a#tcp:[::1/128]:80",
        "a#tcp:[::/0]:80",
        "a#udp:[10.0.0.0/8]:80",
        "b#udp:[10.0.0.0/8]:80",
    ]
    parsed = []
    for text in reversed(wanted):
        label, _, rest = text.partition("#")
        protocol, _, rest = rest.partition(":[")
        prefix, _, port = rest.partition("]:")
        parsed.append(parse_binding(label, protocol, prefix, port))
    assert [str(each) for each in sorted(parsed, key=subject.sort_key)] == wanted


@given(
    st.lists(small_bindings, max_size=12, unique_by=Binding.key),
    small_addresses,
    st.sampled_from([0, 80, 82]),
)
def test_order_is_the_precedence(some: list[Binding], address: Address, port: int) -> None:
    """Of those that match one connection, the listing shows the winner first and then its heirs in turn."""
    family = {4: IPV4, 6: IPV6}[address.version]
    winner, losers = choose(some, TCP, family, bytes16(address), port)
    if winner is not None:
        assert sorted([winner, *losers], key=subject.sort_key) == [winner, *losers]


@given(labels)
def test_destination_text(label: str) -> None:
    key = DestinationKey(label, IPV6, UDP)
    assert str(key) == str(Destination(key, 1, 2, 3, 0)) == f"{label}#udp:ipv6"


def test_light_imports() -> None:
    """`bind` waits for these modules each time: nothing heavy may come with them."""
    script = "import sys, svcctl.model.binding; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"json", "ipaddress", "socket", "dataclasses", "subprocess", "logging"}
    assert not heavy & set(run.stdout.split())


@given(st.lists(bindings, max_size=30, unique_by=Binding.key))
def test_listing_rows_are_key_fields_in_listing_order(some: list[Binding]) -> None:
    labels = {each.key(): each.label for each in some}
    keys = sorted(labels, key=subject.listing_order)
    assert list(listing_rows(labels)) == [(*subject.key_fields(key), labels[key]) for key in keys]
    assert list(listing_rows(labels, keys[::2])) == list(
        listing_rows({key: labels[key] for key in keys[::2]})
    )


def test_listing_shows_what_svcctl_never_writes() -> None:
    odd = [subject.KEY.pack(5, 99, 7, 80, bytes(16)), subject.KEY.pack(1 << 31, 6, 4, 0, bytes(16))]
    rows = list(listing_rows(dict.fromkeys(odd, "?7")))
    assert rows == [("tcp", f"0.0.0.0/{(1 << 31) - 128}", 0, "?7"), ("99", "::/-27", 80, "?7")]
