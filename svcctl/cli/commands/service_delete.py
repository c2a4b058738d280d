"""`svcctl service delete`: removes a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, verb
from svcctl.cli.service_params import SERVICE

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb("delete", examples=("svcctl service delete web",), exits=(0, 2, 3, 4, 5, 9))
@argument("name", SERVICE, "Name of the service.")
def command(env: Env, name: str) -> None:
    """Remove a service with its frontends and memberships.

    New connections to its addresses are nobody's from then on; established ones go on. Backends that other
    services have stay.
    """
    from svcctl.cli.service_commands import change_service

    change_service(env, name, "service delete", lambda have, now: None)
