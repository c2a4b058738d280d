"""Probes give an answer on this kernel, and the right one where it is known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf import constants as c
from svcctl.bpf import probe
from svcctl.bpf.errors import BpfError
from svcctl.bpf.lib import libbpf_version

if TYPE_CHECKING:
    from tests.lib.world import World

pytestmark = pytest.mark.quick


def test_known_answers(world: World) -> None:
    assert probe.has_program_type(c.PROG_SOCKET_FILTER)
    assert not probe.has_program_type(250)
    assert probe.has_map_type(c.MAP_HASH)
    assert not probe.has_map_type(250)
    assert probe.has_helper(c.PROG_SK_LOOKUP, c.FUNC_MAP_LOOKUP_ELEM, c.SK_LOOKUP)
    assert not probe.has_helper(c.PROG_SK_LOOKUP, 9, c.SK_LOOKUP)  # copying packets is not for this type
    assert not probe.has_helper(c.PROG_SK_LOOKUP, 9999, c.SK_LOOKUP)
    with pytest.raises(BpfError):
        probe.has_helper(c.PROG_SK_LOOKUP, c.FUNC_MAP_LOOKUP_ELEM)  # loaded for no hook: no answer
    assert probe.sk_lookup()
    assert probe.batch_on_hash()


@pytest.mark.parametrize("name", sorted(probe.FEATURES))
def test_features(world: World, name: str) -> None:
    works, since = probe.FEATURES[name]
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release >= tuple(int(part) for part in since.split(".")):
        assert works()
    else:
        works()  # an answer, not an error


def test_possible_cpus() -> None:
    assert probe.possible_cpus() >= (os.cpu_count() or 1)


def test_version() -> None:
    assert libbpf_version() >= (1, 1)
