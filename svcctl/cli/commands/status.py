"""`svcctl status`: the whole picture on one screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from svcctl import __version__
from svcctl.cli.options import argument, noun, option
from svcctl.cli.params import LABEL
from svcctl.errors import UsageProblem
from svcctl.render.records import Column
from svcctl.render.times import utc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from svcctl.cli.env import Env
    from svcctl.render.sections import Section
    from svcctl.state.picture import Fill, Other, Picture
    from svcctl.state.session import State

DESTINATION_KEYS = (
    "label", "family", "protocol", "id", "members", "bindings", "lookups", "no_socket", "errors",
)  # fmt: skip


@noun(
    "status",
    examples=("svcctl status", "svcctl status web", "svcctl status --all"),
    exits=(0, 2, 3, 4, 5, 7),
)
@argument("label", LABEL, "Only the bindings and sockets of this label.", required=False)
@option(
    "--all", "every", is_flag=True, help="Every state directory under bpffs, those of dead namespaces too."
)
def command(env: Env, label: str | None, every: bool) -> None:
    """Show version, attachments, bindings, labels with their sockets and counters, what was dropped, what the packet
    path has met and how long it remembers flows, how full the maps are, and the last ten commands that changed
    something.

    Not loaded: exit code 3.
    """
    if every:
        if label is not None:
            raise UsageProblem("status: LABEL and --all exclude each other")
        _all(env)
        return
    from svcctl.cli.access import reading
    from svcctl.cli.commands.attachments import COLUMNS as ATTACHMENTS
    from svcctl.cli.commands.attachments import read_rows
    from svcctl.state.picture import read

    def look(state: State) -> tuple[Picture, list[tuple[Any, ...]]]:
        return read(state, state.netns.inode, label), read_rows(state)

    picture, attachments = reading(env, look)
    keys = [column.key for column in ATTACHMENTS]
    value = _object(picture)
    value["attachments"] = [dict(zip(keys, row, strict=True)) for row in attachments]
    env.emit_objects("status", [value], lambda: _lines(env, _screen(picture, attachments)), name="path")


def _object(picture: Picture) -> dict[str, Any]:
    from svcctl.maps import layouts
    from svcctl.model.listing import listing_rows

    meta = picture.meta
    value: dict[str, Any] = {
        "path": picture.path,
        "netns": picture.inode,
        "cookie": meta.netns_cookie or None,
        "version": layouts.text(meta.version),
        "layout": meta.schema,
        "created": utc(meta.created_ns),
        "created_by": layouts.text(meta.created_by),
        "group": meta.group,
        "interrupted": bool(meta.generation & 1 or meta.swap_phase),
        "hosts": picture.hosts,
        "prefixes": picture.prefixes,
    }
    if picture.bindings is not None:
        value["bindings"] = [
            dict(zip(("protocol", "prefix", "port", "label"), row, strict=True))
            for row in listing_rows(picture.bindings)
        ]
    value["destinations"] = [dict(zip(DESTINATION_KEYS, row, strict=True)) for row in picture.destinations]
    if picture.settings is not None:
        value["balancer"] = {
            **picture.settings.values,
            "node_port_addresses": list(picture.node_port_nets) or None,
            "fault": picture.fault,
        }
    if picture.services is not None:
        from svcctl.cli.commands.services import COLUMNS as SERVICES
        from svcctl.cli.commands.services import shown

        keys = [column.key for column in SERVICES]
        value["services"] = [dict(zip(keys, shown(row), strict=True)) for row in picture.services]
    if picture.has_packets:
        value["rules"] = [{"pattern": pattern, "role": role} for pattern, role in picture.rules]
    if picture.tunnel is not None:
        value["nodes"] = picture.nodes
        value["tunnel"] = picture.tunnel[1]
    if picture.timeouts is not None:
        events = {} if picture.events is None else {"events": picture.events}
        value["packets"] = {"timeouts": picture.timeouts, **events}
    value["drops"] = picture.drops
    value["maps"] = [{"name": one.name, "used": one.used, "max": one.max} for one in picture.fill]
    value["writes"] = [
        {"time": utc(one.time_ns), "uid": one.uid, "pid": one.pid, "command": layouts.text(one.command)}
        for one in picture.writes
    ]
    return value


def _screen(picture: Picture, attachments: list[tuple[Any, ...]]) -> list[Section]:
    from svcctl.maps import layouts
    from svcctl.model.listing import listing_rows
    from svcctl.render.sections import Section

    meta = picture.meta
    facts = [
        ("svcctl", __version__),
        ("state", f"{picture.path} (layout {meta.schema}, svcctl {layouts.text(meta.version)})"),
        ("loaded", f"{utc(meta.created_ns)} for group {meta.group}"),
        ("dispatcher", _attached(attachments)),
        *_balancer(picture, attachments),
        *_settings(picture),
        (
            "bindings",
            f"{picture.hosts + picture.prefixes} ({picture.hosts} hosts, {picture.prefixes} prefixes)",
        ),
        ("dropped", _counts(picture.drops)),
        *_flows(picture),
    ]
    if meta.generation & 1 or meta.swap_phase:
        facts.append(("at work", f"{layouts.text(meta.mark_command)} (pid {meta.mark_pid}), or interrupted"))
    screen = [Section("svcctl", (), facts)]
    if picture.bindings is not None:
        from svcctl.cli.commands.bindings import COLUMNS as BINDINGS

        screen.append(Section("bindings", BINDINGS, list(listing_rows(picture.bindings))))
    screen.append(Section("destinations", _DESTINATIONS, picture.destinations))
    if picture.services:
        from svcctl.cli.commands.services import COLUMNS as SERVICES
        from svcctl.cli.commands.services import shown

        screen.append(Section("services", SERVICES, [shown(row) for row in picture.services]))
    screen.append(
        Section("maps", _MAPS, [(*one[:3], one.option or None, _percent(one)) for one in picture.fill])
    )
    writes = [(utc(one.time_ns), one.uid, one.pid, layouts.text(one.command)) for one in picture.writes]
    screen.append(Section("last writes", _WRITES, writes))
    return screen


def _attached(rows: list[tuple[Any, ...]]) -> str:
    rows, ours = _of_kind(rows, "netns")
    others = len(rows) - len(ours)
    extra = f"; {others} foreign at the same hook" if others else ""
    if not ours:
        return f"not attached{extra}"
    row = _named(ours[0])
    target, program, since, version, up = (
        row[key] for key in ("target", "program_id", "since", "version", "state")
    )
    down = "recorded, but DOWN" if up == "down" else "attached"
    return f"{down}: program {program} (svcctl {version}) on network namespace {target} since {since}{extra}"


def _balancer(picture: Picture, rows: list[tuple[Any, ...]]) -> list[tuple[str, str]]:
    """The lines on services, once their maps were made."""
    used = {one.name: one.used for one in picture.fill}
    if "service_names" not in used:
        return []
    every = rows
    rows, ours = _of_kind(rows, "cgroup")
    down = [_named(row)["hook"] for row in ours if _named(row)["state"] == "down"]
    others = len({_named(row)["program_id"] for row in rows}) - len(ours)
    text = "not attached"
    if ours:
        first = _named(ours[0])
        where = first["path"] or f"cgroup {first['target']}"
        text = f"{len(ours)} programs (svcctl {first['version']}) on {where}"
        text += f" since {first['since']}"
    if down:
        text += f"; recorded, but DOWN: {', '.join(down)}"
    if others:
        text += f"; {others} foreign at the same hooks"
    return [
        ("balancer", text),
        *_packets(picture, every),
        (
            "services",
            f"{used['service_names']} ({used['frontends']} frontends, {used['backends']} backends)",
        ),
    ]


def _settings(picture: Picture) -> list[tuple[str, str]]:
    """What `attach cgroup` was told, and what of the balancer does not work."""
    if picture.settings is None:
        return []
    fault = [("at fault", picture.fault)] if picture.fault is not None else []
    nets = [("node ports", f"on {', '.join(picture.node_port_nets)}")] if picture.node_port_nets else []
    return [("settings", str(picture.settings)), *nets, *fault]


def _packets(picture: Picture, rows: list[tuple[Any, ...]]) -> list[tuple[str, str]]:
    """The line on the packet path, once its maps were made."""
    if not picture.has_packets:
        return []
    _, ours = _of_kind(rows, "dev")
    roles = {_named(row)["interface"]: _named(row)["role"] for row in ours}
    count = {role: list(roles.values()).count(role) for role in sorted(set(roles.values()))}
    text = ", ".join(f"{number} {role} interfaces" for role, number in count.items()) or "not attached"
    down = sorted({_named(row)["interface"] for row in ours if _named(row)["state"] == "down"})
    if down:
        text += f"; recorded, but DOWN: {', '.join(down)}"
    if picture.rules:
        text += f"; rules: {', '.join(f'{pattern} ({role})' for pattern, role in picture.rules)}"
    rows = [("packet path", text)]
    if picture.tunnel is not None:
        words = ", ".join(f"{name} {word}" for name, word in picture.tunnel[0].items())
        rows += [("tunnel", words), ("nodes", f"{picture.nodes} others")]
    return rows


def _of_kind(rows: list[tuple[Any, ...]], kind: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of a kind, and those of them that are svcctl's."""
    mine = [row for row in rows if _named(row)["kind"] == kind]
    return mine, [row for row in mine if _named(row)["state"] != "foreign"]


