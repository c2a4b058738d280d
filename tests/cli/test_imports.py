"""Start-up time is kept by what is not imported: per command, the modules that must stay out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from svcctl.cli.registry import COMMANDS
from tests.lib.cli import ROOT, clean_environment, is_written, process
from tests.lib.world import World

HEAVY = frozenset(
    """rich pyroute2 yaml prometheus_client asyncio http logging importlib.metadata importlib.resources
    dataclasses socket subprocess ipaddress json tempfile shutil argparse unittest multiprocessing
    concurrent.futures difflib textwrap traceback random hashlib urllib selectors signal""".split()
)
HELP = frozenset({"shutil", "textwrap"})
"""click's formatter measures the terminal."""

# (command line, what of the above it is allowed, for a reason). Run one after the other on one loaded state, so
# that every one of them does its work; each must succeed.
TABLE: tuple[tuple[str, frozenset[str]], ...] = (
    ("version", frozenset()),
    ("version -o json", frozenset({"json"})),
    ("--help", HELP),
    ("help", HELP),
    ("help bind", HELP),
    ("bind web tcp 192.0.2.0/24 80 --dry-run", frozenset()),
    ("bind web tcp 192.0.2.0/24 80", frozenset()),
    ("bind web tcp 192.0.2.1 80", frozenset()),
    ("bind web tcp 192.0.2.1 80", frozenset()),
    ("bind blue tcp 192.0.2.1 80 --replace", frozenset()),
    ("bind web tcp 2001:db8::/32 0 -o json", frozenset({"json"})),
    ("bindings", frozenset()),
    ("bindings tcp 192.0.2.0/24 80 -o name", frozenset()),
    ("bindings -o json", frozenset({"json"})),
    ("register-pid {pid} web tcp 127.0.0.1 {port}", frozenset()),
    ("register-pid {pid} web tcp 127.0.0.1 {port}", frozenset()),
    ("destinations", frozenset()),
    ("destinations -o json", frozenset({"json"})),
    ("metrics", frozenset()),
    ("unregister web ipv4 tcp", frozenset()),
    ("unbind web tcp 192.0.2.0/24 80 --dry-run", frozenset()),
    ("unbind web tcp 192.0.2.0/24 80", frozenset()),
    ("load", frozenset()),
    ("unload --yes", frozenset()),
    ("load", frozenset({"hashlib"})),  # of the object file
)
QUICK = sorted({line.split(" ")[0] for line, _ in TABLE})

_PRINT = 'import sys; sys.stderr.write("\\n" + " ".join(sorted(sys.modules)))'
_PROBE = f"""
import sys
from svcctl.cli.main import main
code = main(sys.argv[1:])
{_PRINT}
sys.exit(code)
"""


def modules_after(code: str, *args: str, succeed: bool = True) -> set[str]:
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
    assert not succeed or done.returncode == 0, f"{args}: {done.stderr}"
    return set(done.stderr.splitlines()[-1].split(" "))


@pytest.fixture(scope="module")
def click_alone() -> set[str]:
    """What `import click` brings: nothing to be done about that."""
    return modules_after(f"import click; {_PRINT}")


@pytest.mark.kernel
def test_commands_stay_light(world: World, click_alone: set[str]) -> None:
    assert process("load").returncode == 0
    wrong = {}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for line, allowed in TABLE:
            command = line.format(pid=os.getpid(), port=listener.getsockname()[1])
            loaded = modules_after(_PROBE, *command.split())
            found = (loaded - click_alone) & (HEAVY - allowed)
            if found:
                wrong[line] = sorted(found)
    assert not wrong


@pytest.mark.parametrize("name", [name for name in QUICK if not name.startswith("-")])
def test_failing_is_light_too(name: str, click_alone: set[str]) -> None:
    """Without an argument, and where nothing is loaded: no error drags in what its command does not need."""
    for args in ((name, "--nonsense"), (name, "web", "tcp", "127.0.0.1", "80", "--bpffs", "/nowhere")):
        loaded = modules_after(_PROBE, *args, succeed=False) - click_alone
        found = loaded & (HEAVY - {"difflib"})  # difflib looks for the option that was meant
        assert not found, f"svcctl {' '.join(args)} imports {sorted(found)}"


@pytest.mark.parametrize("args", [("--help",), ("bindigs",), ()], ids=str)
def test_no_command_is_imported_without_need(args: tuple[str, ...]) -> None:
    loaded = modules_after(_PROBE, *args, succeed=False)
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
    found = (modules_after(f"import {COMMANDS[name].module}; {_PRINT}") - click_alone) & HEAVY
    assert not found, f"{name}: {sorted(found)}"
