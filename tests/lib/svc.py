"""Running svcctl as a user types it: in this process for speed, or as a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from svcctl.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """How a command ended: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed under `-o json`."""
        return json.loads(self.out)


def installed() -> list[str]:
    """The command itself: the script beside the interpreter, else the package run as a module."""
    script = Path(sys.executable).with_name("svcctl")
    return [str(script)] if script.exists() else [sys.executable, "-m", "svcctl"]


def svc(*words: object, code: int | None = 0) -> Ran:
    """Run `svcctl WORD...` in this process. `code` is what it must end with; None: whatever it will."""
    args = [str(word) for word in words]
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8"),
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"),
    )
    with (
        mock.patch.object(sys, "argv", ["svcctl", *args]),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        result = main(args)
        out.flush()
        err.flush()
    ran = Ran(result, _text(out), _text(err))
    assert code is None or ran.code == code, f"svcctl {args} ended with {ran.code}\n{ran.out}{ran.err}"
    return ran


def _text(stream: io.TextIOWrapper) -> str:
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def svc_process(
    *words: object,
    code: int | None = 0,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    **run: Any,
) -> Ran:
    """Run the installed command as a process; `prefix` goes before it (`setpriv ...`, `ip netns exec ...`)."""
    args = [str(word) for word in words]
    done = subprocess.run(
        [*prefix, *installed(), *args],
        capture_output=True,
        text=True,
        env=process_env() | dict(env or {}),
        timeout=timeout,
        check=False,
        **run,
    )
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert code is None or ran.code == code, f"svcctl {args} ended with {ran.code}\n{ran.out}{ran.err}"
    return ran


def svc_waiting(release: Callable[[], object], *words: object, code: int = 0) -> Ran:
    """Run the installed command, which has to wait for a lock: `release` is called once it has said that it does."""
    args = [str(word) for word in words]
    with subprocess.Popen(
        [*installed(), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=process_env()
    ) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        release()
        out, err = running.communicate(timeout=120)
    ran = Ran(running.returncode, out, said + err)
    assert "waiting for the lock" in said, ran
    assert ran.code == code, f"svcctl {args} ended with {ran.code}\n{ran.out}{ran.err}"
    return ran


def process_env() -> dict[str, str]:
    """This environment, with the checkout first on the module path and nothing written beside the sources."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def assert_one_error(ran: Ran, *, codes: Sequence[int]) -> None:
    """One clear line on stderr (and one hint at most), nothing on stdout, an expected exit code."""
    lines = ran.err.splitlines()
    assert ran.code in codes, ran
    assert ran.out == "", ran
    assert lines, ran
    errors = [line for line in lines if line.startswith("svcctl: error: ")]
    assert len(errors) == 1, ran
    assert len(errors[0]) > len("svcctl: error: "), ran
    rest = lines[lines.index(errors[0]) + 1 :]
    assert len(rest) <= 1, ran
    assert all(line.startswith("hint: ") for line in rest), ran
    assert "Traceback" not in ran.err, ran
