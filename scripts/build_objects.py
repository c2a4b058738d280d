"""Compiles bpf/*.bpf.c into svcctl/objects/, for little and big endian, the same bytes wherever it runs.

Standard library only: the wheel's build hook and the Makefile both call it. The compiler is the first of
`clang`, `clang-22` ... `clang-14` on PATH, or the one named by the environment variable CLANG.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NEWEST, OLDEST = 22, 14
TARGETS = ("bpfel", "bpfeb")
FLAGS = ("-g", "-O2", "-Wall", "-Wextra", "-Werror", "-mcpu=v3")
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


def _compile(
    clang: str, root: Path, target: str, source: str, *output: str
) -> subprocess.CompletedProcess[str]:
    command = [clang, *FLAGS, "-target", target, "-Ibpf/include"]
    # Line information names the source files: relative to the checkout, whatever its path is.
    command += [f"-ffile-prefix-map={root}=.", "-fdebug-compilation-dir=.", *output, source]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, input="")


def _check_headers(clang: str, root: Path) -> None:
    """BuildError naming the package of the first system header that the compiler does not find."""
    with tempfile.TemporaryDirectory(prefix="svcctl-build-") as scratch:
        for header, package in HEADERS.items():
            probe = Path(scratch, "probe.c")
            probe.write_text(f"#if !__has_include(<{header}>)\n#error missing\n#endif\n")
            if _compile(clang, root, TARGETS[0], str(probe), "-fsyntax-only").returncode != 0:
                raise BuildError(
                    f"<{header}> not found: install the package '{package}' (apt-get install {package})"
                )


def build(root: Path, out: Path | None = None) -> list[Path]:
    """Compile every program below `root` into `out` (default svcctl/objects) and return the objects, sorted.

    Each object appears whole or not at all. Raises BuildError.
    """
    root = root.resolve()
    out = out or root / "svcctl" / "objects"
    sources = sorted((root / "bpf").glob("*.bpf.c"))
    clang = find_clang()
    strip = find_strip(clang)
    built: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="svcctl-build-") as scratch:
        for source in sources:
            for target in TARGETS:
                name = f"{source.name.removesuffix('.bpf.c')}.{target}.o"
                made = Path(scratch, name)
                done = _compile(clang, root, target, str(source.relative_to(root)), "-c", "-o", str(made))
                if done.returncode != 0:
                    _check_headers(clang, root)
                    raise BuildError(
                        f"{source.name} ({target}): {clang} ended with {done.returncode}\n{done.stderr}"
                    )
                if strip is not None:  # -g: the DWARF goes, BTF stays
                    subprocess.run([strip, "-g", str(made)], check=True)
                built.append(made)
        out.mkdir(parents=True, exist_ok=True)
        for made in built:
            fresh = out / f".{made.name}.new"
            shutil.copyfile(made, fresh)
            fresh.chmod(0o644)
            fresh.replace(out / made.name)
    names = {made.name for made in built}
    for stale in out.glob("*.o"):
        if stale.name not in names:
            stale.unlink()
    return [out / name for name in sorted(names)]


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
