"""Services: what is said of one, what that means for each family, and what may not be said.

A service is a plain value: its policy, its frontends and the memberships of its backends. From it follow, for
each address family of its frontends, the backends that new connections get (`blocks_of`) and the flags that
each frontend carries in the kernel (`frontend_flags`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.model.bad_value import BadValue
from svcctl.model.label import MAX_OWNER_BYTES, check_name
from svcctl.model.maglev import DEFAULT_SIZE, check_size
from svcctl.model.prefix import Prefix, covers, format_address
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    KIND_CLUSTER,
    KIND_LOAD_BALANCER,
    KIND_NAMES,
    KIND_NODE_PORT,
    MAX_WEIGHT,
    STATE_NAMES,
    Backend,
    Frontend,
    format_backend,
    format_frontend,
    is_loopback,
    is_zero,
    zero_address,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

RANDOM = 0
MAGLEV = 1
MAGLEV_STABLE = 2
ALGORITHM_NUMBERS = {"random": RANDOM, "maglev": MAGLEV, "maglev-stable": MAGLEV_STABLE}
ALGORITHM_NAMES = {number: name for name, number in ALGORITHM_NUMBERS.items()}

FRONTEND_LOCAL = 1
FRONTEND_FILTERED = 2
FRONTEND_HOST = 4
FRONTEND_BLOCK = 8
FRONTEND_OUTSIDE_LOCAL = 16
FRONTEND_TABLE = 32
FRONTEND_DSR = 64
FRONTEND_OUTSIDE = 128
"""As enum svc_frontend_flag."""

REJECT = 0
DROP = 1
"""As enum svc_verdict: what happens to connections when a set is empty."""

IN_CLUSTER = 1
IN_LOCAL = 2
IN_BOTH = 3
"""Bits of `Member.sets`."""

CLUSTER_SET = "cluster"
LOCAL_SET = "local"

MAX_NAME_BYTES = 255
MAX_AFFINITY_SECONDS = (1 << 24) - 1
DEFAULT_AFFINITY_SECONDS = 10800
"""What Kubernetes takes when a service only says ClientIP."""

ServiceFrontend = NamedTuple("ServiceFrontend", [("frontend", Frontend), ("kind", int)])  # noqa: UP014
"""A frontend and its kind (KIND_CLUSTER ...)."""

BackendSet = NamedTuple(  # noqa: UP014
    "BackendSet",
    [
        ("kind", str),
        ("family", int),
        ("members", tuple[tuple[Backend, int], ...]),
        ("verdict", int),
        ("affinity_seconds", int),
        ("algorithm", int),
        ("sources", tuple[Prefix, ...]),
        ("table_size", int),
        ("resting", tuple[Backend, ...]),
    ],
)
"""All that a block is made of: who gets the new connections of one family, and how.

