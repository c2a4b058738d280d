"""svcctl's own file: what can be said, what is refused and where, and that writing and reading are inverse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from svcctl.model.binding import Binding
from svcctl.model.desired import NATIVE, Desired, Node
from svcctl.model.packet_settings import PacketSettings
from svcctl.model.prefix import parse_address, parse_prefix
from svcctl.model.service import (
    IN_BOTH,
    IN_CLUSTER,
    MAGLEV,
    Member,
    Service,
    ServiceFrontend,
    check_service,
    node_port_frontends,
)
from svcctl.model.service_endpoint import (
    DRAINING,
    KIND_EXTERNAL,
    KIND_LOAD_BALANCER,
    KIND_NODE_PORT,
    format_frontend,
    parse_backend,
    parse_frontend,
)
from svcctl.model.sources import native, native_nodes, native_services, native_settings
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from svcctl.model.sources.problem import InputProblem
from tests.lib.cli import ROOT
from tests.lib.json_schema import faults
from tests.unit import model_values, service_values

DATA = Path(ROOT) / "tests" / "data" / "sources"
SCHEMA = json.loads((Path(ROOT) / "svcctl" / "schema" / "native.json").read_text())


def read(*texts: str | bytes, options: Options = Options()) -> Desired:  # noqa: B008
    inputs = [(f"in{n}", text.encode() if isinstance(text, str) else text) for n, text in enumerate(texts)]
    (desired,) = read_inputs(inputs, options)
    return desired


def one(**fields: object) -> Service:
    """The service of a file that says this of it."""
    entry = {"name": "web", "frontends": ["10.0.0.1:80/tcp"], **fields}
    (service,) = read(json.dumps({"version": 1, "services": [entry]})).services
    return service


def test_everything_that_can_be_said() -> None:
    desired = read((DATA / "native.yaml").read_bytes())
    assert (desired.kind, desired.owner, desired.blockers, desired.notices) == (NATIVE, NATIVE, (), ())
    assert desired.bindings is not None
    assert [str(binding) for binding in desired.bindings] == [
        "web#tcp:[192.0.2.0/24]:443",
        "dns#tcp:[2001:db8::53/128]:53",
        "dns#udp:[2001:db8::53/128]:53",
        *(f"passive#tcp:[192.0.2.21/32]:{port}" for port in range(60000, 60004)),
    ]
    shop, ports, on = desired.services
    fronts = [ServiceFrontend(parse_frontend("10.96.0.10:80/tcp"), 0)]
    fronts.append(ServiceFrontend(parse_frontend("192.0.2.10:80/tcp"), KIND_LOAD_BALANCER))
    fronts.append(ServiceFrontend(parse_frontend("[2001:db8:96::10]:80/tcp"), KIND_EXTERNAL))
    assert shop == Service(
        "shop",
        0,
        600,
        MAGLEV,
        True,
        True,
        True,
        True,
        30080,
        "team-a",
        (parse_prefix("198.51.100.0/24"), parse_prefix("2001:db8:ffff::/48")),
        (*fronts, *node_port_frontends(fronts, 30080)),
        (
            Member(parse_backend("10.1.0.1:8080"), local=None),
            Member(parse_backend("10.1.0.2:8080"), 2, local=True),
            Member(parse_backend("10.1.0.3:8080"), 3, DRAINING, True, sets=IN_CLUSTER),
            Member(parse_backend("[2001:db8:1::1]:8080"), state=2, local=None),
        ),
        health_port=30081,
        local_ready=2,
    )
    assert [format_frontend(each.frontend) for each in ports.frontends] == [
        f"192.0.2.30:{port}/udp" for port in (8000, 8001, 8002)
    ]
    assert {each.kind for each in ports.frontends} == {KIND_EXTERNAL}
    assert (on.name, on.owner, ports.owner) == ("on", "", NATIVE)


def test_what_is_left_out() -> None:
    assert read("version: 1\nservices: []") == Desired(NATIVE, NATIVE)
    assert read("version: 1\nbindings: []") == Desired(NATIVE, NATIVE, bindings=(), no_services=True)
    assert one() == Service(
        "web", owner=NATIVE, frontends=(ServiceFrontend(parse_frontend("10.0.0.1:80/tcp"), 0),)
    )


def test_several_files_and_documents_are_one() -> None:
    desired = read(
        "version: 1\nservices: [{name: a, frontends: ['10.0.0.1:80/tcp']}]\n---\nversion: 1\nbindings: []\n",
        '{"version": 1, "services": [{"name": "b", "frontends": ["10.0.0.2:80/tcp"]}]}',
        options=Options(owner="me"),
    )
    assert [(each.name, each.owner) for each in desired.services] == [("a", "me"), ("b", "me")]
    assert (desired.owner, desired.bindings) == ("me", ())


def test_node_ports_that_are_named_are_all_there_are() -> None:
    given_one = one(
        node_port=30080,
        frontends=[
            "10.0.0.1:80/tcp",
            "10.0.0.1:53/udp",
            {"address": "0.0.0.0:30080/tcp", "kind": "node-port"},
        ],
    )
    kinds = [format_frontend(each.frontend) for each in given_one.frontends if each.kind == KIND_NODE_PORT]
    assert kinds == ["0.0.0.0:30080/tcp"]
    derived = one(node_port=30080, frontends=["10.0.0.1:80/tcp", "10.0.0.1:53/udp", "[fd00::1]:80/tcp"])
    kinds = [format_frontend(each.frontend) for each in derived.frontends if each.kind == KIND_NODE_PORT]
    assert kinds == ["0.0.0.0:30080/tcp", "0.0.0.0:30080/udp", "[::]:30080/tcp"]


S = "version: 1\nservices:\n- name: a\n  frontends: ['10.0.0.1:80/tcp']\n"
B = "version: 1\nbindings:\n- {label: a, prefix: '::/0', port: 1, protocol: tcp}\n"


@pytest.mark.parametrize(
    ("text", "path", "line", "words"),
    [
        ("version: 2\nservices: []", "$.version", 1, "expected 1, got 2"),
        ("version: '1'\nservices: []", "$.version", 1, "expected 1, got '1'"),
        ("version: true\nservices: []", "$.version", 1, "expected 1, got true"),
        ("version: 1", "$", 1, 'has no "services", "bindings", "nodes" or "settings"'),
        ("services: []", "$", 1, '"version" is missing'),
        ("version: 1\nservices: {}", "$.services", 2, "expected an array, got an object"),
        ("version: 1\nservices:\n", "$.services", 2, "expected an array, got null"),
        ("version: 1\nservice: []\nservices: []", "$.service", 2, "unknown key"),
        ("version: 1\nservices: [1]", "$.services[0]", 2, "expected an object, got 1"),
        ("version: 1\nservices:\n- frontends: []", "$.services[0]", 3, '"name" is missing'),
        ("version: 1\nservices:\n- name: a", "$.services[0]", 3, '"frontends" is missing'),
        ("version: 1\nservices:\n- name: ''\n  frontends: []", "$.services[0].name", 3, "cannot be empty"),
        ("version: 1\nservices:\n- {name: 1, frontends: []}\n- {name: 1, frontends: []}", "$.services[1].name", 4, "already"),
        (S + "  port: 1", "$.services[0].port", 5, "unknown key"),
        (S + "  affinity: -1", "$.services[0].affinity", 5, "expected 0-16777215, got -1"),
        (S + "  affinity: 1.5", "$.services[0].affinity", 5, "got 1.5"),
        (S + "  affinity: true", "$.services[0].affinity", 5, "got true"),
        (S + "  affinity: 0777", "$.services[0].affinity", 5, "0777 is 511 in YAML"),
        (S + "  affinity: 1e3", "$.services[0].affinity", 5, "1e3 is 1000 in YAML"),
        (S + "  node_port: 1:30", "$.services[0].node_port", 5, "expected 0-65535, got '1:30'"),
        (S + "  node_port: 65536", "$.services[0].node_port", 5, "expected 0-65535"),
        (S + "  block: yes", "$.services[0].block", 5, "expected true or false, got 'yes'"),
        (S + "  drop: 1", "$.services[0].drop", 5, "expected true or false, got 1"),
        (S + "  algorithm: rr", "$.services[0].algorithm", 5, "expected one of random, maglev, maglev-stable"),
        (S + "  internal_policy: Local", "$.services[0].internal_policy", 5, "expected one of cluster, local"),
        (S + "  owner: 'a\\b'\n  x: 1", "$.services[0].x", 6, "unknown key"),
        (S + '  owner: "a\\tb"', "$.services[0].owner", 5, "cannot be printed"),
        (S + "  sources: [10.0.0.0/33]", "$.services[0].sources[0]", 5, "mask length"),
        (S + "  sources: [10.0.0.0/8]", "$.services[0]", 3, "source ranges are for load-balancer"),
        (S + "  backends:\n  - 10.0.0.2:80\n  - 10.0.0.2", "$.services[0].backends[1]", 7, "colon and a port"),
        (S + "  backends:\n  - {address: 'a:1'}", "$.services[0].backends[0].address", 6, "is not an IPv4 address"),
        (S + "  backends:\n  - {address: '10.0.0.2:1', weight: x}", "$.services[0].backends[0].weight", 6, "got 'x'"),
        (S + "  backends:\n  - {address: '10.0.0.2:1', wight: 1}", "$.services[0].backends[0].wight", 6, "unknown"),
        (S + "  backends:\n  - {weight: 1}", "$.services[0].backends[0]", 6, '"address" is missing'),
        (S + "  backends:\n  - {address: '10.0.0.2:1', state: up}", "$.services[0].backends[0].state", 6, "one of"),
        (S + "  backends:\n  - {address: '10.0.0.2:1', sets: [all]}", "$.services[0].backends[0].sets[0]", 6, "local"),
        (S + "  backends: ['10.0.0.2:1', '10.0.0.2:1']", "$.services[0]", 3, "named twice"),
        (S + "  backends: ['10.0.0.2:1,state=up']", "$.services[0].backends[0]", 5, "expected active"),
        (S + "  consul: web", "$.services[0].consul", 5, "needs what Consul knows of 'web'"),
        (S + "  nomad: web", "$.services[0].nomad", 5, "needs what Nomad knows of 'web'"),
        (S.replace("/tcp", ""), "$.services[0].frontends[0]", 4, "has no protocol"),
        (S.replace("80", "0"), "$.services[0].frontends[0]", 4, "port of 1-65535"),
        (S.replace("80", "90-80"), "$.services[0].frontends[0]", 4, "lower port first"),
        (S.replace("80", "0-9"), "$.services[0].frontends[0]", 4, "range within 1-65535"),
        (S.replace("80", "no-such-service"), "$.services[0].frontends[0]", 4, "name of a tcp service"),
        (S.replace("10.0.0.1", "0.0.0.0"), "$.services[0]", 3, "zero address is for node ports"),
        (S.replace("']", "', '10.0.0.1:80/tcp']"), "$.services[0]", 3, "named twice"),
        (S + S[21:].replace(": a", ": b"), "$.services[1].frontends", 6, "is a frontend of 'a' already"),
        (S.replace("'10.0.0.1:80/tcp'", "{kind: cluster}"), "$.services[0].frontends[0]", 4, '"address" is missing'),
        (S.replace("'10.0.0.1:80/tcp'", "80"), "$.services[0].frontends[0]", 4, "has no protocol"),
        (B + B[21:], "$.bindings[1]", 4, "a#tcp:[::/0]:1 is there already"),
        (B + B[21:].replace(": a", ": b"), "$.bindings[1]", 4, "is there already"),
        (B.replace("port: 1", "port: 70000"), "$.bindings[0].port", 3, "expected 0-65535, got 70000"),
        (B.replace("port: 1", "port: '70000'"), "$.bindings[0].port", 3, "expected 0-65535"),
        (B.replace("port: 1", "port: 8-1"), "$.bindings[0].port", 3, "lower port first"),
        (B.replace("port: 1", "port: nope"), "$.bindings[0].port", 3, "name of a tcp service"),
        (B.replace("port: 1", "port: 080"), "$.bindings[0].port", 3, "080 is 80 in YAML"),
        (B.replace("port: 1", "port: true"), "$.bindings[0].port", 3, "got true"),
        (B.replace("::/0", "::/129"), "$.bindings[0].prefix", 3, "mask length"),
        (B.replace("port: 1, ", ""), "$.bindings[0]", 3, '"port" is missing'),
        (B.replace("tcp", "sctp"), "$.bindings[0].protocol", 3, "expected one of tcp, udp"),
        (B.replace("label: a", "label: ''"), "$.bindings[0].label", 3, "cannot be empty"),
    ],
)  # fmt: skip
def test_errors_name_path_and_line(text: str, path: str, line: int, words: str) -> None:
    with pytest.raises(InputProblem) as caught:
        read(text)
    assert (caught.value.path, caught.value.line) == (path, line), caught.value.message
    assert words in caught.value.message
    if "0777" not in text and "1e3" not in text and "080" not in text and "1:30" not in text:
        # The same from JSON, whose lines are others.
        with pytest.raises(InputProblem) as again:
            read(json.dumps(yaml.safe_load(text.replace("yes", "'yes'").replace("name: 1", "name: '1'"))))
        if "frontends: [80]" not in text:
            assert again.value.path == path
            assert again.value.cause == caught.value.cause


def test_a_service_in_two_files() -> None:
    with pytest.raises(InputProblem, match=r"in1: .*there is a service .a. already"):
        read(S, S.replace("80", "81"))


def test_ranges_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_FRONTENDS", 10)
    text = '{"version": 1, "services": [{"name": "a", "frontends": ["10.0.0.1:1-%d/tcp"]}]}'
    assert len(read(text % 10).services[0].frontends) == 10
    with pytest.raises(InputProblem, match="more than 10 frontends"):
        read(text % 11)


# What is written is read as the same.

members = st.lists(
    st.builds(
        Member,
        service_values.backends,
        service_values.weights,
        service_values.states,
        st.booleans(),
        st.just(0),
        st.just(0),
        st.integers(0, IN_BOTH),
    ),
    unique_by=lambda each: each.backend,
    max_size=5,
).map(tuple)


@st.composite
def services(draw: st.DrawFn, number: int) -> Service:
    service = draw(service_values.services)
    others = tuple(
        each._replace(frontend=each.frontend._replace(port=each.frontend.port + 1000 * number))
        for each in service.frontends
    )
    port = draw(st.sampled_from([0, 0, 31000 + number]))
    node_ports: list[ServiceFrontend] = node_port_frontends(others, port) if port else []
    if draw(st.booleans()) and len(node_ports) > 1:
        node_ports = node_ports[1:]  # as of a service that serves one protocol there, or one family
    if draw(st.booleans()) and node_ports:
        node_ports.append(ServiceFrontend(parse_frontend(f"192.0.2.{number + 1}:{port}/tcp"), KIND_NODE_PORT))
    return check_service(
        service._replace(
            name=f"{draw(model_values.labels)[:20]}{number}",
            id=0,
            owner=draw(st.sampled_from(["", NATIVE, "kubernetes"])),
            frontends=(*others, *node_ports),
            node_port=port,
            members=draw(members),
            health_port=draw(st.sampled_from([0, 30000])),
            local_ready=draw(st.integers(0, 3)),
        )
    )


NODES = (
    Node("b", tuple(map(parse_address, ("192.0.2.12", "2001:db8::12"))), (), "east", owner=NATIVE),
    Node("c", (parse_address("192.0.2.13"),), (parse_prefix("10.244.3.0/24"),), owner=""),
    Node("é", (parse_address("2001:db8::14"),), (parse_prefix("fd00:3::/64"),), owner="kubernetes"),
)


OWN_NODE = Node(
    "me", (), (parse_prefix("10.244.9.0/24"),), own=True, owner="", by_hand=("addresses", "pod_prefixes")
)
SETTINGS = PacketSettings(
    tunnel_port=4790,
    tunnel_mtu=1400,
    clamp=True,
    keep_flows=True,
    reset_unknown=True,
    ports=(21000, 21999),
    no_dsr=(parse_prefix("192.0.2.0/24"), parse_prefix("2001:db8::/32")),
)


def state_of(
    services: Iterable[Service],
    bindings: tuple[Binding, ...] | None,
    owners: list[str],
    nodes: tuple[Node, ...],
    settings: PacketSettings | None,
) -> Desired:
    named = {
        each.key(): owner for each, owner in zip(bindings or (), owners, strict=False) if owner != NATIVE
    }
    return Desired(
        NATIVE,
        NATIVE,
        tuple(services),
        bindings,
        binding_owners=named,
        nodes=nodes,
        says_nodes=bool(nodes),
        settings=settings,
    )


desired_states = st.builds(
    state_of,
    st.tuples(services(0), services(1), services(2)).map(
        lambda three: {service.name: service for service in three}.values()
    ),
    st.none() | st.lists(model_values.bindings, unique_by=lambda each: each.key(), max_size=4).map(tuple),
    st.lists(st.sampled_from(["", NATIVE, "kubernetes"]), min_size=4, max_size=4),
    st.sampled_from(((), NODES, NODES[1:], (*NODES, OWN_NODE))),
    st.sampled_from((None, SETTINGS, PacketSettings(no_dsr=(), clamp=False))),
)


def nodes_of(text: str) -> tuple[Node, ...]:
    return read(f"version: 1\nnodes: [{text}]").nodes


def test_nodes() -> None:
    text = "{name: b, addresses: [192.0.2.12, '2001:db8::12'], zone: east}"
    assert nodes_of(text) == NODES[:1]
    only = read(f"version: 1\nnodes: [{text}]")
    assert (only.no_services, only.bindings, only.says_nodes) == (True, None, True)
    assert read("version: 1\nnodes: []").says_nodes
    assert not read("version: 1\nservices: []").says_nodes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{name: b}", "addresses"),
        ("{name: b, addresses: []}", "has no address"),
        ("{name: b, own: false}", "addresses"),
        ("{name: b, own: 1, addresses: [192.0.2.1]}", "true or false"),
        ("{name: b, addresses: [192.0.2.1], by_hand: [zone]}", "expected addresses or pod_prefixes"),
        ("{name: b, addresses: [192.0.2.0/24]}", "without a mask"),
        ("{name: b, addresses: [127.0.0.1]}", "no node can be reached there"),
        ("{name: b, addresses: [192.0.2.1], pod_prefixes: ['::/0']}", "all there is"),
        ("{name: b, addresses: [192.0.2.1], zones: a}", "unknown key"),
        ("{name: b, addresses: [192.0.2.1]}, {name: b, addresses: [192.0.2.2]}", "already"),
        ("{name: b, addresses: [192.0.2.1]}, {name: c, addresses: [192.0.2.1]}", "belongs to node 'b'"),
    ],
)
def test_nodes_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(InputProblem, match=says):
        nodes_of(text)


def test_settings_of_several_documents_agree() -> None:
    text = "---\nversion: 1\nsettings: {tunnel_port: 4790}\n---\nversion: 1\nsettings: {clamp_mss: true}\n"
    assert read(text).settings == PacketSettings(tunnel_port=4790, clamp=True)
    assert read("version: 1\nservices: []").settings is None
    with pytest.raises(InputProblem, match="an earlier document has another one"):
        read(text, "version: 1\nsettings: {tunnel_port: 4791}")


def test_which_node_this_is_can_be_said() -> None:
    text = "version: 1\nnodes: [{name: a, addresses: [192.0.2.1]}, {name: b, own: true}]"
    assert [(one.name, one.own) for one in read(text).nodes] == [("a", False), ("b", True)]
    said = read(text, options=Options(node="a", node_said=True)).nodes
    assert [one.own for one in said] == [True, True]
    assert not read(text, options=Options(node="a")).nodes[0].own


def normal(desired: Desired) -> Desired:
    """Without the order of things, which means nothing."""
    return desired._replace(
        services=tuple(
            service._replace(
                frontends=tuple(sorted(service.frontends)),
                members=tuple(sorted(service.members)),
                sources=tuple(sorted(service.sources)),
            )
            for service in sorted(desired.services)
        ),
        bindings=None if desired.bindings is None else tuple(sorted(desired.bindings)),
        nodes=tuple(sorted(desired.nodes)),
    )


@given(desired_states, st.booleans())
def test_documents_are_read_back(desired: Desired, as_yaml: bool) -> None:
    document = native.document(desired)
    assert faults(SCHEMA, document) == []
    text = yaml.safe_dump(document, allow_unicode=True) if as_yaml else json.dumps(document)
    again = read(text)
    assert normal(again) == normal(desired)
    assert native.document(again) == document


def test_where_node_ports_are_served() -> None:
    """Documents agree, and no say is another thing than everywhere."""
    text = "version: 1\nservices: []\n"
    assert read(text).node_port_addresses is None
    for value, prefixes in (("[]", []), ("[192.0.2.7/24, '::/0']", ["192.0.2.0/24", "::/0"])):
        found = read(text, f"{text}node_port_addresses: {value}\n")
        assert [str(each) for each in found.node_port_addresses or ()] == prefixes
        document = native.document(found)
        assert document["node_port_addresses"] == prefixes
        assert faults(SCHEMA, document) == []
        assert read(json.dumps(document)) == found
    with pytest.raises(InputProblem, match=r"\$\.node_port_addresses\[0\]"):
        read(f"{text}node_port_addresses: [primary]\n")
    with pytest.raises(InputProblem, match="an earlier document has others"):
        read(f"{text}node_port_addresses: []\n", f"{text}node_port_addresses: ['::/0']\n")


def test_an_export_is_short() -> None:
    """Defaults are left out, and the order is always the same."""
    service = one(backends=["10.0.0.3:80", "10.0.0.2:80"], node_port=30000)
    assert native.document(Desired(NATIVE, NATIVE, (service,))) == {
        "version": 1,
        "services": [
            {
                "name": "web",
                "frontends": ["10.0.0.1:80/tcp"],
                "backends": ["10.0.0.2:80", "10.0.0.3:80"],
                "node_port": 30000,
            }
        ],
    }


# The schema.


def manual_examples() -> list[str]:
    text = (Path(ROOT) / "man" / "svcctl.5").read_text()
    start = text.index(".RS 4\nversion: 1") + 6
    return [text[start : text.index(".RE", start)].replace("\\-", "-")]


@pytest.mark.parametrize(
    "text",
    [
        *manual_examples(),
        (DATA / "native.yaml").read_text(),
        (DATA / "native.json").read_text(),
        S,
        B,
        "version: 1\nservices: []",
    ],
)
def test_what_is_accepted_fits_the_schema(text: str) -> None:
    registries = [(DATA / name).read_bytes() for name in ("consul.json", "nomad.json")]
    if "consul" in text or "nomad" in text:
        read(text, *registries)
    else:
        read(text)
    assert faults(SCHEMA, yaml.safe_load(text.replace("name: on", "name: 'on'"))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"services": {}},
        {"service": []},
        {"services": [{"name": "a"}]},
        {"services": [{"name": "a", "frontends": [], "port": 1}]},
        {"services": [{"name": "a", "frontends": ["10.0.0.1:80"]}]},
        {"services": [{"name": "a", "frontends": [{"kind": "cluster"}]}]},
        {"services": [{"name": "a", "frontends": [], "affinity": "1"}]},
        {"services": [{"name": "a", "frontends": [], "affinity": True}]},
        {"services": [{"name": "a", "frontends": [], "block": 1}]},
        {"services": [{"name": "a", "frontends": [], "backends": ["10.0.0.1"]}]},
        {
            "services": [
                {"name": "a", "frontends": [], "backends": [{"address": "10.0.0.1:80", "weight": 65536}]}
            ]
        },
        {
            "services": [
                {"name": "a", "frontends": [], "backends": [{"address": "10.0.0.1:80", "sets": ["all"]}]}
            ]
        },
        {"services": [{"name": "", "frontends": []}]},
        {"bindings": [{"label": "a", "prefix": "::/0"}]},
        {"nodes": [{"name": "a"}]},
        {"nodes": [{"name": "a", "addresses": []}]},
        {"nodes": [{"name": "a", "own": False}]},
        {"nodes": [{"name": "a", "own": True, "by_hand": ["zone"]}]},
        {"nodes": [{"name": "a", "addresses": ["192.0.2.1"], "number": 1}]},
        {"settings": {"tunnel_port": 0}},
        {"settings": {"tunnel_mtu": 575}},
        {"settings": {"snat_ports": "1-2"}},
        {"settings": {"clamp": True}},
        {"bindings": [{"label": "a", "prefix": "::/0", "port": 65536}]},
        {"bindings": [{"label": "a", "prefix": "::/0", "port": 1, "protocol": "sctp"}]},
    ],
)
def test_what_the_schema_refuses_is_refused(change: dict[str, Any]) -> None:
    document = {"version": 1, "services": [], **change}
    assert faults(SCHEMA, document)
    with pytest.raises(InputProblem):
        read(json.dumps(document))


def test_the_schema_knows_every_key() -> None:
    definitions = SCHEMA["$defs"]
    assert set(SCHEMA["properties"]) == set(native.KEYS)
    assert set(definitions["service"]["properties"]) == native_services.KEYS
    assert set(definitions["node"]["properties"]) == set(native_nodes.KEYS)
    assert set(definitions["settings"]["properties"]) == set(native_settings.KEYS)
    assert set(definitions["backend"]["anyOf"][1]["properties"]) == native_services.BACKEND_KEYS
    assert set(definitions["frontend"]["anyOf"][1]["properties"]) == native_services.FRONTEND_KEYS


def test_the_manual_names_every_key() -> None:
    text = (Path(ROOT) / "man" / "svcctl.5").read_text()
    nodes = (*native_nodes.KEYS, *native_settings.KEYS)
    for key in (*native.KEYS, *nodes, *native_services.KEYS, *native_services.BACKEND_KEYS):
        assert f"\\fB{key}\\fR" in text, key


def test_the_schema_is_in_both_distributions() -> None:
    """The source distribution lists it; the wheel takes the whole package but what git ignores."""
    import tomllib

    build = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "/svcctl/schema/*.json" in build["targets"]["sdist"]["include"]
    assert build["targets"]["wheel"]["packages"] == ["svcctl"]
