"""attach dev and detach dev on real veths, by tcx links and by clsact filters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svcctl.bpf import probe
from svcctl.bpf.link import Link, query_programs
from svcctl.bpf.program import Program
from svcctl.errors import Full
from svcctl.host import tc
from svcctl.host.netns import Netns
from svcctl.maps import catalog, enums
from svcctl.maps.layouts import U32, U64
from svcctl.maps.packet_layouts import DEVICE, FLOW, FLOW_KEY, PACKET_CONFIG
from svcctl.state.device_links import Hooks
from svcctl.state.devices import attach_new, refuse_too_many
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.writer import lock_state
from tests.lib.svc import assert_one_error, svc
from tests.lib.until import lose_link
from tests.lib.veths import Pod, flood, pod, run_statistics, runs, verdict_program, wait
from tests.lib.world import World, sh

SMALL = ("--max-flows", 5000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)
WORKLOAD = ("--role", "workload")
INGRESS, EGRESS = catalog.TCX_INGRESS, catalog.TCX_EGRESS


@pytest.fixture(params=("tcx", "clsact"))
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which of the two ways interfaces are attached."""
    if request.param == "tcx" and not probe.tcx():
        pytest.skip("this kernel has no tcx links")
    if request.param == "clsact":
        monkeypatch.setenv("SVCCTL_TC", "clsact")
    return str(request.param)


@pytest.fixture
def state(world: World) -> World:
    svc("load", "--no-dispatcher")
    return world


@pytest.fixture
def one(state: World) -> Iterator[Pod]:
    with pod("veth1") as made:
        yield made


def attached(ifindex: int, mode: str) -> dict[str, list[int]]:
    """Ids of the programs at both sides of an interface, in the order they run."""
    if mode == "tcx":
        return {
            "ingress": query_programs(ifindex, INGRESS),
            "egress": query_programs(ifindex, EGRESS),
        }
    with Netns.open("/proc/thread-self/ns/net") as netns:
        return {
            side: [one.program_id for one in tc.filters(netns, ifindex, parent)]
            for side, parent in (("ingress", tc.INGRESS), ("egress", tc.EGRESS))
        }


def pinned(world: World, *names: str) -> list[int]:
    """Ids of the pinned programs."""
    found = []
    for name in names:
        with Program.open_pinned(f"{world.state_dir}/prog_{name}") as program:
            found.append(program.info.id)
    return found


def rows() -> list[dict[str, object]]:
    return [row for row in svc("attachments", "-o", "json").json["attachments"] if row["kind"] == "dev"]


def generation() -> int:
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return writer.meta().generation


