"""A judge of JSON Schema: the words that svcctl's schema uses, each other word an error."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "null": type(None),
}
_SAY_NOTHING = {"$schema", "$id", "$defs", "title", "description"}


def faults(
    schema: dict[str, Any], value: object, root: dict[str, Any] | None = None, at: str = "$"
) -> list[str]:
    """What the schema has against the value; empty if nothing."""
    root = schema if root is None else root
    found: list[str] = []
    for word, rule in schema.items():
        if word not in _SAY_NOTHING:
            found += _RULES[word](rule, value, root, at, schema)
    return found


def _ref(rule: str, value: object, root: dict[str, Any], at: str, _: Any) -> list[str]:
    target: Any = root
    for step in rule.removeprefix("#/").split("/"):
        target = target[step]
    return faults(target, value, root, at)


def _type(rule: str, value: object, _root: Any, at: str, _: Any) -> list[str]:
    right = isinstance(value, _TYPES[rule]) and not (rule == "integer" and isinstance(value, bool))
    return [] if right else [f"{at}: not of type {rule}"]


def _any_of(rule: list[Any], value: object, root: dict[str, Any], at: str, _: Any) -> list[str]:
    return [] if any(not faults(each, value, root, at) for each in rule) else [f"{at}: none of anyOf"]


def _properties(rule: dict[str, Any], value: object, root: dict[str, Any], at: str, _: Any) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [
        fault
        for key, each in rule.items()
        if key in value
        for fault in faults(each, value[key], root, f"{at}.{key}")
    ]


def _additional(rule: bool, value: object, _root: Any, at: str, schema: dict[str, Any]) -> list[str]:
    assert rule is False
    known = schema["properties"]
    return [f"{at}.{key}: unknown" for key in value if key not in known] if isinstance(value, dict) else []


def _required(rule: list[str], value: object, _root: Any, at: str, _: Any) -> list[str]:
    return [f"{at}.{key}: missing" for key in rule if key not in value] if isinstance(value, dict) else []


def _items(rule: dict[str, Any], value: object, root: dict[str, Any], at: str, _: Any) -> list[str]:
    if not isinstance(value, list):
        return []
    return [fault for n, each in enumerate(value) for fault in faults(rule, each, root, f"{at}[{n}]")]


def _simple(right: Any) -> Any:
    def judge(rule: Any, value: object, _root: Any, at: str, _: Any) -> list[str]:
        return [] if right(rule, value) else [f"{at}: {rule}"]

    return judge


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_RULES: dict[str, Any] = {
    "$ref": _ref,
    "type": _type,
    "anyOf": _any_of,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "const": _simple(lambda rule, value: type(value) is type(rule) and value == rule),
    "enum": _simple(lambda rule, value: isinstance(value, str) and value in rule),
    "pattern": _simple(lambda rule, value: not isinstance(value, str) or bool(re.search(rule, value))),
    "minimum": _simple(lambda rule, value: not _is_number(value) or value >= rule),
    "maximum": _simple(lambda rule, value: not _is_number(value) or value <= rule),
    "minLength": _simple(lambda rule, value: not isinstance(value, str) or len(value) >= rule),
    "minItems": _simple(lambda rule, value: not isinstance(value, list) or len(value) >= rule),
    "maxLength": _simple(lambda rule, value: not isinstance(value, str) or len(value) <= rule),
}
