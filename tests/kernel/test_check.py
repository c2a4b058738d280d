"""check: each invariant is broken by writing the map, pin or mode directly; check names it, --repair mends it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from svcctl.bpf.constants import MAP_ARRAY, MAP_HASH, MAP_SOCKMAP
from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32, U64
from svcctl.model.binding import KEY, parse_binding
from svcctl.state import attach, destinations
from svcctl.state.audit import INVARIANTS
from svcctl.state.bindings import encode_value
from svcctl.state.place import Place
from svcctl.state.writer import lock_state
from tests.lib.foreign import attached_copy, foreign_program
from tests.lib.run import ok, svcctl
from tests.lib.sockets import find, put_socket, register, tcp, udp, writer
from tests.lib.world import World

SERVICE_ROWS = ("services", "lanes", "frontends", "blocks", "backends", "balancer")
BINDINGS = (
    ("web", "tcp", "127.0.0.1", "80"),
    ("web", "tcp", "192.0.2.0/24", "443"),
    ("web", "tcp", "2001:db8::/32", "0"),
    ("dns", "udp", "127.0.0.1", "53"),
)


class Case(NamedTuple):
    """`breaks` breaks `invariant`; `says` is in the finding; not `mended`: `says` is what to decide, in the advice."""

    invariant: str
    breaks: Callable[[Setup], None]
    says: str
    mended: bool = True
    same: bool = True  # the bindings are as before afterwards


class Setup:
    """A loaded state with bindings and sockets, and what a test may need of it."""

    def __init__(self, world: World, web: socket.socket, dns: socket.socket) -> None:
        self.world = world
        self.web = web
        self.dns = dns
        self.close_later: list[object] = []

    @property
    def path(self) -> str:
        return self.world.state_dir


@pytest.fixture
def setup(world: World) -> Iterator[Setup]:
    ok("load", "--max-bindings", "1000", "--max-destinations", "64")
    for binding in BINDINGS:
        ok("bind", *binding)
    with tcp() as web, udp() as dns:
        register("web", 4, 6, web)
        register("dns", 4, 17, dns)
        made = Setup(world, web, dns)
        yield made
        for one in made.close_later:
            one.close()  # type: ignore[attr-defined]


CASES: dict[str, Case] = {}


def case(invariant: str, says: str, *, mended: bool = True, same: bool = True) -> Callable[..., None]:
    def add(breaks: Callable[[Setup], None]) -> None:
        CASES[breaks.__name__] = Case(invariant, breaks, says, mended, same)

    return add


# temporary


@case("temporary", "left over from a load")
def temporary_directory(setup: Setup) -> None:
    path = f"{setup.world.bpffs}/svcctl_tmp_1_2"
    os.mkdir(path, 0o700)
    with Map.create(MAP_HASH, "left", 4, 4, 1) as left:
        left.pin(f"{path}/meta")


# pins


def drop(setup: Setup, name: str) -> None:
    os.unlink(f"{setup.path}/{name}")


for _name in (*catalog.PROGRAM_READS, "usage", "programs", "writers", "attachments", "prog_dispatch"):

    def _drop(setup: Setup, name: str = _name) -> None:
        drop(setup, name)

    _drop.__name__ = f"lost_{_name}"
    case("pins", f"pin {_name!r} is missing")(_drop)


@case("attachments", "recorded but not attached")
def lost_link(setup: Setup) -> None:
    drop(setup, "link_netns")


@case("pins", "labels are lost", mended=False)
def lost_destinations(setup: Setup) -> None:
    drop(setup, "destinations")


@case("pins", "start anew", mended=False)
def lost_meta(setup: Setup) -> None:
    drop(setup, "meta")


@case("pins", "start anew", mended=False)
def lost_map_that_nothing_holds(setup: Setup) -> None:
    for name in ("link_netns", "prog_dispatch", "exact"):
        drop(setup, name)


@case("pins", "is missing")
def lost_program_that_nothing_holds(setup: Setup) -> None:
    ok("detach", "netns")
    drop(setup, "prog_dispatch")


@case("pins", "expected (2, 4, 8)")
def map_of_another_shape(setup: Setup) -> None:
    drop(setup, "ports")
    with Map.create(MAP_ARRAY, "ports", 4, 4, 1) as wrong:
        wrong.pin(f"{setup.path}/ports")


@case("pins", "is a program, expected a map")
def program_in_place_of_a_map(setup: Setup) -> None:
    drop(setup, "exact")
    with Program.open_pinned(f"{setup.path}/prog_dispatch") as program:
        program.pin(f"{setup.path}/exact")


@case("pins", "is a map, expected a link")
def map_in_place_of_the_link(setup: Setup) -> None:
    drop(setup, "link_netns")
    with Map.open_pinned(f"{setup.path}/exact") as opened:
        opened.pin(f"{setup.path}/link_netns")


@case("pins", "is a link, expected a program")
def link_in_place_of_the_program(setup: Setup) -> None:
    drop(setup, "prog_dispatch")
    with Link.open_pinned(f"{setup.path}/link_netns") as link:
        link.pin(f"{setup.path}/prog_dispatch")


# orphans


@case("orphans", "rm -r", mended=False)
def stranger_in_the_directory(setup: Setup) -> None:
    with Map.create(MAP_HASH, "stranger", 4, 4, 1) as stranger:
        stranger.pin(f"{setup.path}/stranger")


@case("orphans", "rm -r", mended=False)
def directory_in_the_directory(setup: Setup) -> None:
    os.mkdir(f"{setup.path}/sub", 0o700)


@case("orphans", "left over from an upgrade: next_exact")
def next_pin(setup: Setup) -> None:
    with Map.create(MAP_HASH, "exact", 20, 8, 1) as following:
        following.pin(f"{setup.path}/next_exact")


@case("orphans", "records of programs")
def next_record(setup: Setup) -> None:
    with writer() as state:
        record = state.program_record(0)
        state.map("programs").update(U32.pack(layouts.NEXT_PROGRAMS), layouts.PROGRAM.pack(record))


# modes


@case("modes", "the directory has mode 0770")
def directory_mode(setup: Setup) -> None:
    os.chmod(setup.path, 0o770)


@case("modes", "gid 12; expected 2710, 0, 0")
def directory_group(setup: Setup) -> None:
    os.chown(setup.path, 0, 12)


@case("modes", "chown root", mended=False)
def directory_owner(setup: Setup) -> None:
    os.chown(setup.path, 1000, 0)


@case("modes", "pin 'meta' has mode 0666")
def meta_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/meta", 0o666)


@case("modes", "pin 'exact' has mode 0600")
def map_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/exact", 0o600)


@case("modes", "pin 'prog_dispatch' has mode 0640")
def program_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/prog_dispatch", 0o640)


@case("modes", "pin 'link_netns' has mode 0660")
def link_mode(setup: Setup) -> None:
    os.chmod(f"{setup.path}/link_netns", 0o660)


@case("modes", "pin 'bindings' has mode 0640, uid 1000")
def owner_of_a_map_the_program_reads(setup: Setup) -> None:
    os.chown(f"{setup.path}/bindings", 1000, 0)


@case("modes", "chown root", mended=False)
def owner_of_a_map_nobody_vouches_for(setup: Setup) -> None:
    os.chown(f"{setup.path}/destinations", 1000, 0)


@case("modes", "gid 12")
def map_group(setup: Setup) -> None:
    os.chown(f"{setup.path}/destinations", 0, 12)


# sizes


@case("sizes", "--max-destinations", mended=False)
def small_sockets(setup: Setup) -> None:
    """Smaller than the destinations need, and read by the program: what a botched resize would leave."""
    small = Map.create(MAP_SOCKMAP, "sockets", 4, 8, 16)
    with small:
        replace_map(setup, "sockets", small)
    setup.web.listen()


# identity


def put_meta(**fields: object) -> None:
    with writer() as state:
        state.put_meta(state.meta()._replace(**fields))  # type: ignore[arg-type]


@case("identity", "start anew", mended=False)
def other_namespace(setup: Setup) -> None:
    put_meta(netns_inode=1)


@case("identity", "'svcctl gc' removes it", mended=False)
def other_cookie(setup: Setup) -> None:
    ok("detach", "netns")
    put_meta(netns_cookie=(1 << 64) - 1)


@case("identity", "start anew", mended=False)
def magic(setup: Setup) -> None:
    put_meta(magic=1)


# mark


@case("mark", "interrupted")
def odd_generation(setup: Setup) -> None:
    with writer() as state:
        meta = state.meta()
        state.put_meta(meta._replace(generation=meta.generation | 1, mark_command=b"bind x"))


@case("mark", "interrupted")
def swap_phase(setup: Setup) -> None:
    put_meta(swap_phase=enums.SWAP_FORWARD)


# writers


@case("writers", "the next writer's line is 77")
def ring_position(setup: Setup) -> None:
    put_meta(next_writer=77)


@case("writers", "the next writer's line is 1")
def ring_position_before_used_lines(setup: Setup) -> None:
    put_meta(next_writer=1)


# programs


@case("programs", "names other maps")
def recorded_maps(setup: Setup) -> None:
    with writer() as state:
        record = state.program_record(0)._replace(map_count=1)
        state.map("programs").update(U32.pack(0), layouts.PROGRAM.pack(record))


@case("programs", "is not recorded")
def recorded_nothing(setup: Setup) -> None:
    with writer() as state:
        state.map("programs").update(U32.pack(0), bytes(layouts.PROGRAM.size))


@case("programs", "program 20 is recorded")
def recorded_a_program_there_is_not(setup: Setup) -> None:
    with writer() as state:
        record = state.program_record(0)
        state.map("programs").update(U32.pack(20), layouts.PROGRAM.pack(record))


@case("programs", "attached and recorded is")
def another_program_pinned(setup: Setup) -> None:
    drop(setup, "prog_dispatch")
    with foreign_program() as foreign, Program.open_id(foreign.program_id) as program:
        program.pin(f"{setup.path}/prog_dispatch")


@case("programs", "upgrade --force", mended=False)
def another_program_pinned_while_detached(setup: Setup) -> None:
    ok("detach", "netns")
    another_program(setup)


def another_program(setup: Setup) -> None:
    drop(setup, "prog_dispatch")
    with foreign_program() as foreign, Program.open_id(foreign.program_id) as program:
        program.pin(f"{setup.path}/prog_dispatch")


@case("programs", "pinned map 'exact' is")
def a_map_swapped_for_another(setup: Setup) -> None:
    drop(setup, "exact")
    with Map.create(MAP_HASH, "exact", 20, 8, 1000) as other:
        other.pin(f"{setup.path}/exact")


# attachments


@case("attachments", "is detached")
def detached_link(setup: Setup) -> None:
    with Link.open_pinned(f"{setup.path}/link_netns") as link:
        link.detach()


@case("attachments", "attached but not recorded")
def unrecorded(setup: Setup) -> None:
    with writer() as state:
        key = attach.netns_key(state.netns.inode)
        state.map("attachments").delete(layouts.ATTACHMENT_KEY.pack(key))


@case("attachments", "recorded is 99 of program 0")
def another_link_recorded(setup: Setup) -> None:
    with writer() as state:
        key = layouts.ATTACHMENT_KEY.pack(attach.netns_key(state.netns.inode))
        state.map("attachments").update(key, layouts.ATTACHMENT.pack(layouts.Attachment(0, 99, 1, 0, 0)))


@case("attachments", "which this svcctl does not make here")
def recorded_elsewhere(setup: Setup) -> None:
    with writer() as state:
        key = layouts.ATTACHMENT_KEY.pack(layouts.AttachmentKey(7, 1, 2))
        state.map("attachments").update(key, layouts.ATTACHMENT.pack(layouts.Attachment(0, 1, 1, 0, 0)))


@case("attachments", "upgrade --force", mended=False)
def program_swapped_under_the_link(setup: Setup) -> None:
    with (
        foreign_program() as foreign,
        Program.open_id(foreign.program_id) as program,
        Link.open_pinned(f"{setup.path}/link_netns") as link,
    ):
        link.update(program)


# strays


@case("strays", "bpftool link detach id", mended=False)
def second_dispatcher(setup: Setup) -> None:
    os.mkdir(f"{setup.world.bpffs}/elsewhere")
    with attached_copy(pin=f"{setup.world.bpffs}/elsewhere/link"):
        pass


# ids


def change(label: str, family: int = 4, protocol: int = 6, **fields: Any) -> None:
    with writer() as state:
        destinations.put(state, find(state, label, family, protocol)._replace(**fields))


@case("ids", "which is also", mended=False)
def two_with_one_id(setup: Setup) -> None:
    with writer() as state:
        number = find(state, "web").id
    change("dns", 4, 17, id=number)


@case("ids", "of at most 64", mended=False)
def id_out_of_range(setup: Setup) -> None:
    change("web", id=64)


@case("ids", "the next id is 1, but 2 is in use")
def next_id_too_low(setup: Setup) -> None:
    put_meta(next_destination=1)


@case("ids", "the next id is 65")
def next_id_too_high(setup: Setup) -> None:
    put_meta(next_destination=65)


# destinations


def put_destination(raw: bytes, number: int) -> None:
    with writer() as state:
        state.map("destinations").update(
            raw, layouts.DESTINATION.pack(layouts.DestinationValue(number, 0, 0, 0))
        )


@case("destinations", "has a name that is none")
def nameless_destination(setup: Setup) -> None:
    put_destination(bytes(255) + bytes((4, 6)), 1)


@case("destinations", "has a name that is none")
def destination_of_no_protocol(setup: Setup) -> None:
    put_destination(b"x".ljust(255, b"\0") + bytes((4, 99)), 1)


@case("destinations", "has a name that is none")
def destination_with_a_torn_name(setup: Setup) -> None:
    put_destination(b"a\0b".ljust(255, b"\0") + bytes((4, 6)), 1)


@case("destinations", "has a name that is none")
def destination_with_control_characters(setup: Setup) -> None:
    put_destination(b"a\x1b[31m".ljust(255, b"\0") + bytes((4, 6)), 1)


@case("destinations", "slots above 15")
def slots_out_of_range(setup: Setup) -> None:
    change("web", slots=0x10001)


# bindings


def put_binding(name: str, raw: bytes, value: bytes) -> None:
    with writer() as state:
        state.map(name).update(raw, value)


@case("bindings", "unknown protocol 99")
def exact_of_no_protocol(setup: Setup) -> None:
    key = KEY.pack(160, 99, 4, 80, bytes(10) + b"\xff\xff" + bytes(4))
    put_binding("exact", key[4:], encode_value(key, 0))


@case("bindings", "the address is of the other family")
def prefix_of_the_other_family(setup: Setup) -> None:
    key = KEY.pack(128, 6, 4, 80, bytes(16))
    put_binding("bindings", key, encode_value(key, 0))


@case("bindings", "bits below the prefix length")
def prefix_with_host_bits(setup: Setup) -> None:
    """The trie takes it as what it stands for; the entry it replaces is written anew."""
    sound = parse_binding("web", "tcp", "192.0.2.0/24", "443").key()
    with writer() as state:
        value = state.map("bindings").lookup(sound)
        assert value is not None
        assert state.map("bindings").delete(sound)
        state.map("bindings").update(sound[:-1] + b"\x05", value)


@case("bindings", "belongs into 'exact'")
def host_in_the_trie(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    with writer() as state:
        value = state.map("exact").lookup(key[4:])
        assert value is not None
        state.map("bindings").update(key, encode_value(key, U32.unpack_from(value)[0])[:4] + U32.pack(160))
        state.map("exact").delete(key[4:])


@case("bindings", "the value does not belong to the key")
def exact_check_is_wrong(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], layouts.EXACT.pack(layouts.ExactValue(0, 1)))


@case("bindings", "the value does not belong to the key")
def prefix_length_is_wrong(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "192.0.2.0/24", "443").key()
    put_binding("bindings", key, layouts.BINDING.pack(layouts.BindingValue(0, 7)))


@case("bindings", "bind --replace", mended=False)
def binding_to_nobody(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], encode_value(key, 50))


@case("bindings", "bind --replace", mended=False)
def binding_to_another_protocol(setup: Setup) -> None:
    with writer() as state:
        number = find(state, "dns", 4, 17).id
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], encode_value(key, number))


# references, ports, usage


@case("references", "web#tcp:ipv4: 9 references, 2 bindings")
def references_too_many(setup: Setup) -> None:
    change("web", refs=9)


@case("references", "web#tcp:ipv4: 0 references, 2 bindings")
def references_too_few(setup: Setup) -> None:
    change("web", refs=0)


@case("ports", "tcp port 80: 5 exact and 0 prefixes noted, 1 and 0 counted")
def ports_too_many(setup: Setup) -> None:
    put_binding("ports", U32.pack(80), U32.pack(5) + U32.pack(0))


@case("ports", "udp port 53: 0 exact and 0 prefixes noted, 1 and 0 counted")
def ports_too_few(setup: Setup) -> None:
    put_binding("ports", U32.pack(65536 + 53), bytes(8))


@case("ports", "more ports with wrong counts")
def all_ports(setup: Setup) -> None:
    with writer() as state:
        for number in range(1000, 1050):
            state.map("ports").update(U32.pack(number), U32.pack(1) * 2)


for _name in ("bindings", "exact", "destinations"):

    def _usage(setup: Setup, name: str = _name) -> None:
        with writer() as state:
            state.put_usage(name, layouts.Usage(40, 3))

    _usage.__name__ = f"usage_of_{_name}"
    case("usage", f"{_name}: 40 of 3 noted")(_usage)


# sockets


@case("sockets", "a socket nobody registered")
def socket_in_an_unnoted_slot(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web"), 5, setup.web, note=False)


@case("sockets", "a socket nobody registered", same=False)
def socket_under_a_gone_destination(setup: Setup) -> None:
    with writer() as state:
        state.map("sockets").update(U32.pack(1 * 16), U64.pack(setup.web.fileno()))
        state.map("destinations").delete(destinations.encode_key(find(state, "web", 6).key))
        state.map("bindings").delete(parse_binding("web", "tcp", "2001:db8::/32", "0").key())


@case("sockets", "which was never handed out, holds a socket")
def socket_under_a_future_id(setup: Setup) -> None:
    with writer() as state:
        state.map("sockets").update(U32.pack(30 * 16 + 2), U64.pack(setup.web.fileno()))


@case("sockets", "holds an ipv4 udp socket")
def socket_of_another_protocol(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web"), 3, setup.dns)


@case("sockets", "holds an ipv4 tcp socket")
def socket_of_another_family(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web", 6), 3, setup.web)


@case("sockets", "holds an ipv6 tcp socket")
def v6only_socket_for_ipv4(setup: Setup) -> None:
    sock = tcp("::1")
    setup.close_later.append(sock)
    with writer() as state:
        put_socket(state, find(state, "web"), 3, sock)


# hints, counters


@case("hints", "is slot 16")
def hint_out_of_range(setup: Setup) -> None:
    put_binding("hints", U32.pack(0), U32.pack(16))


@case("hints", "never handed out, has a hint")
def hint_of_a_future_id(setup: Setup) -> None:
    put_binding("hints", U32.pack(40), U32.pack(3))


@case("counters", "has counted 7 lookups")
def counters_of_a_future_id(setup: Setup) -> None:
    with writer() as state:
        stats = state.map("dispatch_stats")
        stats.update(U32.pack(40), U64.pack(7) + bytes(stats.value_bytes - 8))


def replace_map(setup: Setup, name: str, other: Map) -> None:
    """Pin another map and have a program that reads it in place, recorded as svcctl records it."""
    from svcctl.state.programs import describe_program, load_object

    drop(setup, name)
    other.pin(f"{setup.path}/{name}")
    os.chmod(f"{setup.path}/{name}", 0o640)
    with lock_state(Place(), "test") as state:
        reuse = {each: state.map(each) for each in catalog.DISPATCH_MAPS}
        with (
            load_object("dispatch", {}, reuse) as loaded,
            loaded.program("dispatch") as program,
            Link.open_pinned(f"{setup.path}/link_netns") as link,
        ):
            link.update(program)
            drop(setup, "prog_dispatch")
            program.pin(f"{setup.path}/prog_dispatch")
            record = layouts.PROGRAM.pack(describe_program(catalog.DISPATCH, program))
            state.map("programs").update(U32.pack(0), record)
        one = find(state, "dns", 4, 17)
        destinations.put(state, one._replace(slots=0))
        one = find(state, "web")
        destinations.put(state, one._replace(slots=0))


def test_a_sound_state_has_no_problems(setup: Setup) -> None:
    done = ok("check")
    assert done.out == "no problems found\n"
    assert ok("check", "-o", "json").json == {"schema": 1, "problems": []}


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken(setup: Setup, name: str) -> None:
    case = CASES[name]
    bindings = ok("bindings").out
    before = meta(setup)
    case.breaks(setup)
    broken = None if name in ("lost_meta", "magic", "meta_mode") else meta(setup)

    done = svcctl("check", "-o", "json")
    assert done.code == 1, done.err
    found = [one for one in done.json["problems"] if one["invariant"] == case.invariant]
    wanted = "mendable" if case.mended else "undecided"
    named = [
        one for one in found if case.says in one["message"] + one.get("advice", "") and one["state"] == wanted
    ]
    assert named, done.out
    if broken is not None:
        assert meta(setup) == broken  # looking changes nothing
    assert svcctl("check", "--repair", "--dry-run").code == 1
    assert "Traceback" not in svcctl("check").err

    done = svcctl("check", "--repair", "-o", "json")
    left = [one for one in done.json["problems"] if one["state"] == "undecided"]
    if not case.mended:
        assert done.code == 1, done.err
        assert any(one["invariant"] == case.invariant for one in left)
        assert all(one.get("advice") for one in left)
        return
    assert done.code == 0, done.out + done.err
    assert not left
    assert any(
        one["invariant"] == case.invariant and one["state"] == "mended" for one in done.json["problems"]
    )
    assert ok("check").out == "no problems found\n"
    if case.same:
        assert ok("bindings").out == bindings
    after = meta(setup)
    assert not after.generation & 1
    if case.invariant != "temporary":
        assert after.generation > before.generation
    ok("bind", "later", "tcp", "127.0.0.1", "8080")
    ok("check")


def meta(setup: Setup) -> layouts.Meta:
    with Map.open_pinned(f"{setup.path}/meta") as opened:
        data = opened.lookup(bytes(4))
        assert data is not None
        return layouts.META.unpack(data)


def test_every_invariant_has_a_case() -> None:
    """Those of services are in test_check_services.py, with the other rows' service maps."""
    assert {case.invariant for case in CASES.values()} == set(INVARIANTS) - set(SERVICE_ROWS)


