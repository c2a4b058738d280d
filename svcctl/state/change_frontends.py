"""The frontends of a change of services: who has which before and after, in which order they move, what is written.

Frontends may move between the services of one change. A service that loses one keeps its old set of backends until
the frontend has moved, and the one that gains it has its new set before: so the changes have levels, and each level's
lanes are switched, and then its frontends written, before the next one's. Services that exchange frontends in a
circle get new lanes, so that nobody has to wait for anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import Conflict
from svcctl.maps import enums
from svcctl.maps import service_codec as codec
from svcctl.maps.service_layouts import FRONTEND_KEY
from svcctl.model.constants import PROTOCOL_NAMES
from svcctl.model.prefix import format_address
from svcctl.model.service import RANDOM, blocked_addresses, families, frontend_flags
from svcctl.model.service_endpoint import format_frontend, is_zero
from svcctl.state.change_source import STRAY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.service import Service
    from svcctl.state.change_source import Source
    from svcctl.state.services import Stored


class Pair(NamedTuple):
    """What a service is and what it is to be; None: there is none. `anew`: the ids of `have` are not to be used."""

    have: Stored | None
    want: Service | None
    anew: bool = False


def words_of(service: Service, lanes: Mapping[int, int]) -> dict[bytes, bytes]:
    """All entries of `frontends` that a service has."""
    words = {}
    for one in service.frontends:
        key = codec.frontend_key(one.frontend)
        words[key] = codec.frontend_word(key, lanes[one.frontend.family], frontend_flags(service, one))
    for family, address in blocked_addresses(service):
        key = codec.blocked_key(address)
        words[key] = codec.frontend_word(key, lanes[family], enums.FRONTEND_BLOCK)
    return words


def keys_of(service: Service) -> list[bytes]:
    """The keys of `words_of`."""
    keys = [codec.frontend_key(one.frontend) for one in service.frontends]
    return keys + [codec.blocked_key(address) for _, address in blocked_addresses(service)]


def show_key(key: bytes) -> str:
    """What a key of `frontends` is, with the word for it: a frontend, or an address whose other ports are refused."""
    address, port, protocol, _ = FRONTEND_KEY.unpack(key)
    if (port, protocol) == (0, 0):
        return f"address {format_address(codec.family_of(address), address)} (other ports)"
    if protocol not in PROTOCOL_NAMES:
        return f"frontend key {key.hex()}"
    return f"frontend {format_frontend(codec.decode_frontend(address, port, protocol))}"


def holders(parts: Sequence[Pair]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Key of `frontends` -> number of the part that has it, before and after. Raises Conflict for two of them."""
    before: dict[bytes, int] = {}
    after: dict[bytes, int] = {}
    for number, (have, want, _) in enumerate(parts):
        for key in keys_of(have.service) if have else ():
            before.setdefault(key, number)
        for key in keys_of(want) if want else ():
            other = after.setdefault(key, number)
            if other != number:
                first = parts[other].want
                assert first is not None
                assert want is not None
                raise Conflict(f"{show_key(key)} is asked for by services {first.name!r} and {want.name!r}")
    return before, after


def levels_of(
    parts: Sequence[Pair], before: Mapping[bytes, int], after: Mapping[bytes, int]
) -> tuple[list[int], set[int]]:
    """(level of each part, the parts that need new lanes). A part is above those that gain frontends of its own."""
    gainers: dict[int, set[int]] = {}
    for key, number in after.items():
        loser = before.get(key)
        if loser is not None and loser != number and parts[loser].want is not None and not parts[loser].anew:
            gainers.setdefault(loser, set()).add(number)
    levels = [0] * len(parts)
    if not gainers:
        return levels, set()
    # Taken away from the bottom: who waits for nobody any more. What is left waits in a circle, or for one.
    waits = {number: set(others) for number, others in gainers.items()}
    waiting: dict[int, set[int]] = {}
    for number, others in waits.items():
        for other in others:
            waiting.setdefault(other, set()).add(number)
    ready = [other for other in waiting if other not in waits]
    circles: set[int] = set()
    while waits or ready:
        if not ready:
            number = min(waits)  # with a new lane it need not wait
            circles.add(number)
            del waits[number]
            ready = [number]
        number = ready.pop()
        for loser in waiting.get(number, ()):
            if loser in waits:
                levels[loser] = max(levels[loser], levels[number] + 1)
                waits[loser].discard(number)
                if not waits[loser]:
                    del waits[loser]
                    ready.append(loser)
    for number in circles:
        levels[number] = 0
    return levels, circles


def special_frontends(service: Service) -> tuple[int, int, int]:
    """(frontends with the zero address, blocked addresses, frontends of a service that has a Maglev table)"""
    tables = len(service.frontends) if service.algorithm != RANDOM else 0
    return len(wild_ports(service)), len(blocked_addresses(service)), tables


def wild_ports(service: Service) -> list[int]:
    """Ports of its frontends with the zero address."""
    fronts = (one.frontend for one in service.frontends)
    return [one.port for one in fronts if is_zero(one.family, one.address)]


def plan_words(
    parts: Sequence[Pair],
    lanes: Sequence[Mapping[int, int]],
    before: Mapping[bytes, int],
    after: Mapping[bytes, int],
    source: Source,
) -> tuple[list[dict[bytes, bytes]], tuple[bytes, ...], int]:
    """(words that each part writes, keys to delete, how many keys are new)."""
    found: list[dict[bytes, bytes]] = []
    added = 0
    mine = {pair.have.service.id for pair in parts if pair.have} | {STRAY}
    for number, (have, want, anew) in enumerate(parts):
        words = words_of(want, lanes[number]) if want else {}
        old: dict[bytes, bytes] = {}
        if have and words and not anew and families(have.service) == sorted(have.lanes):
            old = words_of(have.service, have.lanes)
        changed = {}
        for key, word in words.items():
            if key in before:
                added += not source.has_word(key)
            else:
                owner = source.owner(key)
                if owner is not None and owner not in mine:
                    assert want is not None
                    raise Conflict(
                        f"service {want.name}: {show_key(key)} belongs to service {source.name(owner)!r}",
                        hint="'svcctl service set' or 'svcctl service delete' on that one frees it",
                    )
                added += owner is None
            if old.get(key) != word or before.get(key) != number or not source.is_written(key, word):
                changed[key] = word
        found.append(changed)
    return found, tuple(key for key in before if key not in after), added
