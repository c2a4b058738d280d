"""When a flow of the packet path is over: states and idle times, as bpf/include/svc_conntrack.h has them.

Pure: the program judges an entry when a packet meets it, commands judge what nobody met.
"""

from __future__ import annotations

from svcctl.model.constants import TCP, UDP
from svcctl.record import Record

__all__ = ["FIN", "REPLY", "RST", "Timeouts", "expired", "idle_limit_ms", "is_closed", "state_name"]

FIN, RST, REPLY, MOVED, RESET = 1, 2, 4, 8, 16
"""Bits of `seen` and `other`: enum svc_flow_seen."""
ONE_SIDED = 8
"""Of `kind`: enum svc_flow_kind."""

_NS = 1_000_000


class Timeouts(Record):
    """Idle times in milliseconds, in the order of struct svc_packet_config."""

    syn_ms: int = 20_000
    """TCP that was not answered yet."""
    established_ms: int = 3_600_000
    fins_ms: int = 120_000
    """Both sides have said FIN: long enough for a client's TIME_WAIT, so that its port is not taken for free."""
    reset_ms: int = 40_000
    """A RST was the last that was seen."""
    after_reset_ms: int = 120_000
    """There was a RST and traffic after it: somebody did not believe it."""
    udp_ms: int = 60_000
    fragment_ms: int = 30_000
    """How long a first fragment's ports are remembered."""


DEFAULTS = Timeouts()


def is_closed(seen: int, other: int, *, one_sided: bool = False) -> bool:
    """Whether a SYN with the same ports begins a new connection.

    `seen`, `other`: bits of the two directions; `one_sided`: the other one does not come by here.
    """
    return bool((seen | other) & RST or seen & (FIN if one_sided else other) & FIN)


def idle_limit_ms(
    timeouts: Timeouts,
    protocol: int,
    *,
    seen: int = 0,
    other: int = 0,
    answered: bool = False,
    was_reset: bool = False,
    one_sided: bool = False,
) -> int:
    """How long a flow in this state may be idle.

    `answered`: it is in `flows`; `was_reset`: `reset_ns` is not 0; `one_sided`: only one direction comes by here
    (direct server return), so one FIN is all there will be; it counts as answered when its client goes on.
    """
    if protocol == UDP:
        return timeouts.udp_ms
    if (seen | other) & RST:
        return timeouts.reset_ms
    if seen & other & FIN or (one_sided and (seen | other) & FIN):
        return timeouts.fins_ms
    if not answered:
        return timeouts.syn_ms
    return timeouts.after_reset_ms if was_reset else timeouts.established_ms


def expired(limit_ms: int, now_ns: int, *seen_ns: int) -> bool:
    """Whether the later of the directions that are there was idle for longer than the limit.

    Times of CLOCK_MONOTONIC; a time after `now_ns` is another CPU's.
    """
    return now_ns - max(seen_ns) > limit_ms * _NS


def state_name(protocol: int, *, seen: int, other: int, answered: bool) -> str:
    """What a listing calls the state, from the client's entry: its own bits, then those of the backend's side."""
    if protocol != TCP:
        return "replied" if answered or other & REPLY else "unreplied"
    if (seen | other) & RST:
        return "reset"
    if seen & other & FIN:
        return "closed"
    if seen & FIN:
        return "client-closed"
    if other & FIN:
        return "backend-closed"
    if answered:
        return "established"
    return "syn-received" if other & REPLY else "syn-sent"
