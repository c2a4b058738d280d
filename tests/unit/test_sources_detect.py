"""Inputs are told apart by their content; those of one kind are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from svcctl.errors import UsageProblem
from svcctl.model.bindings_file import FileProblem
from svcctl.model.desired import Desired
from svcctl.model.service_endpoint import ACTIVE, format_backend, format_frontend
from svcctl.model.sources import native
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from svcctl.model.sources.problem import InputProblem
from tests.lib.cli import ROOT

DATA = Path(ROOT) / "tests" / "data" / "sources"


def read(*inputs: str | bytes, options: Options = Options()) -> list[Desired]:  # noqa: B008
    named = [(f"in{n}", data.encode() if isinstance(data, str) else data) for n, data in enumerate(inputs)]
    return read_inputs(named, options)


def manifest(name: str = "a", address: str = "10.96.0.1") -> list[dict[str, Any]]:
    """A Service and its slice."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "x"},
            "spec": {"clusterIP": address, "ports": [{"name": "on", "port": 80}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "x", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "on", "port": 8080}],
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": True}}],
        },
    ]


NODE_PORTS = [
    "version: 1\nservices: []\n",
    "-A -t 192.0.2.1:80 -s rr\n-a -t 192.0.2.1:80 -r 10.1.0.1:80 -m\n",
    '{"bindings": []}',
]


@pytest.mark.parametrize("text", NODE_PORTS, ids=("native", "ipvsadm", "bindings"))
def test_where_node_ports_are_served_is_said_for_every_input(text: str) -> None:
    options = Options(node="node-a")
    assert read(text, options=options)[0].node_port_addresses is None
    for words, prefixes in ((("all",), []), (("192.0.2.0/24",), ["192.0.2.0/24", "::/0"])):
        (found,) = read(text, options=options._replace(node_port_addresses=words))
        assert [str(each) for each in found.node_port_addresses or ()] == prefixes
        assert found.node_port_addresses is not None
    for words in (("rubbish",), ("primary",), ("all", "10.0.0.0/8")):
        with pytest.raises(UsageProblem):
            read(text, options=options._replace(node_port_addresses=words))


def test_a_file_and_an_option_that_do_not_agree_on_node_ports() -> None:
    options = Options(node="node-a", node_port_addresses=("192.0.2.0/24", "::/0"))
    text = "version: 1\nservices: []\nnode_port_addresses: "
    assert read(f"{text}['192.0.2.0/24', '::/0']", options=options)
    with pytest.raises(UsageProblem, match="has other node_port_addresses"):
        read(f"{text}['192.0.3.0/24']", options=options)


A = ("x/a:on/tcp", ["10.96.0.1:80/tcp"], ["10.1.0.1:8080"])
B = ("x/b:on/tcp", ["10.96.0.2:80/tcp"], ["10.1.0.1:8080"])

YAML = """# as people write it: nothing is quoted
apiVersion: v1
kind: Service
metadata:
  name: a
  namespace: x
  creationTimestamp: 2018-07-12T12:57:17Z
  labels: {app: yes, build: 1e3}
spec:
  clusterIP: 10.96.0.1
  ports:
  - name: on
    port: 0120      # octal
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a, namespace: x, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: on, port: 08080}]
endpoints:
- &ready
  addresses: [10.1.0.1]
  conditions: {ready: yes, terminating: off}
- <<: *ready
  addresses: [10.1.0.2]
  conditions: {ready: no}
---
"""


def told(desired: Desired) -> list[tuple[str, list[str], list[str]]]:
    """Name, frontends and backends of the services."""
    return [
        (
            service.name,
            [format_frontend(each.frontend) for each in service.frontends],
            [format_backend(each.backend) for each in service.members if each.state == ACTIVE],
        )
        for service in desired.services
    ]


@pytest.mark.parametrize(
    "texts",
    [
        [json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest()})],
        [json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest()}, indent=2)],
        [yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": manifest()})],
        [json.dumps(manifest())],
        ["\n".join(map(json.dumps, manifest()))],
        ["".join(map(json.dumps, manifest()))],
        [yaml.safe_dump_all(manifest())],
        [json.dumps(each) for each in manifest()],
        [json.dumps(manifest()[1]), yaml.safe_dump(manifest()[0])],
        [YAML],
    ],
)
def test_kubernetes(texts: list[str]) -> None:
    (desired,) = read(*texts, options=Options(owner="me"))
    assert (desired.kind, desired.owner, desired.blockers) == ("kubernetes", "me", ())
    assert told(desired) == [A]


