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
from typing import TYPE_CHECKING

from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.model.constants import IPV4, TCP
from tests.bench import loaded
from tests.bench.figures import Figure
from tests.lib.bpf_source import compile_bpf
from tests.lib.look_up import SK_PASS, context, look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
ROUNDS = 3
GOALS_FROM = 10_000
EXACT_GOAL, PREFIX_GOAL, UNBOUND_GOAL_NS = 0.6, 1.3, 40.0
UNBOUND_PORT = 8080


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
        "ns by BPF_PROG_TEST_RUN, over two bare trie look-ups on the same set (medians of the quietest round)",
    )
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with (
        tempfile.TemporaryDirectory(prefix="svcctl-bench-") as scratch,
        loaded.state() as state,
        socket.socket() as listener,
    ):
        # Not SO_REUSEPORT: test runs refuse such sockets. One for all labels: what is measured comes before.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for kind, make, goal in (
            ("addresses", loaded.hosts, EXACT_GOAL),
            ("prefixes", loaded.prefixes, PREFIX_GOAL),
        ):
            for size in SIZES:
                keys = make(size, seed=size)
                state.fill(keys)
                state.register(listener)
                with bare(size, scratch) as peer, Program.open_pinned(f"{state.path}/prog_dispatch") as ours:
                    peer.trie.update_many(b"".join(keys), b"".join(key[:4] + bytes(4) for key in keys), size)
                    _one(report, f"{size:,} {kind}", keys, ours, peer, goal if size >= GOALS_FROM else None)


def _one(
    report: Report, title: str, keys: list[bytes], ours: Program, peer: Bare, goal: float | None
) -> None:
    source = random.Random(1)
    found: dict[str, list[tuple[float, ...]]] = {"random": [], "hot": [], "unbound": []}
    for _ in range(ROUNDS):
        some = [loaded.an_address_in(key, source) for key in source.choices(keys, k=RANDOM)]
        found["random"].append(_medians([context(TCP, IPV4, a, loaded.PORT) for a in some], ours, peer, 1))
        found["hot"].append(
            _medians([context(TCP, IPV4, a, loaded.PORT) for a in some[:HOT]], ours, peer, HOT_REPEAT)
        )
        found["unbound"].append(
            _medians([context(TCP, IPV4, a, UNBOUND_PORT) for a in some[:HOT]], ours, peer, HOT_REPEAT)
        )
    _check_hits(some[0], ours, peer)
    for name in ("random", "hot"):
        mine, two, empty = map(min, zip(*found[name], strict=True))
        report.add(
            Figure(
                f"{title}, {name}",
                mine / two,
                "",
                f"{mine:.0f} ns",
                f"two look-ups {two:.0f} ns, empty program {empty:.0f} ns",
                goal=goal if name == "random" else None,
            )
        )
    mine, two, empty = map(min, zip(*found["unbound"], strict=True))
    report.add(
        Figure(
            f"{title}, a port nobody bound: over empty",
            mine - empty,
            "ns",
            f"{mine:.0f} ns",
            f"empty program {empty:.0f} ns, two look-ups {two:.0f} ns",
            goal=UNBOUND_GOAL_NS,
        )
    )


def _medians(contexts: list[bytes], ours: Program, peer: Bare, repeat: int) -> tuple[float, ...]:
    """ns a run of ours, of the two look-ups and of the empty program, in turn for each context."""
    runs: tuple[Callable[..., object], ...] = (ours.test_run, peer.two_lookups.test_run, peer.empty.test_run)
    found: tuple[list[int], ...] = ([], [], [])
    for each in contexts:
        for run, times in zip(runs, found, strict=True):
            times.append(run(each, repeat=repeat).duration_ns)  # type: ignore[attr-defined]
    return tuple(statistics.median(times) for times in found)


def _check_hits(address: bytes, ours: Program, peer: Bare) -> None:
    """That both sides find what they are asked for: a program that finds nothing would be quick."""
    if not look_up(ours, TCP, IPV4, address, loaded.PORT).cookie:
        raise RuntimeError("the dispatcher gave the connection to nobody")
    if look_up(peer.two_lookups, TCP, IPV4, address, loaded.PORT).verdict != SK_PASS:
        raise RuntimeError("the bare trie does not hold the address")
