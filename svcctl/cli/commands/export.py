"""`svcctl export`: the desired state as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun
from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@noun(
    "export",
    examples=("svcctl export > bindings.json", "svcctl export | svcctl load-bindings -"),
    exits=(0, 2, 3, 4, 7),
)
def command(env: Env) -> None:
    """Print the bindings as the file that 'svcctl load-bindings' takes (svcctl-bindings(5)).

    JSON, or YAML with -o yaml. Loading it back changes nothing. Sockets are not in it: those are registered by the
    services that own them.
    """
    from svcctl.cli.access import reading
    from svcctl.cli.desired import document, read_desired

    if env.output in ("jsonl", "name"):
        raise UsageProblem(f"export: -o {env.output}: a document is json or yaml")
    if env.output != "yaml":
        env.output = "json"  # text and wide too: it is made for a file
    env.write_lines(document(env.output, reading(env, read_desired)))
