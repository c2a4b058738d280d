"""Small BPF programs for tests, compiled on the spot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEADER = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "Dual BSD/GPL";
"""


def clang() -> str:
    """The compiler to use; skips the test where there is none."""
    for name in (os.environ.get("CLANG"), "clang-19", "clang"):
        if name and shutil.which(name):
            return name
    pytest.skip("needs clang")


def clang_version() -> int:
    """The compiler's major version."""
    told = subprocess.run([clang(), "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return int(told.partition(".")[0])


def compile_bpf(source: str, directory: Path, name: str = "trial", *, big_endian: bool = False) -> str:
    """Compile C text, after the usual includes, to `name`.bpf.o; the path of that.

    The directory is not in it: the same text gives the same bytes.
    """
    text = directory / f"{name}.bpf.c"
    text.write_text(HEADER + source)
    result = directory / f"{name}.bpf.o"
    machine = os.uname().machine
    target = "bpfeb" if big_endian else "bpfel"
    command = [clang(), "-g", "-O2", "-target", target, f"-I/usr/include/{machine}-linux-gnu"]
    command += ["-ffile-compilation-dir=.", "-c", text.name, "-o", str(result.absolute())]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(result)


def compile_program(name: str, directory: Path) -> str:
    """Compile tests/bpf/`name`.bpf.c as the objects of svcctl are compiled; the path of the result."""
    source, made = ROOT / f"tests/bpf/{name}.bpf.c", directory / f"{name}.bpf.o"
    machine = os.uname().machine
    flags = [
        "-g",
        "-O2",
        "-fno-strict-aliasing",
        "-mcpu=v3",
        "-Wall",
        "-Wno-unused-parameter",
        "-target",
        "bpf",
        "-Ibpf/include",
    ]
    done = subprocess.run(
        [clang(), *flags, f"-I/usr/include/{machine}-linux-gnu", "-c", str(source), "-o", str(made)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return str(made)
