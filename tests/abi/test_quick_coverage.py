"""Every program, hook, map type and helper of the objects is run by a test that goes to every kernel of the matrix.

tests/lib/covered.py says how a quick test claims what it covers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import svcctl
from svcctl.bpf.object import MapSpec, Object
from tests.lib.covered import LEFT_IN, STEPS, claimed, used
from tests.lib.elf import Instruction, Program, programs

OWN = "el" if sys.byteorder == "little" else "eb"
TESTS = Path(__file__).resolve().parents[1]
OBJECTS = sorted((Path(svcctl.__file__).parent / "objects").glob(f"*.bpf{OWN}.o"))


def needed() -> set[str]:
    found: set[str] = set()
    for path in OBJECTS:
        with Object.open(str(path)) as built:
            maps = built.map_specs
        for program in programs(path).values():
            found |= used(program, maps)
    return found


def test_everything_used_is_covered() -> None:
    missing = (needed() | STEPS) - claimed(TESTS).keys() - LEFT_IN
    assert not missing, f"no quick test covers: {', '.join(sorted(missing))}"


def test_nothing_is_claimed_that_is_not_there() -> None:
    """A claim that outlived what it was for hides the next one."""
    assert claimed(TESTS).keys() <= needed() | STEPS


def test_a_new_helper_or_map_type_would_be_missed() -> None:
    """The comparison itself."""
    calls = (Instruction(0x85, 0, 999, ""), Instruction(0x18, 1, 0, "strange"), Instruction(0x85, 1, 5, ""))
    program = Program("p", "xdp", calls)
    assert used(program, {"strange": MapSpec(77, 4, 4, 1, 0)}) == {"p: xdp", "p: map 77", "p: helper 999"}
