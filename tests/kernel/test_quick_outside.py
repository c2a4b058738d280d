"""Packets from outside in one quick test: it runs inside every kernel of the matrix as well."""

from __future__ import annotations

from socket import AF_INET, AF_INET6
from typing import Any

import pytest

from tests.lib.nodes import VIP, VIP6, at, backend_of, bed
from tests.lib.outside import refusal, talk
from tests.lib.tunnelled import datagram, receive_tos, send, tell_tos, wrapped
from tests.lib.world import World


@pytest.mark.quick
@pytest.mark.covers(
    "answer_tunnel: helper csum_diff", "answer_tunnel: helper fib_lookup",
    "answer_tunnel: helper l4_csum_replace", "answer_tunnel: helper map_lookup_elem",
    "answer_tunnel: helper skb_adjust_room", "answer_tunnel: helper skb_change_tail",
    "answer_tunnel: helper skb_load_bytes", "answer_tunnel: helper skb_pull_data",
    "answer_tunnel: helper skb_store_bytes", "answer_tunnel: helper tail_call", "answer_tunnel: map array",
    "answer_tunnel: map hash", "answer_tunnel: map percpu_array", "answer_tunnel: map prog_array",
    "answer_tunnel: tc", "complain_back: helper csum_diff", "complain_back: helper map_lookup_elem",
    "complain_back: helper redirect", "complain_back: helper skb_adjust_room",
    "complain_back: helper skb_change_tail", "complain_back: helper skb_load_bytes",
    "complain_back: helper skb_pull_data", "complain_back: helper skb_store_bytes",
    "complain_back: map percpu_array", "complain_back: tc", "decapsulate: helper fib_lookup",
    "decapsulate: helper ktime_get_ns", "decapsulate: helper l4_csum_replace",
    "decapsulate: helper map_delete_elem", "decapsulate: helper map_lookup_elem",
    "decapsulate: helper map_update_elem", "decapsulate: helper redirect",
    "decapsulate: helper redirect_neigh", "decapsulate: helper redirect_peer",
    "decapsulate: helper skb_adjust_room", "decapsulate: helper skb_change_type",
    "decapsulate: helper skb_ecn_set_ce", "decapsulate: helper skb_load_bytes", "decapsulate: helper skb_pull_data",
    "decapsulate: helper skb_store_bytes", "decapsulate: helper spin_lock", "decapsulate: helper spin_unlock",
    "decapsulate: helper tail_call", "decapsulate: map array", "decapsulate: map hash",
    "decapsulate: map lpm_trie", "decapsulate: map lru_hash", "decapsulate: map percpu_array",
    "decapsulate: map prog_array", "decapsulate: tc", "encapsulate: helper l4_csum_replace",
    "encapsulate: helper map_lookup_elem", "encapsulate: helper redirect",
    "encapsulate: helper redirect_neigh", "encapsulate: helper redirect_peer",
    "encapsulate: helper skb_adjust_room", "encapsulate: helper skb_change_type",
    "encapsulate: helper skb_load_bytes", "encapsulate: helper skb_pull_data",
    "encapsulate: helper skb_store_bytes", "encapsulate: map array", "encapsulate: map hash",
    "encapsulate: map percpu_array", "encapsulate: tc", "from_outside: map lpm_trie", "from_workload: map lpm_trie",
    "icmp_from: helper tail_call", "icmp_from: map array", "icmp_from: map lpm_trie",
    "icmp_from: map prog_array", "icmp_leaving: helper fib_lookup", "icmp_leaving: helper l4_csum_replace",
    "icmp_leaving: helper map_lookup_elem", "icmp_leaving: helper redirect",
    "icmp_leaving: helper redirect_neigh", "icmp_leaving: helper redirect_peer",
    "icmp_leaving: helper skb_change_type", "icmp_leaving: helper skb_load_bytes",
    "icmp_leaving: helper skb_pull_data", "icmp_leaving: helper skb_store_bytes",
    "icmp_leaving: helper tail_call", "icmp_leaving: map array", "icmp_leaving: map hash",
    "icmp_leaving: map lru_hash", "icmp_leaving: map percpu_array", "icmp_leaving: map prog_array",
    "icmp_leaving: tc", "icmp_outside: helper tail_call", "icmp_outside: map array",
    "icmp_outside: map prog_array", "icmp_to: helper fib_lookup", "icmp_to: helper redirect",
    "icmp_to: helper redirect_neigh", "icmp_to: helper redirect_peer", "icmp_to: helper skb_change_type",
    "icmp_to: helper tail_call", "icmp_to: map array", "icmp_to: map hash", "icmp_to: map prog_array",
    "icmp_tunnel: helper fib_lookup", "icmp_tunnel: helper l4_csum_replace",
    "icmp_tunnel: helper map_lookup_elem", "icmp_tunnel: helper redirect",
    "icmp_tunnel: helper redirect_neigh", "icmp_tunnel: helper redirect_peer",
    "icmp_tunnel: helper skb_change_type", "icmp_tunnel: helper skb_load_bytes",
    "icmp_tunnel: helper skb_pull_data", "icmp_tunnel: helper skb_store_bytes", "icmp_tunnel: map array",
    "icmp_tunnel: map hash", "icmp_tunnel: map lru_hash", "icmp_tunnel: map percpu_array", "icmp_tunnel: tc",
    "open_outside: helper fib_lookup", "open_outside: helper get_prandom_u32",
    "open_outside: helper ktime_get_ns", "open_outside: helper l4_csum_replace",
    "open_outside: helper map_delete_elem", "open_outside: helper map_lookup_elem",
    "open_outside: helper map_update_elem", "open_outside: helper redirect",
    "open_outside: helper redirect_neigh", "open_outside: helper redirect_peer",
    "open_outside: helper skb_change_type", "open_outside: helper skb_load_bytes",
    "open_outside: helper skb_pull_data", "open_outside: helper skb_store_bytes",
    "open_outside: helper spin_lock", "open_outside: helper spin_unlock", "open_outside: helper tail_call",
    "open_outside: map array", "open_outside: map array_of_maps", "open_outside: map hash",
    "open_outside: map lpm_trie", "open_outside: map lru_hash", "open_outside: map percpu_array",
    "open_outside: map prog_array", "open_outside: tc", "open_tunnel: helper fib_lookup",
    "open_tunnel: helper get_prandom_u32", "open_tunnel: helper ktime_get_ns",
    "open_tunnel: helper l4_csum_replace", "open_tunnel: helper map_delete_elem",
    "open_tunnel: helper map_lookup_elem", "open_tunnel: helper map_update_elem",
    "open_tunnel: helper redirect", "open_tunnel: helper redirect_neigh", "open_tunnel: helper redirect_peer",
    "open_tunnel: helper skb_change_type", "open_tunnel: helper skb_load_bytes",
    "open_tunnel: helper skb_pull_data", "open_tunnel: helper skb_store_bytes",
    "open_tunnel: helper spin_lock", "open_tunnel: helper spin_unlock", "open_tunnel: helper tail_call",
    "open_tunnel: map array", "open_tunnel: map array_of_maps", "open_tunnel: map hash",
    "open_tunnel: map lpm_trie", "open_tunnel: map lru_hash", "open_tunnel: map percpu_array",
    "open_tunnel: map prog_array", "open_tunnel: tc", "to_outside: helper fib_lookup",
    "to_outside: helper ktime_get_ns", "to_outside: helper l4_csum_replace",
    "to_outside: helper map_delete_elem", "to_outside: helper map_lookup_elem",
    "to_outside: helper map_update_elem", "to_outside: helper skb_load_bytes",
    "to_outside: helper skb_pull_data", "to_outside: helper skb_store_bytes", "to_outside: helper spin_lock",
    "to_outside: helper spin_unlock", "to_outside: helper tail_call", "to_outside: map array",
    "to_outside: map hash", "to_outside: map lru_hash", "to_outside: map percpu_array",
    "to_outside: map prog_array",
)  # fmt: skip
def test_every_program_for_outside(world: World) -> None:
    """Each family, TCP and UDP, by a tunnel and straight back; too big, too far, to nobody, marked on the way,
    and from another node."""
    del world
    balanced: dict[str, Any] = {"kind": "load-balancer"}
    maglev: dict[str, Any] = {"algorithm": "maglev", "table_size": 251}
    with bed(1, 1, 0, source_check=2) as made:
        first, second, third = made.nodes
        pod = second.pods[0]
        places = {80: 30080, 82: 30082}
        for (port, node_port), mode in zip(places.items(), ("tunnel", "dsr"), strict=True):
            fronts = at(VIP, VIP6, port=port)
            made.service(
                mode, *fronts, backends=backend_of(pod), node_port=node_port, external_mode=mode, **balanced, **maglev
            )  # fmt: skip
        made.service("none", *at(VIP, VIP6, port=83), backends=[], nodes=[first], **balanced)
        lost = at(VIP, VIP6, port=81)
        made.service("lost", *lost, backends=backend_of(pod), nodes=[first], **balanced)
        made.service("lost", *lost, backends=backend_of(first.pods[0]), nodes=[second], **balanced)
        for family, vip in ((AF_INET, VIP), (AF_INET6, VIP6)):
            for kind in ("tcp", "udp"):
                with pod.listen(8080, kind, family) as listener:
                    for port, node_port in places.items():
                        talk(made.client, kind, listener, (first.own(family), node_port))
                        made.route(third)
                        talk(made.client, kind, listener, (vip, port))
                        made.route(first)
                for port in (81, 83):
                    assert refusal(made.client, kind, family, (vip, port)) == "refused"
            with pod.listen(8080, "udp", family) as listener:
                tell_tos(listener)
                inner = wrapped(datagram((made.client.own(family), 12000), (vip, 80), tos=2))
                send(first, family, second.own(family), inner, tos=3)
                assert receive_tos(listener) == (b"?", 3)
        assert first.event("too_big") > 0
        assert {name for node in made.nodes for name in node.counters()} <= {
            "opened", "answered", "tunnelled", "from_tunnel", "too_big", "drop too_big", "rejected", "icmp",
            "drop no_backend", "healed",
        }  # fmt: skip
