"""`svcctl explain`: what would happen to a connection, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun, option
from svcctl.cli.params import ADDRESS, ENDPOINT
from svcctl.errors import PermissionProblem, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from svcctl.cli.env import Env
    from svcctl.host.sock_diag import DiagSocket
    from svcctl.model.endpoint import Endpoint
    from svcctl.model.prefix import Prefix
    from svcctl.state.explain import Explained
    from svcctl.state.explain_packet import ExplainedPacket
    from svcctl.state.explain_service import ExplainedService
    from svcctl.state.members import Member
    from svcctl.state.session import State


@noun(
    "explain",
    examples=(
        "svcctl explain 192.0.2.1:443/tcp",
        "svcctl explain '[2001:db8::1]:53/udp' --from 2001:db8::99",
    ),
    exits=(0, 2, 3, 4, 7),
)
@argument("endpoint", ENDPOINT, "Where the connection goes.", metavar="ADDRESS:PORT/PROTOCOL")
@option("--from", "source", type=ADDRESS, metavar="ADDRESS", help="Where it comes from.")
def command(env: Env, endpoint: Endpoint, source: Prefix | None) -> None:
    """Say who would get a new connection to ADDRESS and PORT: which binding wins and what loses and why, the
    label's sockets and which one is next, or which ordinary listener the kernel would choose.

    Of the address of a service: also what a connection of this host's own sockets meets, before a packet is
    sent: the backends with their shares, as 'svcctl nat' has them, which ones are none, and affinity; or why the
    balancer leaves it alone. The last line, "result", is what such a socket meets; "incoming" is for packets that
    come from elsewhere. With --from, "result" is what packets meet if the packet path deals with them, and "outgoing"
    what such a socket does.

    Established connections stay with their sockets whatever is bound. Neither bindings nor the balancer look at where
    a connection comes from; the balancer goes by the socket's cgroup, and refuses a frontend with source ranges rather
    than serve it unfiltered. The packet path does: with --from, "packets" is what a client with that address meets, a
    workload or one outside, by the interface that it is behind, source ranges, traffic policy and affinity; of one
    outside also how each backend is reached.
    """
    from svcctl.cli.access import reading
    from svcctl.maps.catalog import BALANCER, PACKETS
    from svcctl.state.explain import explain

    if source is not None and source.family != endpoint.family:
        raise UsageProblem("explain: --from: of another family than the endpoint")

    def look(state: State) -> tuple[Explained, ExplainedService | None, ExplainedPacket | None, bool]:
        state.need_all_maps()
        service = packet = None
        has_packets = state.has_half(PACKETS)
        if state.has_half(BALANCER):
            from svcctl.state.explain_service import explain_service

            service = explain_service(state, *endpoint)
        if source is not None and has_packets:
            from svcctl.state.explain_packet import explain_packet

            try:
                packet = explain_packet(state, *endpoint, source.address)
            except PermissionProblem as problem:
                env.notice(f"not told what packets meet: {problem}")
        return explain(state, endpoint), service, packet, has_packets

    found, service, packet, has_packets = reading(env, look)
    value = _object(found, source)
    if service is not None:
        from svcctl.cli.explain_service import as_object

        value["outgoing"] = as_object(service)
    if packet is not None:
        from svcctl.cli.explain_service import packet_object

        value["packets"] = packet_object(packet)
    env.emit_objects(
        "explain", [value], lambda: _lines(found, service, source, packet, has_packets), name="endpoint"
    )


def _object(found: Explained, source: Prefix | None) -> dict[str, Any]:
    from svcctl.model.prefix import format_address

    winner = found.explanation.winner
    return {
        "endpoint": str(found.endpoint),
        "from": format_address(source.family, source.address) if source else None,
        "verdict": found.verdict,
        "binding": str(winner) if winner else None,
        "label": winner.label if winner else None,
        "destination": found.number,
        "socket": _member(found.chosen) if found.chosen else None,
        "members": [_member(one) for one in found.members] if winner else None,
        "counters": found.stats._asdict() if found.stats else None,
        "listeners": [_listener(one) for one in found.listeners or ()] if _has_listeners(found) else None,
        "losers": [str(one) for one in found.explanation.losers],
        "reasons": found.explanation.reasons,
        "attached": found.attached,
        "local": found.local,
        "foreign": found.foreign or None,  # others than root cannot know
    }


def _has_listeners(found: Explained) -> bool:
    """Whether they matter, and are known."""
    return found.verdict == "pass" and found.listeners is not None


def _member(one: Member) -> dict[str, Any]:
    value: dict[str, Any] = {"slot": one.slot, "cookie": one.cookie, "live": one.fault is None}
    if one.listed is not None:
        value |= _listener(one.listed)
    return value | ({"fault": one.fault} if one.fault else {})


def _listener(one: DiagSocket) -> dict[str, Any]:
    return {"address": _where(one), "uid": one.uid, "cookie": one.cookie}


def _where(one: DiagSocket) -> str:
    from svcctl.model.prefix import MAPPED, format_host_port

    if one.family == 6 and one.address.startswith(MAPPED):
        return format_host_port(4, one.address, one.port)
    return format_host_port(one.family, one.mapped_address, one.port)


def _lines(
    found: Explained,
    service: ExplainedService | None,
    source: Prefix | None,
    packet: ExplainedPacket | None,
    has_packets: bool,
) -> Iterator[str]:
    from svcctl.model.prefix import format_address
    from svcctl.render.text import escape

    origin = f" from {format_address(source.family, source.address)}" if source else ""
    yield f"{found.endpoint}{origin}"
    if packet is not None:
        from svcctl.cli.explain_service import packet_line, packet_ways

        yield escape(f"  {'packets':<11} {packet_line(packet)}")
        for text in packet_ways(packet):
            yield escape(f"  {'':<11} {text}")
    elif has_packets and source is None and service is not None and service.route is not None:
        yield f"  {'packets':<11} --from CLIENT tells what the packet path does with a client's"
    for name, text in _facts(found, service, source, packet):
        yield escape(f"  {name:<11} {text}")


def _facts(
    found: Explained,
    service: ExplainedService | None,
    source: Prefix | None,
    packet: ExplainedPacket | None,
) -> Iterator[tuple[str, str]]:
    """The lines; the last one is what happens to the client's packets or else to a socket of this host."""
    if service is None:
        yield from _binding_facts(found, routed=True)
        yield "result", _result(found)
        return
    from svcctl.cli.explain_service import facts, packet_line, result

    if packet is not None and packet.verdict != "pass":
        # Neither bindings nor listeners nor the route see what is translated, answered or dropped before.
        yield from facts(service, source)
        yield "outgoing", result(service)
        yield "result", f"packets {packet_line(packet)}"
        return
    if service.verdict == "pass":
        yield from facts(service, source)
        yield "outgoing", result(service)
        yield from _binding_facts(found, routed=service.route is None)
        yield "result", _result(found)
        return
    # A frontend needs no route and no listener: those are of packets from elsewhere.
    yield from _binding_facts(found, routed=False)
    yield "incoming", _result(found)
    yield from facts(service, source)
    yield "result", result(service)


