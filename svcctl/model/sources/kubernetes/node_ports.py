"""Where node ports are served (R12): kube-proxy's --nodeport-addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import Prefix, parse_prefix
from svcctl.model.service_endpoint import zero_address
from svcctl.model.sources.options import ALL, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.sources.kubernetes.nodes import NodeFacts
    from svcctl.model.sources.kubernetes.notices import Notices

SUBJECT = "node ports"


def read_words(wanted: Sequence[str]) -> set[Prefix]:
    """The prefixes among the words. Raises UsageProblem for a word that is none, nor PRIMARY or ALL alone."""
    if ALL in wanted and set(wanted) != {ALL}:
        raise UsageProblem("--node-port-addresses: all stands alone")
    return {parse_prefix(each) for each in wanted if each not in (PRIMARY, ALL)}


def node_port_prefixes(
    wanted: Sequence[str], own: NodeFacts | None, notices: Notices
) -> tuple[tuple[Prefix, ...] | None, tuple[str, ...]]:
    """The prefixes, () for all addresses of the node, None if nothing is wanted; and why they cannot be told, if so.

    As kube-proxy, a family of which no prefix was given is served everywhere; that is written out as the
    prefix of everything. PRIMARY is the first InternalIP of each family that the node has one of, and means
    no address of a family that it has none of. Raises UsageProblem for what is neither.
    """
    if not wanted:
        return None, ()
    found = read_words(wanted)
    if ALL in wanted:
        return (), ()
    if PRIMARY in wanted:
        if own is None or not own.internal:
            return None, (
                "node ports are to be served at the node's primary address: needed is this node's Node object",
            )
        primary: dict[int, bytes] = {}
        for family, address in own.internal:
            primary.setdefault(family, address)
        found |= {
            Prefix(family, address, 32 if family == IPV4 else 128) for family, address in primary.items()
        }
        return tuple(sorted(found)), ()
    for family, word in ((IPV4, "IPv4"), (IPV6, "IPv6")):
        if not any(each.family == family for each in found):
            found.add(Prefix(family, zero_address(family), 0))
            notices.note(
                SUBJECT, f"no prefix is {word}: they are served at every {word} address of this node"
            )
    return tuple(sorted(found)), ()
