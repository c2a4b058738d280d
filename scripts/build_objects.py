"""Compiles bpf/*.bpf.c into svcctl/objects/, for little and big endian, the same bytes wherever it runs.

Standard library only: the wheel's build hook and the Makefile both call it. The compiler is the first of
`clang`, `clang-22` ... `clang-14` on PATH, or the one named by the environment variable CLANG.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NEWEST, OLDEST = 22, 14
TARGETS = ("bpfel", "bpfeb")
# Headers and structs are read as words too, for sums and comparisons: no compiler may take them for other objects.
FLAGS = ("-g", "-O2", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-mcpu=v3")
# header -> the Debian package that brings it
HEADERS = {"linux/bpf.h": "linux-libc-dev", "bpf/bpf_helpers.h": "libbpf-dev"}


class BuildError(Exception):
    """The objects could not be built; the text says what to do."""


def find_clang() -> str:
    """Path of the compiler; BuildError names the package to install when there is none."""
    wanted = os.environ.get("CLANG")
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise BuildError(f"CLANG={wanted}: no such program")
        return found
    for name in ("clang", *(f"clang-{version}" for version in range(NEWEST, OLDEST - 1, -1))):
        found = shutil.which(name)
        if found is not None:
            return found
    raise BuildError("no clang found: install the package 'clang' (apt-get install clang), or set CLANG")


def find_strip(clang: str) -> str | None:
    """Path of the llvm-strip that belongs to `clang`, or of another one, or None."""
    beside = Path(clang).resolve().parent / "llvm-strip"
    if beside.exists():
        return str(beside)
    versions = (f"llvm-strip-{version}" for version in range(NEWEST, OLDEST - 1, -1))
    return next(filter(None, map(shutil.which, ("llvm-strip", *versions))), None)


def _compile(clang: str, tree: str, target: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the compiler in `tree`, a copy of the sources, with the same words and environment for everybody.

    PWD is a name of the current directory that fits everywhere, and clang believes it.
    """
    command = [clang, *FLAGS, "-target", target, "-Ibpf/include", "-fdebug-compilation-dir=.", *arguments]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PWD": "/proc/self/cwd", "LC_ALL": "C"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def _tree(root: Path) -> Iterator[str]:
    """Copy the sources to a path of always the same length, not TMPDIR, which may be anything.

    clang (14 and 19) orders forward declarations in BTF by the addresses of its own allocations, and those
    depend on the lengths of the paths it opens: in another directory the same source gives other bytes.
    """
    with tempfile.TemporaryDirectory(prefix="svcctl-build-", dir="/tmp") as tree:
        shutil.copytree(root / "bpf", Path(tree, "bpf"), copy_function=shutil.copyfile)
        yield tree


def _check_headers(clang: str, tree: str) -> None:
    """Raise BuildError naming the package of the first system header that the compiler does not find."""
    for header, package in HEADERS.items():
        Path(tree, "probe.c").write_text(f"#if !__has_include(<{header}>)\n#error missing\n#endif\n")
        if _compile(clang, tree, TARGETS[0], "-fsyntax-only", "probe.c").returncode != 0:
            raise BuildError(
                f"<{header}> not found: install the package '{package}' (apt-get install {package})"
            )


def build(root: Path, out: Path | None = None) -> list[Path]:
    """Compile every program below `root` into `out` (default svcctl/objects) and return the objects, sorted.

    Each object appears whole or not at all, and none does unless all compile. Raises BuildError.
    """
    out = out or root / "svcctl" / "objects"
    clang = find_clang()
    strip = find_strip(clang)
    objects: dict[str, bytes] = {}
    with _tree(root) as tree:
        for source in sorted((root / "bpf").glob("*.bpf.c")):
            for target in TARGETS:
                done = _compile(clang, tree, target, "-c", "-o", "object.o", f"bpf/{source.name}")
                if done.returncode != 0:
                    _check_headers(clang, tree)
                    why = done.stderr.decode(errors="replace")
                    raise BuildError(f"{source.name} ({target}): {clang} ended with {done.returncode}\n{why}")
                if strip is not None:  # -g: the DWARF goes, BTF stays
                    subprocess.run([strip, "-g", "object.o"], cwd=tree, check=True)
                objects[f"{source.name.removesuffix('.bpf.c')}.{target}.o"] = Path(
                    tree, "object.o"
                ).read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    for name, content in objects.items():
        fresh = out / f".{name}.new"
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        fresh.replace(out / name)
    for stale in out.glob("*.o"):
        if stale.name not in objects:
            stale.unlink()
    return [out / name for name in sorted(objects)]


def main() -> int:
    """Build into this checkout; print one line an object."""
    root = Path(__file__).resolve().parent.parent
    try:
        for made in build(root):
            print(f"{made.relative_to(root)}: {made.stat().st_size} bytes")
    except BuildError as problem:
        print(f"build: error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
