"""The systemd units of deploy/, as far as tests look into them."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lib.cli import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = sorted(path for path in SYSTEMD.iterdir() if path.suffix in (".service", ".socket", ".timer"))
INSTALLED = "/usr/bin/svcctl"


def settings(unit: str, name: str) -> list[str]:
    """Values of a setting, in order."""
    lines = (SYSTEMD / unit).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def commands(unit: str) -> list[tuple[str, str]]:
    """(setting, command line) of every Exec line."""
    lines = (SYSTEMD / unit).read_text().splitlines()
    return [
        (line.partition("=")[0], line.partition("=")[2])
        for line in lines
        if line.startswith("Exec") and line.partition("=")[2]
    ]


def run(unit: str, setting: str) -> subprocess.CompletedProcess[str]:
    """Run the only such Exec line with the svcctl of this checkout and the capabilities that the unit leaves.

    Fails for a socket of a family that RestrictAddressFamilies= forbids, if strace is there to see it.
    """
    (line,) = [line for name, line in commands(unit) if name == setting]
    here = [sys.executable, "-m", "svcctl"]
    words = shlex.split(line)
    if words[0] == INSTALLED:
        words[:1] = here
    else:
        words = [word.replace(INSTALLED, shlex.join(here)) for word in words]
    (capabilities,) = settings(unit, "CapabilityBoundingSet")
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities.split())
    words = ["setpriv", f"--bounding-set=-all,{kept}", "--no-new-privs", *words]
    with tempfile.NamedTemporaryFile(prefix="svcctl-test-", mode="r") as trace:
        if shutil.which("strace"):
            words = [
                "strace",
                "-f",
                "-qq",
                "-e",
                "trace=socket",
                "-e",
                "signal=none",
                "-o",
                trace.name,
                *words,
            ]
        done = subprocess.run(words, text=True, capture_output=True, check=False, cwd=ROOT)
        _only_its_families(unit, trace.read())
    return done


def _only_its_families(unit: str, trace: str) -> set[str]:
    """The families of the sockets that strace saw being made: those that RestrictAddressFamilies= leaves."""
    made = set(re.findall(r"socket\((AF_\w+)", trace))
    (families,) = settings(unit, "RestrictAddressFamilies")
    assert made <= set(families.split()), f"{unit}: sockets of {made}"
    return made


@contextlib.contextmanager
def watched(unit: str, pid: int) -> Iterator[None]:
    """For the length of a block, a process that the unit would have started: as `run`, for one that stays."""
    if not shutil.which("strace"):
        yield
        return
    with tempfile.NamedTemporaryFile(prefix="svcctl-test-", mode="r") as trace:
        words = ["strace", "-f", "-e", "trace=socket", "-e", "signal=none", "-o", trace.name, "-p", str(pid)]
        tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            yield
        finally:
            tracer.terminate()
            tracer.communicate(timeout=60)
        assert _only_its_families(unit, trace.read()), "nothing was seen"


def allowed_calls(unit: str) -> set[str]:
    """Names of the system calls that SystemCallFilter= leaves."""
    allowed: set[str] = set()
    for value in settings(unit, "SystemCallFilter"):
        names: set[str] = set()
        for word in value.lstrip("~").split():
            names |= _group(word) if word.startswith("@") else {word}
        allowed = allowed - names if value.startswith("~") else allowed | names
    return allowed | _group("@default")


def _group(name: str) -> set[str]:
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], text=True, capture_output=True, check=True
    )
    found: set[str] = set()
    for line in done.stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= _group(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def exposure(unit: Path) -> float:
    """What `systemd-analyze security` makes of a unit: 0 (closed) to 10."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        text=True,
        capture_output=True,
        check=False,
    )
    line = next(line for line in done.stdout.splitlines() if "Overall exposure level" in line)
    return float(line.rpartition(": ")[2].split()[0])
