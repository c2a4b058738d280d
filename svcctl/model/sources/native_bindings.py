"""The bindings of svcctl's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.binding import Binding, format_binding
from svcctl.model.constants import PROTOCOL_NUMBERS, TCP, UDP
from svcctl.model.label import MAX_OWNER_BYTES, check_label, check_name
from svcctl.model.prefix import parse_prefix
from svcctl.model.sources.fields import Fields
from svcctl.model.sources.ports import MAX_PORT, parse_ports
from svcctl.model.sources.problem import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = ("label", "protocol", "prefix", "port", "owner")

MAX_BINDINGS = 4_000_000
"""With ranges of ports taken apart. `load-bindings` reads a million ten times as fast."""

_PROTOCOLS = {name: (number,) for name, number in PROTOCOL_NUMBERS.items()}


def read_bindings(fields: Fields, found: dict[bytes, Binding], owners: dict[bytes, str]) -> None:
    """Reads the `bindings` of a document into `found`: key of 24 bytes -> binding; and the owners of those that name
    one into `owners`. Raises InputProblem."""
    for number, entry in enumerate(fields.array("bindings")):
        inside = Fields(fields.document, ("bindings", number), entry)
        inside.allow(KEYS)
        inside.require("label", "prefix", "port")
        label = inside.parsed(check_label, inside.text("label"), "label")
        prefix = inside.parsed(parse_prefix, inside.text("prefix"), "prefix")
        owner = inside.text("owner") if "owner" in inside else None
        if owner:
            owner = inside.parsed(lambda text: check_name("owner", text, MAX_OWNER_BYTES), owner, "owner")
        for protocol in inside.word("protocol", _PROTOCOLS, (TCP, UDP)):
            for port in _ports(inside, protocol):
                binding = Binding(label, protocol, *prefix, port)
                key = binding.key()
                if key in found:
                    raise inside.problem(f"{format_binding(found[key])} is there already")
                found[key] = binding
                if owner is not None:
                    owners[key] = owner
        if len(found) > MAX_BINDINGS:
            raise inside.problem(f"more than {MAX_BINDINGS} bindings in all")


def _ports(inside: Fields, protocol: int) -> Sequence[int]:
    value = inside.raw("port")
    if isinstance(value, str):
        return inside.parsed(lambda text: parse_ports(text, protocol, 0), value, "port")
    if type(value) is not int or not 0 <= value <= MAX_PORT:
        raise inside.problem(f"expected 0-{MAX_PORT}, got {shown(value)}", "port")
    return (value,)
