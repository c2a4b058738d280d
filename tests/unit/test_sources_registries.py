"""Consul's and Nomad's answers, as backends of services in svcctl's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from svcctl.model.desired import Desired
from svcctl.model.service_endpoint import STATE_NAMES, format_backend
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from svcctl.model.sources.problem import InputProblem
from tests.lib.cli import ROOT

DATA = Path(ROOT) / "tests" / "data" / "sources"
NATIVE = {"version": 1, "services": [{"name": "a", "frontends": ["10.96.0.1:80/tcp"]}]}


def read(*values: Any, options: Options = Options(), **fields: object) -> Desired:  # noqa: B008
    """The desired state of the answers and a service that says the fields."""
    whole = {"version": 1, "services": [{**NATIVE["services"][0], **fields}]}  # type: ignore[index]
    inputs = [(f"in{n}", json.dumps(value, indent=1).encode()) for n, value in enumerate((whole, *values))]
    (desired,) = read_inputs(inputs, options)
    return desired


def members(desired: Desired, number: int = 0) -> dict[str, tuple[int, str, bool | None]]:
    return {
        format_backend(one.backend): (one.weight, STATE_NAMES[one.state], one.local)
        for one in desired.services[number].members
    }


def instance(address: str = "10.2.0.1", port: int = 80, *checks: str, **service: object) -> dict[str, Any]:
    return {
        "Node": {"Node": "node-a", "Address": "10.2.9.9"},
        "Service": {"Service": "web", "Address": address, "Port": port, **service},
        "Checks": [{"CheckID": "c", "Status": status} for status in checks],
    }


def test_the_samples() -> None:
    inputs = [(name, (DATA / name).read_bytes()) for name in ("nomad.json", "native.json", "consul.json")]
    (desired,) = read_inputs(inputs, Options(node="node-a"))
    assert desired.kind == desired.owner == "native"
    assert members(desired) == {
        "10.2.0.9:9200": (1, "active", None),
        "10.2.0.11:9200": (5, "active", True),
        "10.2.0.2:9200": (2, "active", False),
        "[2001:db8:2::13]:9200": (1, "draining", False),
        "10.2.0.14:9200": (1, "draining", False),
    }
    assert members(desired, 1) == {
        "10.3.0.1:22686": (1, "active", False),
        "10.3.0.1:25854": (1, "active", False),
    }
    assert [each.text for each in desired.notices] == ["an instance on 10.2.0.15 has no port: left out"]
    wan = Options(consul_address="wan")
    (desired,) = read_inputs(inputs, wan)
    assert "203.0.113.11:19200" in members(desired)
    assert "10.2.0.11:9200" not in members(desired)


@pytest.mark.parametrize(
    ("checks", "wanted"),
    [
        ((), (7, "active", False)),
        (("passing", "passing"), (7, "active", False)),
        (("passing", "warning"), (3, "active", False)),
        (("warning", "critical", "passing"), (7, "draining", False)),
        (("maintenance",), (7, "draining", False)),
    ],
)
def test_health(checks: tuple[str, ...], wanted: tuple[int, str, bool]) -> None:
    answer = [instance("10.2.0.1", 80, *checks, Weights={"Passing": 7, "Warning": 3})]
    assert members(read(answer, consul="web")) == {"10.2.0.1:80": wanted}


def test_catalog_has_no_health() -> None:
    entry = {
        "Node": "node-a",
        "Address": "10.2.0.1",
        "ServiceName": "web",
        "ServiceAddress": "",
        "ServicePort": 80,
    }
    desired = read([entry, {**entry, "ServiceAddress": "10.2.0.2"}], consul="web")
    assert members(desired) == {"10.2.0.1:80": (1, "active", False), "10.2.0.2:80": (1, "active", False)}
    assert [each.level for each in desired.notices] == ["warning"]


def test_the_file_comes_first_and_an_address_counts_once() -> None:
    answer = [
        instance("10.2.0.1", 80, "critical"),
        instance("10.2.0.1", 80, "passing"),
        instance("10.2.0.2", 80, "passing"),
    ]
    desired = read(answer, consul="web", backends=["10.2.0.2:80,weight=9"])
    assert members(desired) == {"10.2.0.2:80": (9, "active", None), "10.2.0.1:80": (1, "active", False)}


def test_several_answers_are_one() -> None:
    more = {"web": [instance("10.2.0.3", 80)], "other": [instance("10.2.0.4", 80)]}
    desired = read([instance("10.2.0.1", 80)], more, consul="web")
    assert set(members(desired)) == {"10.2.0.1:80", "10.2.0.3:80"}
    assert "no service takes its backends from other" in desired.notices[0].text


def test_no_instance_may_be_an_outage() -> None:
    desired = read({"web": [], "other": [instance()]}, consul="web")
    assert desired.services[0].members == ()
    assert len(desired.blockers) == 1
    assert "consul knows no instance of 'web'" in desired.blockers[0]


@pytest.mark.parametrize(
    ("answers", "path", "words"),
    [
        ([[instance("web.example.org")]], "$[0].Service", "is not an IPv4 address"),
        ([[instance("127.0.0.1")]], "$[0].Service", "is of node 'node-a' alone"),
        ([[instance(), instance(port=70000)]], "$[1].Service.Port", "expected 0-65535"),
        ([[instance("10.2.0.1", 80, "fine")]], "$[0].Checks[0].Status", "expected passing"),
        ([[instance(Weights={"Passing": -1})]], "$[0].Service.Weights.Passing", "expected 0-65535"),
        ([{"web": [instance()], "x": 1}], "$.x", "expected an array"),
        ([{"web": [instance(), 1]}], "$.web[1]", "expected an object"),
        ([], "$.services[0].consul", "needs what Consul knows of 'web'"),
        ([{"other": [instance()]}], "$.services[0].consul", "needs what Consul knows of 'web'"),
    ],
)
def test_errors(answers: list[Any], path: str, words: str) -> None:
    with pytest.raises(InputProblem) as caught:
        read(*answers, consul="web")
    assert caught.value.path == path, caught.value.message
    assert words in caught.value.message
    assert caught.value.line


def test_loopback_is_for_those_who_are_there() -> None:
    answer = [instance("127.0.0.1", 80)]
    desired = read(answer, consul="web", options=Options(node="node-a"))
    assert members(desired) == {"127.0.0.1:80": (1, "active", True)}


def test_a_partial_conversion_leaves_out_loopback_of_others() -> None:
    partial = Options(partial=True)
    catalog = {"Node": "node-a", "ServiceName": "web", "Address": "10.2.9.9", "ServicePort": 80}
    nomad = {"ServiceName": "web", "NodeID": "node-a", "Port": 80}
    for kind, good, bad in (
        ("consul", instance(), instance("127.0.0.1")),
        ("consul", instance(), instance("::1")),
        ("consul", catalog | {"ServiceAddress": "10.2.0.1"}, catalog | {"ServiceAddress": "127.0.0.1"}),
        ("nomad", nomad | {"Address": "10.2.0.1"}, nomad | {"Address": "127.0.0.1"}),
    ):
        desired = read([bad, good], options=partial, **{kind: "web"})
        assert set(members(desired)) == {"10.2.0.1:80"}
        (told,) = [each for each in desired.notices if "left out" in each.text]
        assert (told.level, told.subject) == ("warning", f"{kind} web")
        assert "is of node 'node-a' alone" in told.text


@pytest.mark.parametrize("kind", ["consul", "nomad"])
def test_backends_alone_are_no_service(kind: str) -> None:
    with pytest.raises(InputProblem) as caught:
        read_inputs([("answer", (DATA / f"{kind}.json").read_bytes())], Options())
    assert "needs svcctl's own file" in caught.value.message
    assert f"'{kind}: " in str(caught.value.hint)
