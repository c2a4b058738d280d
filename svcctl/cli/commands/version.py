"""`svcctl version`: needs no state, no kernel, no capability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl import __version__
from svcctl.cli.options import noun

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@noun("version", exits=(0, 2), examples=("svcctl version", "svcctl version -o json"))
def command(env: Env) -> None:
    """Print the version of svcctl. Nothing has to be loaded."""
    if env.output == "text":
        env.write(f"svcctl {__version__}\n")
        return
    from svcctl.render.records import Column

    columns = (Column("NAME", "name"), Column("VERSION", "version"), Column("PYTHON", "python"))
    env.emit("version", [("svcctl", __version__, _python())], columns)


def _python() -> str:
    import sys

    return ".".join(map(str, sys.version_info[:3]))
