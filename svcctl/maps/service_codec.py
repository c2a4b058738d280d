"""Services, frontends and backends as the maps have them: keys and values from model values, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.maps import enums
from svcctl.maps.layouts import exact_check, text
from svcctl.maps.service_layouts import (
    BACKEND_KEY,
    FRONTEND,
    FRONTEND_CHECK_SHIFT,
    FRONTEND_KEY,
    MEMBER,
    RANGE_KEY,
    SERVICE,
    SERVICE_FRONTEND,
    SERVICE_NAME,
    BackendKey,
    FrontendKey,
    FrontendWord,
    MemberValue,
    ServiceFrontendValue,
    ServiceName,
    ServiceValue,
)
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.prefix import MAPPED, Prefix
from svcctl.model.service import IN_CLUSTER, IN_LOCAL, Member, Service, ServiceFrontend
from svcctl.model.service_endpoint import Backend, Frontend

if TYPE_CHECKING:
    from collections.abc import Iterable


def family_of(address: bytes) -> int:
    """4 or 6, of 16 bytes."""
    return IPV4 if address.startswith(MAPPED) else IPV6


def frontend_key(frontend: Frontend) -> bytes:
    """Key in `frontends`."""
    return FRONTEND_KEY.pack(FrontendKey(frontend.address, frontend.port, frontend.protocol))


def blocked_key(address: bytes) -> bytes:
    """Key in `frontends` that stands for all other ports of an address."""
    return FRONTEND_KEY.pack(FrontendKey(address, 0, 0))


def frontend_check(key: bytes) -> int:
    """The digest of a 20-byte `frontends` key that its word carries: 24 bits."""
    return exact_check(key) >> FRONTEND_CHECK_SHIFT


def frontend_word(key: bytes, lane: int, flags: int) -> bytes:
    """The value for a `frontends` key."""
    return FRONTEND.pack(FrontendWord(lane, frontend_check(key) << FRONTEND_CHECK_SHIFT | flags))


def decode_frontend(address: bytes, port: int, protocol: int) -> Frontend:
    """A frontend from the fields of its key."""
    return Frontend(family_of(address), address, port, protocol)


def backend_key(backend: Backend) -> bytes:
    """Key in `backend_ids`."""
    return BACKEND_KEY.pack(BackendKey(backend.address, backend.port))


def name_key(name: str) -> bytes:
    """Key in `service_names`."""
    return SERVICE_NAME.pack(ServiceName(name.encode()))


def service_flags(service: Service) -> int:
    """`flags` of struct svc_service."""
    return (
        (enums.SERVICE_INTERNAL_LOCAL if service.internal_local else 0)
        | (enums.SERVICE_EXTERNAL_LOCAL if service.external_local else 0)
        | (enums.SERVICE_DSR if service.dsr else 0)
        | (enums.SERVICE_BLOCK if service.block else 0)
        | (enums.SERVICE_DROP if service.drop else 0)
    )


def range_keys(ranges: int, sources: Iterable[Prefix]) -> list[bytes]:
    """Keys in `source_ranges`; `ranges` is the service's number: IPv4's set, IPv6's is the next."""
    keys = []
    for family, address, length in sources:
        bits = 32 + (96 + length if family == IPV4 else length)
        keys.append(RANGE_KEY.struct.pack(bits, ranges + (family == IPV6), address))
    return keys


def decode_range(key: bytes) -> tuple[int, Prefix]:
    """(number of the set, prefix) of a key in `source_ranges`."""
    bits, number, address = RANGE_KEY.struct.unpack(key)
    family = family_of(address)
    return number, Prefix(family, address, bits - 32 - (96 if family == IPV4 else 0))


def encode_service(
    service: Service, lanes: dict[int, int], base: int, changed_ns: int, ranges: int = 0
) -> bytes:
    """Value in `services`; `lanes` by family; `base`: number of its first item; `ranges` of its source ranges."""
    return SERVICE.pack(
        ServiceValue(
            service.name.encode(),
            service.algorithm,
            service.owner.encode(),
            service.id,
            service_flags(service),
            service.affinity_seconds,
            lanes.get(IPV4, 0),
            lanes.get(IPV6, 0),
            len(service.frontends),
            len(service.members),
            service.node_port,
            changed_ns,
            ranges,
            base,
            service.health_port,
            service.local_ready,
            len(set(service.sources)),
            service.table_size,
        )
    )


def decode_service(
    value: ServiceValue,
    frontends: Iterable[ServiceFrontend],
    members: Iterable[Member],
    sources: Iterable[Prefix] = (),
) -> Service:
    """A service from its value and its items."""
    return Service(
        name=text(value.name),
        id=value.id,
        affinity_seconds=value.affinity_seconds,
        algorithm=value.algorithm,
        internal_local=bool(value.flags & enums.SERVICE_INTERNAL_LOCAL),
        external_local=bool(value.flags & enums.SERVICE_EXTERNAL_LOCAL),
        block=bool(value.flags & enums.SERVICE_BLOCK),
        drop=bool(value.flags & enums.SERVICE_DROP),
        node_port=value.node_port,
        owner=text(value.owner),
        sources=tuple(sources),
        frontends=tuple(frontends),
        members=tuple(members),
        changed_ns=value.changed_ns,
        health_port=value.health_port,
        local_ready=value.local_ready,
        table_size=value.table_size,
        dsr=bool(value.flags & enums.SERVICE_DSR),
    )


def encode_service_frontend(one: ServiceFrontend) -> bytes:
    """Value in `service_fronts`."""
    _, address, port, protocol = one.frontend
    return SERVICE_FRONTEND.pack(ServiceFrontendValue(address, port, protocol, 0, one.kind))


def decode_service_frontend(data: bytes) -> ServiceFrontend:
    """A frontend of a service."""
    value = SERVICE_FRONTEND.unpack(data)
    return ServiceFrontend(decode_frontend(value.address, value.port, value.protocol), value.kind)


def encode_member(member: Member, backend: int) -> bytes:
    """Value in `service_members`; `backend` is the id."""
    flags = enums.MEMBER_LOCAL if member.local else 0
    if not member.sets & IN_CLUSTER:
        flags |= enums.MEMBER_NOT_CLUSTER
    if not member.sets & IN_LOCAL:
        flags |= enums.MEMBER_NOT_LOCAL
    return MEMBER.pack(
        MemberValue(backend, member.weight, member.state, flags, member.since_ns, member.until_ns)
    )


def decode_member(value: MemberValue, backend: Backend) -> Member:
    """A membership."""
    return Member(
        backend,
        value.weight,
        value.state,
        bool(value.flags & enums.MEMBER_LOCAL),
        value.since_ns,
        value.until_ns,
        (0 if value.flags & enums.MEMBER_NOT_CLUSTER else IN_CLUSTER)
        | (0 if value.flags & enums.MEMBER_NOT_LOCAL else IN_LOCAL),
    )
