"""`svcctl export`: the desired state as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun
from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@noun(
    "export",
    examples=("svcctl export > state.json", "svcctl export | ssh other svcctl apply -f -"),
    exits=(0, 2, 3, 4, 7),
)
def command(env: Env) -> None:
    """Print bindings, services, nodes and settings of tunnels as the file that 'svcctl apply' takes (svcctl(5)).

    JSON, or YAML with -o yaml. Applying it changes nothing; on another node of the cluster this one becomes another,
    and backends are on whichever has their addresses. 'svcctl load-bindings' takes its bindings alone. Sockets are not
    in it: those are registered by the services that own them.
    """
    from svcctl.cli.access import reading
    from svcctl.cli.desired import document, read_everything

    if env.output in ("jsonl", "name"):
        raise UsageProblem(f"export: -o {env.output}: a document is json or yaml")
    if env.output != "yaml":
        env.output = "json"  # text and wide too: it is made for a file
    env.write_lines(document(env.output, reading(env, read_everything)))
