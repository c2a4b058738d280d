"""`--terminate` of `backend delete` and `service delete`: rights first, then what is ended and what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import NotFound, UsageProblem
from svcctl.model.service_endpoint import format_backend
from svcctl.render.times import utc
from svcctl.state.remembered import backends_of
from svcctl.state.terminate import need_rights, terminate, unknown_sockets

if TYPE_CHECKING:
    from collections.abc import Collection

    from svcctl.cli.env import Env
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.services import Stored
    from svcctl.state.session import State


def check_options(action: str, *, ends: bool, tcp: bool) -> None:
    """Raise UsageProblem for --tcp alone."""
    if tcp and not ends:
        raise UsageProblem(f"{action}: --tcp goes with --terminate")


class Ending:
    """What one command ends; `check` comes before its first write, `carry_out` after its last.

    `backends` None: whatever sockets were given to through the service.
    """

    def __init__(self, env: Env, action: str, backends: Collection[Backend] | None, *, tcp: bool) -> None:
        self.env = env
        self.action = action
        self.tcp = tcp
        self._backends = backends
        self._wanted: set[Backend] = set()

    def check(self, state: State, have: Stored) -> None:
        """Raise PermissionProblem for who may not end sockets, NotFound for a backend no socket and no member is of.

        One that is no member any more may still have sockets: those that an earlier delete left.
        """
        if not self.env.dry_run:
            need_rights(f"{self.action} {have.service.name}")
        members = {member.backend for member in have.service.members}
        remembered = backends_of(state, have.service.id)
        for backend in self._backends or ():
            if backend not in members and backend not in remembered:
                raise NotFound(
                    f"{self.action} {have.service.name}: {format_backend(backend)}: no backend of this service,"
                    " and no socket was given to it",
                    hint=f"'svcctl backends {have.service.name}' lists them",
                )
        self._wanted = set(self._backends) if self._backends is not None else members | remembered

    def carry_out(self, state: State, have: Stored) -> None:
        """End them, and say how many."""
        ended = terminate(state, have.service.id, self._wanted, tcp=self.tcp, dry_run=self.env.dry_run)
        self.env.notice(f"{'would end' if self.env.dry_run else 'ended'} {ended}")
        unknown = unknown_sockets(state, have.lanes.values())
        if unknown:
            self.env.warn(
                f"{self.action}: {unknown} connections of {have.service.name} found no room to be remembered"
                " (--max-sockets): those of them that are still open cannot be told and go on"
            )


def tell_lost_drains(env: Env, have: Stored, gone: Collection[Backend]) -> None:
    """Say which drains will not be carried out, as nobody remembers the backends any more."""
    for member in have.service.members:
        if member.until_ns and member.backend in gone:
            env.notice(
                f"drain of {have.service.name} {format_backend(member.backend)} was to end at {utc(member.until_ns)}:"
                " what is left there goes on now (--terminate --tcp ends it)"
            )
