"""Nomad's answers: GET /v1/service/NAME, or several of them keyed by name (`nomad service info -json`).

As with Consul, a service of svcctl's own file takes its backends from there, with `nomad: NAME`. Nomad says
nothing of health and weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.desired import NOMAD, NOTE, Notice
from svcctl.model.sources.consul import empty_names, entries, make_member
from svcctl.model.sources.instances import Instances, merge
from svcctl.model.sources.ports import MAX_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.service import Member
    from svcctl.model.sources.document import Document
    from svcctl.model.sources.options import Options


def looks_like(entry: object) -> bool:
    """Whether an entry of an answer is Nomad's."""
    return isinstance(entry, dict) and "ServiceName" in entry and "Address" in entry and "Port" in entry


def read(documents: Sequence[Document], options: Options) -> Instances:
    """All instances of all documents; those on the node whose NodeID is ours are local. Raises InputProblem."""
    found: dict[str, list[Member]] = {}
    notices: list[Notice] = []
    for document in documents:
        for known, entry in entries(document):
            name = known or entry.text("ServiceName")
            instances = found.setdefault(name, [])
            address, port = entry.text("Address"), entry.number("Port", MAX_PORT)
            if port:
                node = entry.text("NodeID")
                subject = f"{NOMAD} {name}"
                member = make_member(entry, address, port, "Address", node, options, subject, notices)
                if member is not None:
                    instances.append(member)
            else:
                text = f"an instance on {address} has no port: left out"
                notices.append(Notice(NOTE, f"{NOMAD} {name}", text))
        for name in empty_names(document):
            found.setdefault(name, [])
    return Instances(
        NOMAD, documents[0].source, {name: merge(members) for name, members in found.items()}, tuple(notices)
    )
