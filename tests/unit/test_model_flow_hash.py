"""The hash of flows: known values, and slots that are spread evenly however alike the flows are."""

from __future__ import annotations

from svcctl.model.flow_hash import cookie_hash, flow_hash, slot_of

MAPPED = bytes(10) + b"\xff\xff"
CLIENT, SERVICE = MAPPED + bytes((192, 0, 2, 1)), MAPPED + bytes((10, 96, 0, 10))

KNOWN, COOKIE = 0x1D47D79C39171134, 0x88C36E58623ABC0C


def chi_square(counts: list[int]) -> float:
    """How far counts are from equal ones."""
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / mean


def test_known_values() -> None:
    """Another version on another node must agree: changing these moves every flow of a cluster."""
    assert flow_hash(CLIENT, SERVICE, 40_000, 80, 6) == KNOWN
    assert cookie_hash(1) == COOKIE


def test_ports_that_follow_each_other_are_spread() -> None:
    """A client's ports grow by one or two; 100 slots, 99 degrees of freedom, one in a million is above 170."""
    for step in (1, 2):
        counts = [0] * 100
        for port in range(1024, 1024 + 20_000 * step, step):
            counts[slot_of(flow_hash(CLIENT, SERVICE, port, 80, 6), 100)] += 1
        assert chi_square(counts) < 170


def test_clients_that_follow_each_other_are_spread() -> None:
    """The addresses of a /18, the same port."""
    counts = [0] * 100
    for number in range(16_384):
        client = MAPPED + (0x0A000000 + number).to_bytes(4, "big")
        counts[slot_of(flow_hash(client, SERVICE, 40_000, 80, 6), 100)] += 1
    assert chi_square(counts) < 170


def test_cookies_are_spread() -> None:
    """Cookies of sockets are given out in order."""
    counts = [0] * 100
    for cookie in range(20_000):
        counts[slot_of(cookie_hash(cookie), 100)] += 1
    assert chi_square(counts) < 170


def test_protocol_and_frontend_matter() -> None:
    """TCP and UDP of one client, and two services, go their own ways."""
    one = flow_hash(CLIENT, SERVICE, 40_000, 53, 6)
    assert one != flow_hash(CLIENT, SERVICE, 40_000, 53, 17)
    assert one != flow_hash(CLIENT, SERVICE, 40_000, 54, 6)
    assert one != flow_hash(SERVICE, CLIENT, 40_000, 53, 6)
