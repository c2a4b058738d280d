"""The units of deploy/systemd: systemd has nothing to say about them, and they say what must hold."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from svcctl.cli.env import Env
from svcctl.cli.registry import COMMANDS
from svcctl.cli.root import root
from tests.lib.cli import ROOT, is_written
from tests.lib.units import INSTALLED, SYSTEMD, UNITS, commands, exposure, settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
# What may be the worst; the lower the better. Those that change state must keep what changing it takes.
MOST_EXPOSED = {
    "svcctl-metrics.service": 1.5,
    "svcctl-health.service": 2.0,
    "svcctl-save.service": 4.5,
    "svcctl-gc.service": 6.0,
    "svcctl-restore.service": 7.0,
    "svcctl-follow.service": 6.5,
    "svcctl-load.service": 7.5,
    "svcctl-attach@.service": 6.5,
}
READERS = ("svcctl-metrics.service", "svcctl-health.service")


def verify(directory: Path, *names: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *names],
        cwd=directory,
        text=True,
        capture_output=True,
        check=False,
    )
    return f"{done.stdout}{done.stderr}" + (f"exit code {done.returncode}" if done.returncode else "")


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """All units, with a command that exists here, and the services that the examples need."""
    for unit in UNITS:
        text = unit.read_text().replace(INSTALLED, "/bin/true")
        (tmp_path / unit.name).write_text(text)
    (tmp_path / "example-web.service").write_text("[Service]\nExecStart=/bin/true\n")
    return tmp_path


def test_systemd_has_nothing_to_say(unpacked: Path) -> None:
    assert verify(unpacked, *sorted(unit.name for unit in UNITS)) == ""


def test_systemd_would_have_something_to_say(unpacked: Path) -> None:
    broken = unpacked / "svcctl-load.service"
    broken.write_text(broken.read_text().replace("Type=oneshot", "Type=onshot"))
    assert "onshot" in verify(unpacked, "svcctl-load.service")


def test_the_drop_in_fits_a_service(unpacked: Path) -> None:
    drop_in = unpacked / "nginx.service.d"
    drop_in.mkdir()
    text = (SYSTEMD / "example-nginx-drop-in.conf").read_text()
    (drop_in / "svcctl.conf").write_text(text.replace("=+svcctl", "=+/bin/true"))
    (unpacked / "nginx.service").write_text("[Service]\nExecStart=/bin/true -g 'daemon off;'\n")
    assert verify(unpacked, "nginx.service") == ""
    (drop_in / "svcctl.conf").write_text(text.replace("=+svcctl", "=+/no/such/command"))
    assert "/no/such/command" in verify(unpacked, "nginx.service")


@pytest.mark.parametrize("name", sorted(MOST_EXPOSED))
def test_exposure(name: str) -> None:
    assert exposure(SYSTEMD / name) <= MOST_EXPOSED[name]


def test_every_service_of_ours_has_its_limit() -> None:
    assert {
        unit.name for unit in UNITS if unit.suffix == ".service" and unit.name.startswith("svcctl-")
    } == set(MOST_EXPOSED)


def test_sysusers_makes_the_group(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("systemd-sysusers is not installed")
    (tmp_path / "etc").mkdir()
    conf = ROOT / "deploy" / "sysusers.d" / "svcctl.conf"
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(conf)], check=True, capture_output=True)
    assert re.search(r"^svcctl:x:\d+:$", (tmp_path / "etc/group").read_text(), re.M)


def test_every_command_of_a_unit_can_be_parsed() -> None:
    lines = [line for unit in UNITS for _, line in commands(unit.name)]
    lines += [line for _, line in commands("example-nginx-drop-in.conf")]
    seen = 0
    for line in lines:
        for part in re.findall(r"(?:/usr/bin/|^\+?)svcctl ([^'|&;]+)", line):
            words = [word.replace("$MAINPID", "1") for word in shlex.split(part)]
            assert words[0] in COMMANDS
            seen += 1
            if is_written(COMMANDS[words[0]].module):
                context = root.make_context("svcctl", words, obj=Env({}))
                _, command, rest = root.resolve_command(context, words)
                assert command is not None
                command.make_context(words[0], list(rest), parent=context)
    assert seen >= 10


def test_stopping_the_load_unit_stops_no_traffic() -> None:
    assert settings("svcctl-load.service", "ExecStop") == []
    assert not [line for unit in UNITS for _, line in commands(unit.name) if " unload" in line]


def test_the_state_can_be_found_from_every_unit() -> None:
    for unit in UNITS:
        assert settings(unit.name, "PrivateNetwork") == []
        if unit.name not in READERS:
            assert settings(unit.name, "ProtectKernelTunables") == []


@pytest.mark.parametrize("name", READERS)
def test_who_only_reads_has_no_capability(name: str) -> None:
    assert settings(name, "CapabilityBoundingSet") == [""]
    assert settings(name, "AmbientCapabilities") == []
    assert settings(name, "SupplementaryGroups") == ["svcctl"]
