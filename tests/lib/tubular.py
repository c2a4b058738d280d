"""What a loaded tubular leaves in the kernel, made from scratch: maps of its layouts, a program that steers.

The layouts are those of svcctl/state/tubular.py. The program does what matters here: the longest prefix, a
concrete port before port 0 at equal length, one socket a destination, a drop without one.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from svcctl.bpf.link import Link
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from svcctl.host.netns import Netns
from svcctl.maps.catalog import SK_LOOKUP
from svcctl.model.prefix import parse_prefix
from tests.lib.bpf_source import compile_bpf
from tests.lib.inspect_state import BPFFS

SOURCE = """
struct binding_key {
    __u32 bits;
    __u8 protocol;
    __u16 port;
    __u8 address[16];
} __attribute__((packed));

struct binding { __u32 destination; __u32 bits; };

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1000000);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(key_size, 23);
    __uint(value_size, 8);
} bindings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 1024);
    __uint(key_size, 4);
    __uint(value_size, 8);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024);
    __uint(key_size, 257);
    __uint(value_size, 8);
} destinations SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1024);
    __uint(key_size, 4);
    __uint(value_size, 24);
} destination_metrics SEC(".maps");

static struct binding *find(struct bpf_sk_lookup *ctx, __u16 port)
{
    struct binding_key key = { .bits = 152, .protocol = ctx->protocol, .port = port };
    __u32 word;

    if (ctx->family == 2) {
        key.address[10] = key.address[11] = 0xff;
        word = ctx->local_ip4;
        __builtin_memcpy(&key.address[12], &word, 4);
    } else {
        for (int i = 0; i < 4; i++) {
            word = ctx->local_ip6[i];
            __builtin_memcpy(&key.address[4 * i], &word, 4);
        }
    }
    return bpf_map_lookup_elem(&bindings, &key);
}

SEC("sk_lookup")
int dispatcher(struct bpf_sk_lookup *ctx)
{
    struct binding *concrete = find(ctx, ctx->local_port), *any = find(ctx, 0), *best;
    struct bpf_sock *sk;
    __u64 *seen;
    __u32 number;
    long refused;

    best = concrete;
    if (any && (!concrete || any->bits > concrete->bits))
        best = any;
    if (!best)
        return SK_PASS;
    number = best->destination;
    seen = bpf_map_lookup_elem(&destination_metrics, &number);
    if (seen)
        seen[0]++;
    sk = bpf_map_lookup_elem(&sockets, &number);
    if (!sk)
        return SK_DROP;
    refused = bpf_sk_assign(ctx, sk, 0);
    bpf_sk_release(sk);
    return refused ? SK_DROP : SK_PASS;
}
"""
MAPS = ("bindings", "sockets", "destinations", "destination_metrics")


def build(directory: Path) -> str:
    """Compile the program; the path of the object."""
    return compile_bpf(SOURCE, directory, "tubular")


class Tubular:
    """A state directory of the calling thread's network namespace."""

    def __init__(self, built: str) -> None:
        self.path = f"{BPFFS}/{os.stat('/proc/thread-self/ns/net').st_ino}_dispatcher"
        os.mkdir(self.path, 0o750)
        self.ids: dict[tuple[str, int, int], int] = {}
        with Object.open(built) as loaded:
            loaded.load()
            for name in MAPS:
                with loaded.map(name) as one:
                    one.pin(f"{self.path}/{name}")
                os.chmod(f"{self.path}/{name}", 0o640)
            with loaded.program("dispatcher") as program, Netns.open("/proc/thread-self/ns/net") as netns:
                program.pin(f"{self.path}/program")
                with Link.create(program, netns.fd, SK_LOOKUP) as link:
                    link.pin(f"{self.path}/link")

    def _map(self, name: str) -> Map:
        return Map.open_pinned(f"{self.path}/{name}")

    def _destination(self, label: str, family: int, protocol: int, more: int) -> int:
        key = (label, family, protocol)
        number = self.ids.setdefault(key, len(self.ids))
        raw = struct.pack(
            "=255sBB", label.encode(), socket.AF_INET if family == 4 else socket.AF_INET6, protocol
        )
        with self._map("destinations") as named:
            have = named.lookup(raw)
            count = struct.unpack("=II", have)[1] if have else 0
            named.update(raw, struct.pack("=II", number, count + more))
        return number

    def bind(self, label: str, protocol: int, prefix: str, port: int) -> None:
        """As `tubectl bind`."""
        family, address, length = parse_prefix(prefix)
        bits = 24 + length + (96 if family == 4 else 0)
        number = self._destination(label, family, protocol, 1)
        with self._map("bindings") as bindings:
            bindings.update(
                struct.pack("=IBH16s", bits, protocol, port, address), struct.pack("=II", number, bits)
            )

    def register(self, label: str, family: int, protocol: int, fd: int) -> None:
        """As `tubectl register`."""
        number = self._destination(label, family, protocol, 0)
        with self._map("sockets") as sockets:
            sockets.update(struct.pack("=I", number), struct.pack("=Q", fd))

    def remove(self) -> None:
        """As `tubectl unload`."""
        for name in os.listdir(self.path):
            os.unlink(f"{self.path}/{name}")
        os.rmdir(self.path)
