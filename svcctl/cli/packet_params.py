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


INTERFACE = _Interface()
TIMEOUT = _Timeout()
ROLE = Word("role", "workload", "host")
