"""Texts of bpf errors, and what is said when libbpf is missing or old."""

from __future__ import annotations

import errno
import struct

import pytest

from svcctl.bpf import lib
from svcctl.bpf.errors import ENOTSUPP, BpfError, Unsupported, VerifierRejected, last_line

LOG = """\
0: R1=ctx() R10=fp0
5: (79) r0 = *(u64 *)(r0 +0)
R0 invalid mem access 'map_value_or_null'
verification time 52 usec
stack depth 8
processed 6 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""


def test_text() -> None:
    problem = BpfError(errno.ENOENT, "open", "/sys/fs/bpf/x")
    assert str(problem) == "open: /sys/fs/bpf/x: No such file or directory"
    assert isinstance(problem, OSError)
    assert (problem.errno, problem.operation, problem.subject) == (errno.ENOENT, "open", "/sys/fs/bpf/x")
    assert (problem.log, problem.done) == (None, None)
    assert str(BpfError(ENOTSUPP, "read", "map x")) == "read: map x: operation not supported by this kernel"


def test_verifier() -> None:
    problem = VerifierRejected(errno.EACCES, "load", "program x", log=LOG)
    assert str(problem) == (
        "load: program x: rejected by the verifier: R0 invalid mem access 'map_value_or_null'"
    )
    assert problem.log == LOG
    assert last_line("") == "no reason given"


def test_explanation_of_newer_kernels_comes_after_the_reason() -> None:
    explained = (
        "9: (79) r0 = *(u64 *)(r0 +0)\n"
        "R0 invalid mem access 'map_value_or_null'\n"
        "\n"
        "Verification failed: Register Type Safety: Invalid dereference\n"
        "\n"
        "Suggestion:\n"
        "  Add a NULL check before the access.\n"
        "\n"
        "processed 9 insns (limit 1000000) max_states_per_insn 0\n"
    )
    assert last_line(explained) == "R0 invalid mem access 'map_value_or_null'"


def test_check() -> None:
    assert lib.check(7, "open", "x") == 7
    assert lib.check(0, "open", "x") == 0
    with pytest.raises(BpfError) as caught:
        lib.check(-errno.EPERM, "open", "x")
    assert caught.value.errno == errno.EPERM


def test_opts_begin_with_their_size() -> None:
    made = lib.opts("I", 5)
    assert struct.unpack("=QI4x", made) == (16, 5)
    assert struct.unpack_from("N", lib.opts("IIP", 1, 2, 3))[0] == len(lib.opts("IIP", 1, 2, 3)) == 24


def test_function_that_this_libbpf_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lib.PROTOTYPES, "bpf_of_tomorrow", (None, (), "9.9"))
    with pytest.raises(Unsupported) as caught:
        lib.require("bpf_of_tomorrow")
    assert (caught.value.feature, caught.value.since) == ("bpf_of_tomorrow", "9.9")
    assert "9.9" in str(caught.value)


def test_no_libbpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "LIBRARY", "libbpf-none.so.1")
    monkeypatch.setattr(lib, "_library", None)
    monkeypatch.setattr(lib, "_functions", {})
    with pytest.raises(Unsupported) as caught:
        lib.require("bpf_map_create")
    assert caught.value.feature == "libbpf"
    assert "libbpf-none.so.1" in str(caught.value)


def test_every_function_of_the_table_is_in_this_libbpf() -> None:
    for name in lib.PROTOTYPES:
        lib.require(name)
