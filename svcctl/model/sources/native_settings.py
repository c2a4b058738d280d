"""The settings of the packet path in svcctl's own file: what `load` says of tunnels, but for what is this node's."""

from __future__ import annotations

from typing import Any

from svcctl.model.packet_settings import (
    LARGEST_MTU,
    MAX_PORT,
    SMALLEST_MTU,
    PacketSettings,
    is_tunnel_mtu,
    parse_port_range,
)
from svcctl.model.prefix import format_prefix, parse_prefix
from svcctl.model.sources.fields import Fields

SWITCHES = {"clamp_mss": "clamp", "keep_flows": "keep_flows", "reset_unknown": "reset_unknown"}
"""Key -> field of those that are on or off."""
KEYS = ("tunnel_port", "tunnel_mtu", "snat_ports", "no_dsr", *SWITCHES)
_KEY = "settings"


def read_settings(fields: Fields, before: PacketSettings | None) -> PacketSettings:
    """The settings of a document, and those of `before`, an earlier one, with which it has to agree.

    Raises InputProblem.
    """
    inside = Fields(fields.document, (_KEY,), fields.raw(_KEY))
    inside.allow(KEYS)
    found: dict[str, Any] = {} if before is None else before._asdict()
    for key, (name, value) in _values(inside).items():
        if found.get(name) not in (None, value):
            raise inside.problem("an earlier document has another one", key)
        found[name] = value
    return PacketSettings(**found)


def _values(inside: Fields) -> dict[str, tuple[str, Any]]:
    """For each key that is there: its field, and the value."""
    values: dict[str, tuple[str, Any]] = {}
    if "tunnel_port" in inside:
        port = inside.number("tunnel_port", MAX_PORT)
        if not port:
            raise inside.problem(f"expected 1-{MAX_PORT}, got 0", "tunnel_port")
        values["tunnel_port"] = "tunnel_port", port
    if "tunnel_mtu" in inside:
        mtu = inside.number("tunnel_mtu", LARGEST_MTU)
        if not is_tunnel_mtu(mtu):
            raise inside.problem(f"expected {SMALLEST_MTU}-{LARGEST_MTU} or 0, got {mtu}", "tunnel_mtu")
        values["tunnel_mtu"] = "tunnel_mtu", mtu
    for key, name in SWITCHES.items():
        if key in inside:
            values[key] = name, inside.switch(key)
    if "snat_ports" in inside:
        text = inside.text("snat_ports")
        values["snat_ports"] = "ports", inside.parsed(parse_port_range, text, "snat_ports")
    if "no_dsr" in inside:
        prefixes = {
            inside.parsed(parse_prefix, text, "no_dsr", at) for at, text in enumerate(inside.texts("no_dsr"))
        }
        values["no_dsr"] = "no_dsr", tuple(sorted(prefixes))
    return values


def settings_entry(settings: PacketSettings) -> dict[str, Any]:
    """The object that says so much."""
    entry: dict[str, Any] = {
        "tunnel_port": settings.tunnel_port,
        "tunnel_mtu": settings.tunnel_mtu,
        **{key: getattr(settings, name) for key, name in SWITCHES.items()},
    }
    if settings.ports is not None:
        first, last = settings.ports
        entry["snat_ports"] = f"{first}-{last}"
    if settings.no_dsr is not None:
        entry["no_dsr"] = [format_prefix(*one) for one in settings.no_dsr]
    return {key: value for key, value in entry.items() if value is not None}
