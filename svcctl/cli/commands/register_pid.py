"""`svcctl register-pid`: takes the listening socket of a running process over into a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.complete import complete_labels
from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import ADDRESS, PORT, PROTOCOL, SECONDS, WORD

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix


@verb(
    "register-pid",
    examples=(
        "svcctl register-pid 4711 web tcp 127.0.0.1 8080",
        "svcctl register-pid /run/nginx.pid web tcp 127.0.0.1 8080",
        "ExecStartPost=+svcctl register-pid $MAINPID web tcp 127.0.0.1 8080",
    ),
    exits=(0, 2, 3, 4, 5, 6, 7, 8, 9),
)
@argument("pid", WORD, "Process number, or a file that holds one.")
@argument("label", WORD, "Label to register the socket under.", shell_complete=complete_labels)
@argument("protocol", PROTOCOL, "tcp or udp.")
@argument("address", ADDRESS, "Address the process listens on, also by a wildcard.")
@argument("port", PORT, "Port the process listens on.")
@option(
    "--wait", type=SECONDS, default=5.0, metavar="SECONDS", help="Wait so long for the socket; 0: do not [5]."
)
@option("--tree", is_flag=True, help="Search the process's children too.")
def command(
    env: Env, pid: str, label: str, protocol: int, address: Prefix, port: int, wait: float, tree: bool
) -> None:
    """Register the socket that process PID listens on for ADDRESS and PORT under LABEL.

    The socket is found among all descriptors of the process and duplicated; the process notices nothing. A
    restarted process is registered again in the same way: its socket takes the place of the dead one. Members of
    an SO_REUSEPORT group are registered together.
    """
    import os

    from svcctl.cli.access import place, planning
    from svcctl.cli.registration import register_offers
    from svcctl.host.find_sockets import find_sockets
    from svcctl.host.netns import Netns
    from svcctl.host.process import parse_pid_or_file
    from svcctl.model.label import check_label
    from svcctl.state.sockets import Offer

    pid, label = _in_order(pid, label)
    number = parse_pid_or_file(pid)
    check_label(label)
    # Waiting for the process comes before the lock: nobody else has to wait for it.
    with Netns.open(place(env).netns) as netns:
        found = find_sockets(
            number, protocol, address.family, address.address, port, netns=netns, tree=tree, wait=wait
        )
    try:
        with planning(env) as (state, writer):
            register_offers(env, state, writer, label, [Offer(one.fd, one.info) for one in found])
    finally:
        for one in found:
            os.close(one.fd)


def _in_order(first: str, second: str) -> tuple[str, str]:
    """(pid, label): the other order, which some documents show, is taken when only that can be meant."""
    if "/" not in first and not _is_pid(first) and _is_pid(second):
        return second, first
    return first, second


def _is_pid(text: str) -> bool:
    import os

    return (text.isascii() and text.isdigit()) or os.path.isfile(text)
