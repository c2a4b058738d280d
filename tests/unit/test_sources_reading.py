"""Bytes to documents: what JSON and YAML mean, where an error is, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.model.sources import json_reading, yaml_reading
from svcctl.model.sources.problem import InputProblem, find_steps, format_path
from svcctl.model.sources.reading import read_documents


def values(data: bytes | str) -> list[Any]:
    return [
        document.value for document in read_documents("in", data.encode() if isinstance(data, str) else data)
    ]


def problem(data: bytes | str) -> InputProblem:
    with pytest.raises(InputProblem) as caught:
        values(data)
    return caught.value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 80", 80),
        ("a: 080", 80),
        ("a: 0777", 511),
        ("a: 0o17", 15),
        ("a: 0x1F", 31),
        ("a: 0b11", 3),
        ("a: 1_000", 1000),
        ("a: 1e3", 1000),
        ("a: -7", -7),
        ("a: +7", 7),
        ("a: 1.5", 1.5),
        ("a: .5", 0.5),
        ("a: 8080.0", 8080),
        ("a: 18446744073709551615", 18446744073709551615),
        ("a: 99999999999999999999", 1e20),
        ("a: 1:30", "1:30"),
        ("a: 190:20:30", "190:20:30"),
        ("a: 12:34:56:12:34:56", "12:34:56:12:34:56"),
        ("a: 2017-07-21T17:04:34Z", "2017-07-21T17:04:34Z"),
        ("a: 2017-07-21", "2017-07-21"),
        ("a: 1.2.3.4", "1.2.3.4"),
        ("a: 010.0.0.1", "010.0.0.1"),
        ("a: true", True),
        ("a: False", False),
        ("a: yes", "yes"),
        ("a: on", "on"),
        ("a: ~", None),
        ("a: null", None),
        ("a:", None),
        ("a: '80'", "80"),
        ('a: "true"', "true"),
        ("a: !!str 80", "80"),
        ("a: ! 80", "80"),
        ("a: !!int '80'", 80),
        ("a: =", "="),
        ("a: |\n  80", "80"),
        ("a: 1__0", 10),
        ("a: --1", "--1"),
        ("a: 1-2", "1-2"),
    ],
)
def test_scalars_are_what_kubectl_takes_them_for(text: str, wanted: object) -> None:
    (value,) = values(text)
    assert value == {"a": wanted}
    assert type(value["a"]) is type(wanted)


@pytest.mark.parametrize(
    "text", ["on", "no", "80", "080", "1e3", "true", "2017-07-21", "0x10", "1_0", ".inf"]
)
@pytest.mark.parametrize("place", ["name: {}", "labels: {{x: {}}}", "addresses: [{}]", "nodeName: {}"])
def test_names_are_text_as_written(text: str, place: str) -> None:
    (value,) = values(place.format(text))
    (found,) = value.values()
    while not isinstance(found, str):
        (found,) = found.values() if isinstance(found, dict) else found
    assert found == text


@pytest.mark.parametrize("text", ["yes", "on", "y", "On", "TRUE", "true"])
def test_booleans_of_kubernetes_are_of_yaml_1_1(text: str) -> None:
    assert values(f"conditions: {{ready: {text}, serving: no}}") == [
        {"conditions": {"ready": True, "serving": False}}
    ]


def test_numbers_that_are_oddly_written_are_remembered() -> None:
    (document,) = read_documents("in", b"a: 1\nb:\n- {port: 0777}\n- 1_000\nc: 1e3\nd: 8080\n")
    assert document.odd_numbers == [
        (("b", 0, "port"), "0777", 511),
        (("b", 1), "1_000", 1000),
        (("c",), "1e3", 1000),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n---\na: 1\n---\n# nothing\n", [{"a": 1}]),
        ('{"a": 1}{"b": 2}', [{"a": 1}, {"b": 2}]),
        ('\n{"a": 1}\n\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ('[{"a": 1}]', [[{"a": 1}]]),
        ("{a: 1, b: [x, y]}", [{"a": 1, "b": ["x", "y"]}]),
        ('{"a": 1,}', [{"a": 1}]),  # YAML in braces
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", [{"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}]),
        ("x: &x [1]\ny: *x\n", [{"x": [1], "y": [1]}]),
        ("y: {<<: [{a: 1}, {a: 2, b: 2}]}", [{"y": {"a": 1, "b": 2}}]),
        ("{'<<': {a: 1}}", [{"<<": {"a": 1}}]),
        ("{'<<': {a: 1}, <<: {b: 2}}", [{"<<": {"a": 1}, "b": 2}]),
        ("80: a\non: b\n~: c", [{"80": "a", "on": "b", "~": "c"}]),
    ],
)
def test_documents(text: str, wanted: list[Any]) -> None:
    assert values(text) == wanted


@pytest.mark.parametrize(
    ("data", "path", "line", "words"),
    [
        (b"", "", 0, "empty"),
        (b" \n\t", "", 0, "empty"),
        (b"---\n---\n", "", 0, "empty"),
        (b"null", "", 0, "empty"),
        (b"a: 1\nb: \xff", "", 2, "not UTF-8 at byte 8"),
        (b"a: 1\n\0", "", 2, "zero byte"),
        (b"\xef\xbb\xbf{}", "", 0, "byte order mark"),
        ("{}".encode("utf-16"), "", 0, "byte order mark"),
        (b'{"a": 1', "$", 1, "where the file ends"),
        (b'{"a": 1}\n{"b"', "$", 2, "where the file ends"),
        (b'{"a": [1, {"b": NaN}]}', "$.a[1].b", 1, "NaN is not a number"),
        (b'{"a":\n-Infinity}', "$.a", 2, "-Infinity is not a number"),
        (b'{"a": ' + b"1" * 5000 + b"}", "$", 0, "too many digits"),
        (b"a:\n  b: .nan", "$.a.b", 2, ".nan is not a number"),
        (b"ready: -.inf", "$.ready", 1, "-.inf is not a number"),
        (b"a: [1,\n", "", 2, "not YAML"),
        (b"a: 'b\n", "", 2, "not YAML"),
        (b"\ta: 1", "", 1, "not YAML"),
        (b"a: \x07", "", 1, "U+0007"),
        (b"a: 1\nb: {c: 1,\n c: 2}", "$.b", 3, "the key 'c' is there twice"),
        (b"a: 1\n'a': 2", "$", 2, "the key 'a' is there twice"),
        (b"x: &x {a: 1}\ny: {<<: *x, <<: *x}", "$.y", 2, "the key '<<' is there twice"),
        (b'{"a": 1,\n"b": [{"c": 1}, {"c": 2,\n"c" : 3}]}', "$.b[1]", 3, "the key 'c' is there twice"),
        (b'{"a\\"": 1, "\\u0061\\"": 2}', "$", 1, "is there twice"),
        (b'{"a\\\\": 1, "a\\\\": 2}', "$", 1, "is there twice"),
        (b"a: *b", "$.a", 1, "has no anchor"),
        (b"a: &a\n  b: *a", "$.a.b", 2, "inside of what it stands for"),
        (b"? [a]\n: 1", "$", 1, "has to be a word"),
        (b"? {a: b}\n: 1", "$", 1, "has to be a word"),
        (b"x: &x a\n*x : 1", "$", 2, "alias cannot be a key"),
        (b"a: {<<: 1}", "$.a['<<']", 1, "only objects can be merged"),
        (b"a: !!python/none 1", "$.a", 1, "means nothing here"),
        (b"a: !foo [1]", "$.a", 1, "means nothing here"),
        (b"a: !!binary aGk=", "$.a", 1, "means nothing here"),
    ],
)
def test_errors_name_their_place(data: bytes, path: str, line: int, words: str) -> None:
    found = problem(data)
    assert (found.path, found.line) == (path, line), found.message
    assert words in found.message
    assert found.message.startswith("in: ")
    assert found.exit_code == 2


NESTED = """
a: 1
services:
- name: x

  ports: [1,
    2]
