"""`scripts/bench`: runs the measurements asked for and prints them; ends with 1 if a goal was missed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

from tests.bench.figures import Report

PARTS = ("startup", "bulk", "inputs", "dispatch", "connect", "apply", "packet", "outside")


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="|".join(PARTS), help="default: all"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    subprocess.run(["mount", "-t", "bpf", "-o", "mode=0711", "bpf", "/sys/fs/bpf"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    # Whatever else runs on this machine should not be what is measured. Children inherit it.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    here = machine()
    print(", ".join(f"{key} {value}" for key, value in here.items()))
    began = time.monotonic()
    report = Report()
    for part in options.parts or PARTS:
        import_module(f"tests.bench.{part}").measure(report)
    missed = report.missed
    print(
        f"\n{time.monotonic() - began:.0f} s; {len(missed)} of {sum(1 for f in report if f.goal is not None)} goals missed"
    )
    for figure in missed:
        print(f"  {figure.name}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report.document(here), file, indent=1)
            file.write("\n")
    return 1 if missed else 0


def machine() -> dict[str, Any]:
    """What the figures were measured on. The load tells how much to believe them."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "scheduling": "first in, first out" if os.sched_getscheduler(0) == os.SCHED_FIFO else "shared",
    }


if __name__ == "__main__":
    sys.exit(main())
