"""Imports go one way: cli -> state -> maps -> bpf, and third-party packages each have one place.

The sources are read, not run: an import inside a function or for type checking counts like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import svcctl

PACKAGE = Path(svcctl.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Room -> the other rooms it may import from. `errors` and `objects` are no packages of code.
MAY_IMPORT: dict[str, set[str]] = {
    "": set(),  # svcctl/__init__.py
    "__main__": {"cli"},
    "errors": set(),
    "record": set(),
    "bpf": set(),  # could be published by itself
    "model": {"errors", "record"},
    "host": {"errors", "record"},
    "maps": {"errors", "record", "model", "bpf"},
    "render": {"errors", "record", "model"},
    "state": {"errors", "record", "model", "host", "maps", "bpf"},
    "follow": {"errors", "record", "model", "host", "state"},
    "cli": {"errors", "record", "model", "host", "maps", "bpf", "render", "state", "follow"},
}
VERSION_READERS = {"state", "cli"}
"""Rooms that may `import svcctl`, for its version and where its objects are."""

# Package -> where it may be imported: a room, or one module.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "click": ("cli",),
    "rich": ("render/panel.py",),
    "pyroute2": ("host/tc.py",),
    "yaml": ("render/yaml.py", "model/sources/yaml_reading.py"),
    "prometheus_client": ("render/prometheus.py",),
}
# Modules whose docstring says that they may, for bindings to other libraries' C.
CTYPES = {"bpf", "host"}


def room_of(path: Path) -> str:
    """`cli` for svcctl/cli/main.py, `errors` for svcctl/errors.py, "" for svcctl/__init__.py."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything imported, relative imports resolved against `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            for alias in node.names:
                # `from svcctl import bpf` names a room as well.
                yield node.lineno, f"{base}.{alias.name}" if base == "svcctl" else base


def faults(path: str, room: str, source: str, package: str) -> list[str]:
    """What is wrong with the imports of one file, a line each."""
    found = []
    for line, name in imports(source, package):
        where = f"{path}:{line}: {room or 'svcctl'} imports {name}"
        top, _, rest = name.partition(".")
        if top == "svcctl":
            target = rest.partition(".")[0]
            if target in ("", "__version__"):
                if room not in VERSION_READERS:
                    found.append(f"{where}: only {sorted(VERSION_READERS)} may")
            elif target != room and target not in MAY_IMPORT[room]:
                found.append(f"{where}: may only import {sorted(MAY_IMPORT[room]) or 'nothing of ours'}")
        elif top in THIRD_PARTY:
            if not any(path == place or path.startswith(f"{place}/") for place in THIRD_PARTY[top]):
                found.append(f"{where}: its place is {' '.join(THIRD_PARTY[top])}")
        elif top == "ctypes":
            if room not in CTYPES:
                found.append(f"{where}: only {sorted(CTYPES)} may")
        elif top not in sys.stdlib_module_names:
            found.append(f"{where}: an unknown package")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    room = room_of(path)
    assert room in MAY_IMPORT, f"a new room {room!r}: say here what it may import"
    package = ".".join(["svcctl", *relative.parts[:-1]])
    assert faults(str(relative), room, path.read_text(), package) == []


def test_there_is_no_circle() -> None:
    """The table itself: following what may be imported never leads back."""
    done: set[str] = set()

    def visit(room: str, trail: tuple[str, ...]) -> None:
        assert room not in trail, f"{' -> '.join((*trail, room))}"
        if room not in done:
            for target in MAY_IMPORT[room]:
                visit(target, (*trail, room))
            done.add(room)

    for room in MAY_IMPORT:
        visit(room, ())


@pytest.mark.parametrize(
    ("path", "source", "word"),
    [
        ("bpf/map.py", "from svcctl.errors import SvcctlError", "nothing of ours"),
        ("bpf/map.py", "from svcctl import errors", "nothing of ours"),
        ("bpf/map.py", "from ..errors import SvcctlError", "nothing of ours"),
        ("bpf/map.py", "def f():\n    import svcctl.state.session", "nothing of ours"),
        ("model/label.py", "from svcctl.bpf.map import Map", "errors"),
        ("maps/layouts.py", "from svcctl.state.session import State", "may only import"),
        ("state/session.py", "if TYPE_CHECKING:\n    from svcctl.cli.env import Env", "may only import"),
        ("state/session.py", "from svcctl.render import text", "may only import"),
        ("state/session.py", "import click", "its place is cli"),
        ("cli/main.py", "import rich.table", "its place is render/panel.py"),
        ("render/text.py", "from yaml import dump", "its place is render/yaml.py"),
        ("cli/main.py", "import ctypes", "only"),
        ("cli/main.py", "import requests", "unknown package"),
        ("model/label.py", "from svcctl import __version__", "only"),
    ],
)
def test_wrong_imports_would_be_found(path: str, source: str, word: str) -> None:
    room, _, _ = path.partition("/")
    (fault,) = faults(path, room, source, f"svcctl.{room}")
    assert word in fault


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cli/main.py", "import click\nfrom svcctl.state.session import State"),
        ("state/session.py", "import svcctl\nfrom svcctl.maps import layouts\nimport os.path"),
        ("bpf/map.py", "from svcctl.bpf import lib\nfrom .lib import check\nimport ctypes"),
    ],
)
def test_right_imports_pass(path: str, source: str) -> None:
    room, _, _ = path.partition("/")
    assert faults(path, room, source, f"svcctl.{room}") == []
