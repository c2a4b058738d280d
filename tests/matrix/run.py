"""`make matrix`: the tests marked quick, inside a kernel of each series, and a table of what came of it.

Two guests at a time. A series the mirror no longer serves is reported; fewer than four kernels is a failure.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.matrix import kernels, vm

ROOT = Path(__file__).resolve().parents[2]
FEWEST = 4
AT_A_TIME = 2
GUEST_S = 900.0  # for one guest, whatever happens: four times what it takes beside other work
TEST_TIMEOUT_S = 300  # of one test in it: below, so that the one that hangs is named
SLOWNESS = 20  # how many times slower than the machine itself; tests scale their own time limits by it
# Lines of the kernel's log that are somebody's bug. A soft lockup is only the interpreter's slowness.
SPLAT = re.compile(
    r"^.*(?:BUG: (?!soft lockup|workqueue)|Oops|general protection fault|refcount_t:|WARNING: CPU).*$", re.M
)


class Result(NamedTuple):
    """One kernel's row: counts, the names of what failed with its text, and what else is wrong."""

    kernel: kernels.Kernel
    passed: int
    failed: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]
    seconds: float
    slowest: str
    trouble: str

    @property
    def good(self) -> bool:
        """True when something passed, nothing failed and the guest ended as it should."""
        return self.passed > 0 and not self.failed and not self.trouble


def quick_tests() -> list[str]:
    """Collect, on this machine, the names of the tests marked quick."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "quick",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-W", "ignore", "--ignore=tests/matrix", "--ignore=tests/bench", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = [line for line in done.stdout.splitlines() if "::" in line and not line.startswith("ERROR")]
    if done.returncode != 0 or not names:
        raise vm.VmError(f"no quick tests collected (pytest ended with {done.returncode})\n{done.stdout}")
    return names


PATCHED = "Oops: int3"
"""The end of a guest that has met a breakpoint of the kernel's own, set while it changed its code and gone since:
real processors are told in time, the emulator's second one now and then is not. Nothing of svcctl has a part in it."""


def run_one(kernel: kernels.Kernel, names: Sequence[str], deadline: float) -> Result:
    """Run the quick tests in one kernel until `deadline` (monotonic) at most. What goes wrong is in the result."""
    files = sorted({name.partition("::")[0] for name in names})
    command = [
        "env",
        f"SVCCTL_SLOWNESS={SLOWNESS}",
        "PYTHONDONTWRITEBYTECODE=1",
        sys.executable,
        "-m",
        "pytest",
    ]
    command += ["-v", "-m", "quick", "-p", "no:cacheprovider", "-o", f"timeout={TEST_TIMEOUT_S}"]
    command += ["-p", "no:xdist", "-p", "no:hypothesispytest"]  # slow to import there
    command += ["--junitxml=/run/guest/report", *files]
    # A virtual environment's python is a link to the real one, which may be on another file system.
    paths = [ROOT, kernel.directory, Path(sys.prefix), Path(sys.base_prefix)]

    def boot() -> vm.Outcome:
        return vm.run(kernel, command, timeout_s=max(1.0, deadline - time.monotonic()), shares=paths)

    try:
        outcome = boot()
        if PATCHED in outcome.console:
            print(
                f"{kernel.release}: {PATCHED}: the emulator was late with patched code; once more", flush=True
            )
            outcome = boot()
    except (vm.VmError, OSError) as problem:
        return Result(kernel, 0, (), (), 0.0, "", str(problem))
    return judge(kernel, outcome, len(names))


