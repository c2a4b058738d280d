"""Types of arguments and options. Each calls the parser of `svcctl.model`, imported when a value is there.

What a parser refuses (UsageProblem) becomes a usage error that names the parameter. Each type completes its
values through `svcctl.cli.complete`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from typing import Any

    from click.shell_completion import CompletionItem

    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # not generic before click 8.5


class Refused(click.BadParameter):
    """A value a parser refused, with the parser's hint."""

    hint: str | None = None


class _Type(Type):
    """Base. `parse` raises UsageProblem with the cause alone, or svcctl.model's BadValue.

    `kind` is what `svcctl.cli.complete` is asked for.
    """

    name = "value"
    kind: str | None = None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value, or click.BadParameter."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except UsageProblem as e:
            from svcctl.model.bad_value import show

            refused = Refused(f"{show(value)}: {getattr(e, 'cause', e.message)}", ctx, param)
            refused.hint = e.hint
            raise refused from e

    def parse(self, text: str) -> Any:
        """The value of a text. Raises UsageProblem."""
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Candidates from the live state; none when there is no state."""
        from svcctl.cli import complete

        return complete.items(ctx, self.kind, incomplete) if self.kind else []


class Word(_Type):
    """One of a few words."""

    def __init__(self, name: str, *words: str) -> None:
        self.name = name
        self.words = words

    def parse(self, text: str) -> str:
        """The word itself. Raises UsageProblem when it is none of them."""
        if text not in self.words:
            raise UsageProblem(f"expected {_either(self.words)}")
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class _Label(_Type):
    """1 to 255 bytes of printable UTF-8."""

    name = "label"
    kind = "label"

    def parse(self, text: str) -> str:
        """The label as it is."""
        from svcctl.model.label import check_label

        return check_label(text)


class _Protocol(Word):
    """tcp or udp; the value is the IP protocol number (6, 17), or None for `any` where that is allowed."""

    def __init__(self, *, any: bool = False) -> None:
        super().__init__("protocol", "tcp", "udp", *(("any",) if any else ()))

    def parse(self, text: str) -> Any:
        """The number of a protocol."""
        if text == "any" and text in self.words:
            return None
        from svcctl.model.binding import parse_protocol

        return parse_protocol(text, self.words)


class _Prefix(_Type):
    """An address or prefix; the value is a svcctl.model.prefix.Prefix."""

    name = "prefix"
    kind = "prefix"

    def parse(self, text: str) -> Any:
        """A bare address is a prefix of full length."""
        from svcctl.model.prefix import parse_prefix

        return parse_prefix(text)


class _Address(_Type):
    """One address, no prefix length; the value is a Prefix of full length."""

    name = "address"
    kind = "address"

    def parse(self, text: str) -> Any:
        """As a prefix, but a length is refused."""
        from svcctl.model.prefix import parse_prefix

        if "/" in text:
            raise UsageProblem("expected an address without a length")
        return parse_prefix(text)


class _Endpoint(_Type):
    """`192.0.2.1:443/tcp`; the value is a svcctl.model.endpoint.Endpoint."""

    name = "endpoint"
    kind = "endpoint"

    def parse(self, text: str) -> Any:
        """Address, port and protocol."""
        from svcctl.model.endpoint import parse_endpoint

        return parse_endpoint(text)


class _Port(_Type):
    """0 to 65535 in decimal; 0 stands for all ports where a binding is meant."""

    name = "port"
    kind = "port"

    def parse(self, text: str) -> int:
        """The number."""
        from svcctl.model.binding import parse_port

        return parse_port(text)


class _Seconds(_Type):
    """A duration in seconds, 0 or more, fractions allowed."""

    name = "seconds"

    def parse(self, text: str) -> float:
        """The number. Raises UsageProblem for what is not a finite number of at least 0."""
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1e9 or "_" in text:
            raise UsageProblem("expected a number of seconds, 0-1000000000")
        return value


class Count(_Type):
    """A decimal number within bounds, both included."""

    name = "number"

    def __init__(self, least: int = 0, most: int = 1 << 32) -> None:
        self.least = least
        self.most = most

    def parse(self, text: str) -> int:
        """The number. Raises UsageProblem outside the bounds."""
        if not (
            text.isascii() and text.isdecimal() and len(text) < 20 and self.least <= int(text) <= self.most
        ):
            raise UsageProblem(f"expected {self.least}-{self.most}")
        return int(text)


class _Path(_Type):
    """A path, taken as it is."""

    name = "path"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def parse(self, text: str) -> str:
        """The path. Raises UsageProblem for what no path can be."""
        if not text or "\0" in text:
            raise UsageProblem("expected a path")
        return text


class _Topic(_Type):
    """A word `svcctl help` knows."""

    name = "topic"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names of commands, and the topics."""
        from click.shell_completion import CompletionItem

        from svcctl.cli.registry import COMMANDS

        return [CompletionItem(name) for name in (*COMMANDS, "exit-codes") if name.startswith(incomplete)]


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


LABEL = _Label()
PROTOCOL = _Protocol()
PROTOCOL_OR_ANY = _Protocol(any=True)
FAMILY = Word("family", "ipv4", "ipv6")
PREFIX = _Prefix()
ADDRESS = _Address()
ENDPOINT = _Endpoint()
PORT = _Port()
SECONDS = _Seconds()
OUTPUT = Word("format", "text", "wide", "json", "jsonl", "yaml", "name")
TOPIC = _Topic()
FILE = _Path("file")
NETNS = _Path("netns")
BPFFS = _Path("directory")
WORD = _Type()
"""Taken as it is: the command looks at it itself."""
