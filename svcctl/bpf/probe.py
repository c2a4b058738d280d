"""What this kernel can do, found by trying. Each probe says why anybody asks, and since which Linux it works.

Version numbers prove nothing (distributions backport), so nothing here looks at them.
"""

from __future__ import annotations

import os
from ctypes import addressof, create_string_buffer
from errno import EINVAL, ENODEV, EOPNOTSUPP
from struct import pack
from typing import TYPE_CHECKING

from svcctl.bpf.constants import (
    F_NO_PREALLOC,
    FUNC_SK_ASSIGN,
    MAP_HASH,
    MAP_LPM_TRIE,
    PROG_SK_LOOKUP,
    SK_LOOKUP,
    TCX_INGRESS,
)
from svcctl.bpf.errors import ENOTSUPP, BpfError
from svcctl.bpf.lib import check, opts, require
from svcctl.bpf.link import query_programs
from svcctl.bpf.map import Map

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG_BYTES = 16_384
_REFUSED = (b"unknown func", b"invalid func", b"cannot use helper")


def has_program_type(program_type: int) -> bool:
    """Whether programs of a type load. BpfError EPERM when that cannot be tried."""
    result = require("libbpf_probe_bpf_prog_type")(program_type, None)
    return _answer(result, f"program type {program_type}")


def has_map_type(map_type: int) -> bool:
    """Whether maps of a type can be made."""
    return _answer(require("libbpf_probe_bpf_map_type")(map_type, None), f"map type {map_type}")


def has_helper(program_type: int, helper: int, attach_type: int = 0) -> bool:
    """Whether programs of a type may call a helper (enum bpf_func_id).

    `attach_type` is the expected one, for program types that are loaded for a hook. A try of our own: libbpf
    before 1.5 does not know the words of Linux 6.12 for a helper that is refused, and answers yes.
    """
    subject = f"helper {helper} in program type {program_type}"
    log = create_string_buffer(_LOG_BYTES)
    # struct bpf_prog_load_opts: attempts, expected_attach_type, seven ids, fd_array, func_info with count and
    # size, line_info the same, log_level, log_size, log_buf.
    settings = opts("i8IPP2IP2I2IP", 0, attach_type, *(0,) * 14, 1, _LOG_BYTES, addressof(log))
    # call helper; exit
    code = pack("=BBhiBBhi", 0x85, 0, 0, helper, 0x95, 0, 0, 0)
    result = require("bpf_prog_load")(program_type, None, b"GPL", code, 2, settings)
    if result >= 0:
        os.close(result)
        return True
    text = log.value
    if not text:
        raise BpfError(-result, "probe", subject)
    # Whatever else the verifier has against it (missing arguments), it knows the helper.
    return not any(words in text for words in _REFUSED)


def _answer(result: int, subject: str) -> bool:
    # EOPNOTSUPP: libbpf itself does not know the type and cannot make a trial of it.
    return False if result == -EOPNOTSUPP else bool(check(result, "probe", subject))


def sk_lookup() -> bool:
    """Programs that choose the socket of an incoming connection. Since Linux 5.9."""
    return has_program_type(PROG_SK_LOOKUP) and has_helper(PROG_SK_LOOKUP, FUNC_SK_ASSIGN, SK_LOOKUP)


def batch_on_hash() -> bool:
    """Batches on hash maps: bulk writes need them for speed. Since Linux 5.6."""
    return _batch(MAP_HASH, 0)


def batch_on_trie() -> bool:
    """Batches on LPM tries: without them entries go in one by one. In Linux 6.1, not in 5.10."""
    return _batch(MAP_LPM_TRIE, F_NO_PREALLOC)


def take_from_hash() -> bool:
    """Look-up and delete in one call on a hash. Since Linux 5.14."""
    with Map.create(MAP_HASH, "probe", 4, 4, 1) as trial:
        try:
            trial.lookup_and_delete(bytes(4))
        except BpfError as problem:
            if problem.errno in (EINVAL, ENOTSUPP):
                return False
            raise
        return True


def tcx() -> bool:
    """Links to the two sides of an interface: replaced without a gap, gone with their pin. Since Linux 6.6.

    Asks what is attached to interface 1, which is the loopback interface of every network namespace.
    """
    try:
        query_programs(1, TCX_INGRESS)
    except BpfError as problem:
        if problem.errno in (EINVAL, ENOTSUPP, EOPNOTSUPP):
            return False
        if problem.errno != ENODEV:
            raise
    return True


def _batch(map_type: int, flags: int) -> bool:
    with Map.create(map_type, "probe", 8, 4, 2, flags) as trial:
        keys, values = bytes(8), bytes(4)
        errno, _ = trial.update_batch(trial.address(keys, 8, 1), trial.address(values, 4, 1), 1)
        if errno in (EINVAL, ENOTSUPP):
            return False
        if errno:
            raise BpfError(errno, "probe", f"batches on map type {map_type}")
        return True


FEATURES: dict[str, tuple[Callable[[], bool], str]] = {
    "sk_lookup programs": (sk_lookup, "5.9"),
    "batches on hash maps": (batch_on_hash, "5.6"),
    "batches on tries": (batch_on_trie, "6.1"),
    "look-up and delete on hash maps": (take_from_hash, "5.14"),
    "tcx links": (tcx, "6.6"),
}
"""Name to (probe, Linux version that brought it), for a report."""


def possible_cpus() -> int:
    """Number of CPUs the kernel keeps per-CPU values for, online or not."""
    return check(require("libbpf_num_possible_cpus")(), "count", "possible CPUs")
