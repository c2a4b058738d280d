"""Links on a network namespace and on a cgroup, and test runs of what they attach."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf import constants as c
from svcctl.bpf.barrier import rcu_barrier
from svcctl.bpf.errors import BpfError, WrongKind
from svcctl.bpf.link import Link, iter_links, query_programs
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from tests.lib.bpf_source import compile_bpf
from tests.lib.guard import cgroup_name
from tests.lib.until import lose_link

if TYPE_CHECKING:
    from tests.lib.world import World

SOURCE = """
struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 8);
} sockets SEC(".maps");

SEC("sk_lookup")
int pass(struct bpf_sk_lookup *ctx)
{
    return SK_PASS;
}

SEC("sk_lookup")
int drop(struct bpf_sk_lookup *ctx)
{
    return SK_DROP;
}

SEC("sk_lookup")
int choose(struct bpf_sk_lookup *ctx)
{
    __u32 zero = 0;
    struct bpf_sock *sk = bpf_map_lookup_elem(&sockets, &zero);

    if (!sk)
        return SK_DROP;
    bpf_sk_assign(ctx, sk, 0);
    bpf_sk_release(sk);
    return SK_PASS;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
    return 1;
}

SEC("tc")
int packet(struct __sk_buff *skb)
{
    return 7;
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_bpf(SOURCE, tmp_path_factory.mktemp("bpf"))


@pytest.fixture
def loaded(world: World, path: str) -> Iterator[Object]:
    with Object.open(path) as trial:
        trial.load()
        yield trial


@pytest.fixture
def programs(loaded: Object) -> Iterator[dict[str, Program]]:
    opened = {name: loaded.program(name) for name in loaded.program_sections}
    yield opened
    for program in opened.values():
        program.close()


@pytest.fixture
def netns(world: World) -> Iterator[int]:
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    yield fd
    os.close(fd)


def ids(programs: dict[str, Program], *names: str) -> list[int]:
    return [programs[name].info.id for name in names]


def sk_lookup_ctx(port: int = 80) -> bytes:
    """struct bpf_sk_lookup of Linux 5.10 for a TCP connection from and to 127.0.0.1.

    Later kernels know 8 bytes more, the interface, which a test run refuses.
    """
    home = socket.inet_aton("127.0.0.1")
    return struct.pack(
        "=QII4s16sHH4s16sI", 0, socket.AF_INET, 6, home, bytes(16), 0, 0, home, bytes(16), port
    )


def test_netns_link(world: World, programs: dict[str, Program], netns: int) -> None:
    with Link.create(programs["pass"], netns, c.SK_LOOKUP) as link:
        info = link.info
        assert (info.type, info.attach_type) == (c.LINK_NETNS, c.SK_LOOKUP)
        assert info.netns_inode == world.netns_inode
        assert info.program_id == programs["pass"].info.id
        assert (info.cgroup_id, info.ifindex) == (None, None)
        assert query_programs(netns, c.SK_LOOKUP) == ids(programs, "pass")
        assert info in list(iter_links())
        with Link.open_id(info.id) as again:
            assert again.info == info
    assert query_programs(netns, c.SK_LOOKUP) == []


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EAGAIN])
def test_a_link_that_goes_or_comes_meanwhile(
    programs: dict[str, Program], netns: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The host is everybody's. EAGAIN: somebody is making it, and it has an id before it is there."""
    opened = Link.open_id

    def open_id(which: int) -> Link:
        if which == other.info.id:
            raise BpfError(number, "open", "link")
        return opened(which)

    with (
        Link.create(programs["pass"], netns, c.SK_LOOKUP) as link,
        Link.create(programs["choose"], netns, c.SK_LOOKUP) as other,
    ):
        monkeypatch.setattr(Link, "open_id", open_id)
        found = [one.id for one in iter_links()]
        assert link.info.id in found
        assert other.info.id not in found


def test_compare_and_swap(programs: dict[str, Program], netns: int) -> None:
    with Link.create(programs["pass"], netns, c.SK_LOOKUP) as link:
        with pytest.raises(BpfError) as caught:
            link.update(programs["choose"], old_program=programs["drop"])
        assert caught.value.errno == errno.EPERM
        assert query_programs(netns, c.SK_LOOKUP) == ids(programs, "pass")
        link.update(programs["choose"], old_program=programs["pass"])
        assert query_programs(netns, c.SK_LOOKUP) == ids(programs, "choose")
        link.update(programs["drop"])
        assert link.info.program_id == programs["drop"].info.id
        with pytest.raises(BpfError) as caught:
            link.update(programs["connect4"])
        assert caught.value.errno == errno.EINVAL


def test_it_works_on_connections(programs: dict[str, Program], netns: int, loaded: Object) -> None:
    with socket.socket() as listener, loaded.map("sockets") as sockets:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sockets.update(bytes(4), struct.pack("=Q", listener.fileno()))
        with (
            Link.create(programs["choose"], netns, c.SK_LOOKUP),
            socket.create_connection(("127.0.0.1", 7), timeout=60) as client,
        ):
            assert client.getpeername() == ("127.0.0.1", 7)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 7), timeout=60)


