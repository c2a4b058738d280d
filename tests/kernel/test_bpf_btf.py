"""Layouts read from the kernel are those of the object file the map came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from svcctl.bpf.btf import Btf
from svcctl.bpf.map import Map
from svcctl.bpf.object import Object
from tests.lib.bpf_source import compile_bpf

if TYPE_CHECKING:
    from tests.lib.world import World

SOURCE = """
struct key { __u32 id; __u16 port; __u8 address[16]; __u16 pad; };
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 10);
    __type(key, struct key);
    __type(value, __u64);
} trial SEC(".maps");

SEC("sk_lookup")
int pass(struct bpf_sk_lookup *ctx)
{
    struct key key = {};

    return bpf_map_lookup_elem(&trial, &key) ? SK_PASS : SK_DROP;
}
"""


def test_from_a_pinned_map(world: World, tmp_path: Path) -> None:
    path = compile_bpf(SOURCE, tmp_path)
    pin = f"{world.bpffs}/trial"
    with Object.open(path) as trial:
        trial.load()
        with trial.map("trial") as opened:
            opened.pin(pin)
    with Map.open_pinned(pin, read_only=True) as opened:
        info = opened.info
    btf = Btf.from_kernel_id(info.btf_id)
    of_key = btf.struct_by_id(info.btf_key_type_id)
    expected = Btf.from_object(path).struct("key")
    assert (of_key.name, of_key.size) == ("key", 24)
    assert [field[:4] for field in of_key.fields] == [field[:4] for field in expected.fields]
    assert btf.type_name(info.btf_value_type_id) == "__u64"
