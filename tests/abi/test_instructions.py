"""The instructions of the built objects: the helpers they call, and those they must never call."""

from __future__ import annotations

from pathlib import Path

import pytest

import svcctl
from tests.lib.bpf_source import compile_bpf
from tests.lib.covered import HELPERS
from tests.lib.elf import programs

OBJECTS = sorted((Path(svcctl.__file__).parent / "objects").glob("*.bpfe[lb].o"))
TRACE_PRINTK = 6
# What each program may call. A line here is a decision: each helper has to be there in Linux 5.10.
ALLOWED = {
    "dispatch": {"map_lookup_elem", "sk_assign", "sk_release"},
    "copy_sockets": {"map_lookup_elem", "map_update_elem", "sk_release"},
    "sock_release": {"get_socket_cookie", "map_delete_elem", "map_lookup_elem"},
}
_LOCKED = {"map_lookup_elem", "spin_lock", "spin_unlock", "get_socket_cookie"}
_CHOOSES = _LOCKED | {"map_update_elem", "get_prandom_u32", "ktime_get_ns", "get_netns_cookie"}
for _hook in ("4", "6"):
    for _verb in ("connect", "sendmsg"):
        ALLOWED[f"{_verb}{_hook}_eperm"] = _CHOOSES
        ALLOWED[f"{_verb}{_hook}"] = _CHOOSES | {"set_retval"}  # probed for: not in 5.10
    for _verb in ("recvmsg", "getpeername"):
        ALLOWED[f"{_verb}{_hook}"] = _LOCKED
PRINTS = """
SEC("sk_lookup")
int prints(struct bpf_sk_lookup *ctx)
{
    bpf_printk("%d", ctx->local_port);
    return SK_PASS;
}

SEC("sk_lookup")
int silent(struct bpf_sk_lookup *ctx)
{
    return SK_PASS;
}
"""


def helpers(path: Path | str) -> dict[str, set[str]]:
    """Program -> names of the helpers it calls."""
    return {
        name: {HELPERS.get(number, str(number)) for number in program.helpers}
        for name, program in programs(path).items()
    }


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_nothing_prints_to_the_trace_pipe(path: Path) -> None:
    """bpf_trace_printk in a packet path is a shared lock, a warning in the kernel's log, and nobody's log."""
    for program in programs(path).values():
        assert program.instructions
        assert TRACE_PRINTK not in program.helpers, program.name


@pytest.mark.parametrize("big_endian", [False, True])
def test_a_print_would_be_found(tmp_path: Path, big_endian: bool) -> None:
    """The scan itself, on a program that prints and one that does not."""
    path = compile_bpf(PRINTS, tmp_path, big_endian=big_endian)
    found = programs(path)
    assert TRACE_PRINTK in found["prints"].helpers
    assert TRACE_PRINTK not in found["silent"].helpers
    assert found["prints"].hook == "sk_lookup"


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_helpers_are_those_that_were_decided_on(path: Path) -> None:
    for name, called in helpers(path).items():
        if name in ALLOWED:
            assert called == ALLOWED[name], name


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_nothing_calls_another_function(path: Path) -> None:
    """Before Linux 6.8 the verifier believes a constant that a called function reads through a pointer to its
    caller's stack to be the same on every way, and cuts the other branches off."""
    for program in programs(path).values():
        assert not any(one.code == 0x85 and one.source == 1 for one in program.instructions), program.name


def test_both_byte_orders_are_built_from_one_source() -> None:
    """Same programs, helpers and maps on both."""
    names = {path.name.partition(".")[0] for path in OBJECTS}
    assert {"dispatch", "copy", "state", "abi", "connect"} <= names
    for name in names:
        little, big = (programs(OBJECTS[0].parent / f"{name}.bpfe{order}.o").values() for order in ("l", "b"))
        described = [[(one.name, one.hook, one.helpers, one.maps) for one in each] for each in (little, big)]
        assert described[0] == described[1], name


def test_programs_are_found_at_all() -> None:
    assert set(ALLOWED) <= {name for path in OBJECTS for name in programs(path)}
