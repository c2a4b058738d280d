"""Running svcctl in tests: in this process (quick) and as a process of its own (streams, signals, imports)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcctl.cli.registry import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import click

ROOT = Path(__file__).resolve().parents[2]


def process(
    *args: str, env: Mapping[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """`svcctl ARGS` as a process. `env` is added to the environment; stdout and stderr are captured."""
    kwargs.setdefault("stdout", subprocess.PIPE)
    kwargs.setdefault("stderr", subprocess.PIPE)
    return subprocess.run(
        [sys.executable, "-m", "svcctl", *args],
        env={**clean_environment(), **(env or {})},
        text=True,
        check=False,
        timeout=60,
        **kwargs,
    )


def clean_environment() -> dict[str, str]:
    """This environment without what changes svcctl's behaviour, and with the sources importable."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SVCCTL_") and k != "NO_COLOR"}
    kept["PYTHONPATH"] = str(ROOT)
    return kept


def is_written(module: str) -> bool:
    """Whether a module of the registry exists."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def written() -> list[str]:
    """Names of the commands whose module exists."""
    return [name for name, entry in COMMANDS.items() if is_written(entry.module)]


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that is written, with its full name (`attach netns`), groups included."""
    from svcctl.cli.group import walk
    from svcctl.cli.root import root

    return walk(root, missing=[])