def judge(kernel: kernels.Kernel, outcome: vm.Outcome, expected: int) -> Result:
    """Read the guest's report; every test that was to run must be in it."""
    passed, failed, skipped = 0, [], []
    slowest = (0.0, "")
    for case in ElementTree.fromstring(outcome.report).iter("testcase") if outcome.report else ():
        name = f"{case.get('classname')}::{case.get('name')}"
        slowest = max(slowest, (float(case.get("time") or 0), name))
        problems = [*case.findall("failure"), *case.findall("error")]
        skips = case.findall("skipped")
        if problems:
            failed.append((name, "\n".join(problem.text or "" for problem in problems)))
        elif skips:
            skipped.append((name, skips[0].get("message") or ""))
        else:
            passed += 1
    trouble = [outcome.trouble] if outcome.trouble else []
    seen = passed + len(failed) + len(skipped)
    if seen < expected:
        trouble.append(f"{seen} of {expected} tests reported")
    if outcome.code not in (0, None) and not failed:
        trouble.append(f"pytest ended with {outcome.code}")
    trouble += [f"kernel log: {line.strip()}" for line in SPLAT.findall(outcome.console)[:5]]
    if trouble:
        trouble += [f"output:\n{outcome.output[-3000:]}", f"console:\n{outcome.console[-2000:]}"]
    return Result(
        kernel,
        passed,
        tuple(failed),
        tuple(skipped),
        outcome.seconds,
        f"{slowest[1]} {slowest[0]:.1f} s",
        "\n".join(trouble),
    )


def kernels_of(series: Sequence[str]) -> tuple[list[kernels.Kernel], list[str]]:
    """Have the kernels of these series; return them, and a line for each not to be had. One process at a time."""
    if os.uname().machine != "x86_64":
        raise vm.VmError("the matrix runs amd64 kernels on this machine's own programs: amd64 only")
    cache = Path(os.environ.get("SVCCTL_KERNELS") or ROOT / "build/kernels")
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return kernels.fetch(cache, list(series))


def run_all(series: Sequence[str]) -> tuple[list[Result], list[str]]:
    """Run the quick tests in every kernel there is; return results, and the series not to be had."""
    names = quick_tests()
    found, missing = kernels_of(series)
    os.chdir(ROOT)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(
            pool.map(lambda kernel: run_one(kernel, names, time.monotonic() + GUEST_S), found)
        ), missing


def table(results: Sequence[Result], missing: Sequence[str]) -> str:
    """Lay the results out, the details of what went wrong below."""
    width = max([len(result.kernel.release) for result in results] or [6])
    lines = [f"{'kernel':{width}}  passed  failed  skipped  seconds"]
    for kernel, passed, failed, skipped, seconds, slowest, trouble in results:
        row = f"{kernel.release:{width}}  {passed:6}  {len(failed):6}  {len(skipped):7}  {seconds:7.1f}"
        lines.append(row + ("  TROUBLE" if trouble else "") + (f"  ({kernel.note})" if kernel.note else ""))
        lines += [f"{'':{width}}  slowest: {slowest}"] if passed else []
    lines += [f"MISSING: {line}" for line in missing]
    for result in results:
        lines += [f"\n{result.kernel.release}: skipped {name}: {reason}" for name, reason in result.skipped]
        lines += [f"\n{result.kernel.release}: FAILED {name}\n{text}" for name, text in result.failed]
        lines += [f"\n{result.kernel.release}: {result.trouble}"] if result.trouble else []
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run for the series named, or all, and print the table; 1 unless all are good and enough ran."""
    series = list(arguments) or list(kernels.SERIES)
    unknown = [name for name in series if name not in kernels.SERIES]
    if unknown:
        print(
            f"matrix: no such series: {' '.join(unknown)}; there are {' '.join(kernels.SERIES)}",
            file=sys.stderr,
        )
        return 2
    if os.geteuid() != 0:
        print("matrix: needs root (virtiofsd serves the file tree): sudo", file=sys.stderr)
        return 4
    try:
        results, missing = run_all(series)
    except (vm.VmError, kernels.KernelError) as problem:
        print(f"matrix: error: {problem}", file=sys.stderr)
        return 1
    print(table(results, missing))
    enough = len(results) >= min(FEWEST, len(series))
    if not enough:
        print(f"matrix: only {len(results)} kernels, at least {FEWEST} are wanted")
    return 0 if enough and all(result.good for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
