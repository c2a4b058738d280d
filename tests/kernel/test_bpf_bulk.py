"""Bulk reads and writes of maps: in batches, and where the kernel refuses these."""

from __future__ import annotations

import errno
import struct
from ctypes import Array, c_char
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf import constants as c
from svcctl.bpf.errors import ENOTSUPP, BpfError
from svcctl.bpf.map import Map
from tests.lib.servers import SLOWNESS

if TYPE_CHECKING:
    from tests.lib.world import World

pytestmark = pytest.mark.quick

COUNT = 20_000 if SLOWNESS == 1 else 5_000  # more than one piece of a walk


class Unbatched(Map):
    """A map on a kernel without batches of its type: `refusal` is what that answers, the count untouched."""

    refusal = ENOTSUPP

    def lookup_batch(
        self,
        position: Array[c_char] | None,
        following: Array[c_char],
        keys: Array[c_char],
        values: Array[c_char],
        count: int,
        flags: int = 0,
    ) -> tuple[int, int]:
        return self.refusal, count

    def update_batch(self, keys: int, values: int, count: int) -> tuple[int, int]:
        return self.refusal, count

    def delete_batch(self, keys: int, count: int) -> tuple[int, int]:
        return self.refusal, count


class UnknownCommand(Unbatched):
    """A kernel that knows no batch at all."""

    refusal = errno.EINVAL


def numbers(first: int, count: int) -> bytes:
    return struct.pack(f"={count}I", *range(first, first + count))


def trie_keys(count: int) -> bytes:
    return b"".join(struct.pack("=I", 32) + struct.pack(">I", 0x0A000000 + index) for index in range(count))