- &y
  name: y
  more: {b: {c: 1}}
- *y
"""


def test_lines_of_yaml() -> None:
    (document,) = read_documents("in", NESTED.encode())
    places: dict[tuple[str | int, ...], int] = {
        (): 2,
        ("a", "ports"): 2,
        ("a",): 2,
        ("services",): 3,
        ("services", 0): 4,
        ("services", 0, "ports"): 6,
        ("services", 0, "ports", 1): 7,
        ("services", 1): 8,
        ("services", 1, "more", "b", "c"): 10,
        ("services", 2): 11,
        ("services", 2, "name"): 11,  # as far as the path leads
        ("services", 0, "nothing"): 4,
        ("services", 9): 3,
    }
    assert {steps: document.line(steps) for steps in places} == places


def test_lines_of_a_later_document() -> None:
    first, second = read_documents("in", b"a: 1\n---\n---\nb:\n  c: 1\n")
    assert (first.line(("a",)), second.line(("b", "c"))) == (1, 5)
    (document,) = read_documents("in", b"a: 1\nb:\n  x: 1\nc: [1,\n  {x: 1}]\n")
    places = {("a", "x"): 1, ("b", "x"): 3, ("c", 0, "x"): 4, ("c", 1, "x"): 5, ("c", 2): 4, ("d",): 1}
    assert {steps: document.line(steps) for steps in places} == places
    (document,) = read_documents("in", b"\n'just text'")
    assert document.line(("a", 0)) == document.line(()) == 2
    first, second = read_documents("in", b'{"a": 1}\n{"b":\n{"c": 1}}')
    assert (first.line(("a",)), second.line(("b", "c"))) == (1, 3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab":\\{}[],\n', max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('ab".\\:', max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.sampled_from([None, 0, 2]),
)
def test_lines_of_json(value: object, indent: int | None) -> None:
    """Each value's line is where it starts: its own text follows there."""
    text = json.dumps([value], indent=indent)
    (document,) = read_documents("in", text.encode())
    assert document.value == [value]
    (twin,) = yaml_reading.read_yaml("in", text.encode(), text)
    rows = text.split("\n")
    for steps, inside in _walk([value]):
        line = document.line(steps)
        start = json.dumps(inside) if not isinstance(inside, (dict, list)) else json.dumps(inside)[0]
        assert start in rows[line - 1]
        assert twin.line(steps) == line  # JSON is YAML


