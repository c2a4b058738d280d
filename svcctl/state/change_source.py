"""What a planned change needs to know of what is there beside the services themselves: by look-ups, a few for each
thing that changes, or from maps that were read whole (`state/service_snapshot.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from svcctl.maps import service_codec as codec
from svcctl.maps.service_layouts import BACKEND_ID, MEMBER_KEY, SLOT, SLOT_KEY, MemberKey, SlotKey
from svcctl.state import services

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import BackendId
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.session import State

STRAY = -1
"""Owner of a word that is no service's: it may be written over."""


class Source(Protocol):
    """What is in the maps."""

    def owner(self, key: bytes) -> int | None:
        """Number of the service that a key of `frontends` leads to, STRAY, or None if it is free."""

    def has_word(self, key: bytes) -> bool:
        """Whether a key that a service has is in `frontends`."""

    def is_written(self, key: bytes, word: bytes) -> bool:
        """Whether it has that word."""

    def name(self, number: int) -> str:
        """Of a service."""

    def backend(self, backend: Backend) -> BackendId | None:
        """Its entry in the index, None without a sound one."""

    def blocks(self, lane: int) -> tuple[int, int]:
        """(cluster, local) block that a lane leads to, 0 for none."""

    def content(self, block: int) -> tuple[bool, list[bytes], list[bytes]]:
        """(whether a block has a record, keys of its slots, keys of its members)."""

    def lanes(self) -> set[int]:
        """Those that are some service's."""


class Live:
    """By look-ups: the same number of them however much there is."""

    def __init__(self, state: State) -> None:
        self.state = state

    def owner(self, key: bytes) -> int | None:
        """As Source; 0: of nobody that could be told, and not to be written over."""
        return services.owner_of_frontend(self.state, key)

    def has_word(self, key: bytes) -> bool:
        """What services say is taken to be so."""
        return True

    def is_written(self, key: bytes, word: bytes) -> bool:
        """As `has_word`."""
        return True

    def name(self, number: int) -> str:
        """As Source."""
        return services.name_of(self.state, number)

    def backend(self, backend: Backend) -> BackendId | None:
        """As Source."""
        data = self.state.map("backend_ids").lookup(codec.backend_key(backend))
        return None if data is None else BACKEND_ID.unpack(data)

    def blocks(self, lane: int) -> tuple[int, int]:
        """As Source."""
        return services.current_blocks(self.state, lane)

    def content(self, block: int) -> tuple[bool, list[bytes], list[bytes]]:
        """As Source."""
        record = services.read_block(self.state, block)
        if record is None:
            return False, [], []
        slots = self.state.map("slots")
        keys, ids = [], []
        for key in (SLOT_KEY.pack(SlotKey(block, n)) for n in range(record.slots)):
            data = slots.lookup(key)
            if data is not None:
                keys.append(key)
                ids.append(SLOT.unpack(data).backend)
        return True, keys, [MEMBER_KEY.pack(MemberKey(block, one)) for one in dict.fromkeys(ids)]

    def lanes(self) -> set[int]:
        """As Source; reads all services."""
        return {lane for one in services.read_all(self.state).values() for lane in one.lanes.values()}
