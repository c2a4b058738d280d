"""A desired state as the document of svcctl's own file: all that `native.read` needs to make it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.model.constants import PROTOCOL_NAMES
from svcctl.model.desired import NATIVE
from svcctl.model.prefix import format_address, format_prefix
from svcctl.model.service import (
    ALGORITHM_NAMES,
    IN_BOTH,
    IN_CLUSTER,
    IN_LOCAL,
    RANDOM,
    node_port_frontends,
)
from svcctl.model.service_endpoint import (
    ACTIVE,
    DEFAULT_WEIGHT,
    KIND_CLUSTER,
    KIND_NAMES,
    KIND_NODE_PORT,
    STATE_NAMES,
    format_backend,
    format_frontend,
)
from svcctl.model.sources.native_settings import settings_entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.binding import Binding
    from svcctl.model.desired import Desired
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Member, Service, ServiceFrontend


def document(desired: Desired) -> dict[str, Any]:
    """Only dicts, lists and scalars, in one order whatever the order in `desired`; defaults are left out.

    Ids and times are not in it: they are the state's own.
    """
    from svcctl.model.binding import sort_key

    whole: dict[str, Any] = {"version": 1}
    if desired.owner != NATIVE:
        whole["owner"] = desired.owner
    if desired.node_port_addresses is not None:
        whole["node_port_addresses"] = [format_prefix(*each) for each in desired.node_port_addresses]
    if desired.settings is not None:
        whole["settings"] = settings_entry(desired.settings)
    if desired.bindings is not None:
        owners = desired.binding_owners
        whole["bindings"] = [
            _binding(one, owners.get(one.key(), desired.owner), desired.owner)
            for one in sorted(desired.bindings, key=sort_key)
        ]
    whole["services"] = [
        service_entry(one, desired.owner) for one in sorted(desired.services, key=lambda one: one.name)
    ]
    if desired.nodes or desired.says_nodes:
        whole["nodes"] = [
            node_entry(
                each.name,
                each.addresses,
                each.pod_prefixes,
                each.zone,
                desired.owner if each.owner is None else each.owner,
                desired.owner,
                own=each.own,
                by_hand=each.by_hand,
            )
            for each in sorted(desired.nodes, key=lambda one: one.name)
        ]
    return whole


def node_entry(
    name: str,
    addresses: Iterable[tuple[int, bytes]],
    pod_prefixes: Iterable[Prefix],
    zone: str,
    owner: str,
    usual: str = NATIVE,
    *,
    own: bool = False,
    by_hand: Iterable[str] = (),
) -> dict[str, Any]:
    """One entry of `nodes`; `usual` is who the document's objects belong to. `own`: wherever it is applied, it is
    that node."""
    entry: dict[str, Any] = {"name": name, "addresses": [format_address(*each) for each in addresses]}
    prefixes = [format_prefix(*each) for each in pod_prefixes]
    if prefixes:
        entry["pod_prefixes"] = prefixes
    if zone:
        entry["zone"] = zone
    if owner != usual:
        entry["owner"] = owner
    if own:
        entry["own"] = True
    given = list(by_hand)
    if given:
        entry["by_hand"] = given
    return entry


def service_entry(service: Service, owner: str = NATIVE) -> dict[str, Any]:
    """One entry of `services`; `owner` is who the document's objects belong to."""
    entry: dict[str, Any] = {
        "name": service.name,
        "frontends": [_frontend(each) for each in _said(service)],
        "backends": [_member(each) for each in sorted(service.members, key=lambda one: one.backend)],
    }
    extra: dict[str, Any] = {
        "affinity": service.affinity_seconds,
        "algorithm": "" if service.algorithm == RANDOM else ALGORITHM_NAMES[service.algorithm],
        "internal_policy": "local" if service.internal_local else "",
        "external_policy": "local" if service.external_local else "",
        "external_mode": "dsr" if service.dsr else "",
        "sources": [format_prefix(*each) for each in sorted(service.sources)],
        "node_port": service.node_port,
        "block": service.block,
        "drop": service.drop,
        "health_port": service.health_port,
        "local_ready": service.local_ready,
        "table_size": service.table_size,
    }
    entry.update((key, value) for key, value in extra.items() if value)
    if service.owner != owner:
        entry["owner"] = service.owner
    return entry


def _said(service: Service) -> Iterable[ServiceFrontend]:
    """The frontends that have to be named: not those that the node port stands for."""
    frontends = sorted(service.frontends)
    if not service.node_port:
        return frontends
    others = [each for each in frontends if each.kind != KIND_NODE_PORT]
    follow = node_port_frontends(others, service.node_port)
    there = [
        each for each in frontends if each.kind == KIND_NODE_PORT and each.frontend.port == service.node_port
    ]
    if set(there) != set(follow):
        return frontends
    return [each for each in frontends if each not in follow]


def _frontend(each: ServiceFrontend) -> str | dict[str, Any]:
    text = format_frontend(each.frontend)
    return text if each.kind == KIND_CLUSTER else {"address": text, "kind": KIND_NAMES[each.kind]}


def _member(member: Member) -> str | dict[str, Any]:
    entry: dict[str, Any] = {"address": format_backend(member.backend)}
    if member.weight != DEFAULT_WEIGHT:
        entry["weight"] = member.weight
    if member.state != ACTIVE:
        entry["state"] = STATE_NAMES[member.state]
    if member.local is not None:
        entry["local"] = member.local
    if member.sets != IN_BOTH:
        bits = (("cluster", IN_CLUSTER), ("local", IN_LOCAL))
        entry["sets"] = [name for name, bit in bits if member.sets & bit]
    return entry if len(entry) > 1 else str(entry["address"])


def _binding(binding: Binding, owner: str, usual: str) -> dict[str, Any]:
    entry = {
        "label": binding.label,
        "protocol": PROTOCOL_NAMES[binding.protocol],
        "prefix": format_prefix(binding.family, binding.address, binding.length),
        "port": binding.port,
    }
    return entry if owner == usual else {**entry, "owner": owner}
