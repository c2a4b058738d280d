"""The file of load-bindings: what it means, and that any other input is one clear error."""

from __future__ import annotations

import gc
import ipaddress
import json
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svcctl.errors import Exit, UsageProblem
from svcctl.model.binding import Binding, key_fields, parse_binding
from svcctl.model.bindings_file import FileProblem, read_bindings
from svcctl.model.constants import TCP, UDP
from tests.unit.model_values import Network, binding_of, bindings, labels, networks, ports

GOOD = {"label": "web", "prefix": "192.0.2.0/24", "port": 80}


def document(*entries: object, **more: object) -> str:
    return json.dumps({"bindings": list(entries), **more})


def keys(*texts: str) -> dict[bytes, str]:
    parsed = [parse_binding(*text.split()) for text in texts]
    return {each.key(): each.label for each in parsed}


def problem(data: bytes | str) -> FileProblem:
    with pytest.raises(FileProblem) as caught:
        read_bindings(data)
    assert isinstance(caught.value, UsageProblem)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.message == f"{caught.value.path}: {caught.value.cause}"
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400
    caught.value.message.encode()
    return caught.value


def test_tubectl_entry_means_both_protocols() -> None:
    assert read_bindings(document(GOOD)) == keys("web tcp 192.0.2.0/24 80", "web udp 192.0.2.0/24 80")


def test_protocol_and_schema() -> None:
    text = document({**GOOD, "protocol": "udp"}, {**GOOD, "protocol": "tcp", "label": "other"}, schema=1)
    want = read_bindings(text)
    assert list(want.items()) == list(keys("web udp 192.0.2.0/24 80", "other tcp 192.0.2.0/24 80").items())


def test_nothing_wanted_has_to_be_said() -> None:
    assert read_bindings('{"bindings": []}') == {}
    assert problem("{}").path == "$"


def test_host_bits_bare_addresses_and_order() -> None:
    text = document(
        {"port": 0, "label": "b", "prefix": "10.9.9.9/8", "protocol": "tcp"},
        {"protocol": "tcp", "prefix": "2001:db8::1", "port": 65535, "label": "a"},
    )
    expected = keys("b tcp 10.0.0.0/8 0", "a tcp 2001:db8::1/128 65535")
    assert list(read_bindings(text).items()) == list(expected.items())


def test_text_forms() -> None:
    spaced = ' \r\n\t{ \n"bindings"\t:\n[ \n%s \r\n,\t%s\n] ,"schema" : 1 } \n'
    one, two = json.dumps(GOOD, indent=8), json.dumps({**GOOD, "port": 81})
    expected = read_bindings(document(GOOD, {**GOOD, "port": 81}))
    for text in (spaced % (one, two), document(GOOD, {**GOOD, "port": 81}, schema=1)):
        assert read_bindings(text) == expected == read_bindings(text.encode())
    escaped = r'{"bind\u0069ngs": [{"l\u0061bel": "w\u0065b", "prefix": "192.0.2.0\/24", "port": 80}]}'
    assert read_bindings(escaped) == read_bindings(document(GOOD))


@pytest.mark.parametrize("label", ['a"b', '"', '""', '\\"', "a\\b", '", "port": 1, "'])
def test_quotes_in_a_label(label: str) -> None:
    """They look like a repeated key to the first check, which counts quotes."""
    for extra in ({}, {"protocol": "tcp"}):
        entry = {**GOOD, **extra, "label": label}
        assert set(read_bindings(document(entry)).values()) == {label}
        repeated = document(entry).replace('"port"', '"port": 7, "port"')
        assert problem(repeated).cause == "the key 'port' is there twice"


def test_equal_labels_are_one_object() -> None:
    want = read_bindings(document(*({**GOOD, "port": port} for port in range(50))))
    assert len({id(label) for label in want.values()}) == 1


