"""Packets from outside in one quick test: it runs inside every kernel of the matrix as well."""

from __future__ import annotations

from socket import AF_INET, AF_INET6

import pytest

from tests.lib.nodes import VIP, VIP6, at, backend_of, bed
from tests.lib.outside import refusal, talk
from tests.lib.world import World


@pytest.mark.quick
@pytest.mark.covers  # fmt: skip
def test_every_program_for_outside(world: World) -> None:
    """Each family, TCP and UDP, by a tunnel and straight back; too big, too far, to nobody, and from another node."""
    del world
    kind_of = {"kind": "load-balancer"}
    with bed(1, 1, 0, source_check=2) as made:
        first, second, third = made.nodes
        for family, vip in ((AF_INET, VIP), (AF_INET6, VIP6)):
            for mode in ("tunnel", "dsr"):
                made.service(
                    "web", *at(VIP, VIP6), backends=backend_of(second.pods[0]), kind="load-balancer",
                    node_port=30080, algorithm="maglev", table_size=251, external_mode=mode,
                )  # fmt: skip
                for kind in ("tcp", "udp"):
                    with second.pods[0].listen(8080, kind, family) as listener:
                        talk(made.client, kind, listener, (first.own(family), 30080))
                        made.route(third)
                        talk(made.client, kind, listener, (vip, 80))
                        made.route(first)
                made.delete("web")
            made.service("none", *at(VIP, VIP6), backends=[], kind="load-balancer")
            made.service(
                "lost", *at(VIP, VIP6, port=81), backends=backend_of(second.pods[0]), nodes=[first], **kind_of
            )
            made.service(
                "lost", *at(VIP, VIP6, port=81), backends=backend_of(first.pods[0]), nodes=[second], **kind_of
            )
            for kind in ("tcp", "udp"):
                assert refusal(made.client, kind, family, (vip, 80)) == "refused"
                assert refusal(made.client, kind, family, (vip, 81)) == "refused"
            made.delete("none", "lost", nodes=[first, second])
            made.delete("none", nodes=[third])
        assert first.event("too_big") > 0
        assert {name for node in made.nodes for name in node.counters()} <= {
            "opened", "answered", "tunnelled", "from_tunnel", "too_big", "drop too_big", "rejected", "icmp",
            "drop no_backend", "healed",
        }  # fmt: skip
