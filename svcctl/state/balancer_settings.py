"""The settings of the connect balancer as people read them: what `attach cgroup` was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.maps import enums
from svcctl.record import Record
from svcctl.state.service_config import read_service_config

if TYPE_CHECKING:
    from svcctl.maps.service_layouts import Config
    from svcctl.state.session import State


class Settings(Record):
    """What `attach cgroup` was told."""

    host_only: bool
    excludes_udp: bool
    udp_affinity: int

    @property
    def words(self) -> tuple[str, str, str]:
        """As options say it: `--sockets`, whether UDP is served, `--udp-affinity`."""
        return (
            "host" if self.host_only else "all",
            "excluded" if self.excludes_udp else "served",
            f"{self.udp_affinity}s" if self.udp_affinity else "none",
        )

    @property
    def values(self) -> dict[str, Any]:
        """For JSON: `udp_affinity` in seconds."""
        return {
            "sockets": self.words[0],
            "udp": not self.excludes_udp,
            "udp_affinity": self.udp_affinity,
        }

    def __str__(self) -> str:
        """For a listing."""
        return ", ".join(f"{name} {word}" for name, word in zip(_SETTINGS, self.words, strict=True))


_SETTINGS = ("sockets", "udp", "udp-affinity")


def settings_of(config: Config) -> Settings:
    """What a value of `config` says."""
    return Settings(
        bool(config.flags & enums.CONFIG_HOST_ONLY),
        bool(config.flags & enums.CONFIG_EXCLUDE_UDP),
        config.udp_affinity_seconds,
    )


def read_settings(state: State) -> Settings:
    """The settings as they are."""
    return settings_of(read_service_config(state))


def setting_changes(old: Config, new: Config) -> str:
    """`sockets all -> host, udp served -> excluded`; empty when they are the same."""
    pairs = zip(_SETTINGS, settings_of(old).words, settings_of(new).words, strict=True)
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in pairs if before != after)