def _named(row: tuple[Any, ...]) -> dict[str, Any]:
    from svcctl.cli.commands.attachments import AT

    return {key: row[number] for key, number in AT.items()}


def _flows(picture: Picture) -> list[tuple[str, str]]:
    """What the packet path has met, and for how long it remembers."""
    found = [("packets", _counts(picture.events))] if picture.events is not None else []
    if picture.timeouts is not None:
        found.append(("timeouts", ", ".join(f"{name} {time:g} s" for name, time in picture.timeouts.items())))
    return found


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items() if number) or "0"


def _percent(one: Fill) -> str:
    return f"{100 * one.used / one.max:.1f} %" if one.max else "-"


def _members(members: list[dict[str, Any]]) -> str:
    return str(len(members))


_DESTINATIONS = (
    Column("LABEL", "label"),
    Column("FAMILY", "family"),
    Column("PROTOCOL", "protocol"),
    Column("ID", "id", align=">", wide=True),
    Column("SOCKETS", "members", _members, ">"),
    Column("BINDINGS", "bindings", None, ">"),
    Column("LOOKUPS", "lookups", None, ">"),
    Column("NO SOCKET", "no_socket", None, ">"),
    Column("ERRORS", "errors", None, ">"),
)
_MAPS = (
    Column("MAP", "name"),
    Column("USED", "used", None, ">"),
    Column("MAX", "max", None, ">"),
    Column("GROWN BY", "option"),
    Column("FULL", "full", None, ">"),
)
_WRITES = (
    Column("TIME", "time"),
    Column("UID", "uid", None, ">"),
    Column("PID", "pid", None, ">"),
    Column("COMMAND", "command"),
)
_ALL = (
    Column("NETNS", "netns", None, ">"),
    Column("STATE", "state"),
    Column("VERSION", "version"),
    Column("BINDINGS", "bindings", None, ">"),
    Column("LABELS", "labels", None, ">"),
    Column("SERVICES", "services", None, ">"),
    Column("BACKENDS", "backends", None, ">"),
    Column("LAST WRITE", "last_write"),
    Column("PATH", "path"),
)


