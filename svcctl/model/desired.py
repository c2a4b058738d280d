"""The desired state: what an input asks for, whoever wrote it and in whichever form.

Readers of manifests (`model/sources`) make it, `state/apply` compares it with the pinned maps and carries it out.
It says nothing of ids, times or what is there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.model.binding import Binding
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service

NOTE = "note"
WARNING = "warning"

KUBERNETES, NATIVE, IPVSADM, KEEPALIVED = "kubernetes", "native", "ipvsadm", "keepalived"
TUBECTL, CONSUL, NOMAD = "tubectl", "consul", "nomad"
"""Kinds of sources; each is the owner of what it makes unless another is named."""

ADDRESSES, POD_PREFIXES = "addresses", "pod_prefixes"
"""What of this node a hand may give."""


class Notice(NamedTuple):
    """Something worth a line on stderr: `level` NOTE or WARNING, what it is about (or empty), and what to know."""

    level: str
    subject: str
    text: str


if TYPE_CHECKING:

    class Node(NamedTuple):
        """A node of the cluster: its addresses (family, 16 bytes), the pods' prefixes, and what it says of itself.

        `eligible`: load balancers may send it traffic (not being deleted, not about to be removed). `own`: it is this
        node, as far as the input can tell. `owner` is whose it is, None: the source's. `by_hand`: which of ADDRESSES
        and POD_PREFIXES a hand gave, if it is this node.
        """

        name: str
        addresses: tuple[tuple[int, bytes], ...] = ()
        pod_prefixes: tuple[Prefix, ...] = ()
        zone: str = ""
        eligible: bool = True
        own: bool = False
        owner: str | None = None
        by_hand: tuple[str, ...] = ()

    class Desired(NamedTuple):
        """What one source asks for.

        `kind` is one of the kinds above and `owner` who the objects belong to. `services` have no ids and their
        `owner` set; names are unique. `bindings` is None where a source has no say about them, else all of its
        bindings; `binding_owners` has the owner of those whose owner is not `owner`, by key. `blockers` say why
        the input may be an outage rather than a wish (and what it would have needed): nothing of it is applied
        unless forced. `errors` are those of them that nothing forces: the answer
        of a server that failed. `no_services`: the source has no say about services, so none are pruned for it.
        `node_port_addresses` are the prefixes where node ports are served, of both families; (): all of the
        node's own; None: it has no say about that. `namespaces`: of a cluster, those that the input has Services
        or EndpointSlices of; None for sources that are no cluster's. `says_nodes`: `nodes` are all there are, so
        that others of the owner may go. `objects` are the `namespace/name` of Services of Kubernetes whose ports are
        those of `services` and no others, though it may be none at all. `kept` are those of Services that could not be
        taken: what is there of them stays as it is. `settings`: those of the packet path that the source has a say
        about.
        """

        kind: str
        owner: str
        services: tuple[Service, ...] = ()
        bindings: tuple[Binding, ...] | None = None
        nodes: tuple[Node, ...] = ()
        node_port_addresses: tuple[Prefix, ...] | None = None
        notices: tuple[Notice, ...] = ()
        blockers: tuple[str, ...] = ()
        errors: tuple[str, ...] = ()
        no_services: bool = False
        namespaces: frozenset[str] | None = None
        binding_owners: Mapping[bytes, str] = {}
        says_nodes: bool = False
        objects: frozenset[str] = frozenset()
        settings: PacketSettings | None = None
        kept: frozenset[str] = frozenset()

else:
    from collections import namedtuple

    Node = namedtuple(
        "Node",
        "name addresses pod_prefixes zone eligible own owner by_hand",
        defaults=((), (), "", True, False, None, ()),
    )
    Desired = namedtuple(
        "Desired",
        "kind owner services bindings nodes node_port_addresses notices blockers errors no_services namespaces"
        " binding_owners says_nodes objects settings kept",
        defaults=((), None, (), None, (), (), (), False, None, {}, False, frozenset(), None, frozenset()),
    )
