"""BPF maps: one entry at a time for commands, raw buffers for bulk.

What only bulk work needs is imported by it: most commands change one entry.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_uint32
from errno import ENOENT
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.constants import (
    MAP_LRU_PERCPU_HASH,
    MAP_PERCPU_ARRAY,
    MAP_PERCPU_CGROUP_STORAGE,
    MAP_PERCPU_HASH,
)
from svcctl.bpf.errors import BpfError
from svcctl.bpf.handle import Handle
from svcctl.bpf.lib import check, opts, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ctypes import Array
    from typing import Self

    Buffer = bytes | bytearray

_PER_CPU = (MAP_PERCPU_HASH, MAP_PERCPU_ARRAY, MAP_LRU_PERCPU_HASH, MAP_PERCPU_CGROUP_STORAGE)

# struct bpf_map_info up to btf_value_type_id: type, id, key_size, value_size, max_entries, map_flags, name,
# ifindex, btf_vmlinux_value_type_id, netns_dev, netns_ino, btf_id, btf_key_type_id, btf_value_type_id, pad.
_INFO = Struct("=6I16s8x16x3I4x")


# Not as a class: with postponed annotations that compiles one string per field when it is imported.
MapInfo = NamedTuple(  # noqa: UP014
    "MapInfo",
    [
        ("type", int),
        ("id", int),
        ("key_size", int),
        ("value_size", int),
        ("max_entries", int),
        ("flags", int),
        ("name", str),
        ("btf_id", int),
        ("btf_key_type_id", int),
        ("btf_value_type_id", int),
    ],
)
"""What the kernel knows of a map; `btf_id` is 0 for a map without BTF. `value_size` is of one CPU."""


class Map(Handle):
    """An open map. Keys and values are bytes of exactly `key_bytes` and `value_bytes`.

    Every method raises BpfError with the kernel's errno. Sockmaps take a descriptor as value, packed by the
    caller in `value_size` bytes, and answer look-ups with the socket's cookie (value_size 8 only).
    """

    KIND = "map"

    def _opened(self) -> None:
        raw = (c_char * _INFO.size)()
        self._read_info(raw)
        fields = _INFO.unpack(raw)
        info = MapInfo._make((*fields[:6], fields[6].split(b"\0", 1)[0].decode(), *fields[7:]))
        self.info = info
        self.key_bytes = info.key_size
        self.value_bytes = info.value_size
        if info.type in _PER_CPU:
            cpus = check(require("libbpf_num_possible_cpus")(), "count", "possible CPUs")
            self.value_bytes = (info.value_size + 7) // 8 * 8 * cpus

    @classmethod
    def create(
        cls,
        type: int,
        name: str,
        key_size: int,
        value_size: int,
        max_entries: int,
        flags: int = 0,
        inner: Map | None = None,
    ) -> Self:
        """Make a map. Names are cut to 15 bytes; `inner` is the template of a map of maps.

        An LPM trie needs F_NO_PREALLOC. ENOMEM may come from the memory cgroup of the calling process.
        """
        # struct bpf_map_create_opts: btf_fd, btf_key_type_id, btf_value_type_id, btf_vmlinux_value_type_id,
        # inner_map_fd, map_flags.
        settings = opts("6I", 0, 0, 0, 0, inner.fd if inner else 0, flags)
        result = require("bpf_map_create")(type, name.encode(), key_size, value_size, max_entries, settings)
        return cls(check(result, "create", f"map {name}"))

    @classmethod
    def open_pinned(cls, path: str, read_only: bool = False) -> Self:
        """Open a pin. Read-only needs only read permission on it; writing through it is EPERM."""
        return cls._open_pinned(path, read_only)

    @classmethod
    def open_id(cls, map_id: int) -> Self:
        """Open by kernel id. Needs CAP_SYS_ADMIN; ENOENT when there is none."""
        return cls._open_id("bpf_map_get_fd_by_id", map_id)

    @property
    def subject(self) -> str:
        """The pin's path, or the kernel's name for the map."""
        info: MapInfo | None = self.__dict__.get("info")
        return self._label or (f"map {info.name}" if info else super().subject)

    @property
    def frozen(self) -> bool:
        """Whether user space may no longer write it; from /proc/self/fdinfo, the info has no such field."""
        with open(f"/proc/self/fdinfo/{self.fd}", encoding="ascii") as lines:
            return any(line.split() == ["frozen:", "1"] for line in lines)

    def _check_key(self, key: bytes) -> None:
        # The kernel reads key_size bytes whatever we give it.
        if len(key) != self.key_bytes:
            raise ValueError(f"{self.subject}: key of {len(key)} bytes, expected {self.key_bytes}")

    def lookup(self, key: bytes, flags: int = 0) -> bytes | None:
        """The value, or None. Per-CPU maps give all CPUs' values, each rounded up to 8 bytes."""
        self._check_key(key)
        value = (c_char * self.value_bytes)()
        result = require("bpf_map_lookup_elem_flags")(self.fd, key, value, flags)
        if result == 0:
            return value.raw
        if result == -ENOENT:
            return None
        raise BpfError(-result, "look up in", self.subject)

    def update(self, key: bytes, value: bytes, flags: int = 0) -> None:
        """Write one entry.

        Errors: EEXIST (with NOEXIST), ENOENT (with EXIST), E2BIG (full; a full trie says ENOSPC), EPERM
        (opened read-only, or frozen), ENOMEM.
        """
        self._check_key(key)
        if len(value) != self.value_bytes:
            raise ValueError(f"{self.subject}: value of {len(value)} bytes, expected {self.value_bytes}")
        result = require("bpf_map_update_elem")(self.fd, key, value, flags)
        if result:
            raise BpfError(-result, "update", self.subject)

    def delete(self, key: bytes) -> bool:
        """Delete one entry; False when it was not there. Arrays cannot delete (EINVAL)."""
        self._check_key(key)
        result: int = require("bpf_map_delete_elem")(self.fd, key)
        if result and result != -ENOENT:
            raise BpfError(-result, "delete from", self.subject)
        return result == 0

    def lookup_and_delete(self, key: bytes) -> bytes | None:
        """Take one entry out. Hashes only, from Linux 5.14; elsewhere EINVAL or 524."""
        self._check_key(key)
        value = (c_char * self.value_bytes)()
        result = require("bpf_map_lookup_and_delete_elem")(self.fd, key, value)
        if result == 0:
            return value.raw
        if result == -ENOENT:
            return None
        raise BpfError(-result, "look up and delete in", self.subject)

    def next_key(self, key: bytes | None) -> bytes | None:
        """The key after `key`, the first one for None; None at the end.

        When `key` has gone meanwhile a hash or trie starts again at its first.
        """
        if key is not None:
            self._check_key(key)
        following = (c_char * self.key_bytes)()
        result = require("bpf_map_get_next_key")(self.fd, key, following)
        if result == 0:
            return following.raw
        if result == -ENOENT:
            return None
        raise BpfError(-result, "walk", self.subject)

    def items(self, flags: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) pairs; what writers do meanwhile is seen as `read_all` says.

        `flags` is LOCK for values with a spin lock that must not be seen half written, else 0.
        """
        from svcctl.bpf import walk

        size, value_size = self.key_bytes, self.value_bytes
        for keys, values, count in walk.pieces(self, flags):
            for index in range(count):
                yield (
                    keys[index * size : (index + 1) * size],
                    values[index * value_size : (index + 1) * value_size],
                )

    def read_all(self) -> tuple[bytes, bytes, int]:
        """Keys and values of all entries, each back to back, and their number.

        While others write, entries may be missing or come twice; EAGAIN when the walk does not come to an
        end. Empty slots of a sockmap are left out.
        """
        from svcctl.bpf import walk

        pieces = list(walk.pieces(self))
        if len(pieces) == 1:
            return pieces[0]
        return b"".join(p[0] for p in pieces), b"".join(p[1] for p in pieces), sum(p[2] for p in pieces)

    def update_many(self, keys: Buffer, values: Buffer, count: int) -> None:
        """Write `count` entries from back-to-back keys and values, in their order, overwriting.

        BpfError has `done`, the entries written before the one that failed.
        """
        from svcctl.bpf import batch

        size, value_size = self.key_bytes, self.value_bytes
        key_at, value_at = self.address(keys, size, count), self.address(values, value_size, count)
        single = require("bpf_map_update_elem")
        errno, done, _ = batch.write(
            count,
            lambda start, n: self.update_batch(key_at + start * size, value_at + start * value_size, n),
            lambda index: -single(self.fd, key_at + index * size, value_at + index * value_size, 0),
        )
        if errno:
            raise BpfError(errno, "update", self.subject, done=done)

    def delete_many(self, keys: Buffer, count: int) -> int:
        """Delete `count` keys, back to back; the answer is how many were there."""
        from svcctl.bpf import batch

        size = self.key_bytes
        key_at = self.address(keys, size, count)
        single = require("bpf_map_delete_elem")
        errno, done, missing = batch.write(
            count,
            lambda start, n: self.delete_batch(key_at + start * size, n),
            lambda index: -single(self.fd, key_at + index * size),
            skip=ENOENT,
        )
        if errno:
            raise BpfError(errno, "delete from", self.subject, done=done)
        return done - missing

    def address(self, data: Buffer, size: int, count: int) -> int:
        """Where `data` is in memory, after a check that it is `count` entries of `size` bytes.

        The caller keeps `data` alive and unchanged while it uses the address.
        """
        if len(data) != size * count:
            raise ValueError(f"{self.subject}: {len(data)} bytes for {count} entries of {size}")
        if isinstance(data, bytearray):
            return ctypes.addressof(c_char.from_buffer(data)) if data else 0
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    # The batch system calls: errno or 0, and the count as the kernel left it.

    def lookup_batch(
        self,
        position: Array[c_char] | None,
        following: Array[c_char],
        keys: Array[c_char],
        values: Array[c_char],
        count: int,
        flags: int = 0,
    ) -> tuple[int, int]:
        """Read the next entries after `position` (None: the first), and write the new position."""
        number = c_uint32(count)
        call = require("bpf_map_lookup_batch")
        # struct bpf_map_batch_opts: elem_flags, flags.
        settings = opts("2Q", flags, 0) if flags else None
        result = call(self.fd, position, following, keys, values, byref(number), settings)
        return -result, number.value

    def update_batch(self, keys: int, values: int, count: int) -> tuple[int, int]:
        """Write `count` entries that stand at two addresses."""
        number = c_uint32(count)
        result = require("bpf_map_update_batch")(self.fd, keys, values, byref(number), None)
        return -result, number.value

    def delete_batch(self, keys: int, count: int) -> tuple[int, int]:
        """Delete `count` keys that stand at an address."""
        number = c_uint32(count)
        result = require("bpf_map_delete_batch")(self.fd, keys, byref(number), None)
        return -result, number.value

    def freeze(self) -> None:
        """Forbid user space to write it, for good. Programs still can."""
        check(require("bpf_map_freeze")(self.fd), "freeze", self.subject)