def _lines(env: Env, sections: list[Section]) -> Iterable[str]:
    """Boxes on a terminal, plain text elsewhere, or where rich is not installed."""
    from svcctl.cli.env import isatty
    from svcctl.render import sections as plain

    wide = env.output == "wide"
    if isatty(sys.stdout):
        try:
            from svcctl.render import panel

            return panel.lines(sections, width=_width(), color=env.color, wide=wide)
        except ModuleNotFoundError:
            pass
    return plain.lines(sections, headers=env.headers, wide=wide)


def _width() -> int:
    import os

    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 40)
    except OSError:
        return 80


def _all(env: Env) -> None:
    from svcctl.cli.access import place
    from svcctl.render import text
    from svcctl.state.picture import read_all

    found = read_all(place(env))
    if not found:
        env.notice("nothing is loaded")
    objects = []
    for one in found:
        value: dict[str, Any] = {
            "path": one.path,
            "netns": one.inode,
            "state": one.state,
            "problem": one.problem,
        }
        objects.append({**value, **(_object(one.picture) if one.picture else {})})
    env.emit_objects(
        "status",
        objects,
        lambda: text.table(_ALL, [_row(one) for one in found], headers=env.headers) if found else (),
        name="path",
    )


def _row(one: Other) -> tuple[Any, ...]:
    from svcctl.maps import layouts

    if one.picture is None:
        return (one.inode, one.state, None, None, None, None, None, None, f"{one.path}: {one.problem}")
    picture = one.picture
    used = {fill.name: fill.used for fill in picture.fill}
    return (
        one.inode,
        one.state,
        layouts.text(picture.meta.version),
        picture.hosts + picture.prefixes,
        len({row[0] for row in picture.destinations}),
        used.get("service_names"),
        used.get("backends"),
        utc(picture.writes[0].time_ns) if picture.writes else None,
        one.path,
    )
