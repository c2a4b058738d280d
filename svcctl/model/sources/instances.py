"""Backends that a registry (Consul, Nomad) knows, by the name of their service, until a service asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.model.desired import Notice
    from svcctl.model.service import Member
    from svcctl.model.service_endpoint import Backend


class Instances(Record):
    """What one registry said: name of a service -> its members, and what there is to know about them.

    `kind` as in `model/desired.py`; `source` is the name of the input, or of the first.
    """

    kind: str
    source: str
    members: Mapping[str, tuple[Member, ...]]
    notices: tuple[Notice, ...] = ()


def merge(members: Iterable[Member]) -> tuple[Member, ...]:
    """Each backend once: an active membership before one that drains, else the heavier."""
    best: dict[Backend, Member] = {}
    for member in members:
        have = best.get(member.backend)
        if have is None or (-member.state, member.weight) > (-have.state, have.weight):
            best[member.backend] = member
    return tuple(best.values())