def test_the_table_names_the_invariants() -> None:
    root = Path(__file__).parents[2]
    texts = [
        (root / name).read_text()
        for name in ("ARCHITECTURE.md", "docs-invariants.md")
        if (root / name).exists()
    ]
    rows = [line.split("`")[1] for text in texts for line in text.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row in INVARIANTS] == list(INVARIANTS)


def test_after_a_lost_link_traffic_is_steered_again(setup: Setup) -> None:
    with socket.socket() as client:
        drop(setup, "link_netns")
        ok("check", "--repair")
        client.settimeout(5)
        client.connect(("127.0.0.1", 80))
        peer, _ = setup.web.accept()
        peer.close()


def test_check_when_it_cannot_look(world: World) -> None:
    done = svcctl("check")
    assert done.code == 10
    assert "no state for network namespace" in done.err
    assert svcctl("check", "--bpffs", "/tmp").code == 10
    assert svcctl("check", "--netns", "/nonexistent").code == 10
    assert svcctl("check", "--repari").code == 2
    error = svcctl("check", "-o", "json").error
    assert (error["exit_code"], error["code"]) == (10, "trouble")


def test_check_of_another_layout(setup: Setup) -> None:
    put_meta(schema=2)
    done = svcctl("check")
    assert done.code == 10
    assert "layout 2" in done.err


def test_check_waits_for_the_lock_and_says_so(setup: Setup) -> None:
    with writer():
        done = svcctl("check", "--lock-timeout", "0")
    assert done.code == 10
    assert "held by" in done.err


def test_several_at_once(setup: Setup) -> None:
    """Everything that can be mended, in one go."""
    for name in (
        "lost_usage",
        "lost_exact",
        "meta_mode",
        "directory_mode",
        "references_too_many",
        "ring_position",
    ):
        if name != "meta_mode":
            CASES[name].breaks(setup)
    os.chmod(f"{setup.path}/meta", 0o666)
    os.unlink(f"{setup.path}/ports")
    done = ok("check", "--repair")
    assert "mended" in done.out
    assert ok("check").out == "no problems found\n"
    assert len(ok("bindings", "-o", "json").json["bindings"]) == len(BINDINGS)