def test_kubernetes_from_several_inputs_is_one_set() -> None:
    files = [json.dumps(manifest()), json.dumps(manifest("b", "10.96.0.2"))]
    (desired,) = read(*files)
    assert told(desired) == [A, B]
    (desired,) = read(*files, "kind: Status\napiVersion: v1\nstatus: Failure\n")
    assert desired.blockers


def test_errors_of_objects_get_a_file_and_a_line() -> None:
    wrong = manifest("b", "10.96.0.2")
    wrong[1]["metadata"]["labels"]["kubernetes.io/service-name"] = 3
    path = "metadata.labels.kubernetes.io/service-name"
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": wrong}, indent=1)
    row = next(n for n, line in enumerate(text.split("\n"), 1) if "service-name" in line)
    for before, extra, inputs in (
        (0, 0, [text]),
        (1, 0, [json.dumps(manifest()), text]),
        (1, 1, [json.dumps(manifest()), json.dumps(manifest()[0]) + "\n" + text]),
    ):
        with pytest.raises(InputProblem) as caught:
            read(*inputs)
        found = caught.value
        assert (found.source, found.path, found.line) == (f"in{before}", f"$.items[1].{path}", row + extra)
        assert "expected a string, got 3" in found.message
    with pytest.raises(InputProblem) as caught:
        read(json.dumps(wrong, indent=1))
    assert (caught.value.path, caught.value.line) == (f"$[1].{path}", row - 3)


STATE_FILE = """
services:
- metadata: {name: echo, namespace: test}
  spec:
    type: LoadBalancer
    ports: [{name: http, port: 80, protocol: TCP}]
  status: {loadBalancer: {ingress: [{ip: 172.16.1.1}, {ip: "2001:db8::1"}]}}
- metadata: {name: own, namespace: test}
  spec: {clusterIP: 10.96.0.7, ports: [{name: http, port: 80}]}
- metadata: {name: nothing, namespace: test}
  spec: {ports: [{name: http, port: 80}]}
endpoints:
- metadata: {name: e, namespace: test, labels: {kubernetes.io/service-name: echo}}
  addressType: IPv4
  endpoints: [{addresses: [198.51.100.2], conditions: {ready: true}}]
  ports: [{name: http, port: 80, protocol: TCP}]
"""


def test_a_state_file_of_cilium() -> None:
    (desired,) = read(STATE_FILE)
    assert (desired.kind, desired.owner, desired.blockers) == ("cilium", "cilium", ())
    assert told(desired) == [
        ("test/echo:http/tcp", ["172.16.1.1:80/tcp", "[2001:db8::1]:80/tcp"], ["198.51.100.2:80"]),
        ("test/own:http/tcp", ["10.96.0.7:80/tcp"], []),
    ]
    assert {each.owner for each in desired.services} == {"cilium"}
    with pytest.raises(InputProblem) as caught:
        read(STATE_FILE.replace("port: 80}]}\nendpoints", "port: http}]}\nendpoints"))
    assert (caught.value.path, caught.value.line) == ("$.services[2].spec.ports[0].port", 11)


@pytest.mark.parametrize(
    "path", sorted((DATA.parent / "kubernetes").glob("*.[jy]*")), ids=lambda path: path.name
)
def test_every_sample_is_exported_and_read_again(path: Path) -> None:
    for desired in read(path.read_bytes(), options=Options(node="node-a")):
        (again,) = read(json.dumps(native.document(desired)))
        assert native.document(again) == native.document(desired)


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
        (b'{"bindings": [{"label": "a", "prefix": "::/0", "port": "1-2"}], "version": 1}', "native"),
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


def test_several_kinds() -> None:
    files = [(DATA / name).read_bytes() for name in ("keepalived.conf", "native.yaml", "ipvsadm.rules")]
    found = read(*files, '{"bindings": []}', YAML, options=Options(partial=True))
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
