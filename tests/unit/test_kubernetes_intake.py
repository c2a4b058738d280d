"""Documents of Kubernetes: lists of all shapes, signs of an outage, and what no API server could have given."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from svcctl.errors import Exit, UsageProblem
from svcctl.model.desired import Desired
from svcctl.model.sources.kubernetes import desired
from svcctl.model.sources.kubernetes.fields import ObjectProblem
from svcctl.model.sources.options import Options
from tests.unit.kubernetes_objects import (
    balanced,
    endpoint,
    endpoint_slice,
    node,
    plan,
    service,
    table,
    told,
)

pytestmark = pytest.mark.unit

WEB = service()
SLICE = endpoint_slice("10.244.1.1")
MINE = node("node-a", "10.0.0.5")
OPTIONS = Options(node="node-a")


def read(*documents: Any) -> Desired:
    return desired(documents, OPTIONS)


def typed(kind: str, version: str, *items: dict[str, Any]) -> dict[str, Any]:
    """A list of one kind as the API server gives it: the items do not say what they are."""
    bare = [
        {key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in items
    ]
    return {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "7"}, "items": bare}


def listed(*items: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "List", "apiVersion": "v1", "items": list(items), **more}


# S4, S5: shapes.


def test_shapes_of_the_same() -> None:
    wanted = plan(WEB, SLICE, MINE)
    assert wanted.services
    assert not wanted.blockers
    typed_lists = [
        typed("Service", "v1", WEB),
        typed("EndpointSlice", "discovery.k8s.io/v1", SLICE),
        typed("Node", "v1", MINE),
    ]
    assert read(*typed_lists) == wanted
    assert read(listed(*typed_lists)) == wanted
    assert read(listed(listed(WEB), SLICE), None, MINE) == wanted
    assert (
        read(listed(WEB, SLICE, MINE), listed(), {"kind": "List", "apiVersion": "v1", "items": None})
        == wanted
    )
    bare = [{key: value for key, value in each.items() if key != "apiVersion"} for each in (WEB, SLICE, MINE)]
    assert read(*bare) == wanted


def test_applying_again_is_the_same() -> None:
    before = copy.deepcopy([WEB, SLICE, MINE])
    first = read(*before)
    assert read(*before) == first
    assert before == [WEB, SLICE, MINE], "the objects are as they were"
    assert read(*before, endpoint_slice("10.244.2.1", name="more")) != first
    assert read(*before) == first


def test_an_object_that_is_there_twice() -> None:
    assert plan(WEB, copy.deepcopy(WEB), SLICE, SLICE) == plan(WEB, SLICE)
    newer = copy.deepcopy(SLICE)
    newer["endpoints"] = [endpoint("10.244.2.1")]
    SLICES = [copy.deepcopy(SLICE), newer]
    for number, each in enumerate(SLICES):
        each["metadata"]["resourceVersion"] = ("99", "100")[number]
    found = plan(WEB, *SLICES)
    assert table(found) == {"10.96.0.20:80/tcp": {"10.244.2.1:8080"}}
    assert told(found, "warning", "EndpointSlice test/web-1", "more than once")


def test_kinds_of_the_same_name_elsewhere() -> None:
    """Another group's Service is not ours; each kind is told once."""
    other = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} for name in "abc"]
    found = plan(WEB, SLICE, other, *pods)
    assert len(found.services) == 1
    assert [(each.subject, each.text.split()[0]) for each in found.notices] == [
        ("Pod", "3"),
        ("Service (serving.knative.dev/v1)", "1"),
    ]
    assert (
        read(WEB, SLICE, typed("Service", "serving.knative.dev/v1", {"metadata": {"name": "x"}})).services
        == found.services
    )


def test_slices_before_their_service_and_the_reverse() -> None:
    assert table(plan(WEB, endpoint_slice("10.1.1.1", of="later"))) == {"10.96.0.20:80/tcp": "REJECT"}
    assert not plan(WEB, SLICE, endpoint_slice("10.1.1.1", of="later")).notices


# S1 to S3: what may be an outage.


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "the input has no objects"),
        ([None], "the input has no objects"),
        ([listed()], "the input has no objects"),
        ([listed(WEB)], "1 Service and not one EndpointSlice"),
        ([listed(WEB, service("b"), MINE)], "2 Services and not one EndpointSlice"),
        ([listed(SLICE, MINE)], "no Service"),
        ([MINE], "no Service"),
        ([WEB, SLICE, node("node-b")], "no Node is called node-a (there are node-b)"),
        (
            [{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "forbidden"}],
            "'forbidden'",
        ),
        ([WEB, SLICE, {"kind": "Status", "apiVersion": "v1", "reason": "Expired"}], "'Expired'"),
        ([WEB, SLICE, {**typed("Service", "v1"), "metadata": {"continue": "abc"}}], "first part of a list"),
    ],
)
def test_outages(documents: list[Any], words: str) -> None:
    found = read(*documents)
    assert len(found.blockers) == 1
    assert words in found.blockers[0]


