"""What a plain scalar of YAML means: what kubectl takes it for, except where a name or a text is meant.

kubectl reads YAML 1.1 as Go's yaml.v2 does, and turns it into JSON: 0777 is 511, 080 is 80, 1e3 is 1000, 1:30
and dates are strings, `yes` and `on` are true. Where a string has to stand it refuses numbers and booleans. We
take these as they are written: a port called `on`, a node called `1e3`. `yes` and its kin are booleans only
where Kubernetes has one.
"""

from __future__ import annotations

import re

TEXT_KEYS = frozenset(
    """name namespace generateName nodeName zone hostname ip clusterIP clusterIPs externalIPs addresses kind
    apiVersion protocol appProtocol type addressType label owner prefix address frontends backends sources
    consul nomad loadBalancerSourceRanges podCIDR podCIDRs uid resourceVersion creationTimestamp""".split()
)
"""Keys whose scalars, and lists of scalars, are text however they look."""

TEXT_MAPS = frozenset({"labels", "annotations", "selector", "matchLabels", "topology", "deprecatedTopology"})
"""Keys of objects whose values are all text."""

BOOLEAN_KEYS = frozenset(
    "ready serving terminating publishNotReadyAddresses allocateLoadBalancerNodePorts unschedulable".split()
)

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SWITCHES: dict[str, bool | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_FIRST = frozenset("0123456789+-.")
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|[1-9][0-9]*|0)").fullmatch
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?").fullmatch
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)").fullmatch
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]{0,17})").fullmatch
_LONGEST = 400


class NotFinite(ValueError):
    """`.nan` or `.inf`: JSON has no such number."""


def resolve(text: str) -> tuple[object, bool]:
    """(value, whether the text is how one writes it): the second is False for 0777, 1_000, 1e3 and the like.

    Raises NotFinite.
    """
    if not text or text[0] not in _FIRST:
        return _WORDS.get(text, text), True
    if _PLAIN(text):
        return int(text), True
    if len(text) > _LONGEST:
        return text, True
    digits = text.replace("_", "")
    if _INTEGER(digits):
        number = _integer(digits)
        if -(1 << 63) <= number < 1 << 64:
            return number, digits == str(number) == text
    if _FLOAT(digits):
        real = float(digits)
        if real in (float("inf"), float("-inf")):
            return text, True
        return (int(real), False) if real.is_integer() and abs(real) < 1 << 53 else (real, True)
    if _NOT_FINITE(text):
        raise NotFinite(text)
    return text, True


def resolve_text(text: str) -> str | None:
    """For a scalar where text is meant."""
    return None if text in _WORDS and _WORDS[text] is None else text


def resolve_boolean(text: str) -> tuple[object, bool]:
    """As `resolve`, for a scalar where Kubernetes has a boolean: `yes` and `on` as well."""
    return (_SWITCHES[text], True) if text in _SWITCHES else resolve(text)


def _integer(digits: str) -> int:
    """Decimal, 0x, 0b, and octal as 0o17 or 017."""
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        return sign * int(digits if digits[1] in "xXbBoO" else f"0o{digits}", 0)
    return sign * int(digits)
