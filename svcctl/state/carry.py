"""Carries over what programs write themselves, while it moves from an old map to a new one.

Each map is copied before the programs are swapped; what changed on the old map until the last of them was is
brought after it. Between the first and the last link some programs read and write the old map and others the new
one, for a few milliseconds. Every connection is served, and counts are exact, since a program adds them up. But a
socket that is first used in that moment may be told its backend's address instead of the service's, a client may
get two backends, and a socket that is closed in it may leave its entry behind, which `gc` removes. Where `reverse` and
`affinity` stay as they are (without --max-sockets) nothing of that can happen.

A flow of the packet path must be in the map that the program of either end reads: a backend's answer that is not
given the service's address back makes the client reset the backend. So nobody opens a flow from before the last copy
until the last link was updated (`holding`; --max-flows): what would is dropped, and sent again.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from svcctl.bpf.barrier import rcu_barrier
from svcctl.bpf.constants import EXIST, LOCK, NOEXIST
from svcctl.bpf.errors import BpfError
from svcctl.maps.layouts import U32
from svcctl.maps.packet_codec import add_mark, filter_place
from svcctl.maps.packet_layouts import FILTER_BUCKET, FLOW, PACKET_CONFIG
from svcctl.maps.service_layouts import AFFINITY, BACKEND, SERVICE_STATS
from svcctl.state import migrate
from svcctl.state.programs import load_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from svcctl.bpf.map import Map

PICKS = 8
"""The word that stands for a backend's picks in `add_count` of bpf/copy.bpf.c."""
_WORDS = SERVICE_STATS.struct
_EMPTY = bytes(FILTER_BUCKET.size)
_MOST = (1 << 32) - 1


class Carried:
    """One map; `copy` once, then `add_since` shortly before the swap and after it."""

    flags = 0

    def __init__(self, name: str, old: Map, new: Map) -> None:
        self.name, self.old, self.new = name, old, new
        self.copied = self._read()

    def _read(self) -> dict[bytes, bytes]:
        """The old map as it is, in the present layout."""
        key, value = migrate.converters(self.name, self.old)
        return {
            key(raw) if key else raw: value(data) if value else data
            for raw, data in self.old.items(self.flags)
        }

    def copy(self) -> None:
        """Put what was there when this was made into the new map."""
        kept = [(key, value) for key, value in self.copied.items() if self._has_room(key)]
        keys, values = b"".join(key for key, _ in kept), b"".join(value for _, value in kept)
        self.new.update_many(keys, values, len(kept))

    def add_since(self) -> None:
        """Bring what changed on the old map since the last time."""
        now = self._read()
        self._bring(now)
        self.copied = now

    def _bring(self, now: dict[bytes, bytes]) -> None:
        raise NotImplementedError

    def _has_room(self, key: bytes) -> bool:
        return True


class Counts(Carried):
    """`service_stats` and the picks in `backends`: a program adds, as the balancer's do."""

    def _has_room(self, key: bytes) -> bool:
        return self.name == "backends" or U32.unpack(key)[0] < self.new.info.max_entries

    def _bring(self, now: dict[bytes, bytes]) -> None:
        more: list[tuple[int, int, int]] = []
        for key, data in now.items():
            before = self.copied.get(key)
            if before is None or data == before:
                continue  # backends do not come while the lock is held
            number = U32.unpack(key)[0]
            if self.name == "backends":
                more.append((number, PICKS, BACKEND.unpack(data).picks - BACKEND.unpack(before).picks))
            else:
                pairs = zip(_WORDS.unpack(data), _WORDS.unpack(before), strict=True)
                more += [(number, word, new - old) for word, (new, old) in enumerate(pairs) if new > old]
        if more:
            # What was counted in the moment of the swap; kernels before 5.14 cannot run such a program by hand.
            with contextlib.suppress(BpfError):
                self._add(more)

    def _add(self, more: list[tuple[int, int, int]]) -> None:
        target = "new_backends" if self.name == "backends" else "new_stats"
        with (
            load_object("copy", {}, {target: self.new}, ("add_count",)) as loaded,
            loaded.program("add_count") as program,
        ):
            for number, word, count in more:
                migrate.run_copy(program, migrate.CopyRequest(number, min(max(count, 0), _MOST), word))