def test_what_is_no_outage() -> None:
    assert not read(WEB, SLICE).blockers  # without Nodes: a file of somebody who has none
    assert not read(WEB, SLICE, MINE, node("node-b")).blockers
    assert not read(WEB, endpoint_slice()).blockers
    assert not read(service(clusterIP="None"), endpoint_slice(of="other")).blockers


def test_of_the_nodes_only_our_own_was_asked_for() -> None:
    """A list without any is then one of a wrong name: nothing would be local."""
    for name, objects, words in (
        ("wrong", [WEB, SLICE], "no Node is called wrong: nothing would be local"),
        ("wrong", [WEB, SLICE, MINE], "no Node is called wrong (there are node-a)"),
        ("node-a", [WEB, SLICE, MINE], ""),
    ):
        found = desired(objects, Options(node=name, other_nodes=False)).blockers
        assert len(found) == bool(words)
        assert all(words in each for each in found)


def test_a_node_that_does_not_know_its_name() -> None:
    (text,) = desired([WEB, SLICE, MINE], Options()).blockers
    assert "--node" in text


def test_what_is_blocked_is_planned_all_the_same() -> None:
    assert read(WEB).services == plan(WEB, endpoint_slice()).services


# S7: nodes.


@pytest.mark.parametrize(
    ("metadata", "spec", "eligible"),
    [
        ({}, {}, True),
        ({}, {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, False),
        ({}, {"taints": [{"key": "node.kubernetes.io/unschedulable"}], "unschedulable": True}, True),
        ({"deletionTimestamp": "2024-01-01T00:00:00Z"}, {}, False),
    ],
)
def test_eligible(metadata: dict[str, Any], spec: dict[str, Any], eligible: bool) -> None:
    one = node("node-a", "10.0.0.5", **spec)
    one["metadata"].update(metadata)
    assert [each.eligible for each in plan(WEB, SLICE, one).nodes] == [eligible]


def test_a_node_with_strange_addresses() -> None:
    one = node("node-a", "10.0.0.5", "nonsense", podCIDRs=["10.244.1.0/24", "nonsense"])
    found = plan(WEB, SLICE, one)
    assert len(found.nodes[0].addresses) == len(found.nodes[0].pod_prefixes) == 1
    assert told(found, "warning", "Node node-a", "InternalIP 'nonsense'")
    assert told(found, "warning", "Node node-a", "pod range 'nonsense'")


# What refuses the whole input. The paths are those of the first document.

NAN = float("nan")


Way = tuple[str | int, ...]


def with_(base: dict[str, Any], way: Way, value: object) -> dict[str, Any]:
    """A copy of the object with one field changed; value ...: without it."""
    changed = copy.deepcopy(base)
    inner: Any = changed
    for each in way[:-1]:
        inner = inner[each]
    if value is ...:
        del inner[way[-1]]
    else:
        inner[way[-1]] = value
    return changed


FULL = balanced(
    "web",
    "192.0.2.1",
    ports=[{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
    sessionAffinity="ClientIP",
    sessionAffinityConfig={"clientIP": {"timeoutSeconds": 10}},
    clusterIPs=["10.96.0.20"],
    ipFamilies=["IPv4"],
    externalIPs=["192.0.2.5"],
    loadBalancerSourceRanges=["10.0.0.0/8"],
    externalTrafficPolicy="Local",
    healthCheckNodePort=32000,
)
FULL_SLICE = endpoint_slice(
    endpoint(
        "10.244.1.1", "node-a", ready=True, serving=True, terminating=False, zones=["z"], nodes=["node-a"]
    )
)
FULL_NODE = node("node-a", "10.0.0.5", podCIDRs=["10.244.1.0/24"], taints=[{"key": "a"}])


@pytest.mark.parametrize("value", [NAN, 1e3, 80.0, True, "80", [80], {}, 65536, -1, 0, 10**400, ...])
def test_ports_that_are_none(value: object) -> None:
    with pytest.raises(UsageProblem, match=r"^\$\.items\[1\]\.spec\.ports\[0\]\.port: ") as caught:
        read(listed(SLICE, with_(FULL, ("spec", "ports", 0, "port"), value)))
    assert caught.value.exit_code == Exit.USAGE
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("value", ["a/b", "a:80/tcp", "a\nb", "\x1b[2J", "a b", "ü", "x" * 300, 7, None])
def test_names_that_are_none(field: str, value: object) -> None:
    """Nothing that could be taken for another service's name, or move a terminal's cursor."""
    if (field, value) == ("namespace", None):
        return
    with pytest.raises(ObjectProblem, match=rf"^\$\.metadata\.{field}: ") as caught:
        read(with_(WEB, ("metadata", field), value))
    assert str(caught.value).isprintable()


def ways(value: Any, so_far: Way = ()) -> list[Way]:
    """To all fields and items."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [each for key in keys for each in [(*so_far, key), *ways(value[key], (*so_far, key))]]


def path_of(way: Way) -> str:
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in way)


EVERY_FIELD = [(base, way) for base in (FULL, FULL_SLICE, FULL_NODE) for way in ways(base)]
ANYTHING_GOES = {"$.spec.taints[0].key"}
STRANGE: tuple[Any, ...] = (NAN, 7, -(10**30), True, "\x1b[2J", [], {}, [[]], [{}], [7], {"a": 7}, None, ...)


def outcome(*documents: Any) -> Desired | ObjectProblem:
    try:
        return read(*documents)
    except ObjectProblem as problem:
        return problem


@pytest.mark.parametrize(
    ("base", "way"), EVERY_FIELD, ids=[f"{base['kind']}-{path_of(way)}" for base, way in EVERY_FIELD]
)
def test_every_field_of_another_type(base: dict[str, Any], way: Way) -> None:
    """A wrong type is told with its path, and never ends in anything else."""
    path = path_of(way)
    refused = 0
    for value in STRANGE:
        others = [each for each in (FULL, FULL_SLICE, FULL_NODE) if each is not base]
        found = outcome(with_(base, way, value), *others)
        if isinstance(found, Desired):
            assert all(f"{each.subject}{each.text}".isprintable() for each in found.notices)
            assert all(each.isprintable() for each in found.blockers)
            continue
        refused += 1
        assert found.document == 0
        assert str(found).startswith("$")
        assert str(found).isprintable()
        assert len(str(found)) < 400
        assert path.startswith(found.path) or found.path.startswith(path)
    assert refused or path in ANYTHING_GOES


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (7, "$"),
        ("<html>", "$"),
        ([WEB], "$"),
        ({}, "$.kind"),
        ({"apiVersion": "v1"}, "$.kind"),
        ({"kind": 7}, "$.kind"),
        ({"kind": "a\nb"}, "$.kind"),
        ({"kind": "Pod", "apiVersion": "a\nb"}, "$.apiVersion"),
        ({"kind": "Service", "apiVersion": "v1"}, "$.metadata.name"),
        (listed(WEB, None), "$.items[1]"),
        (listed(WEB, "x"), "$.items[1]"),
        ({"kind": "List", "items": {}}, "$.items"),
        (listed(listed(listed(listed(listed(WEB))))), "$.items[0].items[0].items[0].items[0]"),
    ],
)
def test_documents_that_are_none(document: object, path: str) -> None:
    with pytest.raises(ObjectProblem) as caught:
        read(document)
    assert caught.value.path == path


def test_the_number_of_the_document() -> None:
    with pytest.raises(
        ObjectProblem, match=r"^document 3: \$\.spec\.type: Service test/other: expected ClusterIP"
    ) as caught:
        read(WEB, SLICE, with_(service("other"), ("spec", "type"), "Headless"))
    assert caught.value.document == 2


def test_a_list_that_holds_itself() -> None:
    """Anchors of YAML can do that."""
    loop = listed(WEB)
    loop["items"].append(loop)
    with pytest.raises(ObjectProblem, match="nested too deep"):
        read(loop)
    service_loop = copy.deepcopy(WEB)
    service_loop["spec"]["loop"] = service_loop
    assert read(service_loop, SLICE).services
    with pytest.raises(ObjectProblem, match="cannot be compared"):
        read(service_loop, WEB, SLICE)


def test_a_local_policy_on_a_node_that_nobody_knows_is_told() -> None:
    """Without Node objects only the endpoints tell that the name is another's."""
    local = {**WEB, "spec": {**WEB["spec"], "internalTrafficPolicy": "Local"}}
    (notice,) = [
        each
        for each in desired([local, SLICE], Options(node="elsewhere")).notices
        if "elsewhere" in each.subject
    ]
    assert "serves nobody here" in notice.text


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([service(type="Headless")], "$.spec.type: Service test/web: expected"),
        (
            [{"kind": "List", "items": [service(), service("b", type="x")]}],
            "$.items[1].spec.type: Service test/b: ",
        ),
        # Of a list of one kind the items do not say theirs.
        (
            [{"kind": "NodeList", "items": [{"metadata": {"name": "n"}, "spec": 3}]}],
            "$.items[0].spec: Node n: expected",
        ),
        ([{"kind": "List", "metadata": {"name": "l"}, "items": 3}], "$.items: List l: expected an array"),
        ([{**service(), "metadata": {"name": 3}}], "$.metadata.name: expected a string"),
        ([{"metadata": {"name": "p"}}], "$.kind: p: is missing"),
        ([service("web", namespace="a\x1b[31m")], "$.metadata.namespace: expected letters"),
    ],
)
def test_an_error_names_the_object(objects: list[dict[str, Any]], words: str) -> None:
    """A path of numbers into a list of thousands tells nobody which one it is."""
    with pytest.raises(ObjectProblem) as caught:
        desired(objects, Options(node="node-a"))
    assert caught.value.message.startswith(words)
