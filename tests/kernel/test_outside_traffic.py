"""Clients outside through node ports and load-balancer addresses: every protocol, family, mode, place, policy, algorithm."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from socket import AF_INET, AF_INET6

import pytest

from svcctl.maps import enums
from tests.lib.nodes import VIP, VIP6, Bed, backend_of, bed, wait
from tests.lib.outside import FAMILIES, datagrams, refusal, stream
from tests.lib.pods import place
from tests.lib.world import world

MODES, ALGORITHMS, POLICIES, WHERE = (
    ("tunnel", "dsr"),
    ("random", "maglev"),
    ("cluster", "local"),
    ("local", "remote"),
)
CASES = list(itertools.product(MODES, ALGORITHMS, POLICIES, WHERE))
NODE_PORT, PORT = 30100, 100
"""Of the first case; the others follow."""


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Two nodes, and a service for each case, at a node port and at the load balancer's addresses."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with world(), bed(2, 2) as one:
        for number, (mode, algorithm, policy, where) in enumerate(CASES):
            pod = one.nodes[WHERE.index(where)].pods[0]
            one.service(
                f"case{number}",
                *(
                    f"{place(vip, PORT + number)}/{kind}"
                    for vip, kind in itertools.product((VIP, VIP6), ("tcp", "udp"))
                ),
                backends=backend_of(pod),
                kind="load-balancer",
                node_port=NODE_PORT + number,
                algorithm=algorithm,
                table_size=1021 if algorithm == "maglev" else 0,
                external_policy=policy,
                external_mode=mode,
            )
        yield one


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_everything_arrives(made: Bed, case: tuple[str, str, str, str], kind: str, family: int) -> None:
    """At the first node's address and at the load balancer's: addresses on both ends, requests, and bulk."""
    mode, _, policy, where = case
    first, second = made.nodes
    number = CASES.index(case)
    vip = VIP6 if family == AF_INET6 else VIP
    places = [(first.own(family), NODE_PORT + number), (vip, PORT + number)]
    if (policy, where) == ("local", "remote"):
        before = first.drops("verdict")
        assert [refusal(made.client, kind, family, one, 0.2) for one in places] == ["silence", "silence"]
        wait(lambda: first.drops("verdict") >= before + 2)
        return
    for node in made.nodes:
        node.forget()
    pod = made.nodes[WHERE.index(where)].pods[0]
    with pod.listen(8080, kind, family) as listener:
        for one in places:
            if kind == "tcp":
                stream(made.client, listener, one)
            else:
                datagrams(made.client, listener, one)
    kinds = [value.kind for value in first.flows().values()]
    assert len(kinds) >= 4
    assert all(bool(one & enums.FLOW_TUNNEL) == (where == "remote") for one in kinds)
    if where == "remote":
        there = second.flows()
        assert {value.node for value in there.values()} == {second.numbers()[first.name]}
        for flow in (value for value in there.values() if mode == "dsr"):
            assert flow.kind & enums.FLOW_DSR
    else:
        assert not second.flows()


def test_pods_are_reached_past_every_service(made: Bed) -> None:
    """What is for no service is left alone: plain routing works between all of them."""
    pods = [pod for node in made.nodes for pod in node.pods]
    before = made.counters()
    for family in (AF_INET, AF_INET6):
        with pods[3].listen(9000, "tcp", family) as tcp, pods[3].listen(9000, "udp", family) as udp:
            for client in (made.client, made.elsewhere, *pods[:3]):
                stream(client, tcp, (pods[3].own(family), 9000), size=1 << 16)
                datagrams(client, udp, (pods[3].own(family), 9000), bulk=1 << 16)
    assert made.counters() == before