def table() -> dict[int, tuple[int, int]]:
    """The programs' table of interfaces."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return {
            U32.unpack(key)[0]: (DEVICE.unpack(value).role, DEVICE.unpack(value).flags)
            for key, value in writer.map("devices").items()
        }


def sound() -> None:
    assert svc("check").out == "no problems found\n"


def no_traces(ifindex: int, mode: str) -> None:
    assert attached(ifindex, mode) == {"ingress": [], "egress": []}


@pytest.mark.quick
def test_in_every_kernel(one: Pod, state: World) -> None:
    """By what the kernel has: attached, another role with a death in the middle, upgraded, unloaded."""
    mode = "tcx" if probe.tcx() else "clsact"
    assert svc("attach", "dev", "veth1", *WORKLOAD, *SMALL).out == f"attached veth1 (workload, {mode})\n"
    into, out = pinned(state, "from_workload", "to_workload")
    assert attached(one.ifindex, mode) == {"ingress": [into], "egress": [out]}
    pid = os.fork()
    if pid == 0:
        made = Hooks.make

        def die(*args: Any, **kwargs: Any) -> None:
            made(*args, **kwargs)
            os._exit(9)

        Hooks.make = die
        svc("attach", "dev", "veth1", "--role", "host")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert attached(one.ifindex, mode)["egress"] == [out]
    assert (
        "repairing after 'attach dev veth1 --role host'"
        in svc("attach", "dev", "veth1", "--role", "host").err
    )
    into, out = pinned(state, "from_outside", "to_outside")
    assert attached(one.ifindex, mode) == {"ingress": [into], "egress": [out]}
    svc("upgrade", "--force")
    now = pinned(state, "from_outside", "to_outside")
    assert not {into, out} & set(now)
    assert attached(one.ifindex, mode) == {"ingress": now[:1], "egress": now[1:]}
    sound()
    svc("unload", "--yes")
    no_traces(one.ifindex, mode)


def test_attach_list_detach(one: Pod, state: World, mode: str) -> None:
    ran = svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    assert ran.out == f"attached veth1 (workload, {mode})\n"
    into, out = pinned(state, "from_workload", "to_workload")
    assert attached(one.ifindex, mode) == {"ingress": [into], "egress": [out]}
    assert [(row["target"], row["interface"], row["role"], row["hook"], row["state"]) for row in rows()] == [
        (one.ifindex, "veth1", "workload", "egress", "up"),
        (one.ifindex, "veth1", "workload", "ingress", "up"),
    ]
    assert ["link_id" in row for row in rows()] == [mode == "tcx"] * 2
    assert table() == {one.ifindex: (1, 3)}
    sound()
    before = generation()
    assert svc("attach", "dev", "veth1", *WORKLOAD).out == "unchanged veth1 (workload)\n"
    assert generation() == before
    assert svc("detach", "dev", "veth1", "--dry-run").out == "would detach veth1\n"
    assert svc("detach", "dev", "veth1").out == "detached veth1\n"
    no_traces(one.ifindex, mode)
    assert (rows(), table()) == ([], {})
    sound()
    before = generation()
    assert svc("detach", "dev", "veth1").out == "unchanged veth1\n"
    assert svc("detach", "dev", "none").out == "unchanged none\n"
    assert generation() == before


def test_packets_meet_the_programs(one: Pod, state: World, mode: str) -> None:
    with run_statistics():
        svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
        with contextlib.ExitStack() as stack:
            into, out = (
                stack.enter_context(Program.open_pinned(f"{state.state_dir}/prog_{name}"))
                for name in ("from_workload", "to_workload")
            )
            with flood(one, "10.200.0.1"):
                wait(lambda: runs(into) > 100 and runs(out) > 0)
                svc("detach", "dev", "veth1")
                gone = one.received()
                wait(lambda: one.received() > gone + 50)  # a run that had begun has ended by then
                before = runs(into), one.received()
                wait(lambda: one.received() > before[1] + 100)
                assert runs(into) == before[0]


def test_upgrade_misses_no_packet(state: World, mode: str) -> None:
    with run_statistics(), pod("veth1", up=False) as one, contextlib.ExitStack() as stack:
        svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
        programs = [stack.enter_context(Program.open_pinned(f"{state.state_dir}/prog_from_workload"))]
        sh("ip addr add 10.200.0.1/24 dev veth1; ip link set veth1 up")
        one.ip("addr add 10.200.0.2/24 dev eth0")
        one.ip("link set eth0 up")
        with flood(one, "10.200.0.1"):
            for words in (("upgrade", "--force"), ("upgrade", "--max-flows", 6000), ("upgrade", "--force")):
                svc(*words)
                programs.append(
                    stack.enter_context(Program.open_pinned(f"{state.state_dir}/prog_from_workload"))
                )
                latest = programs[-1]
                wait(lambda latest=latest: runs(latest) > 100)
        assert len({program.info.id for program in programs}) == 4
        # What is received is still to be run by the programs: the counts meet as soon as it is quiet.
        wait(lambda: one.received() == sum(map(runs, programs)))
        assert one.received() > 400
        sound()


def test_a_pattern_is_a_rule(state: World, mode: str) -> None:
    with pod("veth1", number=1) as first:
        ran = svc("attach", "dev", "veth*", *WORKLOAD, *SMALL)
        assert ran.out == f"created veth* (workload)\nattached veth1 (workload, {mode})\n"
        assert svc("status", "-o", "json").json["status"][0]["rules"] == [
            {"pattern": "veth*", "role": "workload"}
        ]
        with pod("veth2", number=2) as second, pod("other", number=3) as third:
            assert svc("attach", "dev", "--dry-run").out == f"would attach veth2 (workload, {mode})\n"
            assert {row["interface"] for row in rows()} == {"veth1"}
            with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
                assert attach_new(writer) == ["veth2"]
                assert attach_new(writer) == []
            no_traces(third.ifindex, mode)
            assert set(table()) == {first.ifindex, second.ifindex}
            ran = svc("detach", "dev", "veth2")
            assert "matches the rule 'veth*'" in ran.err
            # Another interface is attached, and with it what the rule says.
            ran = svc("attach", "dev", "other", "--role", "host")
            assert sorted(ran.out.splitlines()) == [
                f"attached other (host, {mode})", f"attached veth2 (workload, {mode})",
            ]  # fmt: skip
            ran = svc("detach", "dev", "veth*")
            assert ran.out == "deleted veth*\ndetached veth1\ndetached veth2\n"
            assert {row["interface"] for row in rows()} == {"other"}
            sound()
            assert "there are no rules" in svc("attach", "dev").err
            svc("attach", "dev", "v*", *WORKLOAD)
            assert svc("detach", "dev", "--all").out.startswith("deleted v*\n")
            assert (rows(), table()) == ([], {})
            for each in (first, second, third):
                no_traces(each.ifindex, mode)


def test_what_cannot_be_attached(state: World) -> None:
    sh("ip link add here0 type veth peer name here1")
    for words, code, text in (
        (("none", *WORKLOAD), 5, "none"),
        (("lo", *WORKLOAD), 2, "loopback"),
        (("lo", "--role", "host"), 2, "loopback"),
        (("a" * 16, *WORKLOAD), 2, "15 bytes"),
        (("*" + "a" * 63, *WORKLOAD), 2, "63 bytes"),
        (("a/b", *WORKLOAD), 2, "name"),
        (("", *WORKLOAD), 2, "name"),
        (("here0",), 2, "--role"),
        (("here0", "--role", "guest"), 2, "workload or host"),
        (("here0", "--role", "host", "--timeout", "udp"), 2, "NAME=SECONDS"),
        (("here0", "--role", "host", "--timeout", "tcp=3"), 2, "established"),
        (("here0", "--role", "host", "--timeout", "udp=0"), 2, "seconds"),
    ):
        ran = svc("attach", "dev", *words, code=code)
        assert_one_error(ran, codes=(code,))
        assert text in ran.err, ran
    assert not os.path.exists(f"{state.state_dir}/flows")
    assert_one_error(svc("detach", "dev", code=None), codes=(2,))
    assert "there are no rules" in svc("attach", "dev").err
    assert not os.path.exists(f"{state.state_dir}/flows")
    svc("attach", "dev", "none*", *WORKLOAD, *SMALL)
    assert svc("attach", "dev", "x*", *WORKLOAD).err.startswith("no interface matches 'x*' now")
    ran = svc("attach", "dev", "here0", "--role", "host", "--max-flows", 7000, code=6)
    assert "--max-flows" in ran.err
    sound()


def test_an_end_that_is_moved_later(state: World, mode: str) -> None:
    """Programs may hand packets to the other end only while that is in another namespace."""
    sh("ip link add veth1 type veth peer name far")
    ran = svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    assert "veth1: its other end is in this network namespace still" in ran.err
    ((ifindex, value),) = table().items()
    assert value == (1, 2)
    sound()
    with pod("other") as one:
        sh(f"ip link set far netns {one.pid}")
        assert "says otherwise" in svc("check", code=1).out
        assert svc("attach", "dev", "veth1", *WORKLOAD).out == f"changed veth1 (workload, {mode})\n"
        assert table() == {ifindex: (1, 3)}
        sound()
        one.ip(f"link set far netns {os.getpid()}")
        svc("check", "--repair")
        assert table() == {ifindex: (1, 2)}
        assert svc("attach", "dev", "veth1", *WORKLOAD).out == "unchanged veth1 (workload)\n"


def test_an_interface_that_goes(state: World, mode: str) -> None:
    for forget in ("gc", "attach", "check", "upgrade", "detach"):
        with pod("veth1") as one:
            svc("attach", "dev", "veth1", *WORKLOAD, *(SMALL if forget == "gc" else ()))
            one.remove()
            wait(lambda one=one: not os.path.exists(f"/proc/{one.pid}/net/dev_snmp6/eth0"))
            assert {row["state"] for row in rows()} == {"down"}
            assert "attached, and gone: veth1" in svc("doctor", code=None).out
            if forget == "gc":
                assert svc("gc", "--dry-run").out == "would remove veth1 (its interface is gone)\n"
                assert svc("gc").out == "removed veth1 (its interface is gone)\n"
            elif forget == "attach":
                with pod("veth2", number=2):
                    assert "detached veth1" in svc("attach", "dev", "veth2", *WORKLOAD).out
                    svc("detach", "dev", "veth2")
            elif forget == "check":
                assert "veth1" in svc("check", code=1).out
                svc("check", "--repair")
            elif forget == "upgrade":
                svc("upgrade", "--force")
            else:
                assert svc("detach", "dev", "veth1").out == "detached veth1\n"
            assert (rows(), table()) == ([], {})
            assert not [name for name in os.listdir(state.state_dir) if name.startswith("link_")]
            sound()


def test_another_interface_with_the_index(one: Pod, state: World, mode: str) -> None:
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    one.remove()
    wait(lambda: not os.path.exists("/proc/sys/net/ipv4/conf/veth1"))
    sh(f"ip link add stranger index {one.ifindex} type veth peer name eth0 netns {one.pid}")
    svc("check", "--repair")
    no_traces(one.ifindex, mode)
    assert (rows(), table()) == ([], {})


def test_another_role(one: Pod, state: World, mode: str) -> None:
    svc("attach", "dev", "veth*", *WORKLOAD, *SMALL)
    links = [row.get("link_id") for row in rows()]
    assert svc("attach", "dev", "veth1", "--role", "host").out == f"changed veth1 (host, {mode})\n"
    into, out = pinned(state, "from_outside", "to_outside")
    assert attached(one.ifindex, mode) == {"ingress": [into], "egress": [out]}
    assert [row.get("link_id") for row in rows()] == links  # replaced under it, never detached
    assert {row["role"] for row in rows()} == {"host"}
    assert table() == {one.ifindex: (2, enums.DEVICE_NEIGHBOUR)}
    sound()
    assert "unchanged" in svc("attach", "dev").out  # the rule does not take back what was said of one
    assert svc("attach", "dev", "veth*", *WORKLOAD).out == f"changed veth1 (workload, {mode})\n"
    sound()


def test_programs_of_others_stay(one: Pod, state: World) -> None:
    """On tcx and on clsact, before svcctl's and after, also at the priority it would take."""
    with (
        verdict_program() as stranger,
        run_statistics(),
        Netns.open("/proc/thread-self/ns/net") as netns,
        contextlib.ExitStack() as stack,
    ):
        if True:
            if probe.tcx():
                stack.enter_context(Link.create(stranger, one.ifindex, INGRESS))
            pin = "/sys/fs/bpf/stranger"
            stranger.pin(pin)
            stack.callback(os.unlink, pin)
            sh("tc qdisc add dev veth1 clsact")
            for priority in (1, 7700):
                sh(f"tc filter add dev veth1 ingress prio {priority} handle 1 bpf da pinned {pin}")
            for clsact in (False, True):
                if not clsact and not probe.tcx():
                    continue
                with pytest.MonkeyPatch.context() as patch:
                    if clsact:
                        patch.setenv("SVCCTL_TC", "clsact")
                    svc("attach", "dev", "veth1", *WORKLOAD)
                    with (
                        Program.open_pinned(f"{state.state_dir}/prog_from_workload") as mine,
                        flood(one, "10.200.0.1"),
                    ):
                        before = runs(stranger)
                        wait(
                            lambda mine=mine, before=before: runs(mine) > 50 and runs(stranger) > before + 100
                        )
                    found = tc.filters(netns, one.ifindex, tc.INGRESS)
                    assert [(each.priority, each.ours) for each in found] == (
                        [(1, False), (7700, False), (7701, True)] if clsact else [(1, False), (7700, False)]
                    )
                    svc("upgrade", "--force")
                    sound()
                    svc("detach", "dev", "veth1")
            assert [each.priority for each in tc.filters(netns, one.ifindex, tc.INGRESS)] == [1, 7700]
            if probe.tcx():
                assert query_programs(one.ifindex, INGRESS) == [stranger.info.id]


