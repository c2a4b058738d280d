"""check of the service maps: each row is broken by writing a map directly; check names it, --repair mends it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from svcctl.bpf.constants import MAP_ARRAY, MAP_HASH
from svcctl.bpf.link import Link, query_programs
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.host import cgroup
from svcctl.maps import catalog, enums, layouts
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32, U64, Attachment, AttachmentKey
from svcctl.maps.service_layouts import (
    AFFINITY,
    AFFINITY_KEY,
    BACKEND,
    BACKEND_ID,
    BLOCK,
    CONFIG,
    CURRENT,
    FRONTEND,
    ITEM_KEY,
    MEMBER,
    MEMBER_KEY,
    NODE_KEY,
    REVERSE,
    SERVICE,
    SERVICE_STATS,
    SLOT,
    SLOT_KEY,
    AffinityKey,
    AffinityValue,
    ItemKey,
    MemberKey,
    NodeKey,
    ServiceStats,
    SlotKey,
)
from svcctl.model.prefix import MAPPED
from svcctl.model.service_endpoint import parse_backend, parse_frontend
from svcctl.state import services
from svcctl.state.audit import INVARIANTS
from svcctl.state.place import Place
from svcctl.state.services import Stored
from svcctl.state.writer import Writer, lock_state
from tests.kernel import test_check
from tests.lib import breaks
from tests.lib.own_cgroup import SIZES, enter, leave, own_cgroup, remove
from tests.lib.run import ok, svcctl
from tests.lib.sockets import tcp, writer
from tests.lib.until import lose_link, remove_cgroup
from tests.lib.world import World
from tests.lib.world import world as a_world


class Case(NamedTuple):
    """As in test_check.py; `same`: services are as before afterwards."""

    invariant: str
    breaks: Callable[[Setup], None]
    says: str
    mended: bool
    same: bool


class Setup:
    """A loaded state with both halves, three services and the sockets of their backends."""

    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.cgroup = path

    @property
    def path(self) -> str:
        return self.world.state_dir


@pytest.fixture
def setup(world: World) -> Iterator[Setup]:
    with own_cgroup() as path:
        make_state(path)
        yield Setup(world, path)
        svcctl("unload", "--yes")


def make_state(path: str) -> None:
    ok("load", "--max-bindings", "100", "--max-destinations", "8")
    ok("attach", "cgroup", path, *SIZES)
    make_services()


class Lasting:
    """One state for many tests, since the kernel takes a second to look at the programs: each leaves it sound, or
    `spoilt`, and then it is made anew."""

    def __init__(self, setup: Setup) -> None:
        self.spoilt = True
        self._setup = setup

    def get(self) -> Setup:
        if self.spoilt:
            remove_second_balancer(self._setup)
            svcctl("unload", "--yes")
            shutil.rmtree(f"{self._setup.world.bpffs}/elsewhere", ignore_errors=True)
            if os.path.isdir(f"{self._setup.cgroup}/sub"):
                remove(f"{self._setup.cgroup}/sub")
            make_state(self._setup.cgroup)
            self.spoilt = False
        return self._setup


@pytest.fixture(scope="module")
def lasting() -> Iterator[Lasting]:
    with a_world() as inside, own_cgroup() as path:
        yield Lasting(Setup(inside, path))
        svcctl("unload", "--yes")


def make_services() -> None:
    """web: two backends with weights; dual: both families, local and cluster set, blocked, a backend shared with
    web; port: a node port."""
    ok("service", "add", "web", "--frontend", "10.9.0.1:80/tcp", "--frontend", "10.9.0.1:53/udp",
       "--backend", "127.0.0.1:8081", "--backend", "127.0.0.2:8082,weight=3")  # fmt: skip
    ok("service", "add", "dual", "--frontend", "10.9.0.2:80/tcp", "--frontend", "[fd09::2]:80/tcp",
       "--backend", "127.0.0.1:8081", "--backend", "[::1]:8081,local")  # fmt: skip
    ok("service", "set", "dual", "--internal-policy", "local", "--block", "--affinity", "60")
    ok("service", "add", "port", "--frontend", "10.9.0.3:80/tcp", "--backend", "127.0.0.3:8083")
    ok("service", "set", "port", "--node-port", "30080")


CASES: dict[str, Case] = {}


def case(invariant: str, says: str, *, mended: bool = True, same: bool = True) -> Callable[..., None]:
    def add(breaks: Callable[[Setup], None]) -> None:
        CASES[breaks.__name__] = Case(invariant, breaks, says, mended, same)

    return add


def stored(state: Writer, name: str) -> Stored:
    found = services.find(state, name)
    assert found is not None
    return found


def put_value(service: str, **fields: Any) -> None:
    """Change the value of a service."""
    with writer() as state:
        number = stored(state, service).service.id
        data = state.map("services").lookup(U32.pack(number))
        assert data is not None
        state.map("services").update(U32.pack(number), SERVICE.pack(SERVICE.unpack(data)._replace(**fields)))


def lane_of(state: Writer, name: str, family: int = 4) -> int:
    return stored(state, name).lanes[family]


def backend_number(state: Writer, text: str) -> int:
    data = state.map("backend_ids").lookup(codec.backend_key(parse_backend(text)))
    assert data is not None
    return BACKEND_ID.unpack(data).id


# services


@case("services", "its value says that it is 77")
def value_of_another_id(setup: Setup) -> None:
    put_value("web", id=77)


@case("services", "has a name that is none", same=False)
def torn_name(setup: Setup) -> None:
    put_value("web", name=b"a\0b")


@case("services", "has a name that is none", same=False)
def name_with_control_characters(setup: Setup) -> None:
    put_value("web", name=b"\x1b[31m")


@case("services", "its name leads to nothing")
def lost_name(setup: Setup) -> None:
    with writer() as state:
        state.map("service_names").delete(codec.name_key("web"))


@case("services", "its name leads to 55")
def name_of_nobody(setup: Setup) -> None:
    with writer() as state:
        state.map("service_names").update(codec.name_key("web"), U32.pack(55))


@case("services", "the name 'other' leads to 1, which is no service")
def second_name(setup: Setup) -> None:
    with writer() as state:
        state.map("service_names").update(codec.name_key("other"), U32.pack(1))


@case("services", "are both named 'web'", mended=False)
def two_of_one_name(setup: Setup) -> None:
    put_value("port", name=b"web")


@case("services", "has lost 1 of its 2 frontends", mended=False)
def lost_frontend_item(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        state.map("service_fronts").delete(ITEM_KEY.pack(ItemKey(one.service.id, one.base)))


@case("services", "has lost 1 of its 2 backends", mended=False)
def lost_member_item(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        state.map("service_members").delete(ITEM_KEY.pack(ItemKey(one.service.id, one.base + 1)))


@case("services", "has lost 1 of its 2 backends", mended=False)
def member_of_no_backend(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        key = ITEM_KEY.pack(ItemKey(one.service.id, one.base))
        data = state.map("service_members").lookup(key)
        assert data is not None
        state.map("service_members").update(key, MEMBER.pack(MEMBER.unpack(data)._replace(backend=99)))


@case("services", "cannot be", mended=False)
def weight_too_high(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        key = ITEM_KEY.pack(ItemKey(one.service.id, one.base))
        data = state.map("service_members").lookup(key)
        assert data is not None
        state.map("service_members").update(key, MEMBER.pack(MEMBER.unpack(data)._replace(weight=70000)))


@case("services", "service_fronts: 1 entries of service 'web'")
def stray_frontend_item(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        value = codec.encode_service_frontend(one.service.frontends[0])
        state.map("service_fronts").update(ITEM_KEY.pack(ItemKey(one.service.id, 9)), value)


@case("services", "service_members: 1 entries of service 40")
def stray_member_item(setup: Setup) -> None:
    with writer() as state:
        one = stored(state, "web")
        value = codec.encode_member(one.service.members[0], one.backends[0])
        state.map("service_members").update(ITEM_KEY.pack(ItemKey(40, 0)), value)


# lanes


@case("lanes", "its ipv4 lane is 0")
def no_lane(setup: Setup) -> None:
    put_value("web", lane4=0)


@case("lanes", "which is service 'web''s")
def lane_of_another(setup: Setup) -> None:
    with writer() as state:
        lane = lane_of(state, "web")
    put_value("port", lane4=lane)


@case("lanes", "its ipv4 lane is 4000")
def lane_out_of_range(setup: Setup) -> None:
    put_value("web", lane4=4000)


@case("lanes", "has an ipv6 lane and no such frontend")
def lane_too_many(setup: Setup) -> None:
    put_value("web", lane6=20)


@case("lanes", "cluster block 0, which is not there")
def lane_leads_nowhere(setup: Setup) -> None:
    with writer() as state:
        state.map("current").update(U32.pack(lane_of(state, "web")), bytes(8))


@case("lanes", "whose service is 2 instead of 1")
def lane_leads_to_another_block(setup: Setup) -> None:
    with writer() as state:
        other = state.map("current").lookup(U32.pack(lane_of(state, "dual")))
        assert other is not None
        state.map("current").update(U32.pack(lane_of(state, "web")), other)


@case("lanes", "has local block")
def local_word(setup: Setup) -> None:
    """The local set of dual's IPv4 lane is empty; without it clients of this host get a backend elsewhere."""
    with writer() as state:
        lane = lane_of(state, "dual")
        cluster, _ = services.current_blocks(state, lane)
        state.map("current").update(U32.pack(lane), CURRENT.struct.pack(cluster, cluster))


