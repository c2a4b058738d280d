"""`svcctl bindings`: lists bindings, most specific first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun
from svcctl.cli.params import PORT, PREFIX, PROTOCOL_OR_ANY
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix

COLUMNS = (
    Column("PROTOCOL", "protocol"),
    Column("PREFIX", "prefix"),
    Column("PORT", "port", None, ">"),
    Column("LABEL", "label"),
)


@noun(
    "bindings",
    examples=("svcctl bindings", "svcctl bindings tcp 192.0.2.0/24 443", "svcctl bindings -o json"),
)
@argument("protocol", PROTOCOL_OR_ANY, "tcp, udp or any.", required=False)
@argument("prefix", PREFIX, "Only bindings that overlap this prefix.", required=False)
@argument("port", PORT, "Only bindings for this port; 0: no filter.", required=False)
def command(env: Env, protocol: int | None, prefix: Prefix | None, port: int | None) -> None:
    """List the bindings, of the most specific ones first: the first that matches a connection gets it.

    A binding for all ports (port 0) matches every port given.
    """
    from svcctl.cli.access import reading
    from svcctl.model.binding import Binding
    from svcctl.model.listing import listing_rows
    from svcctl.model.prefix import overlaps
    from svcctl.state.bindings import read_labels

    labels = reading(env, read_labels)
    keys = list(labels)
    if protocol is not None:
        keys = [key for key in keys if key[4] == protocol]
    if port:
        keys = [key for key in keys if Binding.from_key(key, "").port in (0, port)]
    if prefix is not None:
        keys = [key for key in keys if overlaps(Binding.from_key(key, "").prefix, prefix)]
    if not keys and env.output in ("text", "wide"):
        env.notice("no bindings" if not labels else "no bindings matched")
        return
    env.emit(
        "bindings",
        listing_rows(labels, keys),
        COLUMNS,
        name=lambda row: f"{row[3]}#{row[0]}:[{row[1]}]:{row[2]}",
    )
