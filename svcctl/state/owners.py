"""`binding_owners`: who asked for a binding in a desired state. What was made by hand is not in it.

An owner is noted before its binding is written and forgotten after that is gone; whoever gives a binding another label
by hand forgets it before. So after a command that died there may be an owner too many, which the audit removes, never
one of what somebody else made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Full
from svcctl.maps import layouts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from svcctl.state.session import State
    from svcctl.state.writer import Writer


NO_OWNERS: Mapping[bytes, str] = {}


def read_owners(state: State) -> dict[bytes, str]:
    """24-byte key of a binding -> who asked for it."""
    keys, values, count = state.map("binding_owners").read_all()
    key_size, size = layouts.BINDING_KEY.size, layouts.OWNER.size
    return {
        keys[key_size * n : key_size * (n + 1)]: layouts.text(values[size * n : size * (n + 1)])
        for n in range(count)
    }


def note_owners(writer: Writer, owners: Mapping[bytes, str]) -> None:
    """Note who asked for these bindings. Inside `changing()`."""
    if owners:
        values = b"".join(layouts.OWNER.struct.pack(name.encode()) for name in owners.values())
        writer.map("binding_owners").update_many(b"".join(owners), values, len(owners))


def check_owner_room(state: State, have: Collection[bytes], owners: Mapping[bytes, str]) -> None:
    """Raise Full where the owners that are noted for a change have no room beside those there are."""
    largest = state.map("binding_owners").info.max_entries
    more = sum(key not in have for key in owners)
    if len(have) + more > largest:
        raise Full(
            f"map 'binding_owners' is full: {len(have)} of {largest} used, {more} more wanted",
            hint="'svcctl upgrade --max-bindings N' makes it larger without interruption",
        )


def forget_owners(writer: Writer, keys: Collection[bytes]) -> None:
    """These bindings are gone, or made by hand from now on. Inside `changing()`."""
    if keys:
        writer.map("binding_owners").delete_many(b"".join(keys), len(keys))
