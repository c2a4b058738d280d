"""Candidates for completion from the live state: read-only, without waiting for a lock, as they are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.cli.env import Env
    from svcctl.state.session import State

_LIMIT = 200_000
"""Bindings looked at for one key press: a tenth of a second."""


def candidates(kind: str, env: Env, service: str | None = None) -> Iterator[str]:
    """Values of a kind that the state has, each once, in order; of frontends and backends those of `service`.

    Kinds: label, prefix, address, port, endpoint, service, frontend, backend, source (of `service`), node, interface.
    Raises what opening the state raises; the caller shows nothing then. Any other kind has none.
    """
    if kind == "interface":
        yield from _interfaces(env)
        return
    find = _KINDS.get(kind)
    if find is None:
        return
    from svcctl.cli.access import place
    from svcctl.maps.catalog import BALANCER
    from svcctl.state.session import open_reader

    with open_reader(place(env)) as reader:
        if reader.has_half(BALANCER) if kind in _OF_SERVICES else reader.has_dispatcher():
            yield from _of_service(reader, service, kind) if service is not None else find(reader)
        if kind == "endpoint" and reader.has_half(BALANCER):
            yield from _frontends(reader)


def _interfaces(env: Env) -> Iterator[str]:
    """Those of the namespace, attached or not; no state is needed."""
    from svcctl.host.devices import devices
    from svcctl.host.netns import Netns

    with Netns.open(env.netns) as netns:
        yield from sorted(one.name for one in devices(netns) if not one.loopback)


def _labels(state: State) -> Iterator[str]:
    from svcctl.state.destinations import read_all

    yield from sorted({found.key.label for found in read_all(state).values()})


def _ports(state: State) -> Iterator[str]:
    """From the counts of `ports`: 1 MiB to look through, however many bindings there are."""
    from svcctl.maps import layouts

    _, values, _ = state.map("ports").read_all()
    if not values.strip(b"\0"):
        return
    bound = {
        index % 65536
        for index, counts in enumerate(layouts.PORTS.struct.iter_unpack(values))
        if counts != (0, 0)
    }
    yield from map(str, sorted(bound))


def _prefixes(state: State) -> Iterator[str]:
    from svcctl.model.binding import key_fields

    yield from dict.fromkeys(key_fields(key)[1] for key in _keys(state))


def _addresses(state: State) -> Iterator[str]:
    """Addresses that are bound as such, without their length."""
    from svcctl.model.binding import is_exact_key, key_fields

    yield from dict.fromkeys(
        key_fields(key)[1].partition("/")[0] for key in _keys(state) if is_exact_key(key)
    )


def _endpoints(state: State) -> Iterator[str]:
    """Host bindings with a port of their own, as `explain` takes them."""
    from svcctl.model.binding import Binding, is_exact_key
    from svcctl.model.endpoint import Endpoint

    for key in _keys(state):
        if is_exact_key(key):
            one = Binding.from_key(key, "")
            if one.port:
                yield str(Endpoint(one.family, one.address, one.port, one.protocol))


def _keys(state: State) -> list[bytes]:
    """Keys of 24 bytes, in the order of listings, of at most `_LIMIT` bindings."""
    from itertools import islice

    from svcctl.maps.layouts import U32
    from svcctl.model.binding import key_fault, listing_order

    full = U32.pack(160)
    found = [full + key for key, _ in islice(state.map("exact").items(), _LIMIT)]
    found += [key for key, _ in islice(state.map("bindings").items(), _LIMIT - len(found))]
    return sorted((key for key in found if key_fault(key) is None), key=listing_order)


def _services(state: State) -> Iterator[str]:
    from svcctl.maps.layouts import text

    yield from sorted(text(key[:255]) for key, _ in state.map("service_names").items())


def _frontends(state: State) -> Iterator[str]:
    from svcctl.state.nat import route_names

    yield from route_names(state)


def _backends(state: State) -> Iterator[str]:
    from svcctl.maps.service_layouts import BACKEND
    from svcctl.model.service_endpoint import format_backend
    from svcctl.state.services import as_backend

    found = sorted(as_backend(BACKEND.unpack(data)) for _, data in state.map("backends").items())
    yield from map(format_backend, found)


def _of_service(state: State, name: str, kind: str) -> Iterator[str]:
    from svcctl.model.prefix import format_prefix
    from svcctl.model.service_endpoint import format_backend, format_frontend
    from svcctl.state import services

    found = services.find(state, name)
    if found is None:
        return
    if kind == "frontend":
        yield from map(format_frontend, sorted(each.frontend for each in found.service.frontends))
    elif kind == "source":
        yield from (format_prefix(*each) for each in sorted(found.service.sources))
    else:
        yield from map(format_backend, sorted(each.backend for each in found.service.members))


def _nobodys(state: State) -> Iterator[str]:
    """What only a service has."""
    return iter(())


def _nodes(state: State) -> Iterator[str]:
    from svcctl.state.nodes import names

    yield from sorted(names(state).values())


_OF_SERVICES = ("service", "frontend", "backend", "source", "node")
_KINDS = {
    "service": _services,
    "node": _nodes,
    "frontend": _frontends,
    "backend": _backends,
    "source": _nobodys,
    "label": _labels,
    "prefix": _prefixes,
    "address": _addresses,
    "port": _ports,
    "endpoint": _endpoints,
}
