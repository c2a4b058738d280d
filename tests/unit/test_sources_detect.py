"""Inputs are told apart by their content; those of one kind are one."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from svcctl.errors import UsageProblem
from svcctl.model.bindings_file import FileProblem
from svcctl.model.desired import Desired
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from svcctl.model.sources.problem import InputProblem
from tests.lib.cli import ROOT

DATA = Path(ROOT) / "tests" / "data" / "sources"
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}


def read(*inputs: str | bytes, options: Options = Options()) -> list[Desired]:  # noqa: B008
    named = [(f"in{n}", data.encode() if isinstance(data, str) else data) for n, data in enumerate(inputs)]
    return read_inputs(named, options)


class _Problem(FileProblem):
    def __init__(self, document: int, path: str) -> None:
        super().__init__(path, "is wrong")
        self.document = document


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the reader of Kubernetes' objects, of which a stub is here, was given."""
    given: list[Any] = []

    def desired(objects: list[Any], options: Options) -> Desired:
        given.extend(objects)
        for number, one in enumerate(objects):
            if "bad" in one:
                raise _Problem(number, one["bad"])
        return Desired("kubernetes", options.owner or "kubernetes")

    module: Any = types.ModuleType("svcctl.model.sources.kubernetes")
    module.desired = desired
    fields: Any = types.ModuleType("svcctl.model.sources.kubernetes.fields")
    fields.ObjectProblem = _Problem
    monkeypatch.setitem(sys.modules, "svcctl.model.sources.kubernetes", module)
    monkeypatch.setitem(sys.modules, "svcctl.model.sources.kubernetes.fields", fields)
    return given


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SERVICE),
        json.dumps(SERVICE, indent=2),
        "# a comment\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
        "---\nkind: Service\napiVersion: v1\nmetadata:\n  name: a\n---\n",
        "{apiVersion: v1, kind: Service, metadata: {name: a}}",
    ],
)
def test_kubernetes(text: str, objects: list[Any]) -> None:
    assert read(text, options=Options(owner="me")) == [Desired("kubernetes", "me")]
    assert objects == [SERVICE]


def test_kubernetes_from_several_inputs_is_one_set(objects: list[Any]) -> None:
    other = {**SERVICE, "metadata": {"name": "b"}}
    stream = json.dumps(SERVICE) + "\n" + json.dumps(other)
    found = read(stream, json.dumps({"kind": "List", "items": []}), json.dumps([SERVICE]), "kind: Status\n")
    assert len(found) == 1
    assert objects == [
        SERVICE,
        other,
        {"kind": "List", "items": []},
        {"apiVersion": "v1", "kind": "List", "items": [SERVICE]},
        {"kind": "Status"},
    ]


@pytest.mark.usefixtures("objects")
def test_errors_of_objects_get_a_file_and_a_line() -> None:
    bad = json.dumps({"kind": "List", "bad": "$.items[1].metadata.labels.a.b/c", "items": [1, {
        "metadata": {"labels": {"a.b/c": 3}}}]}, indent=1)  # fmt: skip
    with pytest.raises(InputProblem) as caught:
        read("kind: List", f"kind: List\n---\nkind: List\n---\n{bad}")
    row = next(n for n, line in enumerate(bad.split("\n"), 5) if "a.b/c" in line and "bad" not in line)
    assert (caught.value.source, caught.value.path, caught.value.line) == (
        "in1",
        "$.items[1].metadata.labels.a.b/c",
        row,
    )
    assert caught.value.message.endswith(f"line {row}: is wrong")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("native.yaml", "native"),
        ("ipvsadm.rules", "ipvsadm"),
        ("keepalived.conf", "keepalived"),
        (b'{"bindings": [{"label": "a", "prefix": "::/0", "port": 1}]}', "tubectl"),
        (b'{"schema": 1, "bindings": []}', "tubectl"),
        (b"schema: 1\nbindings:\n- {label: a, protocol: tcp, prefix: '::/0', port: 1}\n", "tubectl"),
        (b'{"bindings": [], "version": 1}', "native"),
        (b'{"bindings": [], "services": [], "version": 1}', "native"),
        (b"! only\n# comments\n\n  vrrp_script x {\n}", "keepalived"),
        (b"\n\n  # rules\n  /sbin/ipvsadm -C", "ipvsadm"),
    ],
)
def test_kinds(data: str | bytes, kind: str) -> None:
    data = (DATA / data).read_bytes() if isinstance(data, str) else data
    (desired,) = read(data, options=Options(partial=True))
    assert (desired.kind, desired.owner) == (kind, kind)
    (desired,) = read(data, options=Options(partial=True, owner="me"))
    assert (desired.kind, desired.owner) == (kind, "me")


