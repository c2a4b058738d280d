"""`svcctl register`: takes sockets over that systemd passed to this command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import LABEL

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "register",
    examples=(
        "ExecStart=svcctl register web",
        "systemd-socket-activate -l 127.0.0.1:8080 svcctl register web",
    ),
    exits=(0, 2, 3, 4, 6, 7, 8, 9),
)
@argument("label", LABEL, "Label to register the sockets under.")
@option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only sockets with this FileDescriptorName=; may be repeated.",
)
def command(env: Env, label: str, names: tuple[str, ...]) -> None:
    """Register the sockets of a systemd socket unit under LABEL.

    Reads LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES as sd_listen_fds(3) does. All sockets are looked at before the
    first is registered.
    """
    from svcctl.cli.access import planning
    from svcctl.cli.registration import register_offers
    from svcctl.errors import UsageProblem
    from svcctl.host.listen_fds import listen_fds
    from svcctl.host.socket_info import SocketProblem, describe
    from svcctl.state.sockets import Offer

    passed = listen_fds()
    chosen = [(fd, name) for fd, name in passed if not names or name in names]
    if not chosen:
        have = ", ".join(sorted({name for _, name in passed}))
        raise UsageProblem(
            f"register {label!r}: none of the {len(passed)} sockets has that name; there are: {have}"
        )
    offers = []
    for fd, name in chosen:
        try:
            offers.append(Offer(fd, describe(fd)))
        except SocketProblem as problem:
            raise UsageProblem(
                f"register {label!r}: descriptor {fd} ({name}) is {problem.reason}"
            ) from problem
    with planning(env) as (state, writer):
        register_offers(env, state, writer, label, offers)
