"""`svcctl attachments`: what is attached where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun
from svcctl.render.records import Column
from svcctl.render.times import utc

if TYPE_CHECKING:
    from typing import Any

    from svcctl.cli.env import Env
    from svcctl.state.attach import Attached
    from svcctl.state.foreign import Foreign
    from svcctl.state.session import State

STATES = {True: "up", False: "down", None: None}

COLUMNS = (
    Column("KIND", "kind"),
    Column("TARGET", "target", align=">"),
    Column("PATH", "path"),
    Column("INTERFACE", "interface"),
    Column("ROLE", "role"),
    Column("HOOK", "hook"),
    Column("PROGRAM", "program"),
    Column("ID", "program_id", align=">"),
    Column("LINK", "link_id", align=">"),
    Column("SINCE", "since"),
    Column("VERSION", "version"),
    Column("STATE", "state"),
    Column("ORDER", "order", align=">", wide=True),
)
AT = {column.key: number for number, column in enumerate(COLUMNS)}
"""Where in a row a value is."""


@noun("attachments", examples=("svcctl attachments", "svcctl attachments -o json"))
def command(env: Env) -> None:
    """List what svcctl has attached, and which program runs there since when.

    As root, programs of others at the same hook are listed too, marked foreign, and each link is looked up in
    the kernel: up, or down. ORDER (-o wide) is the order in which the kernel runs them; the first one that
    chooses a socket is obeyed. A cgroup is shown by its id and, where the caller may look, its path: (gone) when it
    was removed; an interface by its index and name, with the role it has. LINK is absent where a tc filter takes the
    place of a link. SETTINGS (-o wide) is what 'svcctl attach cgroup' was told: whose sockets, UDP, and
    --udp-affinity.
    """
    from svcctl.cli.access import reading

    def read(state: State) -> tuple[list[tuple[Any, ...]], str | None]:
        return read_rows(state), _settings(state)

    rows, settings = reading(env, read)
    if not rows and env.output in ("text", "wide"):
        env.notice("nothing is attached: see 'svcctl attach --help'")
        return
    rows = [
        (*row, settings if row[0] == "cgroup" and row[AT["state"]] != "foreign" else None) for row in rows
    ]
    env.emit(
        "attachments",
        rows,
        (*columns(rows), SETTINGS),
        name=lambda row: f"{row[0]}:{row[1]}/{row[AT['hook']]}",
    )


SETTINGS = Column("SETTINGS", "settings", wide=True)


def _settings(state: State) -> str | None:
    """What `attach cgroup` was told; None without service maps."""
    from svcctl.maps.catalog import BALANCER

    if not state.has_half(BALANCER):
        return None
    from svcctl.state.balancer_settings import read_settings

    return str(read_settings(state))


def columns(rows: list[tuple[Any, ...]]) -> tuple[Column, ...]:
    """COLUMNS; in text those of cgroups and interfaces only where there are some."""
    kinds = {row[0] for row in rows}
    hidden = {key for kind, keys in _OF_KIND.items() if kind not in kinds for key in keys}
    return tuple(one._replace(wide=True) if one.key in hidden else one for one in COLUMNS)


_OF_KIND = {"cgroup": ("path",), "dev": ("interface", "role")}


def read_rows(state: State) -> list[tuple[Any, ...]]:
    """The rows of COLUMNS: ours, then foreign ones."""
    from svcctl.host.cgroup import is_gone, path_of
    from svcctl.state import foreign
    from svcctl.state.attach import list_attachments

    ours = _as_named_now(state, list_attachments(state))
    order = foreign.attached(state.netns) or []
    cgroups = {one.target for one in ours if one.kind == "cgroup"}
    paths = {one: "(gone)" if is_gone(one) else path_of(one) for one in cgroups}
    rows: list[tuple[Any, ...]] = [
        (
            one.kind,
            one.target,
            paths.get(one.target) if one.kind == "cgroup" else None,
            one.interface,
            one.role,
            one.hook,
            one.program,
            one.program_id,
            None if one.clsact else one.link_id,
            utc(one.since_ns),
            one.version,
            STATES[one.up],
            order.index(one.program_id) + 1 if one.program_id in order else None,
        )
        for one in ours
    ]
    own = next((one.program_id for one in ours if one.kind == "netns"), None)
    for other in foreign.others(state.netns, own) or ():
        rows.append(
            (
                "netns",
                state.netns.inode,
                None,
                None,
                None,
                "sk_lookup",
                other.name,
                other.program_id,
                other.link_id,
                None,
                None,
                "foreign",
                other.position,
            )
        )
    return rows + _foreign_of_cgroups(ours, paths) + _foreign_of_interfaces(state, ours)


def _as_named_now(state: State, ours: list[Attached]) -> list[Attached]:
    """With the present names of interfaces: what is recorded is the one at the time. An index whose link is down may be
    another interface's."""
    if not any(one.kind == "dev" for one in ours):
        return ours
    from svcctl.state.devices import current_names

    names = current_names(state)
    return [
        one._replace(interface=names.get(one.target, one.interface))
        if one.kind == "dev" and one.up is not False
        else one
        for one in ours
    ]


def _foreign_of_interfaces(state: State, ours: list[Attached]) -> list[tuple[Any, ...]]:
    """Rows of other people's programs on the same side of an interface; they run before and after ours."""
    from svcctl.maps.catalog import TCX_EGRESS, TCX_INGRESS
    from svcctl.state import foreign

    hooks = {"ingress": TCX_INGRESS, "egress": TCX_EGRESS}
    return [
        _foreign_row(one, None, other)
        for one in ours
        if one.kind == "dev" and one.hook in hooks
        for other in foreign.others_on_device(state.netns, one.target, hooks[one.hook], {one.program_id})
    ]


def _foreign_row(one: Attached, path: str | None, other: Foreign) -> tuple[Any, ...]:
    """The row of somebody else's program beside `one` of ours."""
    return (
        one.kind,
        one.target,
        path,
        one.interface if one.kind == "dev" else None,
        None,
        one.hook,
        other.name,
        other.program_id,
        None,
        None,
        None,
        "foreign",
        other.position,
    )


def _foreign_of_cgroups(ours: list[Attached], paths: dict[int, str | None]) -> list[tuple[Any, ...]]:
    """Rows of other people's programs at the balancer's hooks of the very same cgroup."""
    from svcctl.state import foreign

    rows: list[tuple[Any, ...]] = []
    for one in ours:
        path = paths.get(one.target) if one.kind == "cgroup" else None
        for other in foreign.others_on_cgroup(path, one.hook, one.program_id) if path else ():
            rows.append(_foreign_row(one, path, other))
    return rows
