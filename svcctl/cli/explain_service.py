"""How `explain` shows what a service does with a connection: as an object, and as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from svcctl.model.prefix import Prefix
    from svcctl.state.explain_packet import ExplainedPacket
    from svcctl.state.explain_service import ExplainedService


def as_object(found: ExplainedService) -> dict[str, Any]:
    """For JSON and YAML; the backends and shares are those of `nat`."""
    route = found.route
    return {
        "verdict": found.verdict,
        "reason": found.why,
        "met": found.met,
        "frontend": route.name if route is not None else None,
        "service": route.service if route is not None else None,
        "policy": found.policy,
        "set": route.set if route is not None else None,
        "backends": [
            {"backend": share.name, "share": float(share.share)} for share in (route.shares if route else ())
        ],
        "affinity": found.affinity_seconds or None,
        "affine": found.affine._asdict() if found.affine is not None else None,
        "only_host": found.only_host,
        "attached": found.attached,
        "fault": found.fault,
        "counters": (
            {
                "connections": found.stats.connections,
                "no_backend": found.stats.no_backend,
                "dropped": found.stats.dropped,
            }
            if found.stats is not None
            else None
        ),
        "losers": list(found.losers),
        "others": list(found.others),
        "sources": None if found.sources is None else [str(each) for each in found.sources],
    }


def facts(found: ExplainedService, source: Prefix | None = None) -> Iterator[tuple[str, str]]:
    """(name, text) of each line. `source`: the client, if it is known."""
    from svcctl.model.service import reaches_outside

    route = found.route
    if route is not None:
        yield "service", f"{route.service or 'none'}, by its {found.met} {route.name}"
        if found.policy is not None:
            yield "policy", f"{found.policy}: the {route.set} set"
        for number, share in enumerate(route.shares):
            yield ("backends" if not number else "", f"{share.name}: {float(share.share) * 100:.4g}%")
    for number, text in enumerate(found.others):
        yield ("not chosen" if not number else "", text)
    for number, text in enumerate(found.losers):
        yield ("frontends" if not number else "", text)
    if found.service is not None and reaches_outside(found.service):
        policy = "local" if found.service.external_local else "cluster"
        mode = "directly (DSR)" if found.service.dsr else "through the tunnel"
        yield "outside", f"the {policy} set; backends on other nodes answer {mode}"
    if found.sources is not None:
        yield "sources", _sources(found.sources, source)
    if found.affinity_seconds:
        yield "affinity", f"a client is kept on its backend for {found.affinity_seconds} s"
    if found.affine is not None:
        client, backend, remaining = found.affine
        text = f"sockets of this namespace ({client}) go to {backend} for {remaining:.1f} s more"
        yield ("affinity" if not found.affinity_seconds else "", text)
    if found.stats is not None:
        connections, no_backend, dropped = found.stats[:3]
        yield "counters", f"{connections} connections, {no_backend} without a backend, {dropped} dropped"
    if found.fault is not None and found.fault != found.why:
        yield "balancer", found.fault


SHOWN = 5
"""So many source ranges are named."""


def _sources(ranges: Sequence[Prefix], source: Prefix | None) -> str:
    """Which clients are admitted, or whether and why the one that was asked about is."""
    from svcctl.model.prefix import format_address
    from svcctl.model.service import admitting

    given = ", ".join(map(str, ranges[:SHOWN])) + (
        f" and {len(ranges) - SHOWN} more" if ranges[SHOWN:] else ""
    )
    if not ranges:
        return "nobody is admitted: no source range is of this family"
    if source is None:
        return f"admitted are {given}"
    client = format_address(source.family, source.address)
    closest = admitting(ranges, source.family, source.address)
    if closest is None:
        return f"{client} is not admitted: it is in none of {given}"
    return f"{client} is admitted by {closest}"


def result(found: ExplainedService) -> str:
    """What a socket of this host meets, in a line."""
    where = "sockets of this namespace" if found.only_host else "sockets of this host"
    if found.verdict == "serve":
        assert found.route is not None
        shares = found.route.shares
        target = shares[0].name if len(shares) == 1 else f"one of {len(shares)} backends"
        return f"{where} in the balancer's cgroup go to {target}"
    if found.verdict == "refuse":
        return f"{where} in the balancer's cgroup are refused: {found.why}"
    return f"left alone: {found.why}"


def packet_object(found: ExplainedPacket) -> dict[str, Any]:
    """What the packet path does, for JSON and YAML."""
    value = found._asdict()
    shares = value.pop("shares")
    value["ways"] = [way._asdict() for way in found.ways]
    value["backends"] = [{"backend": share.name, "share": float(share.share)} for share in shares]
    return value


def packet_ways(found: ExplainedPacket) -> Iterator[str]:
    """How packets from outside get to each backend, and their answers back."""
    for backend, way, node, direct in found.ways:
        text = {
            "local": "a workload of this node",
            "tunnel": f"through the tunnel to node {node}",
            "masqueraded": "with this node's address as the client's",
            "routed": "by the host's routes, with the client's address as it is",
            "nowhere": f"dropped: there is no tunnel to node {node or '?'}",
        }[way]
        if way == "tunnel":
            text += ", which answers the client by itself (DSR)" if direct else ", and back through it"
        yield f"{backend}: {text}"


def packet_line(found: ExplainedPacket) -> str:
    """The same in a line."""
    where = f"by {found.interface} " if found.interface else ""
    if found.verdict == "serve":
        by = f"; {found.admitted_by} admits the client" if found.admitted_by else ""
        if found.affine is not None:
            return f"{where}go to {found.affine}, for {found.remaining:.1f} s more whatever else there is{by}"
        return f"{where}go to one of {', '.join(map(str, found.shares))}{by}"
    action = {"refuse": "are refused", "drop": "are dropped", "pass": "are left alone"}[found.verdict]
    return f"{where}{action}: {found.why}"