def _binding_facts(found: Explained, *, routed: bool) -> Iterator[tuple[str, str]]:
    winner = found.explanation.winner
    for number, reason in enumerate(found.explanation.reasons):
        yield ("bindings" if not number else "", reason)
    if winner is not None:
        owner = str(found.owner) if found.owner else "no label has it"
        yield "destination", f"{found.number}: {owner}"
        for number, one in enumerate(found.members):
            yield ("sockets" if not number else "", _member_text(one, one is found.chosen))
        if found.stats:
            lookups, refused, errors = found.stats
            yield "counters", f"{lookups} lookups, {refused} refused without a socket, {errors} errors"
    if not found.attached:
        yield "dispatcher", "not attached: bindings have no effect ('svcctl attach netns')"
    if found.foreign:
        yield "foreign", f"also at this hook: {', '.join(found.foreign)}; one that chooses a socket is obeyed"
    if found.local is False and routed:
        yield "route", _route_hint(found.endpoint)


def _member_text(one: Member, chosen: bool) -> str:
    where = f"{_where(one.listed)} (uid {one.listed.uid})" if one.listed else "not listed"
    state = one.fault or ("next" if chosen else "live")
    return f"slot {one.slot}: sk:{one.cookie:x} {where}: {state}"


def _route_hint(endpoint: Endpoint) -> str:
    from svcctl.model.prefix import format_address

    address = format_address(endpoint.family, endpoint.address)
    return (
        f"{address} is not local: packets to it do not come here"
        f" ('ip route add local {address} dev lo' makes it so)"
    )


def _result(found: Explained) -> str:
    if found.verdict == "socket":
        assert found.chosen is not None
        listed = found.chosen.listed
        where = _where(listed) if listed else f"sk:{found.chosen.cookie:x}"
        return f"goes to the socket on {where}, or to another of its SO_REUSEPORT group if it has one"
    if found.verdict == "refuse":
        return "refused: no socket of the label is live ('svcctl register-pid' registers one)"
    if found.local is False:
        return "left to the kernel, which has no such address: it goes where the host's routes lead"
    if found.listeners is None:
        return "left to the kernel; who listens in another namespace is seen with CAP_SYS_ADMIN only"
    if found.listeners:
        names = ", ".join(f"{_where(one)} (uid {one.uid})" for one in found.listeners)
        return f"left to the kernel: ordinary listeners, the first one gets it: {names}"
    return "left to the kernel, where nobody listens: refused"
