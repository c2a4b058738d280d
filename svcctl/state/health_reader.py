"""Reading the state again and again for `svcctl health`: cheap while nothing changes, calm while it is changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.errors import NotLoaded, SvcctlError
from svcctl.host.addresses import local_addresses
from svcctl.model.constants import IPV4, IPV6
from svcctl.model.health import Health
from svcctl.model.prefix import MAPPED, format_address
from svcctl.state.node_addresses import read_nets, serves
from svcctl.state.node_status import read_fault, read_health
from svcctl.state.session import open_reader, read_consistent

if TYPE_CHECKING:
    from svcctl.state.place import Place
    from svcctl.state.session import Reader

_LINK_LOCAL = b"\xfe\x80"
_CALM = 10.0
"""Seconds for which the last good look stands when a new one fails: an upgrade, or a command with much to write."""


class HealthReader:
    """A look at the state for each call, never an exception. Opens what it reads, and closes it again.

    The services are read only when a command has changed something since; whether programs are attached, always.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._last: Health | None = None
        self._seen: tuple[int, int, int] | None = None
        self._good = 0.0

    def __call__(self) -> Health:
        """The health now."""
        now = time.monotonic()
        try:
            found, sure = self._look()
        except NotLoaded as error:
            self._last = self._seen = None
            return Health({}, True, 0.0, 0.0, error.message)
        except (SvcctlError, OSError) as error:
            return self._stale(now, str(error))
        if not sure and self._last is not None and now - self._good < _CALM:
            return self._last
        if sure:
            self._good = now
        self._last = found
        return found

    def _look(self) -> tuple[Health, bool]:
        with open_reader(self._place) as reader:
            seen = self._stamp(reader)
            if self._last is not None and seen == self._seen and not seen[2] & 1:
                return self._last._replace(fault=read_fault(reader)), True
        found, sure = read_consistent(self._place, lambda state: (self._stamp(state), _read(state)))
        self._seen = found[0] if sure else None
        return found[1], sure

    def _stamp(self, reader: Reader) -> tuple[int, int, int]:
        return (*reader.identity, reader.generation())

    def _stale(self, now: float, why: str) -> Health:
        """The last look stands for a while; without one, or for longer, the node is not well."""
        self._seen = None
        if self._last is None:
            return Health({}, True, 0.0, 0.0, why)
        return self._last if now - self._good < _CALM else self._last._replace(fault=why)


def _read(state: Reader) -> Health:
    health = read_health(state)
    return health._replace(addresses=_addresses(state)) if health.ports else health


def _addresses(state: Reader) -> tuple[str, ...] | None:
    """Where node ports are served, if that is limited: health-check ports are answered there, as by kube-proxy."""
    nets = read_nets(state)
    if not nets:
        return None
    return tuple(
        format_address(IPV4 if address.startswith(MAPPED) else IPV6, address)
        for address in local_addresses(state.netns)
        if serves(address, nets)
        and not address.startswith(_LINK_LOCAL)  # those are an interface's, not the node's
    )
