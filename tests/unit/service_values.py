"""Hypothesis strategies for services, in a small world where frontends and backends meet."""

from __future__ import annotations

from hypothesis import strategies as st

from svcctl.model.prefix import parse_prefix
from svcctl.model.service import Member, Service, ServiceFrontend, check_service
from svcctl.model.service_endpoint import (
    KIND_LOAD_BALANCER,
    Backend,
    BackendSpec,
    parse_backend,
    parse_frontend,
)

NOW = 1_700_000_000_000_000_000

BACKENDS = [parse_backend(text) for text in ("10.1.0.1:80", "10.1.0.2:80", "10.1.0.2:81", "127.0.0.1:80")]
BACKENDS += [parse_backend(text) for text in ("[2001:db8::1]:80", "[2001:db8::2]:80")]
FRONTENDS = [parse_frontend(text) for text in ("10.0.0.1:80/tcp", "10.0.0.1:80/udp", "10.0.0.2:443/tcp")]
FRONTENDS += [parse_frontend(text) for text in ("[fd00::1]:80/tcp", "[fd00::1]:53/udp")]
SOURCES = [parse_prefix(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32")]

weights = st.sampled_from([0, 1, 1, 1, 3, 65535])
states = st.sampled_from([0, 0, 0, 1, 2])
backends = st.sampled_from(BACKENDS)
specs = st.builds(
    BackendSpec,
    backends,
    st.none() | weights,
    st.none() | states,
    st.none() | st.booleans(),
)
members = st.lists(
    st.builds(Member, backends, weights, states, st.booleans(), st.just(NOW - 5)),
    unique_by=lambda each: each.backend,
    max_size=6,
).map(tuple)
frontends = st.lists(
    st.builds(ServiceFrontend, st.sampled_from(FRONTENDS), st.integers(0, 2)),
    unique_by=lambda each: each.frontend,
    min_size=1,
    max_size=4,
).map(tuple)


def _tidy(service: Service) -> Service:
    """Without source ranges where no frontend can have them."""
    if not any(each.kind == KIND_LOAD_BALANCER for each in service.frontends):
        service = service._replace(sources=())
    return check_service(service)


services = st.builds(
    Service,
    name=st.just("web"),
    id=st.just(7),
    affinity_seconds=st.sampled_from([0, 60]),
    algorithm=st.integers(0, 1),
    internal_local=st.booleans(),
    external_local=st.booleans(),
    block=st.booleans(),
    drop=st.booleans(),
    dsr=st.booleans(),
    owner=st.sampled_from(["", "kubernetes"]),
    sources=st.lists(st.sampled_from(SOURCES), unique=True).map(tuple),
    frontends=frontends,
    members=members,
).map(_tidy)


def member(text: str, weight: int = 1, state: int = 0, local: bool = False) -> Member:
    """A member of a backend's text."""
    return Member(parse_backend(text), weight, state, local, NOW - 5)


def backend(text: str) -> Backend:
    """A backend of its text."""
    return parse_backend(text)
