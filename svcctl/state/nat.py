"""What the kernel's maps make of each frontend: frontends -> current -> blocks -> slots, as the programs read them.

Nothing here looks into the index that writers keep, but for the names of services; so what is shown is what
connections meet, also where the two should differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32, text
from svcctl.maps.service_layouts import (
    BACKEND,
    BLOCK,
    CURRENT,
    FRONTEND,
    FRONTEND_CHECK_SHIFT,
    FRONTEND_KEY,
    SERVICE,
    SLOT,
    SLOT_KEY,
    Block,
    FrontendWord,
    SlotKey,
)
from svcctl.model.alias import shares
from svcctl.model.prefix import format_host_port
from svcctl.model.service_endpoint import Backend, Frontend, format_backend, format_frontend
from svcctl.record import Record
from svcctl.state.services import as_backend, need_services

if TYPE_CHECKING:
    from fractions import Fraction

    from svcctl.state.session import State

SERVES, REFUSES, DROPS, FILTERS = "serves", "refuses", "drops", "filters"
BLOCKS, BROKEN = "blocks", "broken"
"""What becomes of a connection. FILTERS: packets of those it admits are served, sockets are not; BLOCKS: another port
of a service's address; BROKEN: it leads nowhere."""

_FLAGS = sum(enums.FRONTEND_FLAG.values())


class Share(Record):
    """A backend that a connection may get, and the exact probability; `backend` is None if its entry is missing."""

    id: int
    backend: Backend | None
    share: Fraction

    def __str__(self) -> str:
        """As listings have it: `10.1.0.1:8080=33.33%`."""
        return f"{self.name}={float(self.share) * 100:.4g}%"

    @property
    def name(self) -> str:
        """Its address and port."""
        return f"?{self.id}" if self.backend is None else format_backend(self.backend)


class Route(Record):
    """Where a `frontends` key leads. `set` is cluster or local; `service` is None if the block names none."""

    frontend: Frontend
    flags: int
    lane: int
    set: str
    block: Block | None
    service: str | None
    result: str
    shares: tuple[Share, ...]

    @property
    def name(self) -> str:
        """The frontend as text; all other ports of a blocked address: `10.96.0.1:*`."""
        if self.frontend.port:
            return format_frontend(self.frontend)
        return format_host_port(self.frontend.family, self.frontend.address, 0)[:-1] + "*"


class Reader:
    """Follows keys of `frontends`. With `bulk` the maps behind are read as a whole, once."""

    def __init__(self, state: State, *, bulk: bool) -> None:
        self.state = state
        self._bulk = bulk
        self._has_packets = state.has_half(catalog.PACKETS)
        self._whole: dict[str, dict[bytes, bytes]] = {}
        self._shares: dict[int, tuple[Share, ...]] = {}

    def _get(self, name: str, key: bytes) -> bytes | None:
        if not self._bulk:
            return self.state.map(name).lookup(key)
        whole = self._whole.get(name)
        if whole is None:
            whole = self._whole[name] = dict(self.state.map(name).items())
        return whole.get(key)

    def route(self, key: bytes, data: bytes) -> Route:
        """What one entry of `frontends` leads to."""
        address, port, protocol, _ = FRONTEND_KEY.unpack(key)
        frontend = codec.decode_frontend(address, port, protocol)
        word: FrontendWord = FRONTEND.unpack(data)
        flags = word.mark & ((1 << FRONTEND_CHECK_SHIFT) - 1)
        local = bool(flags & enums.FRONTEND_LOCAL)
        block = self.block(word.lane, local=local)
        name = self._service(block.service) if block is not None else None
        found: tuple[Share, ...] = ()
        if word.mark >> FRONTEND_CHECK_SHIFT != codec.frontend_check(key) or flags & ~_FLAGS:
            result = BROKEN
        elif flags & enums.FRONTEND_BLOCK:
            result = BLOCKS
        elif block is None:
            result = BROKEN
        elif flags & enums.FRONTEND_FILTERED and not self._has_packets:
            result = DROPS
        elif not block.slots:
            result = DROPS if block.verdict else REFUSES
        else:
            found = self.shares_of(block)
            good = FILTERS if flags & enums.FRONTEND_FILTERED else SERVES
            result = good if found and all(one.backend for one in found) else BROKEN
        return Route(frontend, flags, word.lane, "local" if local else "cluster", block, name, result, found)

    def block(self, lane: int, *, local: bool) -> Block | None:
        """The block of a lane for everybody, or the one for who is to stay on this node."""
        data = self._get("current", U32.pack(lane))
        number = CURRENT.unpack(data)[local] if data is not None else 0
        data = self._get("blocks", U32.pack(number)) if number else None
        block: Block | None = BLOCK.unpack(data) if data is not None else None
        return block if block is not None and block.lane == lane else None

    def _service(self, number: int) -> str | None:
        data = self._get("services", U32.pack(number))
        return text(SERVICE.unpack(data).name) if data is not None else None

    def shares_of(self, block: Block) -> tuple[Share, ...]:
        """The backends of a block's slots; none if one of them is missing."""
        known = self._shares.get(block.block)
        if known is not None:
            return known
        table = []
        for number in range(block.slots):
            data = self._get("slots", SLOT_KEY.pack(SlotKey(block.block, number)))
            slot = SLOT.unpack(data) if data is not None else None
            if slot is None or slot.block != block.block:
                return ()
            table.append((slot.backend, slot.alias, slot.threshold))
        found = []
        for number, share in shares(table).items():
            data = self._get("backends", U32.pack(number))
            found.append(Share(number, as_backend(BACKEND.unpack(data)) if data is not None else None, share))
        found.sort(key=lambda one: (one.backend is None, one.backend or (), one.id))
        self._shares[block.block] = tuple(found)
        return self._shares[block.block]


def routes(state: State) -> list[Route]:
    """Every entry of `frontends`, by address; a blocked address before its ports."""
    need_services(state)
    reader = Reader(state, bulk=True)
    found = [reader.route(key, data) for key, data in state.map("frontends").items()]
    return sorted(found, key=lambda one: one.frontend)


def route_names(state: State) -> list[str]:
    """The frontends there are, by address, without following them."""
    keys = (FRONTEND_KEY.unpack(key) for key, _ in state.map("frontends").items())
    found = sorted(codec.decode_frontend(*key[:3]) for key in keys if key.port)
    return [format_frontend(one) for one in found]


def route_of(state: State, key: bytes) -> Route | None:
    """Where one key leads, None if there is no such entry."""
    data = state.map("frontends").lookup(key)
    return None if data is None else Reader(state, bulk=False).route(key, data)
