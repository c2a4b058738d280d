"""Why a connection goes where it goes: the winner among the bindings, and what each other one lacks."""

from __future__ import annotations

from svcctl.model.binding import HEADER_BITS, KEY, Binding
from svcctl.model.constants import IPV4
from svcctl.model.precedence import choose
from svcctl.model.prefix import mask_address
from svcctl.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Explanation(Record):
    """`losers` match too, in the order in which they would inherit; `reasons` is text, one line each."""

    winner: Binding | None
    losers: list[Binding]
    reasons: list[str]


def explain(
    bindings: Iterable[Binding] | Callable[[bytes], str | None],
    protocol: int,
    family: int,
    address: bytes,
    port: int,
) -> Explanation:
    """What a connection to `address` (16 bytes, v4-mapped for IPv4) and `port` meets.

    `bindings` is all of them, or a function that gives the label of exactly one key of 24 bytes (None: no
    such binding). The function is asked 66 times for IPv4 and 258 times for IPv6, however many bindings
    there are.
    """
    if callable(bindings):
        bindings = candidates(bindings, protocol, family, address, port)
    winner, losers = choose(bindings, protocol, family, address, port)
    if winner is None:
        return Explanation(None, [], ["no binding matches: the kernel looks for a listening socket as usual"])
    reasons = [f"{winner} wins: {_why_won(winner, losers)}"]
    reasons += [f"{loser} loses: {_why_lost(loser, winner)}" for loser in losers]
    return Explanation(winner, losers, reasons)


def candidates(
    label_of: Callable[[bytes], str | None], protocol: int, family: int, address: bytes, port: int
) -> list[Binding]:
    """Every binding that matches, found by asking for each key that could."""
    found = []
    shortest = 96 if family == IPV4 else 0
    for bits in range(128, shortest - 1, -1):
        masked = mask_address(address, bits)
        for candidate_port in (port, 0) if port else (0,):
            label = label_of(KEY.pack(HEADER_BITS + bits, protocol, family, candidate_port, masked))
            if label is not None:
                found.append(Binding(label, protocol, family, masked, bits - shortest, candidate_port))
    return found


def _why_won(winner: Binding, losers: list[Binding]) -> str:
    if not losers:
        return "it is the only binding that matches"
    if losers[0].length == winner.length:
        return f"of the longest prefix that matches, port {winner.port} beats all ports"
    return "it has the longest prefix that matches"


def _why_lost(loser: Binding, winner: Binding) -> str:
    if loser.length == winner.length:
        return f"same prefix, but for all ports: port {winner.port} is closer"
    return f"its prefix is shorter: /{loser.length} against /{winner.length}"