`kind` is CLUSTER_SET or LOCAL_SET; `members` are (Backend, weight) in order of address and port, so equal sets
are equal values; `verdict` matters when there are none; `sources` are the service's source ranges,
`table_size` is 0 without Maglev. `resting` are the service's other backends of the family, which keep the
connections they have.
"""

if TYPE_CHECKING:

    class Member(NamedTuple):
        """A backend's membership in a service.

        `local`: on this node; None, in what an input asks for: it does not say. `since_ns` is when it got its state and
        `until_ns` when a drain ends it (0: never), both CLOCK_REALTIME. `sets`: which sets it may be in while active,
        IN_CLUSTER and IN_LOCAL; Kubernetes' topology hints and its fallback to terminating endpoints are about one set
        and not the other.
        """

        backend: Backend
        weight: int = DEFAULT_WEIGHT
        state: int = ACTIVE
        local: bool | None = False
        since_ns: int = 0
        until_ns: int = 0
        sets: int = IN_BOTH

    class Lane(NamedTuple):
        """The two sets of one family. `local` is None when nobody is to be kept on this node."""

        family: int
        cluster: BackendSet
        local: BackendSet | None

    class Service(NamedTuple):
        """A service. `id` is 0 until the state gives it one; `changed_ns` is when it was last written.

        `internal_local` and `external_local` are the two traffic policies; `block`: other ports of its
        addresses are refused; `drop`: an empty set drops (and counts so) instead of rejecting; `node_port`: 0,
        or the port of its node-port frontends; `sources`: prefixes that its load-balancer frontends admit,
        none: all. The order of `frontends` and `members` is that of their entries in the maps and means
        nothing. `health_port`: where 'svcctl health' answers whether this node has ready backends, and
        `local_ready` how many it has; 0: nowhere. `table_size`: slots of its Maglev tables, 0: the default.
        `dsr`: backends on other nodes answer clients from outside by themselves, not through this node.
        """

        name: str
        id: int = 0
        affinity_seconds: int = 0
        algorithm: int = RANDOM
        internal_local: bool = False
        external_local: bool = False
        block: bool = False
        drop: bool = False
        node_port: int = 0
        owner: str = ""
        sources: tuple[Prefix, ...] = ()
        frontends: tuple[ServiceFrontend, ...] = ()
        members: tuple[Member, ...] = ()
        changed_ns: int = 0
        health_port: int = 0
        local_ready: int = 0
        table_size: int = 0
        dsr: bool = False

else:
    from collections import namedtuple

    Member = namedtuple(
        "Member",
        "backend weight state local since_ns until_ns sets",
        defaults=(DEFAULT_WEIGHT, ACTIVE, False, 0, 0, IN_BOTH),
    )
    Lane = namedtuple("Lane", "family cluster local")
    Service = namedtuple(
        "Service",
        "name id affinity_seconds algorithm internal_local external_local block drop node_port owner sources"
        " frontends members changed_ns health_port local_ready table_size dsr",
        defaults=(0, 0, RANDOM, False, False, False, False, 0, "", (), (), (), 0, 0, 0, 0, False),
    )


def check_service_name(text: str) -> str:
    """Returns `text` if it can name a service: 1 to 255 bytes of printable UTF-8. Raises UsageProblem."""
    return check_name("service name", text, MAX_NAME_BYTES)


def check_service(service: Service) -> Service:
    """Returns the service if everything said of it can be so. Raises UsageProblem naming what cannot."""
    check_service_name(service.name)
    if service.owner:
        check_name("owner", service.owner, MAX_OWNER_BYTES)
    if not 0 <= service.affinity_seconds <= MAX_AFFINITY_SECONDS:
        raise BadValue("affinity", service.affinity_seconds, f"expected 0-{MAX_AFFINITY_SECONDS} seconds")
    if service.algorithm not in ALGORITHM_NAMES:
        raise BadValue("algorithm", service.algorithm, "expected random or maglev")
    if service.table_size:
        if service.algorithm == RANDOM:
            raise BadValue("table size", service.table_size, "is for the algorithm maglev")
        check_size(service.table_size)
    _check_frontends(service)
    _check_node_port(service)
    if not 0 <= service.health_port <= 65535:
        raise BadValue("health port", service.health_port, "expected 1-65535, or 0 for none")
    _check_members(service.members)
    return service


def families(service: Service) -> list[int]:
    """The families of its frontends, ipv4 first: each has a lane."""
    return sorted({each.frontend.family for each in service.frontends})


def eligible(members: Iterable[Member], family: int, *, local_only: bool = False) -> list[Member]:
    """The members of a family's set that may get new connections: active, with a weight above 0."""
    wanted = IN_LOCAL if local_only else IN_CLUSTER
    return [
        member
        for member in members
        if member.backend.family == family
        and member.state == ACTIVE
        and member.weight > 0
        and member.sets & wanted
        and (member.local or not local_only)
    ]


def overdue(service: Service, now_ns: int) -> list[Member]:
    """The members whose drain has ended: their old connections are to be ended now."""
    return [member for member in service.members if member.until_ns and member.until_ns <= now_ns]


def blocks_of(service: Service) -> list[Lane]:
    """What each family of the service's frontends leads to, ipv4 first.

    An empty set rejects, or drops if the service says so. A local set that is empty while other nodes have
    backends drops, as kube-proxy does: another node may serve the client.
    """
    return [_lane(service, family) for family in families(service)]


def table_size(service: Service) -> int:
    """Slots of its Maglev tables; 0: it has none."""
    if service.algorithm == RANDOM:
        return 0
    return service.table_size or DEFAULT_SIZE


def same_set(one: BackendSet | None, other: BackendSet | None) -> bool:
    """Whether one block can stand for both, whichever of the two sets of the family they are."""
    if one is None or other is None:
        return one is other
    return one[1:] == other[1:]


def same_choice(one: BackendSet | None, other: BackendSet | None) -> bool:
    """Whether new connections get the same from both."""
    if one is None or other is None:
        return one is other
    return one[1:-1] == other[1:-1]


def frontend_flags(service: Service, frontend: ServiceFrontend) -> int:
    """Bits FRONTEND_..., as far as they hold.

    The internal policy is for the cluster kind alone, and for everybody. Clients inside (sockets of this host,
    workloads, other nodes) get all backends of an external, load-balancer or node-port frontend whatever the two
    policies say: the short circuit of kube-proxy, without which clients on a node that has no backend were cut
    off. The external policy (FRONTEND_OUTSIDE_LOCAL) is for those from outside.
    """
    (family, address, _, _), kind = frontend
    flags = 0
    if service.internal_local and kind == KIND_CLUSTER:
        flags |= FRONTEND_LOCAL
    if kind == KIND_LOAD_BALANCER and is_filtered(service.sources, family):
        flags |= FRONTEND_FILTERED
    if kind == KIND_NODE_PORT or is_loopback(family, address) or is_zero(family, address):
        flags |= FRONTEND_HOST
    if service.algorithm != RANDOM:
        flags |= FRONTEND_TABLE
    if kind != KIND_CLUSTER:
        flags |= FRONTEND_OUTSIDE
        flags |= FRONTEND_OUTSIDE_LOCAL if service.external_local else 0
        flags |= FRONTEND_DSR if service.dsr else 0
    return flags


