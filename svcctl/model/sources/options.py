"""What a caller says about its inputs beside the inputs themselves."""

from __future__ import annotations

from svcctl.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from svcctl.model.prefix import Prefix

PRIMARY = "primary"
"""In `node_port_addresses`: the node's first InternalIP of each family."""

ALL = "all"
"""In `node_port_addresses`, alone: every address of the node."""

HEADLESS_LABEL = "headless-label"
"""In `compat`: a Service with the label service.kubernetes.io/headless is left out, as kube-proxy did up to 1.34."""


class Options(Record):
    """How inputs are to be read; every reader takes what concerns it.

    `node` is our name in the inputs ("": not known, nothing is local), `zone` our zone where no Node object
    says it. `owner`: who the objects belong to; "": the kind of source. `external_ips`: the prefixes that
    externalIPs may be in; None: any, (): none. `node_port_addresses`: prefixes (`10.0.0.0/8`) or PRIMARY, or ALL;
    (): as it is. `partial`: convert what can be, where a source has something that cannot be, and say
    what was left out, instead of refusing it. `compat`: names of older behaviour (HEADLESS_LABEL).
    `other_nodes`: Node objects are all of the cluster's, not this node's alone. `node_said`: `node` is not just the
    host's name.
    `consul_address`: the name of the tagged address to take from Consul (`lan`, `wan` ...); "": the service's.
    """

    node: str = ""
    zone: str = ""
    owner: str = ""
    external_ips: tuple[Prefix, ...] | None = None
    node_port_addresses: tuple[str, ...] = ()
    partial: bool = False
    compat: tuple[str, ...] = ()
    consul_address: str = ""
    other_nodes: bool = True
    node_said: bool = False
