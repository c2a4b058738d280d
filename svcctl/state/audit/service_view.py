"""The service maps read whole, once, as the rows about services compare them; and the one wait they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcctl.errors import UsageProblem
from svcctl.maps import layouts
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import (
    BACKEND,
    BACKEND_ID,
    BACKEND_KEY,
    BLOCK,
    CURRENT,
    ITEM_KEY,
    MEMBER,
    MEMBER_KEY,
    SERVICE,
    SLOT,
    SLOT_KEY,
    BackendValue,
)
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.service import check_service, families
from svcctl.state.services import as_backend, read_sources
from svcctl.state.tables import read_sets

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import BackendId, Block, MemberValue, ServiceValue, Slot
    from svcctl.model.service import Service
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.writer import Writer


class Known(NamedTuple):
    """A service. `fault`: why what should follow from it cannot be told, "" if it can; then nothing that may be its
    own is touched."""

    value: ServiceValue
    service: Service
    backends: dict[Backend, int]
    fault: str

    @property
    def lanes(self) -> dict[int, int]:
        """Lanes by family, those it has."""
        pairs = ((IPV4, self.value.lane4), (IPV6, self.value.lane6))
        return {family: lane for family, lane in pairs if lane}

    @property
    def is_whole(self) -> bool:
        """Whether its lanes are those of its frontends' families."""
        return sorted(self.lanes) == families(self.service)

    def __str__(self) -> str:
        return f"service {self.service.name!r}"


class View:
    """Everything in the service maps."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.ranges = read_sources(writer)
        self.no_dsr = _no_dsr(writer)
        self.tables = read_sets(writer)
        self.table_digests = {one.place + 1: key for key, one in self.tables.items()}  # by number
        self.backends: dict[int, BackendValue] = {
            U32.unpack(key)[0]: BACKEND.unpack(data) for key, data in writer.map("backends").items()
        }
        self.index: dict[bytes, BackendId] = {
            key: BACKEND_ID.unpack(data) for key, data in writer.map("backend_ids").items()
        }
        self.names: dict[bytes, int] = {
            key: U32.unpack(data)[0] for key, data in writer.map("service_names").items()
        }
        self.fronts = _items(writer, "service_fronts")
        self.items = _items(writer, "service_members")
        self.blocks: dict[int, Block] = {
            U32.unpack(key)[0]: BLOCK.unpack(data) for key, data in writer.map("blocks").items()
        }
        self.slots: dict[int, dict[int, Slot]] = {}
        for key, data in writer.map("slots").items():
            block, number = SLOT_KEY.struct.unpack(key)
            self.slots.setdefault(block, {})[number] = SLOT.unpack(data)
        self.members: dict[int, dict[int, int]] = {}
        for key, data in writer.map("members").items():
            block, number = MEMBER_KEY.struct.unpack(key)
            self.members.setdefault(block, {})[number] = U32.unpack(data)[0]
        self.current: dict[int, tuple[int, int]] = {
            lane: pair
            for lane, pair in enumerate(CURRENT.struct.iter_unpack(writer.map("current").read_all()[1]))
            if pair != (0, 0)
        }
        self.words: dict[bytes, bytes] = dict(writer.map("frontends").items())
        self.keys = {  # of what is in `backends`, and else of what leads to it
            number: BACKEND_KEY.struct.pack(value.address, value.port, 0)
            for number, value in self.backends.items()
        }
        for key, one in self.index.items():
            self.keys.setdefault(one.id, key)
        self.values: dict[int, ServiceValue] = {
            U32.unpack(key)[0]: SERVICE.unpack(data) for key, data in writer.map("services").items()
        }
        self.known = {number: self._read(number, value) for number, value in sorted(self.values.items())}
        self.is_sure = not any(one.fault for one in self.known.values())
        self._waited = False

    def wait(self) -> None:
        """Wait, once, for the programs that run now: what was made unreachable before may then be removed."""
        if not self._waited:
            from svcctl.bpf.barrier import rcu_barrier

            rcu_barrier()
            self._waited = True

    def referenced(self) -> dict[int, int]:
        """How many memberships each backend has."""
        counts: dict[int, int] = {}
        for one in self.known.values():
            for number in one.backends.values():
                counts[number] = counts.get(number, 0) + 1
        return counts

    def address(self, number: int) -> BackendValue | None:
        """The backend of an id, from `backends`, or where that has lost it from its index."""
        found = self.backends.get(number)
        if found is None and number in self.keys:
            address, port, _ = BACKEND_KEY.struct.unpack(self.keys[number])
            return BackendValue(address, port, 0, 0, number, 0, 0)
        return found

    def _read(self, number: int, value: ServiceValue) -> Known:
        lost = []
        frontends = []
        for at in range(value.base, value.base + min(value.frontends, len(self.fronts.get(number, ())) + 1)):
            data = self.fronts.get(number, {}).get(at)
            if data is not None:
                frontends.append(codec.decode_service_frontend(data))
        if len(frontends) < value.frontends:
            lost.append(f"{value.frontends - len(frontends)} of its {value.frontends} frontends")
        members, ids = [], {}
        for at in range(value.base, value.base + min(value.members, len(self.items.get(number, ())) + 1)):
            data = self.items.get(number, {}).get(at)
            member: MemberValue | None = None if data is None else MEMBER.unpack(data)
            backend = None if member is None else self.address(member.backend)
            if member is not None and backend is not None:
                members.append(codec.decode_member(member, as_backend(backend)))
                ids[members[-1].backend] = member.backend
        if len(members) < value.members:
            lost.append(f"{value.members - len(members)} of its {value.members} backends")
        sources = self.ranges.get(value.ranges, []) if value.ranges else []
        if len(sources) != value.sources:
            lost.append(f"{value.sources - len(sources)} of its {value.sources} source ranges")
        service = codec.decode_service(value, frontends, members, sources)._replace(id=number)
        if lost:
            return Known(value, service, ids, f"has lost {' and '.join(lost)}")
        try:
            check_service(service)
        except UsageProblem as problem:
            # Its name is looked at by itself, since a name that is none can be mended.
            if not name_fault(value):
                return Known(value, service, ids, f"cannot be: {problem.message}")
        return Known(value, service, ids, "")


def name_fault(value: ServiceValue) -> bool:
    """Whether no command could name the service."""
    from svcctl.model.service import check_service_name

    try:
        name = layouts.text(value.name)
        return check_service_name(name).encode().ljust(len(value.name), b"\0") != value.name
    except (UsageProblem, UnicodeError):
        return True


def _no_dsr(writer: Writer) -> int:
    """The number of the set of clients without DSR, 0 for none."""
    if not writer.has_map("packet_config"):
        return 0
    from svcctl.state.packet_settings import read_config

    return read_config(writer).no_dsr


def _items(writer: Writer, name: str) -> dict[int, dict[int, bytes]]:
    """Service -> number -> value."""
    found: dict[int, dict[int, bytes]] = {}
    for key, data in writer.map(name).items():
        service, number = ITEM_KEY.struct.unpack(key)
        found.setdefault(service, {})[number] = data
    return found
