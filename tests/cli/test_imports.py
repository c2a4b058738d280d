"""Start-up time is kept by what is not imported: per command, the modules that must stay out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from svcctl.cli.registry import COMMANDS
from tests.lib.cli import ROOT, clean_environment, is_written

HEAVY = frozenset(
    """rich pyroute2 yaml prometheus_client asyncio http logging importlib.metadata importlib.resources
    dataclasses socket subprocess ipaddress tempfile shutil argparse unittest multiprocessing concurrent.futures
    difflib textwrap traceback random hashlib urllib""".split()
)
# What one command is expected to need, for a reason.
ALLOWED: dict[str, frozenset[str]] = {
    "--help": frozenset({"shutil", "textwrap"}),  # click's formatter measures the terminal
    "help": frozenset({"shutil", "textwrap"}),
}
QUICK = (
    ("version",),
    ("version", "-o", "json"),
    ("--help",),
    ("bindings",),
    ("bindings", "-o", "json"),
    ("bind", "web", "tcp", "127.0.0.1", "80", "--dry-run"),
    ("unbind", "web", "tcp", "127.0.0.1", "80", "--dry-run"),
    ("register-pid", "1", "web", "tcp", "127.0.0.1", "80", "--dry-run", "--wait", "0"),
    ("unregister", "web", "ipv4", "tcp", "--dry-run"),
    ("destinations",),
)
_PROBE = """
import json, sys
from svcctl.cli.main import main
main(sys.argv[1:])
sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def modules_after(code: str, *args: str) -> set[str]:
    """Names in sys.modules after a piece of code ran in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=clean_environment(),
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.fixture(scope="module")
def click_alone() -> set[str]:
    """What `import click` brings: nothing to be done about that."""
    return modules_after("import click, json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))")


@pytest.mark.parametrize("args", QUICK, ids=" ".join)
def test_quick_commands_stay_light(args: tuple[str, ...], click_alone: set[str]) -> None:
    entry = COMMANDS.get(args[0])
    if entry is not None and not is_written(entry.module):
        pytest.skip(f"{entry.module} is not written yet")
    loaded = modules_after(_PROBE, *args) - click_alone
    found = loaded & (HEAVY - ALLOWED.get(args[0], frozenset()))
    assert not found, f"svcctl {' '.join(args)} imports {sorted(found)}"


@pytest.mark.parametrize("args", [("--help",), ("bindigs",), ()], ids=str)
def test_no_command_is_imported_without_need(args: tuple[str, ...]) -> None:
    loaded = modules_after(_PROBE, *args)
    assert not [m for m in loaded if m.startswith("svcctl.cli.commands.")]


def test_version_imports_nothing_of_the_kernel_side() -> None:
    loaded = modules_after(_PROBE, "version")
    rooms = ("svcctl.bpf", "svcctl.maps", "svcctl.state", "svcctl.host", "svcctl.model")
    assert not [m for m in loaded if m.startswith(rooms)]
    assert "ctypes" not in loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_declaring_a_command_is_light(name: str, click_alone: set[str]) -> None:
    """Importing a command's module (its help) needs no heavy module: those belong inside its function."""
    if not is_written(COMMANDS[name].module):
        pytest.skip(f"{COMMANDS[name].module} is not written yet")
    code = f"import {COMMANDS[name].module}, json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    bare = modules_after("import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))")
    found = (modules_after(code) - click_alone - bare) & HEAVY
    assert not found, f"{name}: {sorted(found)}"
