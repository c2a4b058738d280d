"""Types of the arguments and options of the packet path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.params import Word, _Type
from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from typing import Any

    import click
    from click.shell_completion import CompletionItem

TIMEOUTS = ("syn", "established", "fins", "reset", "after-reset", "udp", "fragment")
"""Idle times that can be set; svcctl.state.packet_settings.TIMEOUTS has where they are kept."""
_MOST = 4_000_000


class _Interface(_Type):
    """Name of an interface, or a shell pattern."""

    name = "interface"
    kind = "interface"

    def parse(self, text: str) -> str:
        """The name as it is. Raises UsageProblem for what no interface can be called."""
        from svcctl.host.devices import check_name

        return check_name(text)


class _Timeout(_Type):
    """`udp=60`; the value is (name, milliseconds)."""

    name = "timeout"

    def parse(self, text: str) -> Any:
        """Name and time. Raises UsageProblem."""
        name, equals, number = text.partition("=")
        if not equals or name not in TIMEOUTS:
            raise UsageProblem(f"expected NAME=SECONDS with one of {', '.join(TIMEOUTS)}")
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not 0.001 <= seconds <= _MOST or "_" in number:
            raise UsageProblem(f"expected 0.001 to {_MOST} seconds")
        return name, round(seconds * 1000)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names, each with the sign that follows."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(f"{name}=") for name in TIMEOUTS if name.startswith(incomplete)]


class _NodeAddresses(_Type):
    """`192.0.2.1`, `192.0.2.1,2001:db8::1` or `none`; the value is a tuple of (family, 16 bytes), one of a family."""

    name = "address"

    def parse(self, text: str) -> Any:
        """The addresses. Raises UsageProblem."""
        from svcctl.model.node import is_no_node
        from svcctl.model.prefix import parse_address

        if text == "none":
            return ()
        found = tuple(parse_address(word) for word in text.split(","))
        if len({family for family, _ in found}) != len(found):
            raise UsageProblem("expected one address of a family")
        if any(is_no_node(*each) for each in found):
            raise UsageProblem("no other node can reach this one there")
        return found


class _Ports(_Type):
    """`20000-29999`; the value is the first and the last port."""

    name = "ports"

    def parse(self, text: str) -> Any:
        """The range. Raises UsageProblem."""
        from svcctl.model.packet_settings import parse_port_range

        return parse_port_range(text)


class _ClientPrefix(_Type):
    """A prefix of clients, or `none`, which stands for no prefix."""

    name = "prefix"

    def parse(self, text: str) -> Any:
        """The prefix. Raises UsageProblem."""
        from svcctl.model.prefix import parse_prefix

        return "none" if text == "none" else parse_prefix(text)


class _Mtu(_Type):
    """0, or 576 to 65535."""

    name = "bytes"

    def parse(self, text: str) -> int:
        """The number. Raises UsageProblem."""
        from svcctl.model.packet_settings import is_tunnel_mtu

        if text.isascii() and text.isdecimal() and len(text) < 6 and is_tunnel_mtu(int(text)):
            return int(text)
        raise UsageProblem("expected 576-65535, or 0 for the interface's own")


INTERFACE = _Interface()
MTU = _Mtu()
NODE_ADDRESSES = _NodeAddresses()
PORTS = _Ports()
CLIENT_PREFIX = _ClientPrefix()
TIMEOUT = _Timeout()
ROLE = Word("role", "workload", "host")
