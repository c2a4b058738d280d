"""Runs svcctl inside the test's own process, in whatever namespaces its thread is in."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any, NamedTuple
from unittest import mock

from svcctl.cli.main import main


class Result(NamedTuple):
    """Exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object that `-o json` puts on the last line of stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


def svcctl(*args: str, input: str = "", environ: dict[str, str] | None = None) -> Result:
    """One command line, its output caught. Variables that steer svcctl come from `environ` alone."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.StringIO()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SVCCTL_", "NO_COLOR", "FORCE_COLOR"))}
    with (
        mock.patch.dict(os.environ, {**kept, **(environ or {})}, clear=True),
        mock.patch.object(sys, "argv", ["svcctl", *args]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode()), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main()
    out.flush()
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    return Result(code, raw.getvalue().decode(), err.getvalue())


def ok(*args: str, **kwargs: Any) -> Result:
    """One command line that must end with 0."""
    done = svcctl(*args, **kwargs)
    assert done.code == 0, f"svcctl {' '.join(args)} ended with {done.code}\n{done.out}{done.err}"
    return done
