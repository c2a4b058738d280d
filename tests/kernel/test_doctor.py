"""doctor: every line is seen ok, and made to warn or fail: by breaking the host for real, or the probe's answer."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from svcctl.bpf.errors import Unsupported
from svcctl.bpf.link import Link
from svcctl.errors import Incompatible
from svcctl.host import cgroup
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from svcctl.state.doctor import FAIL, OK, WARN, Line, Probe, diagnose, host
from svcctl.state.doctor.host import OBJECTS, layout_differences
from svcctl.state.doctor.probe import Root
from svcctl.state.place import Place
from svcctl.state.programs import object_path
from tests.lib.foreign import foreign_program
from tests.lib.outgoing import balancer
from tests.lib.run import ok, svcctl
from tests.lib.sockets import writer
from tests.lib.svc import svc_process
from tests.lib.world import World

SOURCES = Path(__file__).resolve().parents[2] / "bpf"
HOST_SYSCTLS = {"kernel.unprivileged_bpf_disabled": "2", "net.core.bpf_jit_enable": "1"}


class Good(Probe):
    """This host, with what a test's own namespaces lack answered as the host would."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(Place())
        for name, answer in answers.items():
            setattr(self, name, _raiser(answer) if isinstance(answer, Exception) else _giver(answer))

    def sysctl(self, name: str) -> str | None:
        return HOST_SYSCTLS.get(name)

    def in_pid1_mount_namespace(self) -> bool:
        return True


def _giver(answer: Any) -> Callable[..., Any]:
    return lambda *_args: answer


def _raiser(error: Exception) -> Callable[..., Any]:
    def give(*_args: object) -> None:
        raise error

    return give


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "10")
    return world


def lines(probe: Probe | None = None) -> dict[str, Line]:
    found = diagnose(probe or Good())
    names = [line.name for line in found]
    assert len(names) == len(set(names))
    return {line.name: line for line in found}


def as_json(**kwargs: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in svcctl("doctor", "-o", "json", **kwargs).json["doctor"]}


def expect(line: Line, status: str, text: str, hint: bool = True) -> None:
    assert line.status == status, line
    assert text in line.message, line
    if hint:
        assert line.hint, line


SEEN: set[str] = set()
"""Names of the lines some test below has made warn or fail."""