def _walk(value: object, steps: tuple[str | int, ...] = ()) -> Any:
    yield steps, value
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(one, (*steps, key))


def test_paths() -> None:
    steps = ("services", 3, "a_b-c", "kubernetes.io/name", "")
    assert format_path(steps) == "$.services[3].a_b-c['kubernetes.io/name']['']"
    value = {"items": [{"labels": {"a": 1, "a.b": {"c": 2}, "a.b.c": 3}}]}
    assert find_steps(value, "$.items[0].labels.a.b.c") == ("items", 0, "labels", "a.b.c")
    assert find_steps(value, "$.items[0].labels.a.b.d") == ("items", 0, "labels", "a.b")
    assert find_steps(value, "$.items[7].labels") == ("items",)
    assert find_steps(value, "$") == ()


def _repeat_a_key(draw: random.Random, value: Any) -> str:
    """JSON of the value with one key of one object twice."""
    objects = [inside for _, inside in _walk(value) if isinstance(inside, dict) and inside]
    chosen = draw.choice(objects)
    key = draw.choice(list(chosen))
    mark = "\ue000"
    chosen[key + mark] = chosen[key]
    text = json.dumps(value, ensure_ascii=False, indent=draw.choice([None, 1]))
    return text.replace(mark, "")


@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.text('ab":\\', max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('ab":\\', max_size=2), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.randoms(use_true_random=False),
)
def test_a_repeated_key_is_always_found(inside: object, draw: random.Random) -> None:
    """Whatever the strings are made of, which could look like keys to somebody who counts colons."""
    value = {"a": inside}
    assert values(json.dumps(value)) == [value]
    text = _repeat_a_key(draw, value)
    assert "is there twice" in problem(text).message
    with pytest.raises(InputProblem, match="is there twice"):
        yaml_reading.read_yaml("in", text.encode(), text)


def test_large_json_is_checked_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reading, "LARGE", 10)
    text = b'{"a": {"b": 1}}\n{"c": 1, "c": 2}'
    for number in (0, 1):
        documents = read_documents("in", text)
        with pytest.raises(InputProblem, match="the key 'c' is there twice"):
            documents[number].refuse_repeated_keys()
        documents[1 - number].refuse_repeated_keys()  # asked for once


@pytest.mark.parametrize("text", ["[" * 300, "[" * 300 + "]" * 300, "- " * 300 + "a", "a: " + "[" * 300])
def test_depth(text: str) -> None:
    assert "nested" in problem(text).message


def test_depth_that_is_allowed() -> None:
    assert values("- " * 60 + "[]") == values("[" * 61 + "]" * 61)


def test_aliases_count_as_what_they_stand_for() -> None:
    text = "a: &a [" + ", ".join(["x"] * 1000) + "]\nb: [" + ", ".join(["*a"] * 240) + "]\n"
    assert len(values(text)[0]["b"]) == 240
    assert "aliases stand for more" in problem(text + "c: [" + ", ".join(["*a"] * 11) + "]").message


def test_both_parsers_of_pyyaml_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    text = NESTED + "z: {a: 0777, b: '0777', <<: {c: on}, name: on}\n"
    with_c = values(text)
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert values(text) == with_c
    assert problem("a: 1\na: 2").line == 2
    assert "not YAML" in problem("a: [1,\n").message
    assert "U+0007" in problem("a: \x07").message