BAD_ENTRIES: list[tuple[Any, str, str]] = [
    (None, "", "expected an object, got null"),
    (1, "", "expected an object, got 1"),
    ([], "", "expected an object, got an array"),
    ("web", "", "expected an object, got 'web'"),
    ({}, "", 'the key "label" is missing'),
    ({"prefix": "::", "port": 1}, "", 'the key "label" is missing'),
    ({"label": "x", "port": 1}, "", 'the key "prefix" is missing'),
    ({"label": "x", "prefix": "::"}, "", 'the key "port" is missing'),
    ({"label": "x", "prefix": "::", "protocol": "tcp"}, "", 'the key "port" is missing'),
    ({**GOOD, "Port": 1}, "", "unknown key 'Port'"),
    ({**GOOD, "protocol": "tcp", "comment": ""}, "", "unknown key 'comment'"),
    ({**GOOD, "label": ""}, ".label", "a label cannot be empty"),
    ({**GOOD, "label": None}, ".label", "expected a string, got null"),
    ({**GOOD, "label": ["web"]}, ".label", "expected a string, got an array"),
    ({**GOOD, "label": {"web": 1}}, ".label", "expected a string, got an object"),
    ({**GOOD, "label": "a\tb"}, ".label", "has a character that cannot be printed (U+0009), got 'a\\tb'"),
    ({**GOOD, "label": "\ud800"}, ".label", "not valid UTF-8, got '\\ud800'"),
    ({**GOOD, "label": "x" * 256}, ".label", "is 256 bytes long, 255 at most"),
    ({**GOOD, "prefix": ""}, ".prefix", "an address or prefix cannot be empty"),
    ({**GOOD, "prefix": None}, ".prefix", "expected a string, got null"),
    ({**GOOD, "prefix": 1}, ".prefix", "expected a string, got 1"),
    ({**GOOD, "prefix": "10.0.0.0/"}, ".prefix", "expected a mask length of 0-32"),
    ({**GOOD, "prefix": "10.0.0/8"}, ".prefix", "'10.0.0' is not an IPv4 address, got '10.0.0/8'"),
    ({**GOOD, "prefix": "::ffff:10.0.0.0/104"}, ".prefix", "is an IPv4 address written as IPv6"),
    ({**GOOD, "prefix": "fe80::1%lo"}, ".prefix", "has a zone"),
    ({**GOOD, "prefix": "\udc80"}, ".prefix", "not an IPv4 address"),
    ({**GOOD, "port": None}, ".port", "expected 0-65535, got null"),
    ({**GOOD, "port": "80"}, ".port", "expected 0-65535, got '80'"),
    ({**GOOD, "port": "http"}, ".port", "expected 0-65535, got 'http'"),
    ({**GOOD, "port": True}, ".port", "expected 0-65535, got true"),
    ({**GOOD, "port": False}, ".port", "expected 0-65535, got false"),
    ({**GOOD, "port": 80.0}, ".port", "expected 0-65535, got 80.0"),
    ({**GOOD, "port": float("nan")}, ".port", "expected 0-65535, got NaN"),
    ({**GOOD, "port": float("inf")}, ".port", "expected 0-65535, got Infinity"),
    ({**GOOD, "port": float("-inf")}, ".port", "expected 0-65535, got -Infinity"),
    ({**GOOD, "port": -1}, ".port", "expected 0-65535, got -1"),
    ({**GOOD, "port": 65536}, ".port", "expected 0-65535, got 65536"),
    ({**GOOD, "port": 10**4000}, ".port", "expected 0-65535, got 1000"),
    ({**GOOD, "port": [80]}, ".port", "expected 0-65535, got an array"),
    ({**GOOD, "protocol": None}, ".protocol", "expected tcp or udp, got null"),
    ({**GOOD, "protocol": ""}, ".protocol", "expected tcp or udp, got ''"),
    ({**GOOD, "protocol": "TCP"}, ".protocol", "expected tcp or udp, got 'TCP'"),
    ({**GOOD, "protocol": "any"}, ".protocol", "expected tcp or udp, got 'any'"),
    ({**GOOD, "protocol": 6}, ".protocol", "expected tcp or udp, got 6"),
    ({**GOOD, "protocol": ["tcp"]}, ".protocol", "expected tcp or udp, got an array"),
]


@pytest.mark.parametrize(("entry", "path", "cause"), BAD_ENTRIES)
def test_bad_entry_is_named_by_index(entry: object, path: str, cause: str) -> None:
    others = [{**GOOD, "port": port} for port in range(1000, 1003)]
    found = problem(document(*others, entry, 0))
    assert found.path == f"$.bindings[3]{path}"
    assert found.cause.startswith(cause)


