"""What an EndpointSlice says: addresses with their conditions, and ports by name and protocol (R3 to R5, R15, R16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.sources.kubernetes.endpoint_fields import first_address, what_is_said
from svcctl.model.sources.kubernetes.fields import (
    MAX_LABEL,
    ObjectProblem,
    choice,
    integer,
    mapping,
    name,
    objects,
    port_name,
    shown,
    text,
)
from svcctl.model.sources.kubernetes.intake import OLD_SLICES
from svcctl.model.sources.kubernetes.services import FAMILIES, HEADLESS_LABEL, PROTOCOLS, PROXY_LABEL, SCTP
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.sources.kubernetes.addresses import Addresses
    from svcctl.model.sources.kubernetes.endpoint_fields import Said
    from svcctl.model.sources.kubernetes.fields import Place
    from svcctl.model.sources.kubernetes.intake import Item
    from svcctl.model.sources.kubernetes.notices import Notices

SERVICE_LABEL = "kubernetes.io/service-name"
_IGNORED_TYPES = ("FQDN",)
MAX_ENDPOINTS, MAX_PORTS = 1000, 20_000
"""Of a slice, as the API server has it. Each endpoint is a backend at each port: planning.py counts those."""


class SliceOf(Record):
    """A slice of one family: (name, protocol) of its ports -> numbers, and its endpoints by 16 bytes of address."""

    family: int
    ports: dict[tuple[str, int], list[int]]
    endpoints: list[tuple[bytes, Said]]


def service_of(item: Item, notices: Notices, *, old_headless: bool) -> str:
    """Name of the Service, of the same namespace, that the slice belongs to; "" for one that is left alone."""
    place = item.place.under("metadata").under("labels")
    labels = mapping(item.metadata, "labels", item.place.under("metadata"))
    if HEADLESS_LABEL in labels or (old_headless and PROXY_LABEL in labels):
        return ""
    owner = name(labels, SERVICE_LABEL, place, MAX_LABEL)
    if not owner:
        notices.warn(item.subject, f"left out: it has no label {SERVICE_LABEL}, so it is no Service's")
    return owner


def read_slice(item: Item, node: str, addresses: Addresses, notices: Notices) -> SliceOf | None:
    """The slice as `node` sees it; None for one whose addresses are no IP addresses.

    Only the first address of an endpoint counts, as with kube-proxy. Raises ObjectProblem.
    """
    content, place = item.content, item.place
    kind = text(content, "addressType", place)
    family = FAMILIES.get(kind)
    if family is None:
        if kind not in _IGNORED_TYPES:
            notices.warn(
                item.subject,
                f"left out: its addressType is {shown(kind) if kind else 'missing'}, not IPv4 or IPv6",
            )
        return None
    old = item.version == OLD_SLICES
    if old:
        lacks = "nodes of its endpoints are read from 'topology', zones are not; Kubernetes 1.25 has done away with it"
        notices.warn("EndpointSlice", f"{OLD_SLICES}: {lacks}")
    found: list[tuple[bytes, Said]] = []
    faults: dict[str, list[str]] = {}
    inside = place.under("endpoints")
    for number, one in enumerate(_some(content, "endpoints", place, MAX_ENDPOINTS)):
        address = first_address(one, inside, number)
        if not address:
            continue
        said = what_is_said(one, node, inside, number, old=old)
        at, packed, fault = addresses.endpoint(address)
        if fault or at != family:
            faults.setdefault(fault or f"not {kind}", []).append(address)
        else:
            found.append((packed, said))
    for fault, those in faults.items():
        count = f"{len(those)} endpoints" if len(those) > 1 else "1 endpoint"
        notices.warn(item.subject, f"{count} left out: {_short(min(those))} is {fault}")
    return SliceOf(family, _ports(item, notices), found)


def _ports(item: Item, notices: Notices) -> dict[tuple[str, int], list[int]]:
    """A port without a name has the name "", as the API server fills in; one whose name is null has none.

    The API server does not look at their numbers.
    """
    content, place = item.content, item.place
    found: dict[tuple[str, int], list[int]] = {}
    for number, one in enumerate(_some(content, "ports", place, MAX_PORTS)):
        path = place.under("ports").under(number)
        named = port_name(one, "name", path)
        port = integer(one, "port", path) or 0
        protocol = PROTOCOLS.get(choice(one, "protocol", path, ("TCP", "UDP", SCTP)))
        unnamed = "name" in one and one["name"] is None
        if not 0 <= port <= 65535:
            notices.warn(item.subject, f"port {named!r} left out: {port} is not in 1-65535")
        elif port and protocol is not None and not unnamed:
            found.setdefault((named, protocol), []).append(port)
    return found


def _some(content: Mapping[str, object], key: str, place: Place, most: int) -> Sequence[Mapping[str, object]]:
    found = objects(content, key, place)
    if len(found) > most:
        raise ObjectProblem(place.under(key), f"a slice has {most} {key} at most, this one {len(found)}")
    return found


def _short(address: str) -> str:
    return address if len(address) <= 45 and address.isprintable() else repr(address[:45])
