"""The command line of ipvsadm(8), one line at a time."""

from __future__ import annotations

from svcctl.model.bad_value import show

COMMANDS: dict[str, str] = {
    "add-service": "service",
    "edit-service": "service",
    "delete-service": "service",
    "add-server": "server",
    "edit-server": "server",
    "delete-server": "server",
    "clear": "",
    "restore": "",
    "set": "",
    "zero": "",
}
"""Command -> what it is about."""

_SHORT = {
    "A": "add-service",
    "E": "edit-service",
    "D": "delete-service",
    "a": "add-server",
    "e": "edit-server",
    "d": "delete-server",
    "C": "clear",
    "R": "restore",
    "Z": "zero",
    "t": "tcp-service",
    "u": "udp-service",
    "f": "fwmark-service",
    "s": "scheduler",
    "p": "persistent",
    "M": "netmask",
    "b": "sched-flags",
    "o": "ops",
    "r": "real-server",
    "g": "gatewaying",
    "i": "ipip",
    "m": "masquerading",
    "w": "weight",
    "x": "u-threshold",
    "y": "l-threshold",
    "n": "numeric",
    "6": "ipv6",
}
_WITH_VALUE = frozenset(
    """tcp-service udp-service sctp-service fwmark-service scheduler netmask sched-flags pe real-server weight
    u-threshold l-threshold tun-type tun-port""".split()
)
_WITHOUT = frozenset("ops gatewaying ipip masquerading numeric ipv6 tun-nocsum tun-csum tun-remcsum".split())
_MAYBE_VALUE = frozenset({"persistent"})
_SET_VALUES = 3


def parse_line(words: list[str]) -> tuple[str, dict[str, str]]:
    """(command, option -> value, "" without one). Raises ValueError for what ipvsadm does not know either."""
    command = ""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        attached: str | None = None
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            attached = value if equals else None
        elif word.startswith("-") and len(word) > 1:
            name = _SHORT.get(word[1], "")
            following = word[2:]
            if following and (name in COMMANDS or name in _WITHOUT):
                rest.insert(0, f"-{following}")  # options run together: -At
            elif following:
                attached = following
        else:
            raise ValueError(f"expected an option, got {show(word)}")
        if name in COMMANDS:
            if command:
                raise ValueError(f"has two commands: --{command} and --{name}")
            command = name
            if name == "set":
                del rest[:_SET_VALUES]
            continue
        if name in options:
            raise ValueError(f"says --{name} twice")
        if name in _WITH_VALUE:
            if attached is None:
                if not rest:
                    raise ValueError(f"{word} needs a value")
                attached = rest.pop(0)
            options[name] = attached
        elif name in _MAYBE_VALUE:
            if attached is None and rest and not rest[0].startswith("-"):
                attached = rest.pop(0)
            options[name] = attached or ""
        elif name in _WITHOUT:
            options[name] = ""
        else:
            raise ValueError(f"unknown option {show(word)}")
    if not command:
        raise ValueError("has no command: -A or -a")
    return command, options
