"""register and unregister: which sockets stand behind a destination.

A destination holds up to 16 members of one SO_REUSEPORT group; the kernel spreads over all of the group, also
over members that have no slot. New sockets go in before old ones leave, so there is always one to answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import Conflict, NotFound
from svcctl.host import sock_diag
from svcctl.maps.layouts import SOCKETS_PER_DESTINATION, U32, U64
from svcctl.model.constants import PROTOCOL_NAMES
from svcctl.model.destination import Destination, DestinationKey
from svcctl.model.prefix import MAPPED, format_address
from svcctl.record import Record
from svcctl.state import destinations
from svcctl.state.writer import check_map_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.host.socket_info import SocketInfo
    from svcctl.state.session import State
    from svcctl.state.writer import Writer


class Offer(Record):
    """A socket to register: a descriptor of ours, and what it is."""

    fd: int
    info: SocketInfo


class Registration(Record):
    """The plan for one destination: slot -> socket to put there, slots to empty; `before` and `after` by cookie."""

    key: DestinationKey
    fill: dict[int, Offer]
    empty: tuple[int, ...]
    before: dict[int, int]
    after: tuple[int, ...]

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return bool(self.fill or self.empty)


def format_endpoint(info: SocketInfo) -> str:
    """`127.0.0.1:80/tcp`, `[::]:53/udp`"""
    address = format_address(4 if info.address.startswith(MAPPED) else info.family, info.address)
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{info.port}/{PROTOCOL_NAMES[info.protocol]}"


def plan_register(state: State, label: str, offers: Iterable[Offer]) -> list[Registration]:
    """Which slots of which destinations the sockets go to. Raises Conflict for sockets that do not fit together."""
    state.check_maps(("sockets",))
    by_destination: dict[DestinationKey, dict[int, Offer]] = {}
    for offer in offers:
        _check_netns(state, label, offer.info)
        for family in offer.info.serves():
            key = DestinationKey(label, family, offer.info.protocol)
            by_destination.setdefault(key, {})[offer.info.cookie] = offer
    plans = []
    for key, offered in by_destination.items():
        mine = _of_one_group(key, offered)
        plans.append(_plan_one(state, key, mine))
    return plans


def _check_netns(state: State, label: str, info: SocketInfo) -> None:
    """A socket of another namespace would be refused by the kernel at every connection."""
    if info.netns_inode is not None and info.netns_inode != state.netns.inode:
        raise Conflict(
            f"register {label!r}: {format_endpoint(info)} belongs to network namespace {info.netns_inode},"
            f" not to {state.netns.inode}",
            hint="--netns names the namespace to work on",
        )


def _of_one_group(key: DestinationKey, offered: dict[int, Offer]) -> dict[int, Offer]:
    """Only the sockets of the destination's own family if there are any; they must be one group."""
    native = {cookie: offer for cookie, offer in offered.items() if len(offer.info.serves()) == 1}
    offered = native or offered
    groups = {(offer.info.address, offer.info.port) for offer in offered.values()}
    if len(groups) > 1 or (len(offered) > 1 and not all(offer.info.reuseport for offer in offered.values())):
        names = sorted({format_endpoint(offer.info) for offer in offered.values()})
        raise Conflict(
            f"register {key}: {len(offered)} sockets that are no SO_REUSEPORT group: {', '.join(names)}",
            hint="a label has one address and port a family and protocol; give the others labels of their own",
        )
    return offered


def _plan_one(state: State, key: DestinationKey, offered: dict[int, Offer]) -> Registration:
    found = destinations.find(state, key)
    before = destinations.cookies(state, found) if found else {}
    here = set(before.values())
    new = [offer for cookie, offer in offered.items() if cookie not in here]
    any_offer = next(iter(offered.values()))
    kin = set(offered) | (_group_cookies(state, any_offer.info) & here if any_offer.info.reuseport else set())
    strangers = [slot for slot, cookie in before.items() if cookie not in kin]
    free = [slot for slot in range(SOCKETS_PER_DESTINATION) if slot not in before]
    room = free + strangers
    fill = dict(zip(room, new, strict=False))
    empty = tuple(slot for slot in strangers if slot not in fill)
    after = tuple(cookie for slot, cookie in before.items() if slot not in strangers)
    return Registration(key, fill, empty, before, after + tuple(offer.info.cookie for offer in fill.values()))


def _group_cookies(state: State, info: SocketInfo) -> set[int]:
    """Cookies of all sockets bound to the same address and port: the group, whatever process they are in."""
    try:
        listed = sock_diag.listeners(info.protocol, info.port, netns=state.netns)
    except OSError:
        return set()
    return {one.cookie for one in listed if one.family == info.family and one.mapped_address == info.address}


def apply_register(writer: Writer, plans: list[Registration]) -> None:
    """Put the sockets in. Nothing is written when every one is there already."""
    if not any(plan.changes for plan in plans):
        return
    check_map_ids(writer, ("sockets", "hints"))
    reservation = destinations.Reservation(writer, [plan.key for plan in plans])
    with writer.changing(**reservation.meta_fields):
        reservation.make(writer, {})
        for plan in plans:
            if plan.changes:
                _apply_one(writer, plan)


def _apply_one(writer: Writer, plan: Registration) -> None:
    found = destinations.find(writer, plan.key)
    assert found is not None
    kept = set(plan.before) - set(plan.empty) | set(plan.fill)
    # Too many bits rather than too few: a bit without a socket costs a look-up, a socket without a bit is lost.
    destinations.put(writer, found._replace(slots=found.slots | _bits(kept)))
    sockets = writer.map("sockets")
    for slot, offer in plan.fill.items():
        try:
            sockets.update(U32.pack(found.id * SOCKETS_PER_DESTINATION + slot), U64.pack(offer.fd))
        except BpfError as error:
            raise Conflict(
                f"register {plan.key}: the kernel does not take {format_endpoint(offer.info)}: {error.strerror}"
            ) from error
    if plan.fill:
        writer.map("hints").update(U32.pack(found.id), U32.pack(min(plan.fill)))
    destinations.clear_slots(writer, found.id, found.slots & ~_bits(kept) | _bits(plan.empty))
    destinations.put(writer, found._replace(slots=_bits(kept)))


def _bits(slots: Iterable[int]) -> int:
    return sum(1 << slot for slot in slots)


def plan_unregister(state: State, key: DestinationKey) -> tuple[Destination, dict[int, int]]:
    """The destination and its live sockets (slot -> cookie). Raises NotFound if there is nothing registered."""
    state.check_maps(("sockets",))
    found = destinations.find(state, key)
    if found is None:
        raise NotFound(f"unregister {key}: no such destination", hint="'svcctl destinations' lists them")
    live = destinations.cookies(state, found)
    if not live and found.refs:
        raise NotFound(f"unregister {key}: no socket is registered")
    return found, live


def unregister(writer: Writer, found: Destination) -> None:
    """Take all sockets of a destination away; without bindings it goes as well."""
    check_map_ids(writer, ("sockets",))
    with writer.changing():
        destinations.clear_slots(writer, found.id, found.slots)
        cleared = found._replace(slots=0)
        destinations.put(writer, cleared)
        destinations.release_if_unused(writer, cleared)
