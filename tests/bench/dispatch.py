"""What a new connection costs: the loaded dispatcher against two bare trie look-ups on the same set.

BPF_PROG_TEST_RUN says how long the kernel took. "Random": every run is for another address, as connections are,
so that the memory the look-up walks is seldom in a cache. "Hot": the same address over and over.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.model.constants import IPV4, TCP
from tests.bench import loaded
from tests.bench.figures import Figure
from tests.bench.timed_runs import TimedRuns
from tests.lib.bpf_source import compile_bpf
from tests.lib.look_up import SK_PASS, context, look_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.figures import Report

BARE = """
#include <bpf/bpf_endian.h>

struct key {
	__u32 prefixlen;
	__u8 protocol;
	__u8 family;
	__u16 port;
	__u32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct key);
	__type(value, __u64);
} trie SEC(".maps");

SEC("sk_lookup")
int empty(void *ctx)
{
	return SK_PASS;
}

/* The port, then every port, and the longer prefix wins. SK_DROP when neither is there: hits are to be measured. */
SEC("sk_lookup")
int two_lookups(struct bpf_sk_lookup *ctx)
{
	struct key key = { .prefixlen = 160, .protocol = ctx->protocol, .family = 4, .port = ctx->local_port };
	__u64 *found, own, every;

	key.address[2] = bpf_htonl(0xffff);
	key.address[3] = ctx->local_ip4;
	found = bpf_map_lookup_elem(&trie, &key);
	own = found ? *found : 0;
	key.port = 0;
	found = bpf_map_lookup_elem(&trie, &key);
	every = found ? *found : 0;
	return (every > own ? every : own) ? SK_PASS : SK_DROP;
}
"""
"""What the dispatcher is measured against: nothing at all, and two bare look-ups in one trie."""

SIZES = (1_000, 10_000, 100_000, 1_000_000)
RANDOM = 3_000
"""Addresses of one round, each run once by every program."""
HOT, HOT_REPEAT = 30, 3_000
ROUNDS = 5
GOALS_FROM = 10_000
EXACT_GOAL, PREFIX_GOAL, UNBOUND_GOAL_NS = 0.6, 1.3, 40.0
UNBOUND_PORT = 8080


class Case(NamedTuple):
    """What is bound, which of that is asked for, and the size the state is loaded for."""

    title: str
    keys: list[bytes]
    asked: list[bytes]
    room: int
    goal: float | None = None
    unbound: bool = False


def cases() -> Iterator[Case]:
    """Made one by one: a million keys are large."""
    for size in SIZES:
        keys = loaded.hosts(size, seed=size)
        goal = EXACT_GOAL if size >= GOALS_FROM else None
        yield Case(f"{size:,} addresses", keys, keys, size, goal, unbound=size == SIZES[-1])
    keys = loaded.hosts(10_000, seed=1)
    yield Case("10,000 addresses, room for a million", keys, keys, 1_000_000)
    for size in SIZES:
        keys = loaded.prefixes(size, seed=size)
        goal = PREFIX_GOAL if size >= GOALS_FROM else None
        yield Case(f"{size:,} prefixes", keys, keys, size, goal, unbound=size == SIZES[-1])
    asked = loaded.prefixes(50_000, seed=1)
    yield Case("50,000 prefixes and 50,000 addresses", asked + loaded.hosts(50_000, seed=1), asked, 100_000)


class Bare:
    """The programs of BARE, loaded."""

    def __init__(self, empty: Program, two_lookups: Program, trie: Map) -> None:
        self.empty = empty
        self.two_lookups = two_lookups
        self.trie = trie


@contextlib.contextmanager
def bare(entries: int, scratch: str) -> Iterator[Bare]:
    """The programs to compare with, on a trie with room for so many entries."""
    built = compile_bpf(BARE, Path(scratch), "bare")
    with Object.open(built) as opened:
        opened.resize("trie", entries)
        opened.load()
        with (
            opened.program("empty") as empty,
            opened.program("two_lookups") as two,
            opened.map("trie") as trie,
        ):
            yield Bare(empty, two, trie)


def measure(report: Report) -> None:
    """All figures of this part."""
    report.section(
        "dispatch",
        "BPF_PROG_TEST_RUN, against two bare trie look-ups on the same set, both over an empty program"
        " (medians of the quietest round)",
    )
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="svcctl-bench-") as scratch, socket.socket() as listener:
        # Not SO_REUSEPORT: test runs refuse such sockets. One for all labels: finding it is not the question.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for case in cases():
            with loaded.state(case.room) as state, bare(len(case.keys), scratch) as peer:
                state.fill(case.keys)
                state.register(listener)
                prefix_lengths = b"".join([key[:4] + bytes(4) for key in case.keys])
                peer.trie.update_many(b"".join(case.keys), prefix_lengths, len(case.keys))
                with Program.open_pinned(f"{state.path}/prog_dispatch") as ours:
                    _one(report, case, ours, peer)


def _one(report: Report, case: Case, ours: Program, peer: Bare) -> None:
    source = random.Random(1)
    found: dict[str, list[tuple[float, ...]]] = {"random": [], "hot": [], "unbound": []}
    for _ in range(ROUNDS):
        some = [loaded.an_address_in(key, source) for key in source.choices(case.asked, k=RANDOM)]
        found["random"].append(_medians(some, loaded.PORT, 1, ours, peer))
        found["hot"].append(_medians(some[:HOT], loaded.PORT, HOT_REPEAT, ours, peer))
        if case.unbound:
            found["unbound"].append(_medians(some[:HOT], UNBOUND_PORT, HOT_REPEAT, ours, peer))
        _check_hits(some[0], ours, peer)
    for name in ("random", "hot"):
        mine, two, empty = map(min, zip(*found[name], strict=True))
        report.add(
            Figure(
                f"{case.title}, {name}",
                (mine - empty) / (two - empty),
                "",
                f"{mine:.0f} ns",
                f"two look-ups {two:.0f} ns, empty program {empty:.0f} ns",
                goal=case.goal if name == "random" else None,
            )
        )
    if case.unbound:
        mine, two, empty = map(min, zip(*found["unbound"], strict=True))
        report.add(
            Figure(
                f"{case.title}, a port nobody bound, over empty",
                mine - empty,
                "ns",
                f"{mine:.0f} ns",
                f"empty program {empty:.0f} ns, two look-ups {two:.0f} ns",
                goal=UNBOUND_GOAL_NS,
            )
        )


def _medians(addresses: list[bytes], port: int, repeat: int, ours: Program, peer: Bare) -> tuple[float, ...]:
    """ns a run of ours, of the two look-ups and of the empty program, each on all addresses."""
    runs = TimedRuns([context(TCP, IPV4, address, port) for address in addresses], repeat)
    return tuple(statistics.median(runs.of(program)) for program in (ours, peer.two_lookups, peer.empty))


def _check_hits(address: bytes, ours: Program, peer: Bare) -> None:
    """That both sides find what they are asked for: a program that finds nothing would be quick."""
    if not look_up(ours, TCP, IPV4, address, loaded.PORT).cookie:
        raise RuntimeError("the dispatcher gave the connection to nobody")
    if look_up(peer.two_lookups, TCP, IPV4, address, loaded.PORT).verdict != SK_PASS:
        raise RuntimeError("the bare trie does not hold the address")
