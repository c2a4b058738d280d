"""Reads one endpoint of a slice. There are a hundred thousand of them: paths are made when something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.sources.kubernetes.fields import ObjectProblem, entries, mapping, objects, shown, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcctl.model.sources.kubernetes.fields import Place

    Said = tuple[bool, bool, bool, bool, tuple[str, ...], tuple[str, ...]]
    """Ready, serving, terminating, on this node, nodes and zones that it is hinted for."""

HOSTNAME = "kubernetes.io/hostname"

_DEFAULTS = {"ready": True, "serving": True, "terminating": False}


def first_address(one: Mapping[str, object], inside: Place, number: int) -> str:
    """The only address that counts, "" if there is none. `inside` and `number`: where the endpoint stands."""
    addresses = one.get("addresses")
    if isinstance(addresses, list) and addresses and isinstance(addresses[0], str):
        return addresses[0]
    place = inside.under(number)
    for each in entries(one, "addresses", place):
        raise ObjectProblem(place.under("addresses").under(0), f"expected a string, got {shown(each)}")
    return ""


def what_is_said(one: Mapping[str, object], node: str, inside: Place, number: int, *, old: bool) -> Said:
    """The rest of an endpoint. Absent conditions mean ready and serving, and not terminating.

    `node` is our name. `old`: of v1beta1, where the node may stand in `topology`. Raises ObjectProblem.
    """
    where = one.get("nodeName")
    if not isinstance(where, str):
        where = text(one, "nodeName", inside.under(number))
    if old and not where:
        place = inside.under(number)
        where = text(mapping(one, "topology", place), HOSTNAME, place.under("topology"))
    ready, serving, terminating = True, True, False
    if one.get("conditions") is not None:
        given = one["conditions"]
        if not isinstance(given, dict):
            given = mapping(one, "conditions", inside.under(number))
        is_ready, is_serving, is_terminating = (
            given.get("ready"),
            given.get("serving"),
            given.get("terminating"),
        )
        if isinstance(is_ready, bool) and isinstance(is_serving, bool) and isinstance(is_terminating, bool):
            ready, serving, terminating = is_ready, is_serving, is_terminating
        else:
            ready, serving, terminating = _conditions(given, inside.under(number).under("conditions"))
    nodes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    if one.get("hints") is not None:
        place = inside.under(number)
        hints = mapping(one, "hints", place)
        nodes = _names(hints, "forNodes", place.under("hints"))
        zones = _names(hints, "forZones", place.under("hints"))
    return ready, serving, terminating, bool(node) and where == node, nodes, zones


def _conditions(conditions: Mapping[str, object], place: Place) -> tuple[bool, bool, bool]:
    found: list[bool] = []
    for key, default in _DEFAULTS.items():
        value = conditions.get(key)
        if value is None:
            value = default
        if not isinstance(value, bool):
            raise ObjectProblem(place.under(key), f"expected true or false, got {shown(value)}")
        found.append(value)
    return found[0], found[1], found[2]


def _names(hints: Mapping[str, object], key: str, place: Place) -> tuple[str, ...]:
    given = objects(hints, key, place)
    return tuple(text(each, "name", place.under(key).under(number)) for number, each in enumerate(given))
