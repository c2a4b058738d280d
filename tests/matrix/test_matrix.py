"""The quick tests in every kernel of the matrix, as tests: one a series, and one for how many there were."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.matrix import kernels, run


@pytest.fixture(scope="module")
def outcome() -> tuple[dict[str, run.Result], list[str]]:
    """Boot them all, two at a time, once."""
    if os.geteuid() != 0:
        pytest.skip("needs root: virtiofsd serves the file tree")
    for program in ("qemu-system-x86_64", "busybox", "apt-get", "depmod"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: scripts/bootstrap matrix")
    results, missing = run.run_all(list(kernels.SERIES))
    print(run.table(results, missing))
    return {result.kernel.series: result for result in results}, missing


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("series", kernels.SERIES)
def test_quick_tests_pass_in(series: str, outcome: tuple[dict[str, run.Result], list[str]]) -> None:
    results, missing = outcome
    if series not in results:
        # Loud, but a failure only when too few are left: mirrors drop old series.
        reason = next(line for line in missing if line.startswith(f"series {series}:"))
        pytest.xfail(f"NOT RUN: {reason}")
    result = results[series]
    assert result.good, run.table([result], [])


def test_enough_kernels_ran(outcome: tuple[dict[str, run.Result], list[str]]) -> None:
    results, missing = outcome
    assert len(results) >= run.FEWEST, missing