@pytest.mark.parametrize(
    ("text", "path", "cause"),
    [
        ("", "$", "the file is empty"),
        (" \n", "$", "the file is empty"),
        ("null", "$", 'expected an object with the key "bindings", got null'),
        ("[]", "$", 'expected an object with the key "bindings", got an array'),
        ("x", "$", "line 1, column 1: not JSON"),
        ("{", "$", "line 1, column 2, where the file ends: expected a key"),
        ("{,}", "$", "line 1, column 2: expected a key"),
        ("{bindings: []}", "$", "line 1, column 2: expected a key"),
        ('{"bindings"', "$", "line 1, column 12, where the file ends: expected ':'"),
        ('{"bindings" []}', "$", "line 1, column 13: expected ':'"),
        ('{"bindings":', "$.bindings", "line 1, column 13, where the file ends: not JSON"),
        ('{"bindings": {}}', "$.bindings", "expected an array, got an object"),
        ('{"bindings": null}', "$.bindings", "expected an array, got null"),
        ('{"bindings": "x"}', "$.bindings", "expected an array, got 'x'"),
        ('{"bindings": [', "$.bindings[0]", "line 1, column 15, where the file ends: not JSON"),
        ('{"bindings": [,]}', "$.bindings[0]", "line 1, column 15: not JSON"),
        ('{"bindings": [] ', "$", "line 1, column 17, where the file ends: expected ',' or '}'"),
        ('{"bindings": []]', "$", "line 1, column 16: expected ',' or '}'"),
        ('{"bindings": [],}', "$", "line 1, column 17: expected a key"),
        ('{"bindings": []}\n}', "$", "line 2, column 1: expected the end of the file"),
        ('{"bindings": []} {"bindings": []}', "$", "line 1, column 18: expected the end of the file"),
        ('{"bindings": [], "bindings": []}', "$", "the key 'bindings' is there twice"),
        ('{"schema": 1, "schema": 1, "bindings": []}', "$", "the key 'schema' is there twice"),
        ('{"Bindings": []}', "$", "unknown key 'Bindings'"),
        ('{"bindings": [], "": 1}', "$", "unknown key ''"),
        ('{"schema": 2, "bindings": []}', "$.schema", "expected 1, got 2"),
        ('{"schema": true, "bindings": []}', "$.schema", "expected 1, got true"),
        ('{"schema": 1.0, "bindings": []}', "$.schema", "expected 1, got 1.0"),
        ('{"schema": "1", "bindings": []}', "$.schema", "expected 1, got '1'"),
        ('{"schema": {}, "bindings": []}', "$.schema", "expected 1, got an object"),
        ('{"schema": 1}', "$", 'the key "bindings" is missing'),
        ("\ufeff{}", "$", "starts with a byte order mark"),
        (
            '{"bindings": [{"label": "a", "label": "a", "prefix": "::", "port": 1}]}',
            "$.bindings[0]",
            "the key 'label'",
        ),
        (
            '{"bindings": [{"port": 1, "prefix": "::", "port": 1}]}',
            "$.bindings[0]",
            "the key 'port' is there twice",
        ),
        (
            '{"bindings": [{"label": "a\nb", "prefix": "::", "port": 1}]}',
            "$.bindings[0]",
            "line 1, column 27: not JSON",
        ),
        (
            '{"bindings": [{"label": "a", "prefix": "::", "port": 01}]}',
            "$.bindings[0]",
            "line 1, column 55: not JSON",
        ),
        (
            '{"bindings": [{"label": "a", "prefix": "::", "port": 1,}]}',
            "$.bindings[0]",
            # The decoder of Python 3.13 points at the comma, earlier ones behind it.
            f"line 1, column {55 if sys.version_info >= (3, 13) else 56}: not JSON",
        ),
        ("{'bindings': []}", "$", "line 1, column 2: expected a key"),
        ('{"bindings": [] /* none */}', "$", "line 1, column 17: expected ',' or '}'"),
    ],
)
def test_bad_document(text: str, path: str, cause: str) -> None:
    found = problem(text)
    assert (found.path, found.cause[: len(cause)]) == (path, cause)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf{}",
        '{"bindings": []}'.encode("utf-16"),
        '{"bindings": []}'.encode("utf-32"),
        b"\xff",
        b'{"\xc3"}',
    ],
)
def test_bad_encoding(data: bytes) -> None:
    assert problem(data).path == "$"


def test_encoding_error_says_where() -> None:
    assert problem(b'{\n"a": "\xe9"}').cause == "not UTF-8 at line 2, byte 8"