class Clients(Carried):
    """`affinity`: the later use of a client counts."""

    def _bring(self, now: dict[bytes, bytes]) -> None:
        """Clients that came or were served meanwhile, unless they were served by the new programs since."""
        for key, data in now.items():
            if data == self.copied.get(key):
                continue
            have = self.new.lookup(key)
            if have is None or AFFINITY.unpack(have).used_ns < AFFINITY.unpack(data).used_ns:
                self.new.update(key, data)


class Sockets(Carried):
    """`reverse`: entries go with their sockets."""

    flags = LOCK

    def _bring(self, now: dict[bytes, bytes]) -> None:
        """Sockets that came; those that went are taken out. What the new programs wrote stays."""
        for key, data in now.items():
            before = self.copied.get(key)
            try:
                if before is None:
                    self.new.update(key, data, NOEXIST)
                elif data != before and self.new.lookup(key, LOCK) == before:
                    self.new.update(key, data, LOCK)
            except BpfError:
                continue  # there already, or full: nobody is refused for that
        for key in self.copied.keys() - now.keys():
            self.new.delete(key)


class Flows(Carried):
    """`flows` and `halfopen`: the entry that saw a packet last counts. What was evicted or ended stays away."""

    def _bring(self, now: dict[bytes, bytes]) -> None:
        for key, data in now.items():
            before = self.copied.get(key)
            if data == before:
                continue
            have = self.new.lookup(key)
            with contextlib.suppress(BpfError):  # made, or gone, just now: a program knows better
                if have is None:
                    self.new.update(key, data, NOEXIST)
                elif have == before or FLOW.unpack(have).seen_ns < FLOW.unpack(data).seen_ns:
                    self.new.update(key, data, EXIST)
        for key in self.copied.keys() - now.keys():
            self.new.delete(key)


class Filter(Carried):
    """`flow_filter`, made from `halfopen`: a mark for each key."""

    def copy(self) -> None:
        """One for each that was there when this was made."""
        buckets: dict[int, bytes] = {}
        for key in self.copied:
            number, mark = filter_place(key)
            buckets[number] = add_mark(buckets.get(number, _EMPTY), mark)
        keys = b"".join(map(U32.pack, buckets))
        self.new.update_many(keys, b"".join(buckets.values()), len(buckets))

    def _bring(self, now: dict[bytes, bytes]) -> None:
        for key in now.keys() - self.copied.keys():
            number, mark = filter_place(key)
            bucket = self.new.lookup(U32.pack(number), LOCK) or _EMPTY
            self.new.update(U32.pack(number), add_mark(bucket, mark), LOCK)


HOLD_NS = 10_000_000_000
"""How long a command that is killed can keep flows from being opened."""


@contextlib.contextmanager
def holding(tables: Iterable[Map]) -> Iterator[Callable[[], None]]:
    """Have nobody open a flow of the packet path; gives a function to call before the time is over.

    `tables` are all of `packet_config` that a program reads. On return no program that runs opens one.
    """
    tables = [table for table in tables if not migrate.has_other_layout(table, "packet_config")]

    def hold() -> None:
        put(time.monotonic_ns() + HOLD_NS)

    def put(until: int) -> None:
        for table in tables:
            value = PACKET_CONFIG.unpack(table.lookup(bytes(4)) or bytes(PACKET_CONFIG.size))
            table.update(bytes(4), PACKET_CONFIG.pack(value._replace(hold_until_ns=until)))

    hold()
    try:
        rcu_barrier()
        yield hold
    finally:
        put(0)


KINDS: dict[str, type[Carried]] = {
    "service_stats": Counts,
    "backends": Counts,
    "affinity": Clients,
    "reverse": Sockets,
    "flows": Flows,
    "halfopen": Flows,
    "flow_filter": Filter,
}
"""By the name of the new map. What goes into `flow_filter` is read from `halfopen`."""
