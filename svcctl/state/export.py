"""export: the state that was asked for, without what the kernel and the services add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.state import destinations
from svcctl.state.bindings import read_ids

if TYPE_CHECKING:
    from svcctl.state.session import State


def read_export(state: State) -> tuple[dict[bytes, str], int]:
    """(24-byte key -> label of every binding, number of bindings whose destination is gone)."""
    if not state.has_dispatcher():
        return {}, 0
    names = {number: found.key.label for number, found in destinations.read_all(state).items()}
    ids = read_ids(state)
    labels = {key: names[number] for key, number in ids.items() if number in names}
    return labels, len(ids) - len(labels)