def is_filtered(sources: Iterable[Prefix], family: int) -> bool:
    """Whether load-balancer frontends of the family admit some clients and not others.

    Not if one of the ranges is all of the family. Ranges of the other family alone admit nobody; Kubernetes,
    for which they admit everybody, has the range of everything added.
    """
    given = list(sources)
    return bool(given) and not any(each.family == family and not each.length for each in given)


def reaches_outside(service: Service) -> bool:
    """Whether clients outside are to reach it: one of its frontends is not of the cluster kind."""
    return any(kind != KIND_CLUSTER for _, kind in service.frontends)


def admitting(sources: Iterable[Prefix], family: int, address: bytes) -> Prefix | None:
    """The closest range that admits a client with that address, 16 bytes; None: none does."""
    those = [each for each in sources if covers(each, family, address)]
    return max(those, key=lambda each: each.length, default=None)


def blocked_addresses(service: Service) -> list[tuple[int, bytes]]:
    """(family, address) of which all other ports are refused; empty unless the service has `block`.

    Node ports are left out: their addresses are the node's own.
    """
    if not service.block:
        return []
    return sorted({each.frontend[:2] for each in service.frontends if each.kind != KIND_NODE_PORT})


def node_port_frontends(frontends: Iterable[ServiceFrontend], port: int) -> list[ServiceFrontend]:
    """The frontends that a node port adds: the zero address for each family and protocol there is."""
    pairs = {(each.frontend.family, each.frontend.protocol) for each in frontends}
    return [
        ServiceFrontend(Frontend(family, zero_address(family), port, protocol), KIND_NODE_PORT)
        for family, protocol in sorted(pairs)
    ]


def _lane(service: Service, family: int) -> Lane:
    empty = DROP if service.drop else REJECT
    everyone = eligible(service.members, family)
    local = None
    if service.internal_local or service.external_local or reaches_outside(service):
        # Also for what other nodes send through the tunnel: it is not sent on.
        here = eligible(service.members, family, local_only=True)
        local = _set(service, LOCAL_SET, family, here, DROP if everyone else empty)
    return Lane(family, _set(service, CLUSTER_SET, family, everyone, empty), local)


def _set(service: Service, kind: str, family: int, members: Iterable[Member], verdict: int) -> BackendSet:
    pairs = tuple(sorted((member.backend, member.weight) for member in members))
    chosen = {backend for backend, _ in pairs}
    others = (member.backend for member in service.members if member.backend not in chosen)
    return BackendSet(
        kind,
        family,
        pairs,
        # Without meaning when there are members: the same then, so that sets compare equal.
        REJECT if pairs else verdict,
        service.affinity_seconds,
        service.algorithm,
        tuple(sorted(service.sources)),
        table_size(service),
        tuple(sorted(backend for backend in others if backend.family == family)),
    )


def _check_frontends(service: Service) -> None:
    seen = set()
    for each in service.frontends:
        frontend, kind = each
        text = format_frontend(frontend)
        if kind not in KIND_NAMES:
            raise BadValue("frontend", text, f"has the unknown kind {kind}")
        if frontend in seen:
            raise BadValue("frontend", text, "is named twice")
        seen.add(frontend)
        if kind != KIND_NODE_PORT and is_zero(frontend.family, frontend.address):
            hint = f"--node-port {frontend.port} serves every address of the node"
            raise BadValue("frontend", text, "the zero address is for node ports", hint=hint)
    for family, address in blocked_addresses(service):
        if is_loopback(family, address):
            cause = "the other ports of a loopback address cannot be blocked"
            raise BadValue("service", service.name, f"{format_address(family, address)}: {cause}")
    if service.sources and not any(each.kind == KIND_LOAD_BALANCER for each in service.frontends):
        hint = "give a frontend that kind, or leave the source ranges out"
        raise BadValue(
            "service", service.name, "source ranges are for load-balancer frontends; it has none", hint=hint
        )


def _check_node_port(service: Service) -> None:
    port = service.node_port
    if not 0 <= port <= 65535:
        raise BadValue("node port", port, "expected 1-65535, or 0 for none")
    kinds = ((each.kind, each.frontend.port) for each in service.frontends)
    if port and (KIND_NODE_PORT, port) not in kinds:
        cause = "needs another frontend, from which it takes family and protocol"
        raise BadValue("node port", port, cause)


def _check_members(members: Iterable[Member]) -> None:
    seen = set()
    for member in members:
        if member.backend in seen:
            raise BadValue("backend", format_backend(member.backend), "is named twice")
        seen.add(member.backend)
        if not 0 <= member.weight <= MAX_WEIGHT:
            cause = f"expected a weight of 0-{MAX_WEIGHT}, got {member.weight}"
            raise BadValue("backend", format_backend(member.backend), cause)
        if member.state not in STATE_NAMES:
            raise BadValue("backend", format_backend(member.backend), f"has the unknown state {member.state}")
