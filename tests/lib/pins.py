"""What the pinned maps hold, read beside svcctl: to see that a command changed nothing, or just one thing."""

from __future__ import annotations

import os

from svcctl.bpf.map import Map
from svcctl.maps import catalog, layouts


def dump(state_dir: str, *, but: tuple[str, ...] = ()) -> dict[str, object]:
    """Everything in a state directory: names and modes of pins, entries of maps, cookies of sockets.

    `but` names maps to leave out (dispatch_stats and drop_stats move with traffic).
    """
    if not os.path.isdir(state_dir):
        return {"": sorted(os.listdir(os.path.dirname(state_dir)))}
    found: dict[str, object] = {}
    for name in sorted(os.listdir(state_dir)):
        status = os.lstat(f"{state_dir}/{name}")
        found[f"pin {name}"] = (status.st_mode, status.st_uid, status.st_gid, status.st_ino)
    for name in catalog.MAPS:
        if name not in but and f"pin {name}" in found:
            found[name] = entries(state_dir, name)
    return found


def entries(state_dir: str, name: str) -> object:
    """All entries of one pinned map: as they come of an array, by key of the others."""
    with Map.open_pinned(f"{state_dir}/{name}", read_only=True) as opened:
        keys, values, count = opened.read_all()
        if opened.info.type in (catalog.ARRAY, catalog.PERCPU_ARRAY):
            return values
        k, v = opened.key_bytes, opened.value_bytes
        return {keys[i * k : i * k + k]: values[i * v : i * v + v] for i in range(count)}


def meta(state_dir: str) -> layouts.Meta:
    """The `meta` record."""
    with Map.open_pinned(f"{state_dir}/meta", read_only=True) as opened:
        data = opened.lookup(bytes(4))
        assert data is not None
        return layouts.META.unpack(data)
