"""Whom the packet path chooses: by the slot of a Maglev table, and nobody for a source that is not admitted."""

from __future__ import annotations

import pytest

from svcctl.model.flow_hash import flow_hash, slot_of
from tests.kernel.test_packet_conntrack import CLIENT, Lab, lab
from tests.lib.frames import mapped
from tests.lib.svc import svc

__all__ = ["lab"]

DROP = 2


@pytest.mark.parametrize(("kind", "protocol"), [("tcp", 6), ("udp", 17)])
def test_a_flow_goes_where_its_slot_says(lab: Lab, kind: str, protocol: int) -> None:
    """Every node that has the table comes to the same backend, from the packet alone."""
    vip = "10.96.0.40"
    names = [f"10.244.9.{n}:8080" for n in range(1, 6)]
    lab.made.add("table", f"{vip}:80/{kind}", backends=names, algorithm="maglev", table_size=251)
    slots = [row["backend"] for row in svc("lut", "table", "--raw", "-o", "json").json["lut"]]
    for port in range(5000, 5040):
        sent = lab.out(kind, port=port, vip=vip, **({"flags": "S"} if kind == "tcp" else {}))
        value = flow_hash(mapped(CLIENT), mapped(vip), port, 80, protocol)
        assert f"{sent.destination}:8080" == slots[slot_of(value, len(slots))]


def test_sources_that_are_not_admitted(lab: Lab) -> None:
    """As commands store them: clients inside the ranges are served, others dropped without a word."""
    vip = "10.96.0.41"
    svc(
        "service", "add", "ranged", "--frontend", f"{vip}:80/tcp", "--kind", "load-balancer",
        "--source", "10.244.0.0/24", "--backend", "10.244.9.1:8080",
    )  # fmt: skip
    assert lab.out(vip=vip, client="10.244.0.7", flags="S").destination == "10.244.9.1"
    assert lab.out(vip=vip, client="10.244.1.7", flags="S").verdict == DROP
    assert lab.path.drops("filtered") == 1