@case("lanes", "is no service's")
def word_of_a_free_lane(setup: Setup) -> None:
    with writer() as state:
        state.map("current").update(U32.pack(40), CURRENT.struct.pack(1, 1))


def change_block(name: str, **fields: int) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, name))[0]
        block = services.read_block(state, number)
        assert block is not None
        state.map("blocks").update(U32.pack(number), BLOCK.pack(block._replace(**fields)))


for _field, _value in (
    ("block", 9), ("service", 9), ("lane", 9), ("slots", 1), ("affinity_seconds", 9), ("verdict", 1),
    ("members", 1),
):  # fmt: skip

    def _block(setup: Setup, field: str = _field, value: int = _value) -> None:
        change_block("web", **{field: value})

    _block.__name__ = f"block_{_field}"
    case("lanes", f"whose {_field} is {_value}")(_block)


@case("lanes", "which is not there")
def lost_block(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        state.map("blocks").delete(U32.pack(number))


@case("lanes", "whose slots are not")
def lost_slot(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        state.map("slots").delete(SLOT_KEY.pack(SlotKey(number, 1)))


@case("lanes", "whose slots are not")
def slot_of_another_weight(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        key = SLOT_KEY.pack(SlotKey(number, 0))
        data = state.map("slots").lookup(key)
        assert data is not None
        state.map("slots").update(key, SLOT.pack(SLOT.unpack(data)._replace(threshold=7)))


@case("lanes", "whose slots are not")
def slot_too_many(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        state.map("slots").update(SLOT_KEY.pack(SlotKey(number, 2)), bytes(SLOT.size))


@case("lanes", "whose members are not")
def lost_member(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        key = MEMBER_KEY.pack(MemberKey(number, backend_number(state, "127.0.0.1:8081")))
        assert state.map("members").delete(key)


@case("lanes", "whose members are not")
def member_too_many(setup: Setup) -> None:
    with writer() as state:
        number = services.current_blocks(state, lane_of(state, "web"))[0]
        key = MEMBER_KEY.pack(MemberKey(number, backend_number(state, "127.0.0.3:8083")))
        state.map("members").update(key, U32.pack(0))


# frontends


def word_key(text: str) -> bytes:
    return codec.frontend_key(parse_frontend(text))


@case("frontends", "frontend 10.9.0.1:80/tcp is missing")
def lost_word(setup: Setup) -> None:
    with writer() as state:
        state.map("frontends").delete(word_key("10.9.0.1:80/tcp"))


def change_word(text: str, **fields: int) -> None:
    with writer() as state:
        key = word_key(text)
        data = state.map("frontends").lookup(key)
        assert data is not None
        state.map("frontends").update(key, FRONTEND.pack(FRONTEND.unpack(data)._replace(**fields)))


@case("frontends", "is lane 9")
def word_of_another_lane(setup: Setup) -> None:
    change_word("10.9.0.1:80/tcp", lane=9)


@case("frontends", "mark 0x3")
def word_with_other_flags_and_check(setup: Setup) -> None:
    change_word("10.9.0.1:80/tcp", mark=3)


@case("frontends", "frontend 10.9.9.9:99/udp is no service's")
def stray_word(setup: Setup) -> None:
    with writer() as state:
        key = word_key("10.9.9.9:99/udp")
        state.map("frontends").update(key, codec.frontend_word(key, 1, 0))


@case("frontends", "address 10.9.0.2 (other ports) is missing")
def lost_blocked_word(setup: Setup) -> None:
    with writer() as state:
        assert state.map("frontends").delete(codec.blocked_key(parse_frontend("10.9.0.2:1/tcp").address))


@case("frontends", "is claimed by service 'web' and service 'port'", mended=False)
def frontend_of_two(setup: Setup) -> None:
    with writer() as state:
        web, port = stored(state, "web"), stored(state, "port")
        state.map("service_fronts").update(
            ITEM_KEY.pack(ItemKey(port.service.id, port.base)),
            codec.encode_service_frontend(web.service.frontends[0]),
        )


# blocks


@case("blocks", "block 90 with 0 slots")
def stray_block(setup: Setup) -> None:
    with writer() as state:
        block = services.read_block(state, services.current_blocks(state, 1)[0])
        assert block is not None
        state.map("blocks").update(U32.pack(90), BLOCK.pack(block._replace(block=90)))


@case("blocks", "what is left of block 91 with 1 slots and 1 members")
def stray_slots_and_members(setup: Setup) -> None:
    with writer() as state:
        state.map("slots").update(SLOT_KEY.pack(SlotKey(91, 0)), bytes(SLOT.size))
        state.map("members").update(MEMBER_KEY.pack(MemberKey(91, 1)), bytes(4))


# backends, references


@case("backends", "is missing")
def lost_backend(setup: Setup) -> None:
    with writer() as state:
        state.map("backends").delete(U32.pack(backend_number(state, "127.0.0.2:8082")))


@case("backends", "has other fields than its own")
def backend_with_another_id(setup: Setup) -> None:
    with writer() as state:
        number = backend_number(state, "127.0.0.2:8082")
        value = services.read_backend(state, number)
        assert value is not None
        state.map("backends").update(U32.pack(number), BACKEND.pack(value._replace(id=9, node=3)))


@case("backends", "is nobody's")
def stray_backend(setup: Setup) -> None:
    with writer() as state:
        value = services.read_backend(state, 1)
        assert value is not None
        state.map("backends").update(U32.pack(50), BACKEND.pack(value._replace(id=50, port=1)))


@case("backends", "does not lead to it")
def lost_index_entry(setup: Setup) -> None:
    with writer() as state:
        state.map("backend_ids").delete(codec.backend_key(parse_backend("127.0.0.2:8082")))


@case("backends", "leads to backend 60 instead of")
def index_entry_of_another(setup: Setup) -> None:
    change_index("127.0.0.2:8082", id=60)


@case("backends", "is in no service")
def stray_index_entry(setup: Setup) -> None:
    with writer() as state:
        key = codec.backend_key(parse_backend("127.0.0.9:9"))
        state.map("backend_ids").update(key, BACKEND_ID.struct.pack(61, 1, b"", b""))


@case("backends", "are both 127.0.0.1:8081", mended=False)
def two_backends_of_one_address(setup: Setup) -> None:
    with writer() as state:
        number = backend_number(state, "127.0.0.3:8083")
        value = services.read_backend(state, backend_number(state, "127.0.0.1:8081"))
        assert value is not None
        state.map("backends").update(U32.pack(number), BACKEND.pack(value._replace(id=number)))


def change_index(text: str, **fields: Any) -> None:
    with writer() as state:
        key = codec.backend_key(parse_backend(text))
        data = state.map("backend_ids").lookup(key)
        assert data is not None
        state.map("backend_ids").update(key, BACKEND_ID.pack(BACKEND_ID.unpack(data)._replace(**fields)))


@case("references", "127.0.0.1:8081: 9 references, 2 memberships")
def too_many_references(setup: Setup) -> None:
    change_index("127.0.0.1:8081", refs=9)


@case("references", "127.0.0.1:8081: 1 references, 2 memberships")
def too_few_references(setup: Setup) -> None:
    change_index("127.0.0.1:8081", refs=1)


# balancer


def change_config(**fields: Any) -> None:
    with writer() as state:
        now = CONFIG.unpack(state.map("config").lookup(bytes(4)) or b"")
        state.map("config").update(bytes(4), CONFIG.pack(now._replace(**fields)))


@case("balancer", "node_ports is 0, 1 counted")
def too_few_node_ports(setup: Setup) -> None:
    change_config(node_ports=0)


@case("balancer", "node_ports is 5, 1 counted")
def too_many_node_ports(setup: Setup) -> None:
    change_config(node_ports=5)


@case("balancer", "blocked is 0, 2 counted")
def too_few_blocked(setup: Setup) -> None:
    change_config(blocked=0)


@case("balancer", "blocked is 7, 2 counted")
def too_many_blocked(setup: Setup) -> None:
    change_config(blocked=7)


@case("balancer", "tables is 3, 0 counted")
def too_many_tables(setup: Setup) -> None:
    change_config(tables=3)


@case("balancer", "node ports are looked for from 0 to 0, there are")
def node_ports_nowhere(setup: Setup) -> None:
    change_config(first_node_port=0, last_node_port=0)


@case("balancer", "a drain ends before drains are looked for", same=False)
def drain_that_nobody_looks_for(setup: Setup) -> None:
    ok("backend", "drain", "web", "127.0.0.1:8081", "--after", "3600")
    change_config(drain_ns=0)


@case("balancer", "node_addresses lacks 1 addresses of the interfaces and has 0 others")
def new_address(setup: Setup) -> None:
    setup.world.sh("ip address add 192.0.2.7/24 dev lo")


@case("balancer", "node_addresses lacks 0 addresses of the interfaces and has 1 others")
def address_of_nobody(setup: Setup) -> None:
    with writer() as state:
        key = NODE_KEY.pack(NodeKey(128, MAPPED + b"\xc0\x00\x02\x09"))
        state.map("node_addresses").update(key, U32.pack(enums.NODE_OWN))


@case("balancer", "reverse_counts has 0 for slot")
def socket_that_nobody_counts(setup: Setup) -> None:
    """What a socket remembers is not looked for where nothing is counted."""
    with writer() as state:
        state.map("reverse").update(U64.pack(catalog.REVERSE_COUNTS + 77), bytes(REVERSE.size))


# ids


for _what in ("service", "backend", "block", "lane"):

    def _next(setup: Setup, what: str = _what) -> None:
        breaks.put_meta(**{f"next_{what}": 1})

    _next.__name__ = f"next_{_what}_too_low"
    case("ids", f"the next {_what} is 1, but ")(_next)


@case("ids", "the next lane is 65, of 64")
def next_lane_too_high(setup: Setup) -> None:
    breaks.put_meta(next_lane=65)


@case("ids", "but 70 is in use")
def service_that_a_client_means(setup: Setup) -> None:
    """An affinity of a service whose id was never handed out: its first owner would inherit the client."""
    with writer() as state:
        key = AFFINITY_KEY.pack(AffinityKey(70, 0, bytes(16)))
        state.map("affinity").update(key, AFFINITY.pack(AffinityValue(1, 0, 1)))


# usage, counters, sizes


for _name in (
    "service_names", "frontends", "service_fronts", "backends", "service_members", "blocks", "slots",
    "members", "current",
):  # fmt: skip

    def _usage(setup: Setup, name: str = _name) -> None:
        with writer() as state:
            state.put_usage(name, layouts.Usage(40, 3))

    _usage.__name__ = f"usage_of_{_name}"
    case("usage", f"{_name}: 40 of 3 noted")(_usage)


@case("counters", "lane 30, which was never handed out, has counted 7 connections")
def counters_of_a_future_lane(setup: Setup) -> None:
    breaks.put_meta(next_lane=20)
    with writer() as state:
        value = SERVICE_STATS.pack(ServiceStats(7, 0, 0, 0, 0, 0, 0, 0))
        state.map("service_stats").update(U32.pack(30), value)


# attachments, strays, programs, pins, modes


def record_key(setup: Setup, hook: int, target: int | None = None) -> bytes:
    number = os.stat(setup.cgroup).st_ino if target is None else target
    return layouts.ATTACHMENT_KEY.pack(AttachmentKey(enums.ATTACH_CGROUP, hook, number))


CONNECT4 = catalog.CONNECT[0]
RECVMSG6 = catalog.CONNECT[5]


@case("attachments", "connect4 is recorded but not attached")
def lost_link(setup: Setup) -> None:
    lose_link(f"{setup.path}/{CONNECT4.link_pin}")


@case("attachments", "connect4 is not attached as the others are")
def lost_link_and_record(setup: Setup) -> None:
    with writer() as state:
        state.map("attachments").delete(record_key(setup, CONNECT4.hook))
    lose_link(f"{setup.path}/{CONNECT4.link_pin}")


@case("attachments", "is detached")
def detached_link(setup: Setup) -> None:
    with Link.open_pinned(f"{setup.path}/{RECVMSG6.link_pin}") as link:
        link.detach()


@case("attachments", "but not recorded")
def unrecorded_link(setup: Setup) -> None:
    with writer() as state:
        state.map("attachments").delete(record_key(setup, RECVMSG6.hook))


@case("attachments", "but not recorded")
def nothing_recorded(setup: Setup) -> None:
    with writer() as state:
        for shape in catalog.CONNECT:
            state.map("attachments").delete(record_key(setup, shape.hook))


@case("attachments", "recorded is 99 of program 4")
def another_link_recorded(setup: Setup) -> None:
    with writer() as state:
        value = layouts.ATTACHMENT.pack(Attachment(4, 99, 1, 0, 0))
        state.map("attachments").update(record_key(setup, CONNECT4.hook), value)


@case("attachments", "is recorded on cgroup 99999999, which is gone")
def recorded_on_a_cgroup_that_is_gone(setup: Setup) -> None:
    with writer() as state:
        value = layouts.ATTACHMENT.pack(Attachment(1, 5, 1, 0, 0))
        state.map("attachments").update(record_key(setup, CONNECT4.hook, 99999999), value)


@case("attachments", "but the balancer is on")
def recorded_on_another_cgroup(setup: Setup) -> None:
    root = os.stat(cgroup.mount_point()).st_ino
    with writer() as state:
        value = layouts.ATTACHMENT.pack(Attachment(1, 5, 1, 0, 0))
        state.map("attachments").update(record_key(setup, CONNECT4.hook, root), value)


@case("attachments", "which this svcctl does not make here")
def recorded_on_an_unknown_hook(setup: Setup) -> None:
    with writer() as state:
        value = layouts.ATTACHMENT.pack(Attachment(1, 5, 1, 0, 0))
        state.map("attachments").update(record_key(setup, 77), value)


@case("attachments", "is of another kind")
def link_of_another_hook(setup: Setup) -> None:
    pin = f"{setup.path}/{CONNECT4.link_pin}"
    lose_link(pin)
    with Link.open_pinned(f"{setup.path}/{RECVMSG6.link_pin}") as link:
        link.pin(pin)


@case("attachments", "though UDP is excluded")
def hooks_against_the_settings(setup: Setup) -> None:
    change_config(flags=enums.CONFIG_EXCLUDE_UDP | config_flags())


def config_flags() -> int:
    with writer() as state:
        return CONFIG.unpack(state.map("config").lookup(bytes(4)) or b"").flags


@case("attachments", "upgrade --force", mended=False)
def program_swapped_under_the_link(setup: Setup) -> None:
    with (
        Program.open_pinned(f"{setup.path}/prog_connect6") as other,
        Link.open_pinned(f"{setup.path}/{CONNECT4.link_pin}") as link,
    ):
        try:
            link.update(other)
        except OSError:
            pytest.skip("this kernel compares the attach types")


@case("strays", "below the cgroup of this one", mended=False)
def second_balancer(setup: Setup) -> None:
    os.mkdir(f"{setup.cgroup}/sub")
    fd = cgroup.open_cgroup(f"{setup.cgroup}/sub")
    try:
        with Program.open_pinned(f"{setup.path}/prog_connect4") as program:
            copy = second_connect4(program)
            with copy, Link.create(copy, fd, CONNECT4.hook) as link:
                os.mkdir(f"{setup.world.bpffs}/elsewhere")
                link.pin(f"{setup.world.bpffs}/elsewhere/link")
    finally:
        os.close(fd)


def remove_second_balancer(setup: Setup) -> None:
    """What `second_balancer` made, if it did."""
    elsewhere = f"{setup.world.bpffs}/elsewhere"
    if not os.path.isdir(elsewhere):
        return
    with Link.open_pinned(f"{elsewhere}/link") as link:
        link.detach()
    os.unlink(f"{elsewhere}/link")
    os.rmdir(elsewhere)
    remove_cgroup(f"{setup.cgroup}/sub")


def second_connect4(program: Program) -> Program:
    """The program once more, with an id of its own."""
    from svcctl.state.balancer import program_name
    from svcctl.state.programs import load_object

    name = program_name(CONNECT4)
    with lock_state(Place(), "test") as state:
        reuse = {each: state.map(each) for each in (*catalog.SERVICE_MAPS, *catalog.SHARED_MAPS)}
        with load_object("connect", {}, reuse, (name,)) as loaded:
            return loaded.program(name)


@case("programs", "(recvmsg6) is not recorded")
def lost_program_record(setup: Setup) -> None:
    with writer() as state:
        state.map("programs").update(U32.pack(RECVMSG6.number), bytes(layouts.PROGRAM.size))


@case("programs", "pinned map 'frontends' is")
def a_map_swapped_for_another(setup: Setup) -> None:
    os.unlink(f"{setup.path}/frontends")
    with Map.create(MAP_HASH, "frontends", 20, 8, 128, flags=1) as other:
        other.pin(f"{setup.path}/frontends")


for _name in (
    *(name for name in catalog.SERVICE_READS if name != "drop_stats"),
    "service_names",
    "backend_ids",
    "lut_sets",
):

    def _lost(setup: Setup, name: str = _name) -> None:
        os.unlink(f"{setup.path}/{name}")

    _lost.__name__ = f"lost_{_name}"
    case("pins", f"pin {_name!r} is missing")(_lost)


@case("pins", "is missing")
def lost_program(setup: Setup) -> None:
    os.unlink(f"{setup.path}/prog_sendmsg4")


@case("pins", "is missing")
def lost_program_that_nothing_holds(setup: Setup) -> None:
    ok("detach", "cgroup")
    os.unlink(f"{setup.path}/prog_sendmsg4")


for _name in ("services", "service_fronts", "service_members"):

    def _gone(setup: Setup, name: str = _name) -> None:
        os.unlink(f"{setup.path}/{name}")

    _gone.__name__ = f"lost_{_name}"
    case("pins", "start anew", mended=False)(_gone)


@case("pins", "expected (2, 4, 8)")
def map_of_another_shape(setup: Setup) -> None:
    os.unlink(f"{setup.path}/current")
    with Map.create(MAP_ARRAY, "current", 4, 4, 1) as wrong:
        wrong.pin(f"{setup.path}/current")


@case("pins", "is a map, expected a link")
def map_in_place_of_a_link(setup: Setup) -> None:
    lose_link(f"{setup.path}/{CONNECT4.link_pin}")
    with Map.open_pinned(f"{setup.path}/current") as opened:
        opened.pin(f"{setup.path}/{CONNECT4.link_pin}")


@case("modes", "pin 'slots' has mode 0600")
def map_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/slots", 0o600)


@case("modes", "pin 'prog_connect6' has mode 0640")
def program_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/prog_connect6", 0o640)


@case("modes", "pin 'link_connect6' has mode 0640")
def link_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/link_connect6", 0o640)


@case("orphans", "left over from an upgrade: next_slots")
def next_pin(setup: Setup) -> None:
    with Map.create(MAP_HASH, "slots", 8, 16, 1) as following:
        following.pin(f"{setup.path}/next_slots")


@case("sizes", "--max-services", mended=False)
def small_index(setup: Setup) -> None:
    os.unlink(f"{setup.path}/service_names")
    with Map.create(MAP_HASH, "service_names", 256, 4, 3, flags=1) as small:
        for number, name in enumerate(("web", "dual", "port"), 1):
            small.update(codec.name_key(name), U32.pack(number))
        small.pin(f"{setup.path}/service_names")
    os.chmod(f"{setup.path}/service_names", 0o640)


def everything() -> dict[str, Stored]:
    """All services, but for the ids of blocks and lanes."""
    with writer() as state:
        return {
            name: one._replace(lanes={}, service=one.service._replace(changed_ns=0))
            for name, one in services.read_all(state).items()
        }


def test_a_sound_state_has_no_problems(setup: Setup) -> None:
    assert ok("check").out == "no problems found\n"


@pytest.mark.parametrize("name", CASES)
def test_broken(lasting: Lasting, name: str) -> None:
    setup = lasting.get()
    case = CASES[name]
    before = everything()
    lasting.spoilt = True
    case.breaks(setup)

    done = svcctl("check", "-o", "json")
    assert done.code == 1, done.err
    wanted = "mendable" if case.mended else "undecided"
    named = [
        one
        for one in done.json["problems"]
        if one["invariant"] == case.invariant
        and case.says in one["message"] + one.get("advice", "")
        and one["state"] == wanted
    ]
    assert named, done.out

    done = svcctl("check", "--repair", "-o", "json")
    left = [one for one in done.json["problems"] if one["state"] == "undecided"]
    if not case.mended:
        assert done.code == 1, done.err
        assert {one["invariant"] for one in left} == {case.invariant}, left
        assert all(one.get("advice") for one in left)
        return
    assert done.code == 0, done.out + done.err
    assert ok("check").out == "no problems found\n"
    if case.same:
        assert everything() == before
        lasting.spoilt = False


def test_every_row_has_a_case() -> None:
    assert set(test_check.SERVICE_ROWS) <= {case.invariant for case in CASES.values()}
    assert set(test_check.SERVICE_ROWS) <= set(INVARIANTS)


def ask(address: str, port: int) -> str:
    """Connect; what becomes of it."""
    with socket.socket() as client:
        client.settimeout(60)
        client.connect((address, port))
        return "reached"


def test_traffic_after_a_repair(setup: Setup) -> None:
    """A lane that led nowhere refuses, and serves again once it is mended."""
    with tcp("127.0.0.1", 8081), tcp("127.0.0.2", 8082):
        enter(setup.cgroup)
        try:
            assert ask("10.9.0.1", 80) == "reached"
            CASES["lost_block"].breaks(setup)
            with pytest.raises(OSError, match="No route to host"):
                ask("10.9.0.1", 80)
            ok("check", "--repair")
            assert ask("10.9.0.1", 80) == "reached"
            CASES["lost_link"].breaks(setup)
            ok("check", "--repair")
            assert ask("10.9.0.1", 80) == "reached"
        finally:
            leave(setup.cgroup)


def test_the_cgroup_has_gone(setup: Setup) -> None:
    """Its links are dead and its id is never given out again: everything about them is dropped, services stay."""
    os.mkdir(f"{setup.cgroup}/inner")
    ok("detach", "cgroup")
    ok("attach", "cgroup", f"{setup.cgroup}/inner")
    remove_cgroup(f"{setup.cgroup}/inner")
    done = svcctl("check")
    assert done.code == 1
    assert "which is gone" in done.out
    ok("check", "--repair")
    assert ok("check").out == "no problems found\n"
    assert not [name for name in os.listdir(setup.path) if name.startswith("link_connect")]
    ok("attach", "cgroup", setup.cgroup)
    ok("check")
    fd = cgroup.open_cgroup(setup.cgroup)
    try:
        assert len(query_programs(fd, CONNECT4.hook)) == 1
    finally:
        os.close(fd)


def test_nothing_is_written_that_no_program_reads(setup: Setup) -> None:
    CASES["a_map_swapped_for_another"].breaks(setup)
    before = test_check.meta(setup)  # type: ignore[arg-type]
    done = svcctl("service", "set", "web", "--affinity", "5")
    assert done.code == 7
    assert "is not one the loaded program" in done.err
    assert test_check.meta(setup) == before  # type: ignore[arg-type]


def test_a_lost_frontend_named_again(setup: Setup) -> None:
    """The advice works: what it says ends with a sound state."""
    CASES["lost_frontend_item"].breaks(setup)
    assert svcctl("check", "--repair").code == 1
    ok("service", "set", "web", "--frontend", "10.9.0.1:80/tcp", "--frontend", "10.9.0.1:53/udp")
    ok("check", "--repair")
    assert ok("check").out == "no problems found\n"


def test_a_lost_backend_named_again(setup: Setup) -> None:
    CASES["lost_member_item"].breaks(setup)
    assert svcctl("check", "--repair").code == 1
    ok("backend", "add", "web", "127.0.0.2:8082,weight=3")
    ok("check", "--repair")
    assert ok("check").out == "no problems found\n"


def test_without_a_dispatcher(world: World) -> None:
    """The balancer alone: looked at, mended, loaded again, collected and unloaded like both."""
    with own_cgroup() as path:
        ok("load", "--no-dispatcher")
        ok("attach", "cgroup", path, *SIZES)
        make_services()
        assert ok("check").out == "no problems found\n"
        CASES["lost_link"].breaks(Setup(world, path))
        assert svcctl("check").code == 1
        ok("check", "--repair")
        ok("load", "--no-dispatcher")
        ok("gc")
        breaks.put_meta(netns_cookie=(1 << 64) - 1)  # an earlier namespace of the same inode
        assert "earlier network namespace" in svcctl("service", "delete", "web").err
        assert "its network namespace is gone" in ok("gc", "--dry-run").out
        ok("gc")
        assert not os.path.exists(world.state_dir)
        fd = cgroup.open_cgroup(path)
        try:
            assert query_programs(fd, CONNECT4.hook) == []
        finally:
            os.close(fd)
        ok("load", "--no-dispatcher")
        ok("attach", "cgroup", path, *SIZES)
        ok("unload", "--yes")
        remove(path)
