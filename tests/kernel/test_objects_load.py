"""Every object that is shipped and meant for a kernel passes this kernel's verifier."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import svcctl
from svcctl.bpf.object import Object
from svcctl.maps import catalog
from svcctl.state.balancer import program_name
from tests.lib.world import World

ORDER = "el" if sys.byteorder == "little" else "eb"
OBJECTS = sorted((Path(svcctl.__file__).parent / "objects").glob(f"*.bpf{ORDER}.o"))
NEVER_LOADED = {f"abi.bpf{ORDER}.o"}  # only carries type information
LOADED = [path for path in OBJECTS if path.name not in NEVER_LOADED]


def _quickly(path: Path) -> object:
    """Not the packet path: its verification takes a guest longest, and `attach dev` has it loaded there, too."""
    marks = [] if path.name.startswith("packet.") else [pytest.mark.quick]
    return pytest.param(path, marks=marks, id=path.name)


@pytest.mark.parametrize("path", [_quickly(path) for path in LOADED])
def test_object_loads(path: Path, world: World) -> None:
    with Object.open(str(path)) as built:
        if path.name.startswith("connect."):
            # Those that refuse exist twice: an older kernel has no bpf_set_retval for one of the two.
            built.only_program(*(program_name(shape) for shape in catalog.CONNECT))
        built.load()


def test_there_are_objects() -> None:
    assert len(OBJECTS) > len(NEVER_LOADED), "make objects"
