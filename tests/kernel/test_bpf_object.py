"""Object files: choosing, resizing, loading, and what is said when that fails."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf import constants as c
from svcctl.bpf.errors import BpfError, VerifierRejected
from svcctl.bpf.map import Map
from svcctl.bpf.object import MapSpec, Object
from tests.lib.bpf_source import compile_bpf

if TYPE_CHECKING:
    from tests.lib.world import World

SOURCE = """
struct key { __u32 prefixlen; __u8 address[4]; };
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 10);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct key);
    __type(value, __u64);
} routes SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 4);
    __uint(key_size, 4);
    __uint(value_size, 8);
} sockets SEC(".maps");

const volatile __u32 setting = 3;
__u64 runs;

SEC("sk_lookup")
int pass(struct bpf_sk_lookup *ctx)
{
    struct key key = { .prefixlen = 32 };

    runs += setting;
    bpf_map_lookup_elem(&routes, &key);
    return SK_PASS;
}

SEC("sk_lookup")
int drop(struct bpf_sk_lookup *ctx)
{
    return SK_DROP;
}

SEC("sk_lookup")
int careless(struct bpf_sk_lookup *ctx)
{
    struct key key = { .prefixlen = 32 };
    __u64 *value = bpf_map_lookup_elem(&routes, &key);

    return *value;
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_bpf(SOURCE, tmp_path_factory.mktemp("bpf"))


def test_what_is_in_it(world: World, path: str) -> None:
    with Object.open(path) as trial:
        assert trial.map_specs == {
            "routes": MapSpec(c.MAP_LPM_TRIE, 8, 8, 10, c.F_NO_PREALLOC),
            "sockets": MapSpec(c.MAP_SOCKMAP, 4, 8, 4, 0),
        }
        assert set(trial.section_specs) == {".bss", ".rodata"}
        assert trial.section_specs[".bss"].value_size == 8
        assert trial.program_sections == {"pass": "sk_lookup", "drop": "sk_lookup", "careless": "sk_lookup"}


def test_what_is_taken_outlives_it(world: World, path: str) -> None:
    with Object.open(path) as trial:
        trial.only_program("pass", "drop")
        trial.resize("routes", 77)
        assert trial.map_specs["routes"].max_entries == 77
        trial.load()
        program, routes = trial.program("pass"), trial.map("routes")
        bss, rodata = trial.map(".bss"), trial.map(".rodata")
    with program, routes, bss, rodata:
        assert routes.info.max_entries == 77
        assert routes.info.name == "routes"
        assert program.info.name == "pass"
        assert set(program.info.map_ids) == {routes.info.id, bss.info.id, rodata.info.id}
        assert rodata.lookup(bytes(4)) == struct.pack("=I", 3)
        assert rodata.frozen
        routes.update(struct.pack("=I4x", 8), bytes(8))


def test_verifier_log_is_in_the_error(world: World, path: str) -> None:
    with Object.open(path) as trial, pytest.raises(VerifierRejected) as caught:
        trial.load()
    assert caught.value.errno == errno.EACCES
    assert caught.value.log is not None
    assert "value = bpf_map_lookup_elem" in caught.value.log
    text = str(caught.value)
    assert text.startswith(
        f"load: program careless of {path}: rejected by the verifier: R0 invalid mem access"
    )
    assert "\n" not in text


def test_nothing_is_printed(world: World, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Object.open(path) as trial, pytest.raises(VerifierRejected):
        trial.load()
    with pytest.raises(BpfError):
        Object.open("/nowhere.o")
    assert capfd.readouterr() == ("", "")


def test_verbose_prints_and_is_silent_again(
    world: World, path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Object.open(path, verbose=True) as trial:
        trial.only_program("drop")
        trial.load()
    out, err = capfd.readouterr()
    assert out == ""
    assert "libbpf: " in err
    with pytest.raises(BpfError):
        Object.open("/nowhere.o")
    assert capfd.readouterr() == ("", "")


def test_not_an_object(world: World, tmp_path: Path) -> None:
    with pytest.raises(BpfError) as caught:
        Object.open("/nowhere.o")
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == "open: /nowhere.o: No such file or directory"
    other = tmp_path / "text.o"
    other.write_text("hello\n")
    with pytest.raises(BpfError) as caught:
        Object.open(str(other))
    assert caught.value.log is not None
    assert "text.o" in caught.value.log


def test_reuse(world: World, path: str) -> None:
    with (
        Map.create(c.MAP_LPM_TRIE, "routes", 8, 8, 500, c.F_NO_PREALLOC) as mine,
        Object.open(path) as trial,
    ):
        trial.only_program("pass")
        trial.reuse("routes", mine)
        trial.load()
        with trial.map("routes") as routes, trial.program("pass") as program:
            assert routes.info.id == mine.info.id
            assert mine.info.id in program.info.map_ids


def test_reuse_of_a_map_with_another_kernel_name(world: World, path: str) -> None:
    with (
        Map.create(c.MAP_LPM_TRIE, "other", 8, 8, 500, c.F_NO_PREALLOC) as mine,
        Object.open(path) as trial,
    ):
        trial.only_program("pass")
        trial.reuse("routes", mine)
        trial.load()
        with trial.map("routes") as routes:
            assert routes.info.id == mine.info.id


def test_reuse_names_every_difference(world: World, path: str) -> None:
    with Map.create(c.MAP_HASH, "mine", 4, 4, 5) as mine, Object.open(path) as trial:
        with pytest.raises(BpfError) as caught:
            trial.reuse("routes", mine)
        assert caught.value.errno == errno.EINVAL
        assert str(caught.value) == (
            "reuse: map mine: type 1 instead of 11, key_size 4 instead of 8, value_size 4 instead of 8"
        )


def test_unknown_names_and_wrong_order(world: World, path: str) -> None:
    with Object.open(path) as trial:
        for call in (
            lambda: trial.program("nobody"),
            lambda: trial.map("nobody"),
            lambda: trial.resize("nobody", 1),
            lambda: trial.only_program("nobody"),
            lambda: trial.program("pass"),  # not loaded
            lambda: trial.map("routes"),
        ):
            with pytest.raises(BpfError) as caught:
                call()
            assert caught.value.errno == errno.ENOENT
        trial.only_program("drop")
        trial.load()
        with pytest.raises(BpfError):
            trial.program("pass")  # left out
        with pytest.raises(BpfError):
            trial.resize("routes", 5)
    with pytest.raises(ValueError, match="closed"):
        trial.load()
    with pytest.raises(ValueError, match="closed"):
        trial.map("routes")


def test_a_map_that_cannot_be_made(world: World, path: str) -> None:
    with Object.open(path) as trial:
        trial.only_program("pass")
        trial.resize("sockets", 0)
        with pytest.raises(BpfError) as caught:
            trial.load()
    assert not isinstance(caught.value, VerifierRejected)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.log is not None
    assert "sockets" in caught.value.log


def test_a_forgotten_object_is_missed(world: World, path: str) -> None:
    trial = Object.open(path)
    with pytest.warns(ResourceWarning, match="was never closed"):
        del trial


def test_no_descriptor_stays(world: World, path: str) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with Object.open(path) as trial:
        trial.only_program("pass")
        trial.load()
        trial.program("pass").close()
        trial.map(".bss").close()
    with Object.open(path) as trial, pytest.raises(VerifierRejected):
        trial.load()
    assert sorted(os.listdir("/proc/self/fd")) == before
