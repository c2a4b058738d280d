"""Ways to break a state by hand, each with the invariant of `check` that it breaks: the frame."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from tests.lib.sockets import writer
from tests.lib.world import World

BINDINGS = (
    ("web", "tcp", "127.0.0.1", "80"),
    ("web", "tcp", "192.0.2.0/24", "443"),
    ("web", "tcp", "2001:db8::/32", "0"),
    ("dns", "udp", "127.0.0.1", "53"),
)


class Case(NamedTuple):
    """`breaks` breaks `invariant`; `says` is in the finding; not `mended`: `says` is what to decide, in the advice."""

    invariant: str
    breaks: Callable[[Setup], None]
    says: str
    mended: bool = True
    same: bool = True  # the bindings are as before afterwards


class Setup:
    """A loaded state with bindings and sockets, and what a test may need of it."""

    def __init__(self, world: World, web: socket.socket, dns: socket.socket) -> None:
        self.world = world
        self.web = web
        self.dns = dns
        self.close_later: list[object] = []

    @property
    def path(self) -> str:
        return self.world.state_dir


CASES: dict[str, Case] = {}


def case(invariant: str, says: str, *, mended: bool = True, same: bool = True) -> Callable[..., None]:
    def add(breaks: Callable[[Setup], None]) -> None:
        CASES[breaks.__name__] = Case(invariant, breaks, says, mended, same)

    return add


def put_meta(**fields: object) -> None:
    """Change fields of `meta`."""
    with writer() as state:
        state.put_meta(state.meta()._replace(**fields))  # type: ignore[arg-type]