@pytest.mark.parametrize("kind", [Map, Unbatched, UnknownCommand])
@pytest.mark.parametrize("buffer", [bytes, bytearray])
def test_hash_there_and_back(world: World, kind: type[Map], buffer: type[bytes]) -> None:
    keys, values = buffer(numbers(0, COUNT)), buffer(numbers(7, COUNT))
    with kind.create(c.MAP_HASH, "trial", 4, 4, COUNT) as trial:
        trial.update_many(keys, values, COUNT)
        got_keys, got_values, count = trial.read_all()
        assert count == COUNT
        pairs = dict(
            zip(struct.unpack(f"={COUNT}I", got_keys), struct.unpack(f"={COUNT}I", got_values), strict=True)
        )
        assert pairs == {index: index + 7 for index in range(COUNT)}
        assert sum(1 for _ in trial.items()) == COUNT
        assert trial.delete_many(keys[: COUNT * 2], COUNT // 2) == COUNT // 2
        assert trial.read_all()[2] == COUNT // 2


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_trie_there_and_back(world: World, kind: type[Map]) -> None:
    keys, values = trie_keys(COUNT), numbers(0, COUNT)
    with kind.create(c.MAP_LPM_TRIE, "trial", 8, 4, COUNT, c.F_NO_PREALLOC) as trial:
        trial.update_many(keys, values, COUNT)
        got_keys, got_values, count = trial.read_all()
        assert count == COUNT
        pairs = dict(
            zip(
                (k for _, k in struct.iter_unpack(">4sI", got_keys)),
                struct.unpack(f"={COUNT}I", got_values),
                strict=True,
            )
        )
        assert pairs == {0x0A000000 + index: index for index in range(COUNT)}
        assert trial.delete_many(keys, COUNT) == COUNT
        assert trial.read_all() == (b"", b"", 0)


@pytest.mark.parametrize("kind", [Map, Unbatched])
@pytest.mark.parametrize("map_type", [c.MAP_ARRAY, c.MAP_PERCPU_ARRAY])
@pytest.mark.parametrize("size", [1, 4096, 5000, 8192])
def test_arrays(world: World, kind: type[Map], map_type: int, size: int) -> None:
    with kind.create(map_type, "trial", 4, 8, size) as trial:
        keys = numbers(0, size)
        values = b"".join(struct.pack("=Q", index) * (trial.value_bytes // 8) for index in range(size))
        trial.update_many(keys, values, size)
        assert trial.read_all() == (keys, values, size)


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_array_of_maps(world: World, kind: type[Map]) -> None:
    with (
        Map.create(c.MAP_ARRAY, "inner", 4, 8, 4) as inner,
        kind.create(c.MAP_ARRAY_OF_MAPS, "outer", 4, 4, 3, inner=inner) as outer,
    ):
        outer.update_many(numbers(0, 2), struct.pack("=2I", inner.fd, inner.fd), 2)
        filled = [value for _, value in outer.items() if value != bytes(4)]
        assert filled == [struct.pack("=I", inner.info.id)] * 2


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_a_full_map_says_how_far_it_came(world: World, kind: type[Map]) -> None:
    with kind.create(c.MAP_HASH, "trial", 4, 4, 100) as trial:
        with pytest.raises(BpfError) as caught:
            trial.update_many(numbers(0, 150), numbers(0, 150), 150)
        assert (caught.value.errno, caught.value.done) == (errno.E2BIG, 100)
        assert trial.read_all()[2] == 100


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_a_full_trie_too(world: World, kind: type[Map]) -> None:
    with kind.create(c.MAP_LPM_TRIE, "trial", 8, 4, 100, c.F_NO_PREALLOC) as trial:
        with pytest.raises(BpfError) as caught:
            trial.update_many(trie_keys(150), numbers(0, 150), 150)
        assert (caught.value.errno, caught.value.done) == (errno.ENOSPC, 100)


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_a_bad_key_in_the_middle(world: World, kind: type[Map]) -> None:
    keys = bytearray(trie_keys(100))
    keys[50 * 8] = 77  # longer than the key has bits
    with kind.create(c.MAP_LPM_TRIE, "trial", 8, 4, 100, c.F_NO_PREALLOC) as trial:
        with pytest.raises(BpfError) as caught:
            trial.update_many(keys, numbers(0, 100), 100)
        assert (caught.value.errno, caught.value.done) == (errno.EINVAL, 50)
        assert trial.read_all()[2] == 50


@pytest.mark.parametrize("kind", [Map, Unbatched])
def test_deleting_passes_over_what_is_not_there(world: World, kind: type[Map]) -> None:
    with kind.create(c.MAP_HASH, "trial", 4, 4, 100) as trial:
        trial.update_many(numbers(0, 100), numbers(0, 100), 100)
        assert trial.delete_many(numbers(90, 50), 50) == 10
        assert trial.delete_many(numbers(0, 91), 91) == 90
        assert trial.read_all()[2] == 0
        assert trial.delete_many(numbers(0, 5), 5) == 0


def test_nothing_to_do(world: World) -> None:
    with Map.create(c.MAP_HASH, "trial", 4, 4, 100) as trial:
        trial.update_many(b"", b"", 0)
        trial.update_many(bytearray(), bytearray(), 0)
        assert trial.delete_many(b"", 0) == 0
        assert trial.read_all() == (b"", b"", 0)


def test_bucket_larger_than_the_piece(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that gives ENOSPC until the piece is large enough loses nothing and gives nothing twice."""
    monkeypatch.setattr("svcctl.bpf.walk.FIRST_CHUNK", 1)
    with Map.create(c.MAP_HASH, "trial", 4, 4, 3000) as trial:
        trial.update_many(numbers(0, 3000), numbers(0, 3000), 3000)
        keys, _, count = trial.read_all()
        assert count == 3000
        assert sorted(struct.unpack("=3000I", keys)) == list(range(3000))


class Endless(Map):
    """A walk that a writer sends back to the start again and again."""

    def next_key(self, key: bytes | None) -> bytes | None:
        return super().next_key(None)

    def lookup_batch(
        self,
        position: Array[c_char] | None,
        following: Array[c_char],
        keys: Array[c_char],
        values: Array[c_char],
        count: int,
        flags: int = 0,
    ) -> tuple[int, int]:
        errno_or_0, given = super().lookup_batch(None, following, keys, values, count, flags)
        return (0 if errno_or_0 == errno.ENOENT else errno_or_0), given


class EndlessUnbatched(Endless, Unbatched):
    """The same, key by key."""

    def lookup_batch(self, *arguments: object) -> tuple[int, int]:
        return ENOTSUPP, 0


@pytest.mark.parametrize("kind", [Endless, EndlessUnbatched])
def test_a_walk_comes_to_an_end(world: World, kind: type[Map]) -> None:
    with kind.create(c.MAP_HASH, "trial", 4, 4, 100) as trial:
        trial.update_many(numbers(0, 100), numbers(0, 100), 100)
        with pytest.raises(BpfError) as caught:
            trial.read_all()
        assert caught.value.errno == errno.EAGAIN


class Interrupted(Map):
    """A trie batch that loses its place `times` times, as while a writer deletes."""

    times = 5

    def lookup_batch(
        self,
        position: Array[c_char] | None,
        following: Array[c_char],
        keys: Array[c_char],
        values: Array[c_char],
        count: int,
        flags: int = 0,
    ) -> tuple[int, int]:
        if self.times:
            self.times -= 1
            return errno.EINTR, 0
        return super().lookup_batch(position, following, keys, values, count, flags)


def test_a_lost_place_is_found_again(world: World) -> None:
    with Interrupted.create(c.MAP_HASH, "trial", 4, 4, 100) as trial:
        trial.update_many(numbers(0, 100), numbers(0, 100), 100)
        assert trial.read_all()[2] == 100
        trial.times = 1000
        with pytest.raises(BpfError) as caught:
            trial.read_all()
        assert caught.value.errno == errno.EINTR