def test_the_packet_path_of_another_state(one: Pod, state: World, mode: str, tmp_path: Path) -> None:
    """Under another bpffs: refused by name, left out by a rule; found by `check` where it came later."""
    sh(f"mount -t bpf -o mode=0711 bpf {tmp_path}")
    try:
        svc("load", "--no-dispatcher", "--bpffs", tmp_path)
        svc("attach", "dev", "veth1", *WORKLOAD, *SMALL, "--bpffs", tmp_path)
        ran = svc("attach", "dev", "veth1", *WORKLOAD, *SMALL, code=6)
        assert "translated twice" in ran.err
        ran = svc("attach", "dev", "veth*", *WORKLOAD, *SMALL)
        assert "veth1 is left out: a packet path of svcctl" in ran.err
        assert rows() == []
        svc("detach", "dev", "veth1", "--bpffs", tmp_path)
        svc("attach", "dev")
        sound()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("svcctl.state.devices._stranger", lambda *_: None)
            svc("attach", "dev", "veth1", "--role", "host", "--bpffs", tmp_path)
        ran = svc("check", code=1)
        assert "strays" in ran.out
        svc("unload", "--yes", "--bpffs", tmp_path)
        sound()
        assert {row["state"] for row in rows()} == {"up"}
    finally:
        sh(f"umount {tmp_path}")


