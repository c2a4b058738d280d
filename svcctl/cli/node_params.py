"""Types of the arguments and options about nodes, and what the commands on them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.params import _Type
from svcctl.render.changes import Change

if TYPE_CHECKING:
    from typing import Any

    from svcctl.model.node import NodeStep


class _NodeName(_Type):
    """1 to 64 bytes of printable UTF-8."""

    name = "node"
    kind = "node"

    def parse(self, text: str) -> str:
        """The name as it is. Raises UsageProblem."""
        from svcctl.model.node import check_node_name

        return check_node_name(text)


class _NodeAddress(_Type):
    """One address; the value is (family, 16 bytes)."""

    name = "address"

    def parse(self, text: str) -> Any:
        """Family and address. Raises UsageProblem."""
        from svcctl.model.prefix import parse_address

        return parse_address(text)


NODE = _NodeName()
NODE_ADDRESS = _NodeAddress()


def change_of(step: NodeStep) -> Change:
    """A step as a record: `created node worker-2`."""
    from svcctl.model.node import difference

    notes = [step.note] if step.note else []
    if step.have is not None and step.want is not None and step.have != step.want:
        notes += difference(step.have, step.want)
    done, todo = _WORDS[step.action]
    words = (f"{done} node", f"{todo} node")
    return Change(step.action, "node", step.name, "; ".join(notes) or None, words=words)


_WORDS = {
    "created": ("created", "create"),
    "changed": ("changed", "change"),
    "deleted": ("deleted", "delete"),
    "unchanged": ("unchanged", "leave"),
}
