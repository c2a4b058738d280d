"""Reading input files: a path, or `-` for standard input."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


STDIN = "<stdin>"


def input_name(path: str) -> str:
    """What messages call an input."""
    return STDIN if path == "-" else path


def read_input(path: str, env: Env) -> bytes:
    """The whole content. Raises UsageProblem for a file that cannot be read, and for a terminal."""
    if path == "-":
        if env.session is not None and env.session.reads_stdin:
            raise UsageProblem("read standard input: the batch itself comes from there", hint="name a file")
        if sys.stdin is None:
            raise UsageProblem("read standard input: it is closed")
        if sys.stdin.isatty():
            raise UsageProblem("read standard input: it is a terminal", hint="name a file, or pipe one in")
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageProblem(f"read {path}: {error.strerror}") from error