def test_somebody_elses_program_under_our_link(one: Pod, state: World) -> None:
    if not probe.tcx():
        pytest.skip("this kernel has no tcx links")
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    pin = f"{state.state_dir}/link_ingress_{one.ifindex}"
    with verdict_program() as stranger, Link.open_pinned(pin) as link:
        link.update(stranger)
        assert "not svcctl's" in svc("check", code=1).out
        ran = svc("upgrade", "--max-flows", 6000, code=6)
        assert f"link_ingress_{one.ifindex}: runs program {stranger.info.id}" in ran.err
        assert query_programs(one.ifindex, INGRESS) == [stranger.info.id]
        svc("upgrade", "--force")
    assert query_programs(one.ifindex, INGRESS) == pinned(state, "from_workload")
    sound()


BY_HAND = {
    "detached": "tcx",
    "pin_removed": "tcx",
    "filter_deleted": "clsact",
    "qdisc_deleted": "clsact",
    "record_deleted": "",
    "records_lost": "",
    "table_emptied": "",
}


@pytest.mark.parametrize("how", BY_HAND)
def test_broken_by_hand(one: Pod, state: World, mode: str, how: str) -> None:
    """Each is found, and mended; `upgrade` attaches again what is only detached."""
    if BY_HAND[how] not in ("", mode):
        return
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    by_upgrade = () if how.startswith("record") or how == "table_emptied" else (("upgrade", "--force"),)
    for repair in (("check", "--repair"), *by_upgrade):
        if how == "detached":
            with Link.open_pinned(f"{state.state_dir}/link_egress_{one.ifindex}") as link:
                link.detach()
        elif how == "pin_removed":
            lose_link(f"{state.state_dir}/link_ingress_{one.ifindex}")
        elif how == "filter_deleted":
            sh("tc filter del dev veth1 egress")
        elif how == "qdisc_deleted":
            sh("tc qdisc del dev veth1 clsact")
        elif how == "records_lost":
            os.unlink(f"{state.state_dir}/attachments")
        else:
            with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
                name = "devices" if how == "table_emptied" else "attachments"
                for key, _ in list(writer.map(name).items()):
                    writer.map(name).delete(key)
        svc("check", code=1)
        svc(*repair)
        sound()
        into, out = pinned(state, "from_workload", "to_workload")
        assert attached(one.ifindex, mode) == {"ingress": [into], "egress": [out]}
        assert {row["state"] for row in rows()} == {"up"}
        assert table() == {one.ifindex: (1, 3)}