@pytest.mark.parametrize("same_label", [True, False])
@pytest.mark.parametrize("first", ["tcp", None])
@pytest.mark.parametrize("second", ["tcp", None])
def test_two_entries_for_one_key(*, first: str | None, second: str | None, same_label: bool) -> None:
    """Both are named, also when they say the same and when entries before them mean one key or two."""
    entries: list[dict[str, object]] = [{**GOOD, "port": port} for port in range(1, 5)]
    entries += [{**GOOD, "port": 5, "protocol": "udp"}]
    entries += [{**GOOD, **({"protocol": first} if first else {})}]
    entries += [{**GOOD, "port": 6, "protocol": "tcp"}]
    entries += [{**GOOD, "prefix": "192.0.2.77/24", **({"protocol": second} if second else {})}]
    if not same_label:
        entries[-1]["label"] = "other"
    found = problem(document(*entries))
    assert found.path == "$.bindings[7]"
    assert found.cause == "tcp 192.0.2.0/24 port 80 is there already, in $.bindings[5] for 'web'"


def test_udp_half_of_an_entry_is_there_already() -> None:
    found = problem(document({**GOOD, "protocol": "udp"}, GOOD))
    assert found.cause == "udp 192.0.2.0/24 port 80 is there already, in $.bindings[0] for 'web'"


def test_source_goes_in_front() -> None:
    with pytest.raises(FileProblem, match=r"^/etc/b\.json: \$: the file is empty$") as caught:
        read_bindings("", source="/etc/b.json")
    assert (caught.value.path, caught.value.source) == ("$", "/etc/b.json")


@pytest.mark.parametrize(
    "before", ["", '{"bindings":', '{"bindings":[', '{"bindings":[{"port":', '{"schema":']
)
@pytest.mark.parametrize("brackets", ["[", '{"a":', '[{"a":'])
def test_deep_nesting(before: str, brackets: str) -> None:
    problem(before + brackets * 200_000)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "1e999999", "1." + "0" * 5000, "0" * 5000])
@pytest.mark.parametrize(
    "place", ['{"bindings":[{"label":"a","prefix":"::","port":%s}]}', '{"schema":%s}', "%s"]
)
def test_huge_numbers(place: str, number: str) -> None:
    problem(place % number)


def test_digits_limit_is_named() -> None:
    limit = sys.get_int_max_str_digits()
    assert problem(document({**GOOD, "port": 0}).replace("0}", "9" * (limit + 1) + "}")).cause == (
        "a number with too many digits"
    )


@pytest.mark.parametrize("filler", ["x", "\u00e9", "\U0001f986", "\\n", "\\ud800"])
def test_long_lines(filler: str) -> None:
    long = filler * 500_000
    for text in (long, f'"{long}"', f'{{"{long}": 1}}', f'{{"bindings": [{{"label": "{long}"}}]}}'):
        problem(text)
        problem(text.encode())
    for key in ("label", "prefix", "protocol", "port"):
        problem(document(GOOD).replace("}", f', "{key}": "{long}"}}', 1))
    entry = {**GOOD, "protocol": "tcp"}
    for key in entry:
        problem(document({**entry, key: "@"}).replace("@", long))


def test_collector_is_as_before() -> None:
    assert gc.isenabled()
    read_bindings(document(GOOD))
    problem("")
    assert gc.isenabled()
    gc.disable()
    try:
        read_bindings(document(GOOD))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_memory_per_entry() -> None:
    """A million entries must fit into 600 MB: the text once more as str, and about 150 bytes an entry."""
    count = 20_000
    text = document(
        *({**GOOD, "protocol": "tcp", "prefix": f"10.0.{n >> 8}.{n & 255}/32"} for n in range(count))
    )
    data = text.encode()
    del text
    tracemalloc.start()
    try:
        want = read_bindings(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(want) == count
    assert peak < len(data) + 220 * count


entries = st.lists(
    st.tuples(labels, st.sampled_from([None, "tcp", "udp"]), networks, ports),
    max_size=12,
    unique_by=lambda entry: entry[2:],
)


@given(entries, st.booleans(), st.sampled_from([None, 0, 2]), st.randoms(use_true_random=False))
def test_means_what_it_says(
    wanted: list[tuple[str, str | None, Network, int]], ascii_only: bool, indent: int | None, random: Any
) -> None:
    rows = []
    expected = {}
    for label, protocol, network, port in wanted:
        row = [("label", label), ("prefix", str(network)), ("port", port)]
        row += [("protocol", protocol)] if protocol else []
        random.shuffle(row)
        rows.append(dict(row))
        numbers = {"tcp": (TCP,), "udp": (UDP,), None: (TCP, UDP)}[protocol]
        expected.update({binding_of(label, number, network, port).key(): label for number in numbers})
    text = json.dumps({"bindings": rows}, ensure_ascii=ascii_only, indent=indent)
    assert list(read_bindings(text).items()) == list(expected.items())


@given(st.lists(bindings, max_size=10, unique_by=Binding.key))
def test_own_listing_reads_back(some: list[Binding]) -> None:
    """The records of `bindings -o json`: schema, and the keys protocol, prefix, port, label."""
    have = {each.key(): each.label for each in some}
    rows = []
    for key, label in have.items():
        protocol, prefix, port = key_fields(key)
        rows.append({"protocol": protocol, "prefix": prefix, "port": port, "label": label})
    assert read_bindings(json.dumps({"schema": 1, "bindings": rows})) == have


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.floats()
    | st.sampled_from(
        ["tcp", "udp", "", "10.0.0.0/8", "10.0.0.1", "::/0", "::ffff:1.2.3.4", "web", "\ud800", "\0"]
    )
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["label", "prefix", "port", "protocol", "bindings", "schema", "x"]), inner
        )
    ),
    max_leaves=12,
)
near = st.fixed_dictionaries(
    {
        "label": st.just("a") | junk,
        "prefix": st.just("10.0.0.1") | st.just("::/0") | junk,
        "port": ports | junk,
    },
    optional={"protocol": st.sampled_from(["tcp", "udp"]) | junk},
)