def broken(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def note(function: Callable[..., None]) -> Callable[..., None]:
        SEEN.add(name)
        return function

    return note


def test_every_line_is_ok_on_a_good_host(loaded: World) -> None:
    found = lines()
    assert [line for line in found.values() if line.status != OK] == []


def test_every_line_is_broken_by_a_test(loaded: World) -> None:
    assert set(lines()) - SEEN == set()


def test_the_same_lines_whether_loaded_or_not(world: World) -> None:
    before = list(lines())
    ok("load", "--max-bindings", "100")
    assert list(lines()) == before


# The kernel


@broken("libbpf")
def test_libbpf(loaded: World) -> None:
    expect(lines(Good(libbpf_version=(1, 0, 5)))["libbpf"], FAIL, "1.0.5")
    missing = Unsupported(2, "load", "libbpf.so.1", feature="libbpf", since="1.1", reason="no such file")
    expect(lines(Good(libbpf_version=missing))["libbpf"], FAIL, "libbpf.so.1")


@broken("kernel")
def test_kernel(loaded: World) -> None:
    expect(lines(Good(kernel_release=(5, 4)))["kernel"], FAIL, "5.4")


@broken("sk_lookup programs")
@broken("batches on hash maps")
@broken("batches on tries")
@broken("look-up and delete on hash maps")
@broken("tcx links")
def test_features(loaded: World) -> None:
    found = lines(Good(feature=False))
    expect(found["sk_lookup programs"], FAIL, "the kernel has none")
    for name in ("batches on hash maps", "batches on tries", "look-up and delete on hash maps"):
        expect(found[name], WARN, "the kernel has none")
    expect(found["tcx links"], WARN, "filters on clsact")
    expect(lines(Good(feature=False, has_pyroute2=False))["tcx links"], WARN, "pyroute2 is missing")


@broken("namespace cookie")
def test_cookie(loaded: World) -> None:
    expect(lines(Good(netns_cookie=None))["namespace cookie"], WARN, "none")


@broken("kernel.unprivileged_bpf_disabled")
@broken("net.core.bpf_jit_enable")
def test_sysctls(loaded: World) -> None:
    found = lines(Good(sysctl="0"))
    expect(found["kernel.unprivileged_bpf_disabled"], WARN, "any user")
    expect(found["net.core.bpf_jit_enable"], WARN, "interpreted")
    expect(lines(Good(sysctl="2"))["net.core.bpf_jit_enable"], WARN, "log")
    found = lines(Good(sysctl=None))
    assert {found[name].status for name in HOST_SYSCTLS} == {WARN}


@broken("tcp_diag")
@broken("udp_diag")
def test_sock_diag(loaded: World) -> None:
    found = lines(Good(sock_diag=OSError(2, "No such file or directory")))
    expect(found["tcp_diag"], WARN, "No such file")
    expect(found["udp_diag"], WARN, "No such file")


@broken("pidfd_getfd")
def test_pidfd_getfd(loaded: World) -> None:
    expect(lines(Good(pidfd_getfd=Incompatible("no pidfd_getfd")))["pidfd_getfd"], WARN, "no pidfd_getfd")


@broken("refusals")
def test_refusals(loaded: World) -> None:
    expect(lines(Good(chooses_errno=False))["refusals"], WARN, "EPERM")
    assert "not looked at" in lines(Good(chooses_errno=None))["refusals"].message
    assert probe_of_this_host().chooses_errno() is (probe_of_this_host().kernel_release() >= (6, 1))


@broken("kernel clients")
def test_kernel_clients(loaded: World) -> None:
    expect(lines(Good(kernel_release=(6, 5)))["kernel clients"], WARN, "NFS")
    assert lines(Good(kernel_release=(6, 6)))["kernel clients"].status == OK


@broken("cgroup v1")
def test_cgroup_v1(loaded: World) -> None:
    where = ["/sys/fs/cgroup/net_cls,net_prio"]
    expect(lines(Good(class_mounts=where, kernel_release=(5, 10)))["cgroup v1"], WARN, where[0])
    assert lines(Good(class_mounts=where, kernel_release=(5, 15)))["cgroup v1"].status == OK
    assert lines(Good(class_mounts=[], kernel_release=(5, 10)))["cgroup v1"].status == OK


def test_mounts_of_controllers(world: World, tmp_path: Path) -> None:
    """cgroup v1's, by controller, whatever their mount points are called; cgroup2 has no such."""
    before = cgroup.mounts_of("net_cls", "net_prio")
    path = tmp_path / "a b"
    path.mkdir()
    for name in ("net_cls", "net_prio"):
        options = ["mount", "-t", "cgroup", "-o", name, "none", str(path)]
        if subprocess.run(options, capture_output=True, check=False).returncode == 0:
            assert str(path) in cgroup.mounts_of(name, "nothing")
            assert str(path) not in cgroup.mounts_of("nothing")
            subprocess.run(["umount", str(path)], check=True)
    assert cgroup.mounts_of("net_cls", "net_prio") == before


def probe_of_this_host() -> Probe:
    return Probe(Place())


# The process and the host


@broken("capabilities")
def test_capabilities_dropped_for_real(loaded: World) -> None:
    without = ("cap_bpf", "cap_net_admin", "cap_sys_admin", "cap_sys_ptrace", "cap_perfmon")
    drop = ",".join(f"-{name.removeprefix('cap_')}" for name in without)
    ran = svc_process("doctor", prefix=("setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"), code=1)
    line = next(line for line in ran.out.splitlines() if " capabilities " in line)
    assert line.startswith("fail")
    assert "CAP_BPF is missing" in line
    assert "CAP_NET_ADMIN is missing" in line
    for feature in ("sk_lookup programs", "batches on tries"):
        line = next(line for line in ran.out.splitlines() if f" {feature} " in line)
        assert "not looked at" in line


def test_capabilities_that_are_only_useful(loaded: World) -> None:
    held = {"CAP_BPF", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"}
    expect(lines(Good(capabilities=held))["capabilities"], WARN, "CAP_SYS_PTRACE")


@broken("bpffs")
def test_bpffs_that_is_none(world: World) -> None:
    with tempfile.TemporaryDirectory(prefix="svcctl-test-") as path:
        found = as_json(environ={"SVCCTL_BPFFS": path})
        assert (found["bpffs"]["status"], found["bpffs mode"]["status"]) == (FAIL, WARN)
        found = as_json(environ={"SVCCTL_BPFFS": f"{path}/none"})
        assert found["bpffs"]["status"] == FAIL
    assert svcctl("doctor", "--bpffs", "/nonexistent").code == 1


@broken("bpffs mode")
def test_bpffs_modes(loaded: World) -> None:
    os.chmod(loaded.bpffs, 0o1777)
    expect(lines()["bpffs mode"], WARN, "1777")
    os.chmod(loaded.bpffs, 0o711)
    os.chown(loaded.bpffs, 1000, -1)
    expect(lines()["bpffs mode"], FAIL, "owner 1000")
    os.chown(loaded.bpffs, 0, -1)
    assert lines()["bpffs mode"].status == OK


@broken("mount namespace")
def test_mount_namespace(loaded: World) -> None:
    assert as_json()["mount namespace"]["status"] == WARN  # a world has one of its own


@pytest.fixture
def objects() -> Iterator[Path]:
    """A copy of the objects that a test may damage."""
    with tempfile.TemporaryDirectory(prefix="svcctl-test-") as directory:
        for name in OBJECTS:
            shutil.copy(object_path(name), directory)
        yield Path(directory)


@broken("objects")
def test_objects(loaded: World, objects: Path) -> None:
    environ = {"SVCCTL_OBJECTS": str(objects)}
    assert as_json(environ=environ)["objects"]["status"] == OK
    (objects / Path(object_path("copy")).name).write_bytes(b"no ELF")
    found = as_json(environ=environ)
    assert found["objects"]["status"] == FAIL
    assert "not a 64-bit ELF file" in found["objects"]["message"]
    (objects / Path(object_path("copy")).name).unlink()
    assert "no such object" in as_json(environ=environ)["objects"]["message"]


@broken("layouts")
def test_layouts(loaded: World, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = objects / Path(object_path("abi")).name
    data = path.read_bytes()
    assert b"\0next_destination\0" in data
    path.write_bytes(data.replace(b"\0next_destination\0", b"\0next_destinatioX\0"))
    found = as_json(environ={"SVCCTL_OBJECTS": str(objects)})
    assert found["objects"]["status"] == OK
    assert found["layouts"]["status"] == FAIL
    assert "struct svc_meta" in found["layouts"]["message"]
    more = (*host.LAYOUTS, layouts.Layout("svc_nowhere", layouts.Usage, "I I"))
    monkeypatch.setattr(host, "LAYOUTS", more)
    assert layout_differences([object_path(name) for name in OBJECTS]) == ["svc_nowhere is in no object"]


@pytest.mark.parametrize(
    ("field", "struct"), [("affinity_seconds", "svc_block"), ("tunnel_port", "svc_packet_config")]
)
def test_layouts_of_every_half(loaded: World, objects: Path, field: str, struct: str) -> None:
    path = objects / Path(object_path("abi")).name
    name, other = f"\0{field}\0".encode(), f"\0{field[:-1]}X\0".encode()
    assert name in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(name, other))
    assert f"struct {struct}" in as_json(environ={"SVCCTL_OBJECTS": str(objects)})["layouts"]["message"]


def test_every_object_is_looked_at(loaded: World, objects: Path) -> None:
    assert {f"{name}.bpf.c" for name in OBJECTS} == {path.name for path in SOURCES.glob("*.bpf.c")}
    for name in OBJECTS:
        path = objects / Path(object_path(name)).name
        path.rename(path.with_suffix(".away"))
        assert as_json(environ={"SVCCTL_OBJECTS": str(objects)})["objects"]["status"] == FAIL, name
        path.with_suffix(".away").rename(path)


def test_an_enum_that_differs(loaded: World, objects: Path) -> None:
    path = objects / Path(object_path("abi")).name
    path.write_bytes(path.read_bytes().replace(b"\0SVC_DROP_UNSTABLE\0", b"\0SVC_DROP_UNSTABLX\0"))
    found = as_json(environ={"SVCCTL_OBJECTS": str(objects)})
    assert "enum svc_drop_reason" in found["layouts"]["message"]


# What is loaded


@broken("foreign programs")
def test_foreign(loaded: World) -> None:
    with foreign_program() as foreign:
        line = lines()["foreign programs"]
        expect(line, WARN, f"stranger ({foreign.program_id}, place 2)")
    assert lines()["foreign programs"].status == OK
    assert lines(Good(foreign_programs=None))["foreign programs"].status == WARN


@broken("leftovers")
def test_leftovers(loaded: World) -> None:
    os.mkdir(f"{loaded.bpffs}/svcctl_tmp_1_1")
    expect(lines()["leftovers"], WARN, "svcctl_tmp_1_1")
    ok("gc")
    assert lines()["leftovers"].status == OK


@broken("state")
def test_state(loaded: World) -> None:
    os.rename(f"{loaded.state_dir}/exact", f"{loaded.bpffs}/exact")
    expect(lines()["state"], FAIL, "exact")
    os.rename(f"{loaded.bpffs}/exact", f"{loaded.state_dir}/exact")
    assert lines()["state"].status == OK
    with writer() as state:
        state.put_meta(state.meta()._replace(magic=7))
    expect(lines()["state"], FAIL, "not written by svcctl")


def test_state_of_another_layout(loaded: World) -> None:
    with writer() as state:
        state.put_meta(state.meta()._replace(schema=99))
    expect(lines()["state"], FAIL, "layout 99")


@broken("interrupted")
def test_interrupted(loaded: World) -> None:
    with writer() as state:
        meta = state.meta()
        state.put_meta(meta._replace(generation=1, mark_pid=(1 << 22) - 1, mark_command=b"bind web"))
    expect(lines()["interrupted"], WARN, "'bind web'")
    with writer() as state:
        state.put_meta(state.meta()._replace(mark_pid=os.getpid()))
    expect(lines()["interrupted"], OK, "at work", hint=False)


@broken("program")
def test_program(loaded: World, objects: Path) -> None:
    path = objects / Path(object_path("dispatch")).name
    path.write_bytes(path.read_bytes() + b"\0")
    found = as_json(environ={"SVCCTL_OBJECTS": str(objects)})
    assert found["program"]["status"] == WARN
    assert "not the one this svcctl has" in found["program"]["message"]
    assert "upgrade" in found["program"]["hint"]


@broken("attachment")
def test_attachment(loaded: World) -> None:
    with Link.open_pinned(f"{loaded.state_dir}/link_netns") as link:
        link.detach()
    expect(lines()["attachment"], FAIL, "it is not")
    ok("detach", "netns")
    expect(lines()["attachment"], WARN, "not attached")


@broken("balancer programs")
@broken("balancer")
def test_balancer() -> None:
    with balancer() as path:
        found = lines()
        assert found["balancer"].status == OK
        assert f"attached to {path}: sockets all" in found["balancer"].message
        assert found["balancer programs"].message.startswith("9 programs")
        with writer() as state:
            programs = state.map("programs")
            key = U32.pack(catalog.CONNECT[3].number)
            record = programs.lookup(key)
            assert record is not None
            other = layouts.PROGRAM.unpack(record)._replace(sha256=bytes(32))
            programs.update(key, layouts.PROGRAM.pack(other))
        expect(lines()["balancer programs"], WARN, f"not those this svcctl has: {catalog.CONNECT[3].name}")
        ok("detach", "cgroup")
        expect(lines()["balancer"], WARN, "services have no effect")
        ok("attach", "cgroup", path)
        with Link.open_pinned(f"{open_state_path()}/link_sendmsg4") as link:
            link.detach()
        expect(lines()["balancer"], FAIL, "not: sendmsg4")
        for number in range(91):
            ok("service", "add", f"s{number}", "--frontend", f"10.96.1.{number}:80/tcp")
        expect(lines()["fill"], WARN, "service_names 91 of 100")
        assert "--max-services" in (lines()["fill"].hint or "")


def open_state_path() -> str:
    return ok("status", "-o", "name").out.strip()


@broken("interfaces")
def test_interfaces(loaded: World) -> None:
    assert "never attached" in lines()["interfaces"].message
    loaded.sh("ip link add doctor0 type veth peer name doctor1")
    ok("attach", "dev", "doctor0", "--role", "host", "--max-flows", "1000", "--max-sockets", "1000")
    expect(lines()["interfaces"], OK, "1 attached", hint=False)
    expect(lines()["balancer"], OK, "packets are served", hint=False)
    ok("attach", "dev", "doctor1*", "--role", "host")
    expect(lines()["interfaces"], OK, "2 attached", hint=False)
    ok("detach", "dev", "doctor1")
    expect(lines()["interfaces"], WARN, "match a rule and are not attached: doctor1")
    loaded.sh("ip link del doctor0")
    expect(lines()["interfaces"], WARN, "attached, and gone: doctor0")


@pytest.fixture
def node(loaded: World) -> World:
    """A node with an interface to the outside, and its end of tunnels."""
    loaded.sh(
        "ip link add doctor0 type veth peer name doctor1; ip addr add 192.0.2.11/24 dev doctor0;"
        "ip link set doctor0 up; ip link set doctor1 up; sysctl -qw net.ipv4.ip_forward=1"
    )
    ok("attach", "dev", "doctor0", "--role", "host", "--max-flows", "1000", "--max-sockets", "1000")
    return loaded


@broken("tunnels")
def test_tunnels(node: World) -> None:
    expect(lines()["tunnels"], OK, "no other nodes are known", hint=False)
    ok("nodes", "add", "b", "--address", "192.0.2.12")
    expect(lines()["tunnels"], WARN, "no address of this one")
    ok("load", "--node-address", "192.0.2.99")
    expect(lines()["tunnels"], FAIL, "192.0.2.99 is no address")
    ok("load", "--node-address", "192.0.2.11")
    expect(lines()["tunnels"], OK, "from 192.0.2.11, port 4789, to 1 other nodes", hint=False)
    ok("nodes", "add", "c", "--address", "203.0.113.12")
    expect(lines()["tunnels"], WARN, "there is no route to c (203.0.113.12)")
    node.sh(
        "ip link add doctor2 type veth peer name doctor3; ip link set doctor2 up; ip route add 203.0.113.0/24 dev doctor2"
    )
    expect(lines()["tunnels"], WARN, "c (203.0.113.12): reached by an interface that is not attached")
    ok("attach", "dev", "doctor2", "--role", "host")
    expect(lines()["tunnels"], OK, "to 2 other nodes", hint=False)
    ok("nodes", "add", "c", "--address", "203.0.113.12", "--address", "2001:db8::12")
    expect(lines()["tunnels"], WARN, "c: no ipv6 tunnel, as this node has no end of that family")


@broken("pod prefixes")
def test_pod_prefixes(node: World) -> None:
    ok("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
    ok("load", "--pod-prefix", "10.244.1.0/24")
    expect(lines()["pod prefixes"], OK, "each node's are its own", hint=False)
    ok("nodes", "add", "c", "--address", "192.0.2.13", "--pod-prefix", "10.244.0.0/16")
    says = "node c: pod prefix 10.244.0.0/16 has in it 10.244.1.0/24 of this node, 10.244.2.0/24 of node b, which stay"
    expect(lines()["pod prefixes"], WARN, says)


def test_the_port_of_tunnels(node: World) -> None:
    """Another network on the same port is no clash; ours, or all, are; and a socket gets nothing of it."""
    ok("load", "--node-address", "192.0.2.11")
    for words, status, says in (
        ("id 7 dstport 4789", OK, "port 4789"),
        ("id 13242816 dstport 4789", FAIL, "svcctl's network number 0xca11c0"),
        ("id 13242816 dstport 4790", OK, "port 4789"),
        ("external dstport 4789", WARN, "takes every network number"),
        ("external dstport 4790", OK, "port 4789"),
    ):
        node.sh(f"ip link add doctor3 type vxlan {words}; ip link set doctor3 up")
        expect(lines()["tunnels"], status, says, hint=status != OK)
        node.sh("ip link del doctor3")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 4789))
        expect(lines()["tunnels"], WARN, "is bound to UDP port 4789")
    expect(lines()["tunnels"], OK, "port 4789", hint=False)


@broken("forwarding")
def test_forwarding(node: World) -> None:
    expect(lines()["forwarding"], OK, "on", hint=False)
    node.sh("sysctl -qw net.ipv4.ip_forward=0")
    expect(lines()["forwarding"], WARN, "net.ipv4.ip_forward is 0")
    node.sh(
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.doctor1.rp_filter=1"
    )
    expect(lines()["forwarding"], OK, "on", hint=False)
    ok("attach", "dev", "doctor1", "--role", "workload")
    expect(lines()["forwarding"], WARN, "rp_filter is 1 (strict) on doctor1")
    node.sh("sysctl -qw net.ipv4.conf.all.rp_filter=2")
    expect(lines()["forwarding"], OK, "on", hint=False)
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0; ip addr add 2001:db8::11/64 dev doctor0 nodad")
    ok("load", "--node-address", "192.0.2.11,2001:db8::11")
    expect(lines()["forwarding"], WARN, "net.ipv6.conf.all.forwarding is 0")


@broken("source ports")
def test_source_ports(node: World) -> None:
    node.sh("sysctl -qw net.ipv4.ip_local_port_range='40000 50000'")
    expect(lines()["source ports"], OK, "20000-29999", hint=False)
    ok("load", "--snat-ports", "45000-46000")
    expect(lines()["source ports"], WARN, "net.ipv4.ip_local_port_range")
    ok("load", "--snat-ports", "32000-33000")
    expect(lines()["source ports"], WARN, "in the range of node ports")


@broken("group access")
def test_group_access(world: World) -> None:
    os.chmod(world.bpffs, 0o711)
    ok("load", "--group", "12", "--max-bindings", "100")
    assert lines()["group access"].status == OK
    os.chmod(world.bpffs, 0o700)
    expect(lines()["group access"], WARN, "cannot get through")
    os.chmod(world.bpffs, 0o1777)
    expect(lines()["group access"], FAIL, "could pin")
    assert svcctl("doctor").code == 1
    old = Good(kernel_release=(5, 10), root=Root(True, 0o711, 0))
    expect(lines(old)["group access"], WARN, "CAP_BPF")


@broken("fill")
def test_fill(loaded: World) -> None:
    for number in range(9):
        ok("bind", f"label{number}", "tcp", "127.0.0.1", str(1000 + number))
    expect(lines()["fill"], WARN, "destinations 9 of 10")
    assert "--max-destinations" in (lines()["fill"].hint or "")
    ok("bind", "last", "tcp", "127.0.0.1", "999")
    expect(lines()["fill"], FAIL, "destinations 10 of 10")


def test_a_torn_record_is_no_traceback(loaded: World) -> None:
    with writer() as state:
        state.map("programs").update(U32.pack(0), b"\xff" * layouts.PROGRAM.size)
    assert lines()["program"].status == WARN


# The command


def test_exit_codes_and_formats(loaded: World) -> None:
    done = svcctl("doctor")
    assert done.code == 0
    assert done.out.startswith("ok    libbpf")
    assert svcctl("doctor", "-o", "name").out.splitlines()[0] == "libbpf"
    assert svcctl("doctor", "--netns", "/dev/null").code == 1
    assert svcctl("doctor", "--netns", "/nonexistent").code == 1


def test_not_loaded_and_not_root(world: World) -> None:
    ran = svc_process("doctor", prefix=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))
    assert "not looked at" in ran.out
    assert "Traceback" not in ran.err
    assert not [line for line in ran.out.splitlines() if line.startswith("fail")]


def test_not_root_while_loaded(loaded: World) -> None:
    ran = svc_process("doctor", prefix=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))
    state = next(line for line in ran.out.splitlines() if " state " in line)
    assert state.startswith("warn")
    assert "permission denied" in state
    assert "not looked at: not looked at" not in ran.out
    interrupted = next(line for line in ran.out.splitlines() if " interrupted " in line)
    assert "permission denied" in interrupted


def test_without_libbpf(loaded: World) -> None:
    """The whole command where the library is not installed: a line that fails, and the rest all the same."""
    code = (
        "import sys; from svcctl.bpf import lib; lib.LIBRARY = 'libnone.so.9';"
        "from svcctl.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("fail  libbpf")
    assert "Traceback" not in done.stderr
