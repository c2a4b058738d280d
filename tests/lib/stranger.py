"""Running something as another user without capabilities, in a forked child that reports through a pipe."""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from svcctl.host.capability import kernel_release

UID = 65534
GROUP = 54321
"""The gid that tests give to `load --group`: no real group has it."""

STRANGERS = 54322
"""A gid that has nothing to do with it."""

NEEDS_CAP_BPF = kernel_release() < (5, 19)
"""Before Linux 5.19 a map descriptor is of no use without CAP_BPF, whoever opened the pin."""

_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 8, 24, 38, 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_BPF = 39
_libc = ctypes.CDLL(None, use_errno=True)


def drop(gid: int, *, cap_bpf: bool = False) -> None:
    """Become uid 65534 of group `gid` for good: no capability (but CAP_BPF if told so), none to be had again."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for number in range(64):
        if not (cap_bpf and number == _CAP_BPF) and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    if cap_bpf:
        _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(UID, UID, UID)
    wanted = 1 << _CAP_BPF if cap_bpf else 0
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    # effective, permitted, inheritable; low words, then high words
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    if _libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    if cap_bpf:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_BPF)


def _prctl(*words: int) -> None:
    if _libc.prctl(*words, *([0] * (5 - len(words)))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {words[0]}")


def as_stranger(work: Callable[[], Any], gid: int = GROUP, *, cap_bpf: bool = False) -> Any:
    """What `work` returns (as JSON has it), run in a child that has dropped everything.

    An exception in it is an AssertionError here, with the child's traceback.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            drop(gid, cap_bpf=cap_bpf)
            report = {"result": work()}
            code = 0
        except BaseException:
            report = {"error": traceback.format_exc()}
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(report, pipe)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    assert text, "the child said nothing"
    report = json.loads(text)
    assert "error" not in report, report["error"]
    return report["result"]
