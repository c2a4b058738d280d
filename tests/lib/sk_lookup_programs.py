"""sk_lookup programs that are not svcctl's: one lets pass, one drops, one gives everything to a socket of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.bpf.program import Program
from svcctl.host.netns import Netns
from svcctl.maps.catalog import SK_LOOKUP
from svcctl.maps.layouts import U64
from tests.lib.bpf_source import compile_bpf

SOURCE = """
struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 8);
} chosen SEC(".maps");

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
    struct bpf_sock *sk = bpf_map_lookup_elem(&chosen, &zero);

    if (!sk)
        return SK_PASS;
    bpf_sk_assign(ctx, sk, 0);
    bpf_sk_release(sk);
    return SK_PASS;
}
"""


@contextlib.contextmanager
def foreign(directory: Path) -> Iterator[tuple[Object, Map]]:
    """The loaded object, and the map that holds what `choose` chooses."""
    path = compile_bpf(SOURCE, directory, "foreign")
    with Object.open(path) as built:
        built.load()
        with built.map("chosen") as chosen:
            yield built, chosen


@contextlib.contextmanager
def attached(program: Program, netns: str = "/proc/thread-self/ns/net") -> Iterator[Link]:
    """Attach a program to a network namespace for the length of a block."""
    with Netns.open(netns) as target, Link.create(program, target.fd, SK_LOOKUP) as link:
        yield link


def put(chosen: Map, fd: int) -> None:
    """Make `choose` choose this socket."""
    chosen.update(bytes(4), U64.pack(fd))