def mtus() -> dict[int, int]:
    """What programs are told of the MTU of interfaces."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        return {U32.unpack(key)[0]: DEVICE.unpack(value).mtu for key, value in writer.map("devices").items()}


def test_mtu(one: Pod, state: World) -> None:
    """Programs are told; `check` finds another one, and whoever comes by puts it right."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    assert mtus() == {one.ifindex: 1500}
    for mtu, words in (
        (1400, ("check", "--repair")),
        (1300, ("attach", "dev", "veth1", *WORKLOAD)),
        (1350, ("attach", "dev")),
        (1450, ("gc",)),
        (9000, ("upgrade", "--force")),
    ):
        sh(f"ip link set veth1 mtu {mtu}")
        assert f"says otherwise: its MTU is {mtu}, no longer" in svc("check", code=1).out
        svc(*words)
        assert mtus() == {one.ifindex: mtu}
        sound()
    before = generation()
    svc("gc")
    svc("attach", "dev")
    assert generation() == before


def test_lost_pins(one: Pod, state: World) -> None:
    """A map that an attached program holds, or one that it jumps to, is pinned again; the map of programs loses what is
    in it, so those are loaded anew."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL, "--timeout", "udp=17")
    for name in (*catalog.PACKET_MAPS, *(shape.pin for shape in catalog.PACKET), "attach_rules"):
        before = pinned(state, "from_workload") if name != "prog_from_workload" else []
        os.unlink(f"{state.state_dir}/{name}")
        svc("check", code=1)
        svc("check", "--repair")
        sound()
        after = pinned(state, "from_workload")
        if name == catalog.TAILS:
            assert after != before
        elif before and name in catalog.PACKET_MAPS:
            assert after == before
        assert attached(one.ifindex, "tcx" if probe.tcx() else "clsact")["ingress"] == after
        assert table() == {one.ifindex: (1, 3)}
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        settings = writer.map("packet_config").lookup(bytes(4))
    assert settings is not None
    assert PACKET_CONFIG.unpack(settings).udp_ms == 17_000


def test_room_for_interfaces(one: Pod, state: World) -> None:
    """More than the maps have room for are refused before the first write."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    with open_reader(Place()) as reader:
        most = min(
            reader.map("devices").info.max_entries,
            (reader.map("attachments").info.max_entries - 1 - len(catalog.CONNECT)) // 2,
        )
        refuse_too_many(reader, range(most))
        with pytest.raises(Full, match=f"room for {most} interfaces"):
            refuse_too_many(reader, range(most + 1))