@pytest.mark.usefixtures("objects")
def test_several_kinds() -> None:
    files = [(DATA / name).read_bytes() for name in ("keepalived.conf", "native.yaml", "ipvsadm.rules")]
    found = read(*files, '{"bindings": []}', json.dumps(SERVICE), options=Options(partial=True))
    assert [each.kind for each in found] == ["kubernetes", "native", "ipvsadm", "keepalived", "tubectl"]


def test_bindings_of_several_files() -> None:
    entry = '{"bindings": [{"label": "%s", "protocol": "tcp", "prefix": "10.0.0.%d", "port": 1}]}'
    (desired,) = read(entry % ("a", 1), entry % ("a", 2), entry % ("a", 1))
    assert desired.bindings is not None
    assert [str(one) for one in desired.bindings] == ["a#tcp:[10.0.0.1/32]:1", "a#tcp:[10.0.0.2/32]:1"]
    assert desired.services == ()
    with pytest.raises(InputProblem, match=r"in1: b#tcp:\[10.0.0.1/32\]:1: another file has it for 'a'"):
        read(entry % ("a", 1), entry % ("b", 1))


def test_errors_of_bindings_have_a_line_where_yaml_was_read() -> None:
    with pytest.raises(InputProblem) as caught:
        read("schema: 1\nbindings:\n- label: a\n  prefix: '::/0'\n  port: http\n")
    assert (caught.value.path, caught.value.line) == ("$.bindings[0].port", 5)
    with pytest.raises(FileProblem, match=r"in0: \$.bindings\[0\].port: expected 0-65535"):
        read('{"bindings": [{"label": "a", "prefix": "::/0", "port": "http"}]}')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("hello", "expected an object, got 'hello'"),
        ("<html></html>", "expected an object"),
        ("error: unauthorized", "is nothing that svcctl knows"),
        ("[]", "is an empty array"),
        ("{}", "is nothing that svcctl knows"),
        ("[1, 2]", "is an array of nothing that svcctl knows"),
        ("{web: []}", "is nothing that svcctl knows"),
        ("services: []", '"version" is missing'),
        ('{"version": 1, "services": [], "services": []}', "is there twice"),
        ('{"bindings": [}', "not JSON"),
        ('{"kind": "List", "items": [', "where the file ends"),
        ("- virtual_server", "is an array of nothing"),
        ("virtual_server: 1", "is nothing that svcctl knows"),
    ],
)
def test_what_is_nothing_changes_nothing(text: str, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        read(text)
    assert words in caught.value.message
    assert caught.value.message.startswith("in0: ")
    # Beside an input that is something as well.
    with pytest.raises(UsageProblem):
        read("version: 1\nservices: []", text)


def test_nothing_at_all() -> None:
    assert read() == []


def test_a_million_bindings_are_not_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object) -> None:
        raise AssertionError("parsed as a document")

    monkeypatch.setattr("svcctl.model.sources.detect.parse_documents", parse)
    (desired,) = read('{\n "schema": 1,\n "bindings": []}')
    assert desired.bindings == ()
