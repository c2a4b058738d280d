"""Maps of each type that is used, one entry at a time and by walking, on the running kernel."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf import constants as c
from svcctl.bpf.errors import BpfError, WrongKind
from svcctl.bpf.map import Map
from svcctl.bpf.probe import possible_cpus, take_from_hash
from svcctl.bpf.program import Program

if TYPE_CHECKING:
    from tests.lib.world import World

pytestmark = pytest.mark.quick


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def test_hash(world: World) -> None:
    with Map.create(c.MAP_HASH, "trial", 4, 8, 10) as trial:
        info = trial.info
        assert (info.type, info.key_size, info.value_size, info.max_entries) == (c.MAP_HASH, 4, 8, 10)
        assert (info.name, info.flags, info.btf_id) == ("trial", 0, 0)
        assert trial.lookup(u32(1)) is None
        trial.update(u32(1), u64(11))
        trial.update(u32(2), u64(22))
        assert trial.lookup(u32(1)) == u64(11)
        with pytest.raises(BpfError) as caught:
            trial.update(u32(1), u64(1), c.NOEXIST)
        assert caught.value.errno == errno.EEXIST
        assert str(caught.value) == "update: map trial: File exists"
        with pytest.raises(BpfError) as caught:
            trial.update(u32(9), u64(1), c.EXIST)
        assert caught.value.errno == errno.ENOENT
        assert dict(trial.items()) == {u32(1): u64(11), u32(2): u64(22)}
        first = trial.next_key(None)
        assert first is not None
        second = trial.next_key(first)
        assert {first, second} == {u32(1), u32(2)}
        assert second is not None
        assert trial.next_key(second) is None
        assert trial.delete(u32(1)) is True
        assert trial.delete(u32(1)) is False


def test_full_hash_says_e2big(world: World) -> None:
    with Map.create(c.MAP_HASH, "trial", 4, 4, 1) as trial:
        trial.update(u32(1), u32(1))
        with pytest.raises(BpfError) as caught:
            trial.update(u32(2), u32(2))
        assert caught.value.errno == errno.E2BIG


def test_full_trie_says_enospc(world: World) -> None:
    with Map.create(c.MAP_LPM_TRIE, "trial", 8, 4, 1, c.F_NO_PREALLOC) as trial:
        trial.update(struct.pack("=I4x", 32), u32(1))
        with pytest.raises(BpfError) as caught:
            trial.update(struct.pack("=I4x", 31), u32(2))
        assert caught.value.errno == errno.ENOSPC


def test_trie(world: World) -> None:
    with Map.create(c.MAP_LPM_TRIE, "trial", 8, 4, 10, c.F_NO_PREALLOC) as trial:
        trial.update(struct.pack("=I4B", 8, 10, 0, 0, 0), u32(8))
        trial.update(struct.pack("=I4B", 24, 10, 1, 2, 0), u32(24))
        assert trial.lookup(struct.pack("=I4B", 32, 10, 1, 2, 3)) == u32(24)
        assert trial.lookup(struct.pack("=I4B", 32, 10, 9, 9, 9)) == u32(8)
        assert trial.lookup(struct.pack("=I4B", 32, 11, 9, 9, 9)) is None
        keys, values, count = trial.read_all()
        assert count == 2
        assert sorted(struct.unpack("=2I", values)) == [8, 24]
        assert len(keys) == 16
        assert trial.delete(struct.pack("=I4B", 8, 10, 0, 0, 0))
        with pytest.raises(BpfError) as caught:
            trial.update(struct.pack("=I4B", 33, 10, 0, 0, 0), u32(1))
        assert caught.value.errno == errno.EINVAL


def test_array(world: World) -> None:
    with Map.create(c.MAP_ARRAY, "trial", 4, 4, 3) as trial:
        trial.update(u32(1), u32(7))
        assert trial.read_all() == (u32(0) + u32(1) + u32(2), u32(0) + u32(7) + u32(0), 3)
        with pytest.raises(BpfError) as caught:
            trial.delete(u32(1))
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(BpfError) as caught:
            trial.update(u32(3), u32(0))
        assert caught.value.errno == errno.E2BIG


@pytest.mark.parametrize("map_type", [c.MAP_PERCPU_ARRAY, c.MAP_PERCPU_HASH])
def test_per_cpu(world: World, map_type: int) -> None:
    cpus = possible_cpus()
    with Map.create(map_type, "trial", 4, 12, 2) as trial:
        assert trial.info.value_size == 12
        assert trial.value_bytes == 16 * cpus
        value = b"".join(struct.pack("=3I4x", cpu, 1, 2) for cpu in range(cpus))
        trial.update(u32(1), value)
        assert trial.lookup(u32(1)) == value
        assert dict(trial.items())[u32(1)] == value


def test_sockmap(world: World) -> None:
    with socket.socket() as listener, Map.create(c.MAP_SOCKMAP, "trial", 4, 8, 8) as trial:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        cookie = struct.unpack("=Q", listener.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        trial.update(u32(5), u64(listener.fileno()), c.NOEXIST)
        assert trial.lookup(u32(5)) == u64(cookie)
        assert trial.lookup(u32(4)) is None
        assert trial.read_all() == (u32(5), u64(cookie), 1)
        with pytest.raises(BpfError) as caught:
            trial.update(u32(5), u64(listener.fileno()), c.NOEXIST)
        assert caught.value.errno == errno.EEXIST
        assert trial.delete(u32(5))
        assert list(trial.items()) == []


def test_array_of_maps(world: World) -> None:
    with (
        Map.create(c.MAP_ARRAY, "inner", 4, 8, 4) as inner,
        Map.create(c.MAP_ARRAY_OF_MAPS, "outer", 4, 4, 3, inner=inner) as outer,
    ):
        outer.update(u32(1), u32(inner.fd))
        assert outer.lookup(u32(1)) == u32(inner.info.id)
        assert outer.lookup(u32(0)) is None
        with Map.open_id(inner.info.id) as again:
            assert again.info == inner.info


def test_array_of_maps_of_several_sizes(world: World) -> None:
    with (
        Map.create(c.MAP_ARRAY, "small", 4, 4, 4, c.F_INNER_MAP) as small,
        Map.create(c.MAP_ARRAY, "large", 4, 4, 400, c.F_INNER_MAP) as large,
        Map.create(c.MAP_ARRAY_OF_MAPS, "outer", 4, 4, 2, inner=small) as outer,
    ):
        outer.update(u32(0), u32(large.fd))
        assert outer.lookup(u32(0)) == u32(large.info.id)


def test_lookup_and_delete(world: World) -> None:
    with Map.create(c.MAP_HASH, "trial", 4, 4, 4) as trial:
        trial.update(u32(1), u32(5))
        if not take_from_hash():
            pytest.skip("look-up and delete came with Linux 5.14")
        assert trial.lookup_and_delete(u32(1)) == u32(5)
        assert trial.lookup(u32(1)) is None
        assert trial.lookup_and_delete(u32(1)) is None


def test_unsupported_has_a_text(world: World) -> None:
    with (
        Map.create(c.MAP_LPM_TRIE, "trial", 8, 4, 4, c.F_NO_PREALLOC) as trial,
        pytest.raises(BpfError) as caught,
    ):
        trial.lookup_and_delete(bytes(8))
    assert caught.value.errno in (errno.EINVAL, 524)
    assert "nknown error" not in str(caught.value)


def test_wrong_sizes_never_reach_the_kernel(world: World) -> None:
    with Map.create(c.MAP_HASH, "trial", 4, 4, 4) as trial:
        for call in (
            lambda: trial.lookup(b"abc"),
            lambda: trial.update(b"abc", u32(1)),
            lambda: trial.update(u32(1), b"abc"),
            lambda: trial.delete(b"abcde"),
            lambda: trial.next_key(b""),
            lambda: trial.lookup_and_delete(b"x"),
            lambda: trial.update_many(u32(1), u32(1), 2),
            lambda: trial.update_many(u32(1), b"", 1),
            lambda: trial.delete_many(u32(1), 0),
        ):
            with pytest.raises(ValueError, match="bytes"):
                call()


def test_pin_and_open(world: World) -> None:
    path = f"{world.bpffs}/trial"
    with Map.create(c.MAP_HASH, "kernel_name", 4, 4, 4) as trial:
        trial.pin(path)
        assert os.stat(path).st_mode & 0o777 == 0o600
        with pytest.raises(BpfError) as caught:
            trial.pin(path)
        assert caught.value.errno == errno.EEXIST
        with pytest.raises(BpfError) as caught:
            trial.pin(f"{world.bpffs}/a.dot")
        assert caught.value.errno == errno.EPERM
        trial.update(u32(1), u32(2))
    with Map.open_pinned(path) as again:
        assert again.lookup(u32(1)) == u32(2)
        again.update(u32(1), u32(3))
    with Map.open_pinned(path, read_only=True) as reader:
        assert reader.read_all() == (u32(1), u32(3), 1)
        with pytest.raises(BpfError) as caught:
            reader.update(u32(1), u32(4))
        assert caught.value.errno == errno.EPERM
        assert str(caught.value) == f"update: {path}: Operation not permitted"
        with pytest.raises(BpfError) as caught:
            reader.update_many(u32(1), u32(4), 1)
        assert (caught.value.errno, caught.value.done) == (errno.EPERM, 0)


def test_open_of_nothing_and_of_another_kind(world: World) -> None:
    path = f"{world.bpffs}/trial"
    with pytest.raises(BpfError) as caught:
        Map.open_pinned(path)
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == f"open: {path}: No such file or directory"
    with Map.create(c.MAP_HASH, "trial", 4, 4, 4) as trial:
        trial.pin(path)
    with pytest.raises(WrongKind, match=r"is a map, expected a program"):
        Program.open_pinned(path)
    with pytest.raises(WrongKind, match=r"is no bpf object"):
        Map.from_fd(os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(BpfError) as caught:
        Map.open_id(0xFFFFFFF0)
    assert caught.value.errno == errno.ENOENT


def test_freeze(world: World) -> None:
    with Map.create(c.MAP_ARRAY, "trial", 4, 4, 1) as trial:
        assert not trial.frozen
        trial.freeze()
        with Map.from_fd(os.dup(trial.fd)) as again:
            assert again.frozen
        with pytest.raises(BpfError) as caught:
            trial.update(u32(0), u32(1))
        assert caught.value.errno == errno.EPERM
        assert trial.lookup(u32(0)) == u32(0)


def test_closed_map(world: World) -> None:
    trial = Map.create(c.MAP_HASH, "trial", 4, 4, 4)
    trial.close()
    trial.close()
    with pytest.raises(BpfError) as caught:
        trial.lookup(u32(1))
    assert caught.value.errno == errno.EBADF


def test_a_forgotten_map_is_missed(world: World) -> None:
    trial = Map.create(c.MAP_HASH, "trial", 4, 4, 4)
    with pytest.warns(ResourceWarning, match="map trial was never closed"):
        del trial


def test_create_refused(world: World) -> None:
    with pytest.raises(BpfError) as caught:
        Map.create(c.MAP_LPM_TRIE, "trial", 8, 4, 4)  # without F_NO_PREALLOC
    assert caught.value.errno == errno.EINVAL
    assert str(caught.value) == "create: map trial: Invalid argument"
