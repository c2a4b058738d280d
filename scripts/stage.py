"""Lays out an installation from a checkout with built objects: the copying of `make install` and the .deb."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import shared_data


class StageError(Exception):
    """Something that an installation needs is not there."""


def version(root: Path) -> str:
    """Return the version as the package says it."""
    found = re.search(r'^__version__ = "([^"]+)"', (root / "svcctl/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise StageError("svcctl/__init__.py: no __version__")
    return found[1]


def package_files(root: Path) -> list[Path]:
    """List what belongs to the Python package, the compiled programs included."""
    package = root / "svcctl"
    objects = sorted(package.glob("objects/*.o"))
    if not objects:
        raise StageError("no objects: run scripts/build_objects.py first")
    sources = sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)
    return [*sources, package / "py.typed", *sorted(package.glob("schema/*.json")), *objects]


def stage(root: Path, code: Path, prefix: Path, rename: dict[str, str] | None = None) -> list[Path]:
    """Copy the package below `code` and man pages, completions and units below `prefix`; return what was written.

    `rename` maps directories below the prefix to those of another custom.
    """
    pairs = [(source, code / source.relative_to(root)) for source in package_files(root)]
    for source, place in shared_data.layout(root):
        directory, _, name = place.rpartition("/")
        pairs.append((source, prefix / (rename or {}).get(directory, directory) / name))
    for source, target in pairs:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if shared_data.is_program(source) else 0o644)
    return [target for _, target in pairs]


def write_command(path: Path, python: str, code: Path | None) -> None:
    """Write the `svcctl` command. `code` is where the package is, None when Python finds it by itself.

    -I: neither the environment nor the current directory decide what root imports.
    """
    lines = [f"#!{python} -I", "import sys", ""]
    if code is not None:
        lines += [f"sys.path.insert(0, {str(code)!r})"]
    lines += ["from svcctl.cli.main import main", "", "sys.exit(main())", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    path.chmod(0o755)