def test_unload_leaves_nothing(one: Pod, state: World, mode: str) -> None:
    with pod("veth2", number=2) as other:
        svc("attach", "dev", "veth*", *WORKLOAD, *SMALL)
        svc("attach", "dev", "veth2", "--role", "host")
        svc("unload", "--yes")
        for each in (one, other):
            no_traces(each.ifindex, mode)


def test_half_unloaded(one: Pod, state: World, mode: str) -> None:
    """The directory renamed away by an unload that died: what is attached goes with the next one."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    os.rename(state.state_dir, f"{state.bpffs}/svcctl_tmp_1_1")
    assert attached(one.ifindex, mode)["ingress"]
    svc("gc")
    no_traces(one.ifindex, mode)
    assert not [name for name in os.listdir(state.bpffs) if "svcctl" in name]


def test_one_set_of_service_maps(one: Pod, state: World) -> None:
    """Whichever half comes first makes the service maps; the other finds them."""
    from tests.lib.balanced import own_cgroup

    def ids() -> dict[str, int]:
        with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
            return {name: writer.map(name).info.id for name in catalog.SERVICE_MAPS}

    with own_cgroup() as cgroup:
        svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
        svc("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", "10.200.0.2:80")
        before = ids()
        svc("attach", "cgroup", cgroup)
        assert ids() == before
        sound()
        assert "web" in svc("services").out
        svc("upgrade", "--max-services", 100)
        sound()
        assert "web" in svc("services").out
        svc("unload", "--yes")
        svc("load", "--no-dispatcher")
        svc("attach", "cgroup", cgroup, *SMALL[2:])
        before = ids()
        svc("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", "10.200.0.2:80")
        ran = svc("attach", "dev", "veth1", *WORKLOAD, "--max-services", 99, code=6)
        assert "--max-services" in ran.err
        svc("attach", "dev", "veth1", *WORKLOAD, "--max-flows", 1000)
        assert ids() == before
        sound()
        svc("detach", "cgroup")
        sound()
        assert {row["state"] for row in rows()} == {"up"}


def test_flows_and_settings_are_carried_over(one: Pod, state: World) -> None:
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL, "--timeout", "udp=17", "--timeout", "syn=1.5")
    key = bytes(range(40))
    value = bytes(range(104))
    FLOW_KEY.unpack(key), FLOW.unpack(value)
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        writer.map("flows").update(key, value)
        settings = writer.map("packet_config").lookup(bytes(4))
    for words in (
        ("upgrade", "--force"),
        ("upgrade", "--max-flows", 8000),
        ("upgrade", "--max-services", 65),
    ):
        svc(*words)
        with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
            assert writer.map("flows").lookup(key) == value
            assert writer.map("packet_config").lookup(bytes(4)) == settings
            size = writer.map("flows").info.max_entries
    assert size == 16000
    assert svc("attach", "dev", "veth1", *WORKLOAD, "--timeout", "udp=18").out == (
        "unchanged veth1 (workload)\nchanged settings\n"
    )
    sound()


def settings() -> dict[str, float]:
    """The idle times as `status` has them, which are those of the programs once there are any."""
    times: dict[str, float] = svc("status", "-o", "json").json["status"][0]["packets"]["timeouts"]
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        if writer.has_map("packet_config"):
            config = PACKET_CONFIG.unpack(writer.map("packet_config").lookup(bytes(4)) or b"")
            assert [ms / 1000 for ms in config[1:8]] == list(times.values())
    return times


def test_timeouts_of_load(world: World) -> None:
    """Said before there is a packet path or after, and again; kept by all that makes maps or programs anew."""
    usual = {
        "syn": 20,
        "established": 3600,
        "fins": 120,
        "reset": 40,
        "after-reset": 120,
        "udp": 60,
        "fragment": 30,
    }
    assert svc("load", "--no-dispatcher", "--timeout", "udp=17", "--timeout", "syn=1.5").err == ""
    assert settings() == usual | {"udp": 17, "syn": 1.5}
    assert "unchanged" in svc("load", "--no-dispatcher", "--timeout", "udp=17").out
    again = ("load", "--no-dispatcher", "--timeout", "udp=18")
    assert "would change settings (udp 17 s -> 18 s)\n" in svc(*again, "--dry-run").out
    assert "changed settings (udp 17 s -> 18 s)\n" in svc(*again).out
    assert "timeouts" in svc("status").out
    with pod("veth1"):
        svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
        assert settings() == usual | {"udp": 18, "syn": 1.5}
        assert "changed settings (syn 1.5 s -> 2 s)\n" in svc(*again[:2], "--timeout", "syn=2").out
        svc("attach", "dev", "veth1", *WORKLOAD, "--timeout", "fins=60")
        wanted = usual | {"udp": 18, "syn": 2, "fins": 60}
        assert settings() == wanted
        before = generation()
        svc(*again)
        assert generation() == before
        for words in (("--force",), ("--max-flows", 8000)):
            svc("upgrade", *words)
            assert settings() == wanted
        for ran in (svc("load", "--timeout", text, code=2) for text in ("udp", "udp=0", "tcp=3")):
            assert "NAME=SECONDS" in ran.err or "seconds" in ran.err
        sound()


def test_every_counter_is_shown(one: Pod, state: World) -> None:
    """What the programs count, by `status` and `metrics`, whether or not it ever happened."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        for name, words in (("packet_stats", enums.PACKET_EVENTS), ("drop_stats", enums.DROP_REASONS)):
            table = writer.map(name)
            for number in range(len(words)):
                table.update(U32.pack(number), U64.pack(number) + bytes(table.value_bytes - 8))
    (shown,) = svc("status", "-o", "json").json["status"]
    assert shown["packets"]["events"] == {name: n for n, name in enumerate(enums.PACKET_EVENTS)}
    assert shown["drops"] == {name: n for n, name in enumerate(enums.DROP_REASONS)}
    text, metrics = svc("status").out, svc("metrics").out
    for kind, names in (("packet_events_total", enums.PACKET_EVENTS), ("drops_total", enums.DROP_REASONS)):
        for number, name in enumerate(names):
            label = "event" if kind.startswith("packet") else "reason"
            assert f'svcctl_{kind}{{{label}="{name}"}} {number}\n' in metrics
            assert not number or f"{name} {number}" in text


