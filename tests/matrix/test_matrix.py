"""The quick tests in every kernel of the matrix, as tests: one a series, and one for how many there are."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from tests.matrix import kernels, run


@pytest.fixture(scope="module")
def found() -> tuple[dict[str, kernels.Kernel], list[str], list[str]]:
    """The kernels by series, a line for each that cannot be had, and the names of the quick tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root: virtiofsd serves the file tree")
    for program in ("qemu-system-x86_64", "busybox", "apt-get", "depmod"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: scripts/bootstrap matrix")
    there, missing = run.kernels_of(list(kernels.SERIES))
    return {kernel.series: kernel for kernel in there}, missing, run.quick_tests()


Found = tuple[dict[str, kernels.Kernel], list[str], list[str]]


@pytest.mark.timeout(run.GUEST_S + 300)  # the kernels are fetched within it
@pytest.mark.parametrize("series", kernels.SERIES)
def test_quick_tests_pass_in(series: str, found: Found) -> None:
    """A test for each, not one for all: they are spread over the processes that share the tests."""
    there, missing, names = found
    if series not in there:
        # Loud, but a failure only when too few are left: mirrors drop old series.
        reason = next(line for line in missing if line.startswith(f"series {series}:"))
        pytest.xfail(f"NOT RUN: {reason}")
    if os.uname().release.startswith(f"{series}."):
        pytest.skip("this kernel is of that series, and runs the quick tests with all others")
    os.chdir(run.ROOT)
    result = run.run_one(there[series], names, time.monotonic() + run.GUEST_S)
    print(run.table([result], []))
    assert result.good, run.table([result], [])


def test_enough_kernels_are_there(found: Found) -> None:
    there, missing, _ = found
    assert len(there) >= run.FEWEST, missing
