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


class _PodPrefix(_Type):
    """A prefix of this node's pods, or `none`, which stands for no prefix."""

    name = "prefix"

    def parse(self, text: str) -> Any:
        """The prefix. Raises UsageProblem."""
        from svcctl.model.bad_value import BadValue
        from svcctl.model.node import is_prefix_of_pods
        from svcctl.model.prefix import parse_prefix

        if text == "none":
            return text
        prefix = parse_prefix(text)
        if not is_prefix_of_pods(prefix):
            raise BadValue("pod prefix", text, "is all there is, or too much of it")
        return prefix


class _OwnName(_Type):
    """A name as other nodes have one, or `none`, which stands for the empty text."""

    name = "name"

    def parse(self, text: str) -> str:
        """The name. Raises UsageProblem."""
        from svcctl.model.node import check_node_name

        return "" if text == "none" else check_node_name(text)


NODE = _NodeName()
OWN_NAME = _OwnName()
POD_PREFIX = _PodPrefix()
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
