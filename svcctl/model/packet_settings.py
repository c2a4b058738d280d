"""Settings of the packet path that a hand or a file gives: this node's ends of tunnels, their port, and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue
from svcctl.record import Record

if TYPE_CHECKING:
    from svcctl.model.prefix import Prefix

LOWEST_PORT = 1024
"""Of the range of source ports."""
MAX_PORT = 65535
SMALLEST_MTU, LARGEST_MTU = 576, 65535


class PacketSettings(Record):
    """What was asked for; None: as it is.

    `addresses` are (family, 16 bytes), none of them: no tunnels; `ports` are the first and last source port; `no_dsr`
    are prefixes of clients. `pod_prefixes` and `node_name` are this node's. `keep_flows`: TCP whose backend was deleted
    goes on; `reset_unknown`: TCP to a service that belongs to no connection is answered with RST.
    """

    addresses: tuple[tuple[int, bytes], ...] | None = None
    tunnel_port: int | None = None
    tunnel_mtu: int | None = None
    clamp: bool | None = None
    ports: tuple[int, int] | None = None
    no_dsr: tuple[Prefix, ...] | None = None
    pod_prefixes: tuple[Prefix, ...] | None = None
    node_name: str | None = None
    keep_flows: bool | None = None
    reset_unknown: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return all(one is None for one in self)


def parse_port_range(text: str) -> tuple[int, int]:
    """`20000-29999`: the first and the last port. Raises UsageProblem."""
    words = text.split("-")
    if len(words) == 2 and all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        first, last = map(int, words)
        if LOWEST_PORT <= first <= last <= MAX_PORT:
            return first, last
    raise BadValue("ports", text, f"expected FIRST-LAST of {LOWEST_PORT}-{MAX_PORT}")


def is_tunnel_mtu(number: int) -> bool:
    """Whether it can be the longest packet of a tunnel; 0: as long as the interface takes."""
    return number == 0 or SMALLEST_MTU <= number <= LARGEST_MTU
