"""Breaks of pins, modes, identity, programs and attachments."""

from __future__ import annotations

import os

from svcctl.bpf.constants import MAP_ARRAY, MAP_HASH, MAP_SOCKMAP
from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state import attach, destinations
from svcctl.state.place import Place
from svcctl.state.programs import describe_program, load_object
from svcctl.state.writer import lock_state
from tests.lib.breaks import Setup, case, put_meta
from tests.lib.foreign import attached_copy, foreign_program
from tests.lib.run import ok
from tests.lib.sockets import find, writer
from tests.lib.until import lose_link, until


def replace_map(setup: Setup, name: str, other: Map) -> None:
    """Pin another map and have a program that reads it in place, recorded as svcctl records it."""
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
    lose_link(f"{setup.path}/link_netns")


@case("pins", "labels are lost", mended=False)
def lost_destinations(setup: Setup) -> None:
    drop(setup, "destinations")


@case("pins", "start anew", mended=False)
def lost_meta(setup: Setup) -> None:
    drop(setup, "meta")


@case("pins", "start anew", mended=False)
def lost_map_that_nothing_holds(setup: Setup) -> None:
    with Map.open_pinned(f"{setup.path}/exact") as exact:
        number = exact.info.id
    lose_link(f"{setup.path}/link_netns")
    for name in ("prog_dispatch", "exact"):
        drop(setup, name)
    until(lambda: not _is_there(number), "the end of the map")


def _is_there(number: int) -> bool:
    try:
        Map.open_id(number).close()
    except BpfError:
        return False
    return True


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
    lose_link(f"{setup.path}/link_netns")
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
