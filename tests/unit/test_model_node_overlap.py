"""Prefixes of nodes that have something of another node's in them."""

from __future__ import annotations

from svcctl.model.node_overlap import OWN, overlaps
from svcctl.model.prefix import Prefix, parse_address, parse_prefix


def claims(**nodes: str) -> dict[Prefix, str]:
    """Whose each prefix is; `own` is this node."""
    return {
        parse_prefix(text): OWN if name == "own" else name
        for name, texts in nodes.items()
        for text in texts.split()
    }


def texts(whose: dict[Prefix, str], *backends: str) -> list[tuple[str, str]]:
    return [(one.node, str(one)) for one in overlaps(whose, map(parse_address, backends))]


def test_nodes_that_are_apart() -> None:
    whose = claims(own="192.0.2.1 10.244.1.0/24 10.244.1.1", b="192.0.2.2 10.244.2.0/24 fd00:2::/64")
    assert texts(whose, "10.244.1.9", "10.99.0.1", "192.0.2.1") == []
    assert texts({}) == []
    # What a node has in a prefix of its own is nothing to tell, whatever is around that.
    assert texts(claims(b="10.0.0.0/8 10.1.0.0/16 10.1.0.1")) == []


def test_what_is_in_a_wide_prefix() -> None:
    whose = claims(own="10.244.1.0/24 192.0.2.1", b="10.244.2.0/24", w="10.244.0.0/16")
    stays = "10.244.1.0/24 of this node, 10.244.2.0/24 of node b"
    assert texts(whose) == [("w", f"pod prefix 10.244.0.0/16 has in it {stays}, which stay there")]
    assert texts(whose, "10.244.9.9", "10.244.1.9") == [
        ("w", f"pod prefix 10.244.0.0/16 has in it {stays}, 1 backend of this node, which stay there")
    ]
    assert texts(claims(w="10.244.0.0/16"), "10.244.9.9") == [
        ("w", "pod prefix 10.244.0.0/16 has in it 1 backend of this node, which stays there")
    ]
    assert texts(claims(own="10.0.0.0/8", b="10.1.0.1")) == [
        ("", "pod prefix 10.0.0.0/8 has in it 10.1.0.1 of node b, which stays there")
    ]


def test_the_closest_prefix_is_the_one_that_has_it() -> None:
    whose = claims(a="10.0.0.0/8", b="10.1.0.0/16", c="10.1.1.0/24", own="fd00::/16")
    assert [(one.node, one.inside) for one in overlaps(whose)] == [
        ("a", (("b", parse_prefix("10.1.0.0/16")),)),
        ("b", (("c", parse_prefix("10.1.1.0/24")),)),
    ]


def test_many_are_counted() -> None:
    whose = claims(w="10.0.0.0/8") | {parse_prefix(f"10.{n}.0.0/16"): "b" for n in range(6)}
    ((_, text),) = texts(whose)
    assert "10.2.0.0/16 of node b, 3 more of other nodes, which stay there" in text
