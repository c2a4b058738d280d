"""`make install`: puts svcctl below a prefix, for the system's Python, in a directory of its own.

The package goes to PREFIX/lib/svcctl and not among Python's own modules: so it works with any prefix and any
Python 3.11 or later, and survives the next one. `--uninstall` removes what was installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import stage

ROOT = Path(__file__).resolve().parent.parent


def remove(home: Path, destination: Path) -> None:
    """Remove what the manifest of an earlier installation lists, then its directory."""
    manifest = home / "installed"
    if manifest.exists():
        for line in manifest.read_text().splitlines():
            Path(f"{destination}{line}").unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)


def install(prefix: Path, destination: str, python: str) -> None:
    """Install below `destination` + `prefix`; files of an earlier version are removed first."""
    below = Path(f"{destination}{prefix}")
    home = below / "lib/svcctl"
    remove(home, Path(destination or "/"))
    written = stage.stage(ROOT, home, below)
    command = below / "bin/svcctl"
    stage.write_command(command, python, prefix / "lib/svcctl")
    for unit in written:
        if "/systemd/" in str(unit):  # units of the package say /usr/bin
            unit.write_text(unit.read_text().replace("/usr/bin/svcctl", f"{prefix}/bin/svcctl"))
    if not destination:  # compiled once, here: a command that may not write there would do it on every start
        subprocess.run([python, "-I", "-m", "compileall", "-q", str(home)], check=True)
    listed = sorted(str(path).removeprefix(destination) for path in (*written, command))
    (home / "installed").write_text("\n".join(listed) + "\n")
    print(f"installed svcctl {stage.version(ROOT)}: {command}")


def main() -> int:
    """Parse the arguments; install or uninstall."""
    parser = argparse.ArgumentParser(description="Install svcctl below a prefix.")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--destdir", default="", help="put everything below this directory (for packagers)")
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter that runs it")
    parser.add_argument("--uninstall", action="store_true")
    arguments = parser.parse_args()
    if not arguments.prefix.is_absolute():
        parser.error("--prefix: must be an absolute path")
    destination = arguments.destdir.rstrip("/")
    try:
        if arguments.uninstall:
            below = Path(f"{destination}{arguments.prefix}")
            remove(below / "lib/svcctl", Path(destination or "/"))
        else:
            python = shutil.which(arguments.python) or arguments.python
            install(arguments.prefix, destination, python)
    except (stage.StageError, OSError) as problem:
        print(f"install: error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