def test_interfaces_of_another_namespace(world: World, mode: str) -> None:
    """`--netns`: names, links and filters are those of the namespace the state is for."""
    sh("ip link add decoy type veth peer name far")
    with pod("veth1") as inner:
        inner.ip(f"link add inside type veth peer name outside netns {os.getpid()}")
        where = ("--netns", f"/proc/{inner.pid}/ns/net")
        svc(*where, "load", "--no-dispatcher")
        svc(*where, "attach", "dev", "decoy", *WORKLOAD, code=5)
        assert (
            svc(*where, "attach", "dev", "inside", *WORKLOAD, *SMALL).out
            == f"attached inside (workload, {mode})\n"
        )
        found = svc(*where, "attachments", "-o", "json").json["attachments"]
        assert {(row["interface"], row["state"]) for row in found} == {("inside", "up")}
        assert svc(*where, "check").out == "no problems found\n"
        svc(*where, "upgrade", "--force")
        assert svc(*where, "check").out == "no problems found\n"
        svc(*where, "unload", "--yes")
        svc(*where, "attachments", code=3)
        sh("ip link del outside")


def test_another_name(one: Pod, state: World, mode: str) -> None:
    """Listings say what an interface is called now; `check --repair` says so in the record, too."""
    svc("attach", "dev", "veth1", *WORKLOAD, *SMALL)
    sh("ip link set veth1 down; ip link set veth1 name other1; ip link set other1 up")
    found = svc("attachments", "-o", "json").json["attachments"]
    assert {(row["interface"], row["state"]) for row in found} == {("other1", "up")}
    (shown,) = svc("status", "-o", "json").json["status"]
    assert {row["interface"] for row in shown["attachments"]} == {"other1"}
    svc("check", code=1)
    svc("check", "--repair")
    assert svc("check").out == "no problems found\n"
    svc("detach", "dev", "other1")


def test_names_an_interface_has_besides(one: Pod, state: World) -> None:
    sh("ip link property add dev veth1 altname container0")
    assert svc("attach", "dev", "container*", *WORKLOAD, *SMALL).out.endswith(
        "attached veth1 (workload, tcx)\n" if probe.tcx() else "attached veth1 (workload, clsact)\n"
    )
    sh("ip link set veth1 name later")
    sound_after = svc("check", code=None)
    assert sound_after.code in (0, 1)
    svc("check", "--repair")
    sound()
    assert {row["interface"] for row in rows()} == {"later"}
