"""Waiting until no program that is running now can still use what was taken out of a map."""

from __future__ import annotations

from sys import byteorder

from svcctl.bpf.constants import MAP_ARRAY, MAP_ARRAY_OF_MAPS
from svcctl.bpf.map import Map


def rcu_barrier() -> None:
    """Return when every program run that had started before the call has ended (about 10 ms).

    Changing a map of maps from user space waits for running programs (kernel: maybe_wait_bpf_programs); it is
    the only such wait bpf(2) offers. Programs that may sleep are waited for only where that function does.
    """
    with (
        Map.create(MAP_ARRAY, "barrier_inner", 4, 4, 1) as inner,
        Map.create(MAP_ARRAY_OF_MAPS, "barrier", 4, 4, 1, inner=inner) as outer,
    ):
        outer.update(bytes(4), inner.fd.to_bytes(4, byteorder))