def test_pin(world: World, programs: dict[str, Program], netns: int) -> None:
    path = f"{world.bpffs}/link"
    with Link.create(programs["pass"], netns, c.SK_LOOKUP) as link:
        link.pin(path)
        link_id = link.info.id
    assert query_programs(netns, c.SK_LOOKUP) == ids(programs, "pass")
    with Link.open_pinned(path) as link:
        assert link.info.id == link_id
        link.update(programs["drop"], old_program=programs["pass"])
    with pytest.raises(WrongKind, match="is a link, expected a map"):
        Map.open_pinned(path)
    lose_link(path)
    assert query_programs(netns, c.SK_LOOKUP) == []


def test_detached_link_has_no_target(programs: dict[str, Program], netns: int) -> None:
    with Link.create(programs["pass"], netns, c.SK_LOOKUP) as link:
        link.detach()
        assert query_programs(netns, c.SK_LOOKUP) == []
        info = link.info
        assert info.netns_inode == 0
        assert info.program_id == programs["pass"].info.id
        with pytest.raises(BpfError) as caught:
            link.update(programs["drop"])
        assert caught.value.errno == errno.ENOLINK


def test_create_refused(programs: dict[str, Program], netns: int) -> None:
    with pytest.raises(BpfError) as caught:
        Link.create(programs["connect4"], netns, c.SK_LOOKUP)
    assert caught.value.errno == errno.EINVAL
    assert str(caught.value) == "attach: program connect4: Invalid argument"
    assert query_programs(netns, c.SK_LOOKUP) == []


def test_many_programs(programs: dict[str, Program], netns: int) -> None:
    """As many as the first guess has room for, and as the kernel takes in one namespace."""
    with contextlib.ExitStack() as links:
        for _ in range(64):
            links.enter_context(Link.create(programs["pass"], netns, c.SK_LOOKUP))
        assert query_programs(netns, c.SK_LOOKUP) == ids(programs, "pass") * 64


def test_cgroup_link(world: World, programs: dict[str, Program]) -> None:
    world.sh("mount -t cgroup2 none /mnt")
    path = f"/mnt/{cgroup_name('mnt')}"
    os.mkdir(path)
    try:
        fd = os.open(path, os.O_RDONLY)
        with Link.create(programs["connect4"], fd, c.CGROUP_INET4_CONNECT) as link:
            info = link.info
            assert (info.type, info.attach_type) == (c.LINK_CGROUP, c.CGROUP_INET4_CONNECT)
            assert info.cgroup_id == os.fstat(fd).st_ino
            assert info.netns_inode is None
            assert query_programs(fd, c.CGROUP_INET4_CONNECT) == ids(programs, "connect4")
        os.close(fd)
    finally:
        os.rmdir(path)


def test_program_info(world: World, programs: dict[str, Program], loaded: Object) -> None:
    path = f"{world.bpffs}/program"
    program = programs["choose"]
    program.pin(path)
    info = program.info
    with loaded.map("sockets") as sockets:
        assert info.map_ids == (sockets.info.id,)
    assert (info.type, info.name) == (c.PROG_SK_LOOKUP, "choose")
    assert len(info.tag) == 16
    assert info.btf_id > 0
    with open("/proc/uptime", encoding="ascii") as uptime:
        age = float(uptime.read().split()[0]) - info.load_time_ns / 1e9
    assert -1 < age < 600
    for read_only in (False, True):
        with Program.open_pinned(path, read_only=read_only) as again:
            assert again.info.id == info.id
    with Program.open_id(info.id) as again:
        assert again.info.tag == info.tag


def test_run_sk_lookup(programs: dict[str, Program], loaded: Object) -> None:
    context = sk_lookup_ctx()
    assert programs["pass"].test_run(context).retval == 1
    assert programs["drop"].test_run(context, repeat=10).retval == 0
    with socket.socket() as listener, loaded.map("sockets") as sockets:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        cookie = listener.getsockopt(socket.SOL_SOCKET, 57, 8)
        sockets.update(bytes(4), struct.pack("=Q", listener.fileno()))
        done = programs["choose"].test_run(context, repeat=100, ctx_size_out=128)
        assert done.retval == 1
        assert len(done.ctx) in (len(context), len(context) + 8)
        assert done.ctx[:8] == cookie
        assert done.data == b""
        assert 0 < done.duration_ns < 1_000_000_000
    with pytest.raises(BpfError) as caught:
        programs["pass"].test_run(b"")
    assert caught.value.errno == errno.EINVAL


def test_run_on_a_packet(programs: dict[str, Program]) -> None:
    packet = bytes(range(64))
    done = programs["packet"].test_run(data=packet)
    assert (done.retval, done.data) == (7, packet)


def test_barrier(world: World) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    rcu_barrier()
    assert sorted(os.listdir("/proc/self/fd")) == before