def check_against_plain_json(data: bytes | str) -> None:
    """A dict or a FileProblem; and what is accepted must be JSON that says exactly the same."""
    found: FileProblem | None = None
    want: dict[bytes, str] = {}
    try:
        want = read_bindings(data)
    except FileProblem as error:
        found = error
    if found is not None:
        assert found.path.startswith("$")
        assert found.message.isprintable()
        return
    tree = json.loads(data)
    assert set(tree) - {"schema"} == {"bindings"}
    expected: dict[bytes, str] = {}
    for entry in tree["bindings"]:
        network = ipaddress.ip_network(entry["prefix"], strict=False)
        for number in {"tcp": (TCP,), "udp": (UDP,)}.get(entry.get("protocol"), (TCP, UDP)):
            expected[binding_of("", number, network, entry["port"]).key()] = entry["label"]
    assert want == expected


@given(
    junk | st.fixed_dictionaries({"bindings": st.lists(near | junk, max_size=3)}, optional={"schema": junk})
)
def test_fuzz_trees(tree: object) -> None:
    check_against_plain_json(json.dumps(tree))


@given(st.text(alphabet='{}[]",: \n\\u0d8labeprxotindgsch1.', max_size=80) | st.text(max_size=40))
@example('{"bindings": [{"label": "a", "prefix": "1.1.1.1", "port": 1}]}')
def test_fuzz_text(text: str) -> None:
    check_against_plain_json(text)


@given(st.binary(max_size=60))
def test_fuzz_bytes(data: bytes) -> None:
    check_against_plain_json(data)


@given(st.data())
def test_fuzz_damaged_file(data: st.DataObject) -> None:
    """A good file with pieces cut out, doubled, moved or overwritten."""
    text = bytearray(
        document({**GOOD, "protocol": "tcp"}, {**GOOD, "port": 0, "prefix": "::1"}, schema=1).encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 12, len(text))))
        piece = data.draw(
            st.sampled_from([b"", bytes(text[start:end]) * 2, b'"', b"{", b"}", b",", b":", b"\xff", b"1"])
        )
        text[start:end] = piece
    check_against_plain_json(bytes(text))


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (7, r"\.owner: expected a string, got 7"),
        ("a\tb", r"\.owner: has a character"),
        ("x" * 65, r"\.owner: is 65 bytes long, 64 at most"),
    ],
)
def test_owners_are_read_from_an_export_only(owner: object, words: str) -> None:
    text = document({**GOOD, "owner": "me"}, {**GOOD, "port": 81}, {**GOOD, "port": 82, "owner": ""})
    owners: dict[bytes, str] = {}
    want = read_bindings(text, native=True, owners=owners)
    assert list(owners) == list(want)[:2]  # tcp and udp
    assert set(owners.values()) == {"me"}
    with pytest.raises(FileProblem, match="unknown key 'owner'"):
        read_bindings(text)
    with pytest.raises(FileProblem, match=words):
        read_bindings(document({**GOOD, "owner": owner}), native=True)
