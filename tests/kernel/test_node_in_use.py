"""`nodes delete` of a node that flows and backends need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lib.child import needs_root
from tests.lib.nodes import Bed, at, backend_of, bed, wait
from tests.lib.world import world


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    """Two nodes, a pod on the second."""
    needs_root()
    with world(), bed(0, 1) as one:
        yield one


def test_a_node_in_use_is_named_before_it_is_forgotten(made: Bed) -> None:
    first, second = made.nodes
    pod = second.pods[0]
    with (
        made.serving("web", *at("203.0.113.10"), kind="load-balancer", backends=backend_of(pod)),
        pod.listen(8080, "tcp") as listener,
        made.client.socket("tcp") as one,
    ):
        one.connect(("203.0.113.10", 80))
        server, _ = listener.accept()
        with server:
            wait(lambda: bool(first.flows()))
            says = "node node2: 1 flow of conntrack goes through its tunnel and stops; 2 backends of 1 service are"
            assert says in first.svc("nodes", "delete", "node2", "--dry-run").err
            assert first.numbers()
            assert says in first.svc("nodes", "delete", "node2").err
    first.meet(made.nodes)
    assert first.svc("nodes", "delete", "node2").err == ""  # nothing goes there any more
