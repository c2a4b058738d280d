"""Whether the connect balancer serves: its records and settings against its links and its cgroup."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError
from svcctl.errors import SvcctlError
from svcctl.host import cgroup
from svcctl.maps import catalog, enums
from svcctl.record import Record
from svcctl.state.balancer import recorded
from svcctl.state.service_config import read_service_config
from svcctl.state.writer import link_info

if TYPE_CHECKING:
    from svcctl.maps.catalog import ProgramShape
    from svcctl.state.session import State


class Condition(Record):
    """`cgroup` is the id of the recorded one, None without; `gone`: there is no such cgroup any more.

    `down` are the hooks that the settings ask for and that are not attached.
    """

    cgroup: int | None
    gone: bool
    down: tuple[str, ...]
    excludes_udp: bool

    @property
    def serves(self) -> bool:
        """Whether every hook there should be is attached."""
        return self.cgroup is not None and not self.gone and not self.down

    @property
    def text(self) -> str | None:
        """What is wrong, None: nothing."""
        if self.cgroup is None:
            return "the balancer is not attached ('svcctl attach cgroup')"
        if self.gone:
            return "the balancer's cgroup was removed ('svcctl attach cgroup' puts it on another)"
        if self.down:
            names = ", ".join(self.down)
            return f"hooks of the balancer are down: {names} ('svcctl check --repair' attaches them)"
        return None

    def fault_of(self, hooks: tuple[str, ...]) -> str | None:
        """Why connections by these hooks are not balanced, None: they are."""
        if self.cgroup is None or self.gone or any(name in self.down for name in hooks):
            return self.text
        return None


def serves_packets(state: State) -> bool:
    """Whether the packet path is on some interface: services are then of use without the balancer."""
    if not state.has_half(catalog.PACKETS):
        return False
    from svcctl.state.device_links import records

    return bool(records(state))


def fault(state: State) -> str | None:
    """What is wrong with the balancer, None: nothing, or it is not attached and the packet path is."""
    now = condition(state)
    return None if now.cgroup is None and serves_packets(state) else now.text


def condition(state: State) -> Condition:
    """How the balancer is. Others than root cannot open links: a pinned one is up for them."""
    config = read_service_config(state)
    excludes_udp = bool(config.flags & enums.CONFIG_EXCLUDE_UDP)
    have = recorded(state)
    if not have:
        return Condition(None, False, (), excludes_udp)
    number = next(iter(have.values()))
    down = []
    for shape in catalog.CONNECT:
        if excludes_udp and shape.name in catalog.UDP_HOOKS:
            continue
        if shape.hook not in have or not _is_up(state, shape, have[shape.hook]):
            down.append(shape.name)
    return Condition(number, cgroup.is_gone(number), tuple(down), excludes_udp)


def _is_up(state: State, shape: ProgramShape, number: int) -> bool:
    if os.geteuid() != 0:
        return os.path.lexists(state.pin(shape.link_pin))
    try:
        info = link_info(state, shape)
    except (SvcctlError, BpfError):
        return False
    return info is not None and info.cgroup_id == number
