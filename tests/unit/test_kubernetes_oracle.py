"""Random endpoints, policies and clients: who is reached, by the blocks and flags of the plan, is who the rules say.

The rules are written down here once more, as plainly as they can be, on the objects themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcctl.model.service import Service
from svcctl.model.service_endpoint import DOWN, DRAINING, KIND_CLUSTER, format_backend, format_frontend
from tests.unit.kubernetes_objects import NODE, OUTSIDE, POD, endpoint, endpoint_slice, plan, reach, service

pytestmark = pytest.mark.unit

ADDRESSES = {
    "IPv4": [f"10.244.{number}.1" for number in range(5)],
    "IPv6": [f"fd00:10::{number}" for number in range(1, 4)],
}
NODES, ZONES = ["node-a", "node-b", "node-c"], ["x", "y", "z"]
CLIENTS = (OUTSIDE, POD, NODE)

maybe = st.sampled_from([None, True, False])
conditions = st.one_of(
    st.sampled_from([(None, None, None), (True, True, False)]),
    st.sampled_from([(False, True, True), (False, False, True), (False, False, False), (False, True, False)]),
    st.tuples(maybe, maybe, maybe),
)
few = st.lists(st.sampled_from(ZONES), max_size=2, unique=True)
hints = st.none() | few


@st.composite
def slices(draw: st.DrawFn) -> dict[str, Any]:
    """Most of its endpoints alike, as controllers make them; some with everything."""
    family = draw(st.sampled_from(["IPv4", "IPv4", "IPv4", "IPv6"]))
    hinted, named = draw(st.booleans()), draw(st.booleans())
    ends = []
    for address in draw(st.lists(st.sampled_from(ADDRESSES[family]), max_size=6)):
        zones = draw(st.sampled_from(ZONES)) if hinted else None
        ready, serving, terminating = draw(conditions)
        ends.append(
            endpoint(
                address,
                draw(st.sampled_from(["node-a", "node-a", "node-b", None])),
                ready=ready,
                serving=serving,
                terminating=terminating,
                zones=[zones, *draw(few)] if zones else draw(st.sampled_from([None, None, []])),
                nodes=[draw(st.sampled_from(NODES))] if named else None,
            )
        )
    return endpoint_slice(*ends, name=draw(st.sampled_from("abcdefgh")), family=family)


@st.composite
def services(draw: st.DrawFn) -> dict[str, Any]:
    families = draw(st.sampled_from([["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"]]))
    cluster = {"IPv4": "10.96.0.20", "IPv6": "fd00:96::20"}
    addresses = [cluster[each] for each in families]
    kind = draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]))
    balancer = [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}] if kind == "LoadBalancer" else []
    port: dict[str, Any] = {"port": 80}
    if kind != "ClusterIP":
        port["nodePort"] = draw(st.sampled_from([0, 30080]))
    return service(
        ports=[port],
        clusterIP=addresses[0],
        clusterIPs=addresses,
        ipFamilies=families,
        type=kind,
        externalIPs=draw(st.sampled_from([[], ["192.0.2.5", "2001:db8::5"]])),
        internalTrafficPolicy=draw(st.sampled_from([None, "Cluster", "Local", "Local"])),
        externalTrafficPolicy=draw(st.sampled_from([None, "Cluster", "Local", "Local"])),
        status={"loadBalancer": {"ingress": balancer}},
    )


# The rules.


def condition(one: dict[str, Any], name: str) -> bool:
    value = one.get("conditions", {}).get(name)
    return (name != "terminating") if value is None else value


def falling_back(one: dict[str, Any]) -> bool:
    return condition(one, "serving") and condition(one, "terminating")


def once(given: Iterable[dict[str, Any]], family: str) -> list[dict[str, Any]]:
    """R18."""
    chosen: dict[str, tuple[Any, dict[str, Any]]] = {}
    for each in given:
        if each["addressType"] != family:
            continue
        for number, one in enumerate(each["endpoints"]):
            leaving, ready = condition(one, "terminating"), condition(one, "ready")
            rank = (leaving, not ready, not condition(one, "serving"), each["metadata"]["name"], number)
            (address,) = one["addresses"]
            if address not in chosen or rank < chosen[address][0]:
                chosen[address] = rank, one
    return [one for _, one in chosen.values()]


def hinted(one: dict[str, Any], key: str) -> list[str]:
    return [each["name"] for each in one.get("hints", {}).get(key, [])]


def cluster_set(everyone: list[dict[str, Any]], node: str, zone: str) -> list[dict[str, Any]]:
    """R20 and R24."""
    ready = [one for one in everyone if condition(one, "ready")]
    if not ready:
        return [one for one in everyone if falling_back(one)]
    for key, mine in (("forNodes", node), ("forZones", zone)):
        with_hints = [one for one in ready if hinted(one, key)]
        for_us = [one for one in ready if mine in hinted(one, key)]
        if len(with_hints) == len(ready) and for_us:
            return for_us
    return ready


def local_set(everyone: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    """R20."""
    here = [one for one in everyone if one.get("nodeName") == node]
    return [one for one in here if condition(one, "ready")] or [one for one in here if falling_back(one)]


def expected(
    front: dict[str, Any],
    everyone: list[dict[str, Any]],
    node: str,
    zone: str,
    *,
    internal: bool,
    client: str,
) -> set[str] | str:
    """R21 and R22."""
    if not any(condition(one, "ready") or falling_back(one) for one in everyone):
        return "REJECT"
    policy = "internalTrafficPolicy" if internal else "externalTrafficPolicy"
    local = front["spec"][policy] == "Local" and (internal or client == OUTSIDE)
    chosen = local_set(everyone, node) if local else cluster_set(everyone, node, zone)
    if not chosen:
        assert local
        return "DROP"
    addresses = {one["addresses"][0] for one in chosen}
    return {f"[{each}]:8080" if ":" in each else f"{each}:8080" for each in addresses}


@settings(max_examples=200, deadline=None)
@given(
    services(),
    st.lists(slices(), max_size=4, unique_by=lambda each: each["metadata"]["name"]),
    st.sampled_from(["node-a", "node-a", "node-a", "node-b", "node-c"]),
    st.sampled_from(["", *ZONES, "w"]),
)
def test_who_is_reached(
    front: dict[str, Any], given_slices: list[dict[str, Any]], node: str, zone: str
) -> None:
    found = plan(front, *given_slices, node=node, zone=zone)
    (one,) = found.services
    by_family = {number: once(given_slices, f"IPv{number}") for number in (4, 6)}
    for each in one.frontends:
        everyone = by_family[each.frontend.family]
        text = format_frontend(each.frontend)
        internal = each.kind == KIND_CLUSTER
        for client in CLIENTS:
            wanted = expected(front, everyone, node, zone, internal=internal, client=client)
            assert reach(found, text, client) == wanted, (text, client)
    served_families = {each.frontend.family for each in one.frontends}
    _check_states(one, [each for family in served_families for each in by_family[family]])


def _check_states(one: Service, everyone: list[dict[str, Any]]) -> None:
    """Each endpoint is a member; flows end only to those that do not serve and are in no set."""
    said = {each["addresses"][0]: each for each in everyone}
    assert len(one.members) == len(said)
    for member in one.members:
        address = format_backend(member.backend).rpartition(":")[0].strip("[]")
        serving, ready = condition(said[address], "serving"), condition(said[address], "ready")
        if member.state == DOWN:
            assert not serving
            assert not ready
        if member.state == DRAINING:
            assert serving
            assert not ready
